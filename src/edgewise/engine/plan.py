"""Decides once, at load time, which mode, precision and implementations run; what cannot serve is refused by name."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, fields, replace

import torch

from edgewise.engine.runner import Runner
from edgewise.errors import InvalidSettingsError, ModeUnavailableError
from edgewise.model.config import ModelConfig
from edgewise.ops import REFERENCE, WRITTEN_OUT, MessageShape, Ops
from edgewise.settings import InferenceSettings, Precision

S2_NOTE = (
    "the s2 activation works on a finite grid, so this model is not exactly invariant under rotations; results depend "
    "slightly on the orientation of the structure"
)

BY_PRECISION = "precision='fast' is that of execution_mode='fused', which"
"""How a refusal of mode fused begins that nobody asked for by its name."""

COMPILE_NOTE = (
    "compiled for calls whose structures all share their merged expert weights; other calls run the same operations "
    "uncompiled"
)


@dataclass(frozen=True)
class Plan:
    """The choices for one model on one device.

    Attributes:
        mode: Execution mode.
        mode_reason: Why this mode.
        precision: Precision that runs.
        ops: Implementations of the operations.
        operations: For each operation, which implementation runs and why.
        warnings: What a user has to be told about the choices.
        notes: What else `describe()` says about them.
    """

    mode: str
    mode_reason: str
    precision: Precision
    ops: Ops
    operations: dict[str, str]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]


def make_plan(config: ModelConfig, settings: InferenceSettings, device: torch.device) -> Plan:
    """Choose what runs.

    Raises:
        ModeUnavailableError: A mode, precision or option was asked for by name and cannot serve here.
    """
    mode, reason = _choose_mode(config, settings, device)
    _refuse_unavailable(settings, mode, reason)
    precision = settings.resolve_precision(device.type, mode)
    warnings: list[str] = []
    notes: list[str] = []
    if config.activation == "s2":
        warnings.append(S2_NOTE)
    if (precision == "tf32" or settings.tf32) and device.type != "cuda":
        precision = "float32" if precision == "tf32" else precision
        warnings.append(f"TF32 exists on CUDA devices only; {precision} runs on {device.type}")
    if settings.deterministic:
        notes.append("sums run in a fixed order (deterministic=True)")
    if settings.compile:
        notes.append(COMPILE_NOTE)
    choose = {"fused": _fused_ops, "umas_fast_gpu": _fast_ops, "general": _general_ops}[mode]
    ops, operations = choose(config, settings, device)
    return Plan(
        mode=mode,
        mode_reason=reason,
        precision=precision,
        ops=ops,
        operations=operations,
        warnings=tuple(warnings),
        notes=tuple(notes),
    )


def _choose_mode(config: ModelConfig, settings: InferenceSettings, device: torch.device) -> tuple[str, str]:
    """Return the mode and why."""
    asked = settings.execution_mode
    if asked == "general":
        return "general", "asked for"
    to_fused, to_fast = _obstacles_to_fused(config, settings, device), _obstacles_to_fast(config, device)
    if asked is not None:
        _refuse(asked, to_fused if asked == "fused" else to_fast)
        return asked, "asked for"
    if settings.precision == "fast":
        _refuse("fused", to_fused, BY_PRECISION)
        return "fused", "chosen because precision='fast' is asked for"
    if device.type != "cuda":
        return "general", f"chosen on {device.type}"
    # What can be asked for by name need not be the choice without one.
    against: list[str] = []
    if settings.resolve_precision(device.type) == "float64":
        against.append("float64 is asked for")
    if settings.activation_checkpointing:
        against.append("activation_checkpointing=True is asked for")
    if not settings.merge_mole:
        against.append("merge_mole=False is asked for (umas_fast_gpu serves it when it is asked for by name)")
    if against:
        return "general", f"chosen because {'; '.join(against)}"
    if not to_fused:
        return "fused", "chosen because it is the fastest mode that serves this model on a GPU"
    if to_fast:
        why = f"fused cannot serve: {'; '.join(to_fused)}; umas_fast_gpu cannot serve: {'; '.join(to_fast)}"
        return "general", f"chosen because {why}"
    return "umas_fast_gpu", f"chosen because fused cannot serve: {'; '.join(to_fused)}"


def runner_class(mode: str) -> type[Runner]:
    """Return what runs a mode."""
    if mode == "fused":
        from edgewise.engine.fused.kernel_runner import KernelRunner

        return KernelRunner
    return Runner


def refuse_before_loading(settings: InferenceSettings, device: torch.device) -> None:
    """Refuse what cannot serve whatever the model is, before a file of gigabytes is read or downloaded for nothing.

    Raises:
        ModeUnavailableError: A mode, precision or option was asked for by name and cannot serve here.
    """
    if settings.execution_mode in ("umas_fast_gpu", "fused"):
        _refuse(settings.execution_mode, _obstacles_of_device(device))
    elif settings.precision == "fast":
        _refuse("fused", _obstacles_of_device(device), BY_PRECISION)
    _refuse_unavailable(settings, settings.execution_mode or "", "asked for")


def _refuse(mode: str, obstacles: list[str], what: str | None = None) -> None:
    """Refuse a mode that was asked for by name, if anything stands against it.

    Args:
        mode: The mode.
        obstacles: What stands against it.
        what: What was asked for, as the beginning of a sentence; None for the mode itself.
    """
    if obstacles:
        others = "'general' or None" if mode == "umas_fast_gpu" else "'umas_fast_gpu', 'general' or None"
        way_out = f"use {others}" if what is None else "use precision='float32'"
        message = f"{what or f'execution_mode={mode!r}'} cannot serve: {'; '.join(obstacles)}; {way_out}"
        raise ModeUnavailableError(message)


def _obstacles_of_device(device: torch.device) -> list[str]:
    """Return the conditions of the modes with kernels on the machine that do not hold."""
    obstacles: list[str] = []
    if importlib.util.find_spec("triton") is None:
        obstacles.append("Triton is not installed (builds of torch for GPUs bring it)")
    elif device.type != "cuda":
        from edgewise.ops.launch import is_interpreted

        if not is_interpreted():
            obstacles.append(f"the device is {device.type}, not cuda")
    return obstacles


def _obstacles_to_fused(config: ModelConfig, settings: InferenceSettings, device: torch.device) -> list[str]:
    """Return the conditions of mode fused that do not hold."""
    obstacles = _obstacles_of_device(device)
    if config.activation != "gate":
        obstacles.append(f"its steps are those of the gate activation, and the model has {config.activation!r}")
    if settings.edge_chunk_size is not None:
        obstacles.append(f"it takes all edges at once, and edge_chunk_size={settings.edge_chunk_size} is given")
    if settings.compile:
        obstacles.append("nothing is left to compile in it, and compile=True is given")
    if not settings.merge_mole:
        obstacles.append("it merges experts once for each kind of system, and merge_mole=False is given")
    return obstacles


def _obstacles_to_fast(config: ModelConfig, device: torch.device) -> list[str]:
    """Return the conditions of mode umas_fast_gpu that do not hold."""
    obstacles = _obstacles_of_device(device)
    if config.lmax != 2 or config.mmax not in (1, 2):
        obstacles.append(
            f"its kernels are for lmax 2 with mmax 2 or 1, and the model has lmax {config.lmax}, mmax {config.mmax}"
        )
    return obstacles


def _general_ops(config: ModelConfig, settings: InferenceSettings, device: torch.device) -> tuple[Ops, dict[str, str]]:
    """Return the implementations of mode general, and for each operation what runs and why."""
    operations = _operations(config, "plain PyTorch (mode general runs nothing else)")
    if config.activation != "gate" or device.type != "cpu" or settings.compile:
        return REFERENCE, operations
    operations["edge_message"] = "PyTorch with the backward pass written out (faster on CPUs)"
    for name in ("gather_rotate", "so2_linear", "gate", "radial_factors"):
        operations[name] = "part of edge_message; plain PyTorch for second derivatives"
    return WRITTEN_OUT, operations


def _fast_ops(config: ModelConfig, settings: InferenceSettings, device: torch.device) -> tuple[Ops, dict[str, str]]:
    """Return the implementations of mode umas_fast_gpu, and for each operation what runs and why."""
    from edgewise.ops.fast import Optimizations, fast_ops
    from edgewise.ops.launch import is_interpreted

    operations = _operations(config, "plain PyTorch" + (", cuBLAS products" if device.type == "cuda" else ""))
    where = "Triton kernels" + (" in Triton's interpreter" if is_interpreted() else "")
    operations["edge_geometry"] = "plain PyTorch, packed rotations"
    operations["gather_rotate"] = operations["rotate_scatter"] = where
    chosen = Optimizations()
    if config.activation == "gate":
        power_of_two = config.hidden_channels & (config.hidden_channels - 1) == 0
        operations["edge_message"] = "composed of the other operations"
        operations["gate"] = (
            f"{where}; plain PyTorch for second derivatives"
            if power_of_two
            else f"plain PyTorch, since the kernel serves powers of two and not {config.hidden_channels} channels"
        )
    else:
        chosen = replace(chosen, gradients_to_atoms=False, sum_in_kernel=False)
        operations["gather_rotate"] = operations["rotate_scatter"] = f"{where}, sums after the kernels (s2 activation)"
    if settings.deterministic:
        # The operations see torch's own flag, which is set during a call.
        operations["gather_rotate"] = operations["rotate_scatter"] = f"{where}, sums in fixed order after the kernels"
    return fast_ops(chosen), operations


def _fused_ops(config: ModelConfig, settings: InferenceSettings, device: torch.device) -> tuple[Ops, dict[str, str]]:
    """Return the operations of the network that Hessians differentiate, and for each step what runs."""
    from edgewise.engine.fused.kernel_nodes import WIDEST
    from edgewise.engine.fused.kernel_runner import FORMATS
    from edgewise.ops.fused import cuda, edge_geometry, radial_hidden
    from edgewise.ops.fused.cuda import gated_products
    from edgewise.ops.fused.cuda import radial_hidden as radial_in_cuda
    from edgewise.ops.launch import is_interpreted

    kernels = "Triton kernels" + (" in Triton's interpreter" if is_interpreted() else "")
    library = "cuBLAS" if device.type == "cuda" else "PyTorch"
    shape = MessageShape(config.lmax, config.mmax, config.channels, config.hidden_channels)
    row_format = FORMATS[settings.resolve_precision(device.type, "fused")]
    # The embedding's format is one that the kernels have wherever they have that of the blocks.
    of_rows = (
        cuda.missing(shape, row_format, device),
        radial_in_cuda.missing(config.edge_channels, config.n_basis, row_format, device),
    )
    edges, radial = ("CUDA C++ kernels" if why is None else f"{kernels} ({why})" for why in of_rows)
    if not radial_hidden.serves(config.edge_channels, config.n_basis):
        radial = (
            f"plain PyTorch, since the kernels serve widths and numbers of gaussians up to {radial_hidden.LARGEST}, "
            f"not {config.edge_channels} and {config.n_basis}"
        )
    plain_geometry = f"plain PyTorch, since the kernels do not serve lmax {config.lmax}"
    together = gated_products.missing(shape, row_format, device) is None
    widest = max(config.channels, config.hidden_channels)
    plain_nodes = (
        f"plain PyTorch, since the kernels serve widths up to {WIDEST}, not {widest}" if widest > WIDEST else ""
    )
    one_layer = any(head.kind == "Linear_Energy_Head" for head in config.heads)
    plain_head = plain_nodes or ("plain PyTorch, a single layer" if one_layer else "")
    steps = {
        "edge_geometry": kernels if edge_geometry.serves(shape) else plain_geometry,
        "radial_networks": f"{radial}, last layers by {library}",
        "gather_rotate": edges,
        "so2_linear": library,
        "gate": kernels,
        "gate_and_multiply": "a CUDA C++ kernel where all edges share weights" if together else "gate, then so2_linear",
        "rotate_sum": edges,
        "norm": kernels,
        "feed_forward": plain_nodes or kernels,
        "energy_head": plain_head or kernels,
    }
    return REFERENCE, steps


def _operations(config: ModelConfig, text: str) -> dict[str, str]:
    """Return a text for every operation that a model with this activation has."""
    absent = ("grid_activation",) if config.activation == "gate" else ("edge_message", "gate")
    return {item.name: text for item in fields(Ops) if item.name not in absent}


def resolve_device(name: str | torch.device) -> torch.device:
    """Return a torch device, or say what is wrong with its name.

    Raises:
        InvalidSettingsError: The name is unknown, or no such device is there.
    """
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        message = f"device is {name!r}; allowed are 'cpu', 'cuda', 'cuda:0' and the like"
        raise InvalidSettingsError(message) from error
    if device.type == "cuda":
        n_devices = torch.cuda.device_count()
        if n_devices == 0:
            message = f"device is {str(device)!r}, but torch finds no CUDA device here; use device='cpu'"
            raise InvalidSettingsError(message)
        if (device.index or 0) >= n_devices:
            message = f"device is {str(device)!r}, but torch finds {n_devices} CUDA devices here"
            raise InvalidSettingsError(message)
    elif device.type != "cpu":
        reason = ", which has no float64 for the geometry" if device.type == "mps" else ", which nobody has tried"
        message = f"device is {str(device)!r}{reason}; allowed are 'cpu', 'cuda', 'cuda:0' and the like"
        raise InvalidSettingsError(message)
    return device


def _refuse_unavailable(settings: InferenceSettings, mode: str, reason: str) -> None:
    if settings.compile and mode == "general":
        message = (
            f"compile=True needs execution_mode='umas_fast_gpu', and 'general' would run ({reason}); use compile=False or "
            "settings that umas_fast_gpu serves"
        )
        raise ModeUnavailableError(message)
    if settings.uses_nvalchemi and importlib.util.find_spec("nvalchemiops") is None:
        message = (
            "internal_graph_gen_version=3 needs nvalchemi-toolkit-ops, which is not installed: "
            "pip install 'edgewise[gpu]', or use 2"
        )
        raise ModeUnavailableError(message)
