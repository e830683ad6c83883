"""Settings of an engine: frozen, checked when they are made, and without any effect of their own.

The field names down to `predict_untrained_hessian` are the ones that users of the eSCN-MD family know.
This module is the only one that reads environment variables.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from edgewise.errors import InvalidSettingsError

ExecutionMode = Literal["general", "umas_fast_gpu", "fused"]
Precision = Literal["fast", "tf32", "float32", "float64"]
BasePrecision = Literal["float32", "float64"]

GRAPH_VERSIONS = (2, 3)
"""Neighbour lists to choose from: 2 is our own choice for the device, 3 is nvalchemi-toolkit-ops."""


@dataclass(frozen=True)
class InferenceSettings:
    """How a model is run.

    Attributes:
        tf32: Allow TF32 in matrix products on GPUs during a call; torch's own flag is restored afterwards.
        activation_checkpointing: Compute block activations again in the backward pass: less memory, more time.
        merge_mole: Merge the experts of each system once and keep the merged weights for later calls.
        compile: Compile the model with `torch.compile` and dynamic shapes; needs mode umas_fast_gpu.
        external_graph_gen: Build the neighbour list on the CPU whatever the model's device is.
        internal_graph_gen_version: Neighbour list: 2 is our own choice for the device, 3 is nvalchemi-toolkit-ops.
        edge_chunk_size: Work on at most this many edges at a time; None takes all of them at once.
        execution_mode: "general", "umas_fast_gpu" or "fused"; None picks one and `Potential.describe()` says why.
        base_precision_dtype: "float32" or "float64", for parameters and activations.
        hessian_vmap: Hessian rows in vectorised groups (True), or one by one with flat memory (False).
        predict_untrained_forces: Names of tasks; accepted for compatibility, forces are always given.
        predict_untrained_stress: Names of tasks; accepted for compatibility, stress is always given where an axis
            is periodic.
        predict_untrained_hessian: Names of tasks; accepted for compatibility, `Potential.hessian` serves every task.
        precision: "fast", "tf32", "float32" or "float64". When given it decides in place of `tf32` and
            `base_precision_dtype`, and values of these that contradict it are refused.
        deterministic: Use only operations whose sums have a fixed order.

    Raises:
        InvalidSettingsError: A value is not allowed, or two values contradict each other.
    """

    tf32: bool = False
    activation_checkpointing: bool = False
    merge_mole: bool = True
    compile: bool = False
    external_graph_gen: bool = False
    internal_graph_gen_version: int = 2
    edge_chunk_size: int | None = None
    execution_mode: ExecutionMode | None = None
    base_precision_dtype: BasePrecision = "float32"
    hessian_vmap: bool = True
    predict_untrained_forces: frozenset[str] = field(default_factory=frozenset)
    predict_untrained_stress: frozenset[str] = field(default_factory=frozenset)
    predict_untrained_hessian: frozenset[str] = field(default_factory=frozenset)
    precision: Precision | None = None
    deterministic: bool = False

    def __post_init__(self) -> None:
        """Check every value, and the combinations that cannot both be meant."""
        for name in ("tf32", "activation_checkpointing", "merge_mole", "compile", "external_graph_gen"):
            self._require_bool(name)
        for name in ("hessian_vmap", "deterministic"):
            self._require_bool(name)
        self._require_one_of("internal_graph_gen_version", GRAPH_VERSIONS)
        self._require_one_of("execution_mode", (None, *get_args(ExecutionMode)))
        self._require_one_of("base_precision_dtype", get_args(BasePrecision))
        self._require_one_of("precision", (None, *get_args(Precision)))
        self._check_chunk_size()
        for name in ("predict_untrained_forces", "predict_untrained_stress", "predict_untrained_hessian"):
            object.__setattr__(self, name, _names(name, getattr(self, name)))
        self._check_precision()
        self._check_combinations()

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> InferenceSettings:
        """Build settings from plain data.

        Args:
            values: Field names and values, for example read from a TOML file.

        Raises:
            InvalidSettingsError: A name is not a field, or a value is not allowed.
        """
        allowed = [item.name for item in fields(cls)]
        unknown = sorted(set(values) - set(allowed))
        if unknown:
            message = f"unknown settings {', '.join(unknown)}; allowed are {', '.join(allowed)}"
            raise InvalidSettingsError(message)
        return cls(**values)

    def resolve_precision(self, device_type: str, mode: str | None = None) -> Precision:
        """Return the precision that runs.

        Args:
            device_type: "cpu", "cuda", ...
            mode: Execution mode, where it is known: fused takes "fast" unless anything else is asked for.
        """
        if self.precision is not None:
            return self.precision
        if self.base_precision_dtype == "float64":
            return "float64"
        if self.tf32 and device_type == "cuda":
            return "tf32"
        return "fast" if mode == "fused" and not self.tf32 else "float32"

    @property
    def uses_nvalchemi(self) -> bool:
        """Whether nvalchemi-toolkit-ops builds the neighbour list."""
        return self.internal_graph_gen_version == GRAPH_VERSIONS[1]

    def _require_bool(self, name: str) -> None:
        value = getattr(self, name)
        if not isinstance(value, bool):
            message = f"{name} is {value!r}; allowed are True and False"
            raise InvalidSettingsError(message)

    def _require_one_of(self, name: str, allowed: tuple[Any, ...]) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or value not in allowed:
            choices = ", ".join(repr(item) for item in allowed)
            message = f"{name} is {value!r}; allowed are {choices}"
            raise InvalidSettingsError(message)

    def _check_chunk_size(self) -> None:
        value = self.edge_chunk_size
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            message = f"edge_chunk_size is {value!r}; allowed are None and whole numbers from 1 on"
            raise InvalidSettingsError(message)

    def _check_precision(self) -> None:
        if self.precision is None:
            if self.tf32 and self.base_precision_dtype == "float64":
                message = "tf32=True contradicts base_precision_dtype='float64'; give one of them, or precision alone"
                raise InvalidSettingsError(message)
            return
        if self.tf32 and self.precision not in ("tf32", "fast"):
            message = f"tf32=True contradicts precision={self.precision!r}; leave tf32 out"
            raise InvalidSettingsError(message)
        if self.base_precision_dtype == "float64" and self.precision != "float64":
            message = f"base_precision_dtype='float64' contradicts precision={self.precision!r}; leave one of them out"
            raise InvalidSettingsError(message)

    def _check_combinations(self) -> None:
        fast = self.execution_mode in ("umas_fast_gpu", "fused")
        if fast and self.activation_checkpointing:
            message = (
                f"execution_mode={self.execution_mode!r} does not keep activations to compute again; "
                "set activation_checkpointing=False or execution_mode='general'"
            )
            raise InvalidSettingsError(message)
        if fast and (self.precision == "float64" or self.base_precision_dtype == "float64"):
            message = (
                f"execution_mode={self.execution_mode!r} works in float32; use execution_mode='general' for float64"
            )
            raise InvalidSettingsError(message)
        if self.precision == "fast" and self.execution_mode in ("general", "umas_fast_gpu"):
            message = f"precision='fast' needs execution_mode='fused', not {self.execution_mode!r}"
            raise InvalidSettingsError(message)
        if self.external_graph_gen and self.uses_nvalchemi:
            message = (
                "external_graph_gen=True builds the neighbour list on the CPU and internal_graph_gen_version=3 on the "
                "device; give one of them"
            )
            raise InvalidSettingsError(message)
        if self.compile and self.edge_chunk_size is not None:
            message = "compile=True does not work with edge_chunk_size; leave one of them out"
            raise InvalidSettingsError(message)


def _names(field_name: str, value: Any) -> frozenset[str]:
    """Return names of tasks, given as one or as several."""
    listed = [value] if isinstance(value, str) else list(value) if isinstance(value, Iterable) else None
    if listed is None or not all(isinstance(item, str) for item in listed):
        message = f"{field_name} is {value!r}; allowed are the name of a task and lists of names"
        raise InvalidSettingsError(message)
    return frozenset(listed)


def cache_folder() -> Path:
    """Return the folder for converted weights: EDGEWISE_CACHE, else `edgewise` in the user's cache folder."""
    given = os.environ.get("EDGEWISE_CACHE")
    if given:
        return Path(given).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    root = Path(base).expanduser() if base else Path.home() / ".cache"
    return root / "edgewise"
