"""Decides once, at load time, which mode, precision and implementations run; what cannot serve is refused by name."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch

from edgewise.errors import InvalidSettingsError, ModeUnavailableError
from edgewise.model.config import ModelConfig
from edgewise.ops import REFERENCE, WRITTEN_OUT, Ops
from edgewise.settings import GRAPH_VERSIONS, InferenceSettings, Precision

S2_NOTE = (
    "the s2 activation works on a finite grid, so this model is not exactly invariant under rotations; results depend "
    "slightly on the orientation of the structure"
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
        notes: What a user should know about the choices.
    """

    mode: str
    mode_reason: str
    precision: Precision
    ops: Ops
    operations: dict[str, str]
    notes: tuple[str, ...]


def make_plan(config: ModelConfig, settings: InferenceSettings, device: torch.device) -> Plan:
    """Choose what runs.

    Raises:
        ModeUnavailableError: A mode, precision or option was asked for by name and cannot serve here.
    """
    _refuse_unavailable(settings)
    asked = settings.execution_mode is not None
    reason = "asked for" if asked else "chosen because it is the only mode of this version"
    precision = settings.resolve_precision(device.type)
    notes: list[str] = []
    if config.activation == "s2":
        notes.append(S2_NOTE)
    if precision == "tf32" and device.type != "cuda":
        precision = "float32"
        notes.append(f"TF32 exists on CUDA devices only; float32 runs on {device.type}")
    ops, operations = _choose_ops(config, device)
    return Plan(
        mode="general",
        mode_reason=reason,
        precision=precision,
        ops=ops,
        operations=operations,
        notes=tuple(notes),
    )


def _choose_ops(config: ModelConfig, device: torch.device) -> tuple[Ops, dict[str, str]]:
    """Return the implementations of mode general, and for each operation what runs and why."""
    operations = {item.name: "plain PyTorch (mode general runs nothing else)" for item in fields(Ops)}
    if config.activation != "gate":
        del operations["edge_message"], operations["gate"]
        return REFERENCE, operations
    del operations["grid_activation"]
    if device.type != "cpu":
        return REFERENCE, operations
    operations["edge_message"] = "PyTorch with the backward pass written out (faster on CPUs)"
    for name in ("gather_rotate", "so2_linear", "gate", "radial_factors"):
        operations[name] = "part of edge_message; plain PyTorch for second derivatives"
    return WRITTEN_OUT, operations


def resolve_device(name: str | torch.device) -> torch.device:
    """Return a torch device, or say what is wrong with its name.

    Raises:
        InvalidSettingsError: The name is unknown, or no such device is there.
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:
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
    elif device.type == "mps":
        message = "device is 'mps', which has no float64 for the geometry; use device='cpu'"
        raise InvalidSettingsError(message)
    return device


def _refuse_unavailable(settings: InferenceSettings) -> None:
    if settings.execution_mode not in (None, "general"):
        message = f"execution_mode={settings.execution_mode!r} is not part of this version; use 'general' or None"
        raise ModeUnavailableError(message)
    if settings.precision == "fast":
        message = "precision='fast' needs execution_mode='fused', which is not part of this version; use 'float32'"
        raise ModeUnavailableError(message)
    if settings.compile:
        message = "compile=True is not available in execution_mode='general' of this version; use compile=False"
        raise ModeUnavailableError(message)
    if settings.internal_graph_gen_version != GRAPH_VERSIONS[0]:
        message = (
            f"internal_graph_gen_version={settings.internal_graph_gen_version} is not available in "
            "execution_mode='general' of this version; use 2"
        )
        raise ModeUnavailableError(message)
