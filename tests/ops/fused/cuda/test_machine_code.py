"""The kernels in CUDA C++ compile for GPUs that are not here, without spilling registers; what is compiled is kept."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import torch
import triton

from edgewise.errors import ModeUnavailableError
from edgewise.ops.fused.cuda import _compiler, _kernels, gated_products, keep_code_in, missing
from edgewise.ops.fused.cuda._radial_form import FEWEST_WARPS, RadialForm, warps_that_fit
from edgewise.ops.fused.cuda._source import Form, degree_groups, source
from edgewise.ops.fused.row_format import FLOAT16, FLOAT32, FLOAT64, SPLIT, TF32, RowFormat
from edgewise.ops.reference import MessageShape
from tests.ops.fused.cuda.emulator import KERNELS

pytestmark = pytest.mark.kernels

SHAPES = [(2, 2), (2, 1), (4, 2), (1, 1), (0, 0)]

REPORT = re.compile(r"Function (\w+):\s*REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")


def dumped(what: str, code: bytes, folder: Path) -> str:
    """Return what NVIDIA's tool says of machine code."""
    (folder / "code.cubin").write_bytes(code)
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    command = [str(tool), what, str(folder / "code.cubin")]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def resources(code: bytes, folder: Path) -> list[dict[str, int | str]]:
    """Return name, registers of a thread, and bytes of stack and of shared memory of each kernel."""
    report = dumped("-res-usage", code, folder)
    keys = ("registers", "stack", "shared")
    return [
        {"kernel": name, **dict(zip(keys, map(int, found), strict=False))} for name, *found in REPORT.findall(report)
    ]


@pytest.mark.parametrize("architecture", [80, 90, 100])
@pytest.mark.parametrize(("lmax", "mmax"), SHAPES)
def test_kernels_compile_without_spills(architecture: int, lmax: int, mmax: int, tmp_path: Path) -> None:
    # Blackwell's code holds a few more values; that of its own has to be measured before blocks are made fewer there.
    allowed = 40 if architecture == 100 else 0
    for row_format in _kernels.FORMATS:
        for file, embedding in (("gather_rotate.cu", False), ("rotate_sum.cu", False), ("rotate_sum.cu", True)):
            given = Form(lmax, mmax, 128, row_format, embedding)
            code = _compiler.compile_cubin(source(file, given), file, architecture)
            rows = resources(code, tmp_path)
            print(given, *rows, sep="\n  ")
            assert {row["kernel"] for row in rows} == set(KERNELS[file])
            assert [row for row in rows if int(row["stack"]) > allowed] == []


def test_gated_products_compile_as_they_are_meant(tmp_path: Path) -> None:
    code = _compiler.compile_cubin(gated_products.source(), gated_products.FILE, gated_products.ARCHITECTURE)
    (row,) = resources(code, tmp_path)
    assert (row["kernel"], row["registers"], row["stack"]) == ("gated_products", 128, 0)
    instructions = dumped("-sass", code, tmp_path)
    # Roles hand over registers, and products are under way together: where the compiler does not see that they may be, it
    # waits behind each.
    counts = {
        name: len(re.findall(rf"\b{re.escape(name)}", instructions))
        for name in ("USETMAXREG", "HGMMA.64x128x16", "HGMMA.64x192x16", "WARPGROUP.DEPBAR", "LDL", "STL")
    }
    assert counts == {
        "USETMAXREG": 2,
        "HGMMA.64x128x16": 16,
        "HGMMA.64x192x16": 4,
        "WARPGROUP.DEPBAR": 4,
        "LDL": 0,
        "STL": 0,
    }


SHARED = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
"""Bytes of shared memory that a block can have."""


@pytest.mark.parametrize("architecture", SHARED)
@pytest.mark.parametrize(("n_hidden", "n_basis"), [(128, 32), (128, 64), (128, 128), (64, 32)])
def test_radial_networks_compile_without_spills(architecture: int, n_hidden: int, n_basis: int, tmp_path: Path) -> None:
    warps = warps_that_fit(n_hidden, n_basis, SHARED[architecture])
    if warps < FEWEST_WARPS:
        assert (architecture, n_basis) == (80, 128), "all others are served"
        return
    for row_format in _kernels.FORMATS:
        given = RadialForm(n_hidden, n_basis, row_format, warps)
        code = _compiler.compile_cubin(source("radial_hidden.cu", given), "radial_hidden.cu", architecture)
        rows = resources(code, tmp_path)
        print(given, given.shared_bytes, *rows, sep="\n  ")
        assert [row["kernel"] for row in rows] == ["radial_hidden"]
        assert rows[0]["stack"] == 0
        assert given.shared_bytes <= SHARED[architecture]


def test_what_cannot_be_compiled_is_explained() -> None:
    with pytest.raises(ModeUnavailableError, match=r"nonsense\.cu(.|\n)*nonsense is undefined|identifier"):
        _compiler.compile_cubin("int f() { return nonsense; }", "nonsense.cu", 90)


def test_machine_code_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'extern "C" __global__ void nothing() {}'
    made = _kernels.machine_code(text, "nothing.cu", 90, tmp_path / "new")
    (kept,) = (tmp_path / "new").iterdir()
    with monkeypatch.context() as patch:
        patch.setattr(_compiler, "compile_cubin", lambda *_: pytest.fail("it was there"))
        assert _kernels.machine_code(text, "nothing.cu", 90, tmp_path / "new") == made
    for damaged in (kept.read_bytes()[:-1], b""):
        kept.write_bytes(damaged)
        assert _kernels.machine_code(text, "nothing.cu", 90, tmp_path / "new") == made
    _kernels.machine_code(text, "nothing.cu", 80, tmp_path / "new")
    _kernels.machine_code(text + "\n", "nothing.cu", 90, tmp_path / "new")
    assert len(list((tmp_path / "new").iterdir())) == 3, "other code has another name, and nothing else is left"


def test_a_folder_that_cannot_be_written_costs_time_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    code = _kernels.machine_code('extern "C" __global__ void nothing() {}', "nothing.cu", 90, tmp_path / "file")
    assert code.startswith(b"\x7fELF")
    assert "no machine code was kept" in caplog.text


def test_where_the_kernels_cannot_serve_there_is_a_reason() -> None:
    device = torch.device("cuda")
    assert "float64" in str(missing(MessageShape(2, 2, 128, 128), FLOAT64, device))
    assert "6 channels" in str(missing(MessageShape(2, 2, 6, 6), FLOAT16, device))
    assert "lmax is 11" in str(missing(MessageShape(11, 2, 8, 8), FLOAT16, device))
    assert "the device is cpu" in str(missing(MessageShape(2, 2, 8, 8), FLOAT16, torch.device("cpu")))


@pytest.mark.parametrize("row_format", [FLOAT16, SPLIT, TF32, FLOAT32], ids=lambda item: item.name)
def test_every_format_of_rows_on_gpus_is_served(row_format: RowFormat) -> None:
    assert missing(MessageShape(2, 2, 128, 128), row_format, torch.device("cuda")) is None


def test_without_the_compiler_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    _compiler.library.cache_clear()
    monkeypatch.setattr(_compiler, "_candidates", lambda: iter(["libnvrtc-that-is-not-there.so"]))
    reason = missing(MessageShape(2, 2, 128, 128), FLOAT16, torch.device("cuda"))
    assert "pip install nvidia-cuda-nvrtc" in str(reason)
    _compiler.library.cache_clear()


def test_the_folder_is_the_one_that_was_named(tmp_path: Path) -> None:
    keep_code_in(tmp_path)
    assert _kernels._kept_in == [tmp_path]
    keep_code_in(None)
    assert _kernels._kept_in == []


@pytest.mark.parametrize(("lmax", "groups"), [(0, (0, 1)), (2, (0, 3)), (4, (0, 3, 4, 5)), (1, (0, 2))])
def test_degrees_that_fit_into_registers_stand_together(lmax: int, groups: tuple[int, ...]) -> None:
    assert degree_groups(lmax) == groups
