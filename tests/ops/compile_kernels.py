"""Compiles every kernel ahead of time for a GPU that need not be there, and prints registers and spills as JSON rows.

    python -m tests.ops.compile_kernels 80 90 100

A process of its own, since a kernel that was defined for the interpreter cannot be compiled.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas

from edgewise.ops import gate, gather_rotate, rotate_scatter
from edgewise.ops.launch import warps

CHANNELS = 128


def kernels() -> list[tuple[str, Any, dict[str, int | bool]]]:
    """Return name, function and constants of each kernel in each form that the mode launches."""
    found: list[tuple[str, Any, dict[str, int | bool]]] = []
    for mmax in (2, 1):
        tile = {"CHANNELS": CHANNELS, "BLOCK": CHANNELS, "MMAX": mmax}
        found.append(("gather_rotate", gather_rotate._gather_rotate_forward, tile))
        found += [
            ("gather_rotate backward", gather_rotate._gather_rotate_backward, {**tile, "TO_ATOMS": on})
            for on in (True, False)
        ]
        for orders in (mmax, 0):
            for on in (True, False):
                found += [
                    (
                        "rotate_scatter",
                        rotate_scatter._rotate_scatter_forward,
                        {**tile, "ORDERS": orders, "ACCUMULATE": on},
                    ),
                    (
                        "rotate_scatter backward",
                        rotate_scatter._rotate_scatter_backward,
                        {**tile, "ORDERS": orders, "GATHER": on},
                    ),
                ]
        found += [
            ("gate", gate._gate_forward, {"HIDDEN": CHANNELS, "MMAX": mmax}),
            ("gate backward", gate._gate_backward, {"HIDDEN": CHANNELS, "MMAX": mmax}),
        ]
    return found


TYPES = {"edge_index": "*i64", "n_edges": "i32", "stride_0": "i32", "stride_1": "i32", "stride_2": "i32"}
"""Types of arguments by their names; the others are float32 tensors."""


def compile_for(
    function: Any,
    constants: dict[str, Any],
    capability: int,
    types: dict[str, str] | None = None,
    num_warps: int | None = None,
) -> Any:
    """Compile a kernel for tensors whose rows begin at multiples of 16 bytes, as torch makes them."""
    types = TYPES if types is None else types
    names = function.arg_names
    signature = {name: "constexpr" if name in constants else types.get(name, "*fp32") for name in names}
    aligned = [name for name in names if signature[name].startswith("*") or name.startswith("stride")]
    source = triton.compiler.ASTSource(
        fn=function,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    target = GPUTarget("cuda", capability, 32)
    return triton.compile(source, target=target, options={"num_warps": num_warps or warps(CHANNELS)})


def resources(compiled: Any, capability: int) -> dict[str, int]:
    """Return registers and spilled bytes by the ptxas that Triton brings."""
    architecture = f"sm_{capability}" + ("a" if capability >= 90 else "")
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "kernel.ptx"
        text.write_text(compiled.asm["ptx"])
        command = [get_ptxas(capability).path, "-v", f"--gpu-name={architecture}", str(text), "-o", f"{folder}/out"]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", report)
    registers = re.search(r"Used (\d+) registers", report)
    assert spills
    assert registers
    return {"registers": int(registers[1]), "spilled_bytes": int(spills[1]) + int(spills[2])}


def edge_bits(compiled: Any) -> int:
    """Return the width of the numbers that a kernel counts its edges in, and with them where their rows begin."""
    (bits,) = re.findall(r"scf\.for .* : i(\d+) {", compiled.asm["ttir"])
    return int(bits)


def run(module: str, capability: int) -> list[dict[str, Any]]:
    """Compile the kernels of a module like this one in a process of its own; print and return the rows."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", module, str(capability)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    for row in rows:
        print(row)
    return rows


def main() -> None:
    """Print one row for each kernel and GPU."""
    for capability in map(int, sys.argv[1:]):
        for name, function, constants in kernels():
            compiled = compile_for(function, constants, capability)
            row = {"kernel": name, **constants, "capability": capability, "edge_bits": edge_bits(compiled)}
            print(json.dumps({**row, **resources(compiled, capability)}), flush=True)


if __name__ == "__main__":
    main()
