"""The public face of a model: structures in, numpy results out. Every adapter and command calls this."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from edgewise.engine.description import Description
from edgewise.engine.plan import Plan, make_plan, refuse_before_loading, resolve_device, runner_class
from edgewise.engine.runner import Outputs, Runner
from edgewise.errors import (
    EdgewiseWarning,
    InvalidSettingsError,
    InvalidStructureError,
    OutOfDomainError,
    UnknownTaskError,
)
from edgewise.model.config import ModelConfig, parse_model_config
from edgewise.model.network import build_network
from edgewise.model.tasks import TaskScales, parse_tasks
from edgewise.ops import Ops
from edgewise.results import Results, check_finite, joined_results, not_finite
from edgewise.settings import InferenceSettings
from edgewise.systems import SystemBatch, batch_from_atoms
from edgewise.weights import Checkpoint, read_checkpoint

if TYPE_CHECKING:
    from os import PathLike

    from ase import Atoms
    from numpy.typing import NDArray

ATOMS_PER_BATCH = 256
"""`predict` joins structures into batches of about this many atoms; a larger structure is a batch of its own."""


@dataclass(frozen=True)
class Allowances:
    """Checks that a user has lifted; see `Potential.allowing`."""

    charge_spin: bool = False
    lone_atoms: bool = False
    any_element: bool = False


class Potential:
    """A model ready to be evaluated. Made by `load`.

    Example:
        >>> import edgewise
        >>> from ase.build import bulk
        >>> potential = edgewise.load("emt-mini")
        >>> results = potential.predict([bulk("Cu"), bulk("Al", cubic=True)])
        >>> results.energy.shape, results.forces.shape
        ((2,), (5, 3))
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        task: str | None = None,
        device: str | torch.device = "cpu",
        settings: InferenceSettings | None = None,
    ) -> None:
        """Build the engine of a checkpoint; the arguments are those of `load`."""
        self.settings = _checked_settings(settings)
        self.name = checkpoint.name
        self.device = resolve_device(device)
        self.config: ModelConfig = parse_model_config(checkpoint.model_config)
        self._scales = _served_tasks(self.config, parse_tasks(checkpoint.tasks_config))
        self._plan: Plan = make_plan(self.config, self.settings, self.device)
        self._elements = checkpoint.card.get("elements")
        self._allowances = Allowances()
        self._allowed_elements = self._elements_as_mask()
        self.task = None if task is None else self._checked_task(task)
        if self.task is None and len(self.tasks) == 1:
            self.task = self.tasks[0]
        # Parameters made in inference mode could never be differentiated through.
        with torch.inference_mode(mode=False):
            dtype = torch.float64 if self._plan.precision == "float64" else torch.float32
            network = build_network(self.config, self._plan.ops, checkpoint.weights, dtype)
            make_runner = runner_class(self._plan.mode)
            self._runner: Runner = make_runner(network, self._scales, self.settings, self.device, self._plan.precision)
        warned = (*self._plan.warnings, *self._scale_notes())
        self._notes = (*warned, *self._plan.notes)
        for note in warned:
            warnings.warn(f"{self.name}: {note}", EdgewiseWarning, stacklevel=3)

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the tasks that the model serves."""
        return tuple(self._scales)

    @property
    def cutoff(self) -> float:
        """Cutoff of the neighbour list, Å."""
        return self.config.cutoff

    @property
    def elements(self) -> tuple[int, ...]:
        """Atomic numbers that the model takes."""
        if self._elements is not None:
            from ase.data import atomic_numbers

            return tuple(sorted(atomic_numbers[symbol] for symbol in self._elements))
        return tuple(range(1, self.config.max_elements))

    def allowing(self, *, charge_spin: bool = False, lone_atoms: bool = False, any_element: bool = False) -> Potential:
        """Return the same potential with checks lifted; weights and caches are shared.

        Args:
            charge_spin: Take `info["charge"]` and `info["spin"]` under every task as they are given.
            lone_atoms: Evaluate the network for a lone atom where the checkpoint does not support one.
            any_element: Take every element that the network has parameters for, trained or not.
        """
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._allowances = Allowances(charge_spin, lone_atoms, any_element)
        other._allowed_elements = other._elements_as_mask()
        return other

    def with_ops(self, ops: Ops) -> Potential:
        """Return the same model on other implementations of the operations, for benchmarks and tests.

        Args:
            ops: The record, for example of `edgewise.ops.fast.fast_ops`; `describe()` does not know of it.
        """
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        with torch.inference_mode(mode=False):
            network = self._runner.network.with_ops(ops)
            other._runner = Runner(network, self._scales, self.settings, self.device, self._plan.precision)
        return other

    def predict(self, structures: Sequence[Atoms] | Atoms, task: str | Sequence[str] | None = None) -> Results:
        """Compute energies, forces and stresses of structures.

        Args:
            structures: ASE atoms of any mix of sizes, compositions, charges, spins and periodicity; `info["charge"]`
                and `info["spin"]` are read, nothing is changed.
            task: One task for all, or one per structure; None takes the one given to `load`.

        Returns:
            Results in the order of the structures.

        Raises:
            UnknownTaskError: No task, or one that the checkpoint does not have.
            InvalidStructureError: A structure that cannot be evaluated; the message names it and the atom.
            OutOfDomainError: Elements that the model does not know, or a lone atom where it supports none.
            ChargeSpinError: Charge or spin out of range, of the wrong type, or not allowed under the task.
            NonFiniteResultError: The network returned NaN or infinity.
        """
        listed = [structures] if _is_atoms(structures) else _listed(structures)
        tasks = self._tasks_for(len(listed), task)
        # Tensors made in a caller's inference mode could not be differentiated through.
        with torch.inference_mode(mode=False):
            batch = self._checked_batch(listed, tasks)
            parts = _split(batch)
            outputs = [self._runner.run(part) for part in parts]
            results = joined_results(outputs, batch)
            if not_finite(results, batch, with_stress=self._gives_stress):
                again = [self._again(part, found) for part, found in zip(parts, outputs, strict=True)]
                results = joined_results(again, batch)
                check_finite(results, batch, with_stress=self._gives_stress)
        return results

    @property
    def _gives_stress(self) -> bool:
        network = self._runner.network
        return not network.is_direct or network.stress_head is not None

    def _again(self, part: SystemBatch, found: Outputs) -> Outputs:
        """Do a part of a batch again one precision higher if it is not finite; keep what was found otherwise."""
        alone = joined_results([found], part)
        bad = not_finite(alone, part, with_stress=self._gives_stress)
        higher = self._runner.redo(part) if bad else None
        return found if higher is None else higher

    def hessian(self, atoms: Atoms, task: str | None = None) -> NDArray[np.float64]:
        """Compute the second derivatives of the energy of one structure.

        Args:
            atoms: One structure; periodic images move together with their atom.
            task: None takes the one given to `load`.

        Returns:
            [3 n_atoms, 3 n_atoms], eV/Å^2, index 3 * atom + axis.

        Raises:
            PropertyUnavailableError: The model predicts forces directly.
            EdgewiseError: As for `predict`.
        """
        with torch.inference_mode(mode=False):
            batch = self._checked_batch([atoms], self._tasks_for(1, task))
            return self._runner.hessian(batch).cpu().numpy()

    def describe(self) -> Description:
        """Say which mode, precision and implementation of each operation run, and why; `print` shows it."""
        config, mixtures = self.config, self._runner.mixtures
        experts = f"{config.n_experts} experts" if config.n_experts else "no experts"
        if not config.n_experts:
            merging = "none in this model"
        elif self.settings.merge_mole:
            merging = f"merged per system and kept: {mixtures.n_mixed} merged so far, {mixtures.n_kept} in memory"
        else:
            merging = f"mixed in every call (merge_mole=False): {mixtures.n_mixed} mixed so far"
        cap = f"cutoff {config.cutoff} Å, cap {config.max_neighbors}, by {self._runner.neighbor_list}"
        if self._runner.n_capped:
            cap += f"; the cap cut the neighbours of {self._runner.n_capped} atoms in the last call"
        return Description(
            model=self.name,
            architecture=(
                f"{config.n_layers} layers, {config.channels} channels, lmax {config.lmax}, mmax {config.mmax}, "
                f"{config.activation}, {experts}" + (f", {config.model_id}" if config.model_id else "")
            ),
            tasks=self.tasks,
            task=self.task,
            mode=self._plan.mode,
            mode_reason=self._plan.mode_reason,
            precision=self._plan.precision,
            device=str(self.device),
            operations=self._plan.operations,
            merging=merging,
            neighbors=cap,
            notes=(*self._notes, *self._runner.notes),
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Potential:
        """Return the same potential: weights never change, so copies of a calculator share them."""
        return self

    def __repr__(self) -> str:
        """Return a short name."""
        return f"Potential({self.name!r}, task={self.task!r}, device={str(self.device)!r})"

    def _scale_notes(self) -> list[str]:
        if self.config.direct_forces:
            return []
        odd = [name for name, scales in self._scales.items() if not scales.is_consistent]
        if not odd:
            return []
        note = (
            f"tasks {', '.join(odd)} scale forces or stress differently from the energy in this file, so they are not "
            "exact derivatives of it"
        )
        return [note]

    def resolve_task(self, task: str | None = None) -> str:
        """Return a task name: the one given, else the one given to `load`.

        Raises:
            UnknownTaskError: There is none, or the checkpoint does not have it.
        """
        return self._tasks_for(1, task)[0]

    def _checked_task(self, task: str) -> str:
        if task not in self._scales:
            message = f"task {task!r} is not one of the tasks of {self.name}: {', '.join(self.tasks)}"
            raise UnknownTaskError(message)
        return task

    def _tasks_for(self, n_structures: int, task: str | Sequence[str] | None) -> list[str]:
        if task is None:
            if self.task is None:
                message = f"{self.name} has several tasks, so one has to be named: {', '.join(self.tasks)}"
                raise UnknownTaskError(message)
            return [self.task] * n_structures
        if isinstance(task, str):
            return [self._checked_task(task)] * n_structures
        if len(task) != n_structures:
            message = f"{len(task)} tasks for {n_structures} structures; give one for all or one for each"
            raise UnknownTaskError(message)
        return [self._checked_task(item) for item in task]

    def _checked_batch(self, structures: Sequence[Any], tasks: Sequence[str]) -> SystemBatch:
        for index, atoms in enumerate(structures):
            if not _is_atoms(atoms):
                message = f"structure {index} is a {type(atoms).__name__}; structures have to be ase.Atoms"
                raise InvalidStructureError(message)
        batch = batch_from_atoms(structures, tasks, allow_charge_spin=self._allowances.charge_spin)
        self._check_elements(batch)
        self._check_lone_atoms(batch)
        return batch

    def _elements_as_mask(self) -> NDArray[np.bool_]:
        """Return which atomic numbers are taken."""
        allowed = np.zeros(max(200, self.config.max_elements), dtype=bool)
        allowed[list(range(1, self.config.max_elements) if self._allowances.any_element else self.elements)] = True
        return allowed

    def _check_elements(self, batch: SystemBatch) -> None:
        allowed, numbers = self._allowed_elements, batch.atomic_numbers.numpy()
        known = allowed[numbers.clip(0, len(allowed) - 1)]
        if known.all():
            return
        from ase.data import chemical_symbols

        atom = int(np.flatnonzero(~known)[0])
        system = int(batch.system_idx[atom])
        number = int(numbers[atom])
        symbol = chemical_symbols[number] if 0 <= number < len(chemical_symbols) else "?"
        if self._elements is None:
            hint = f"atomic numbers 1 to {self.config.max_elements - 1} are known"
        else:
            hint = f"it was made for {' '.join(self._elements)}; load another model, or use potential.allowing(any_element=True), on the command line --allow any-element"
        message = (
            f"atom {atom - batch.offsets()[system]} of structure {system} is {symbol} (atomic number {number}), which "
            f"{self.name} does not know: {hint}"
        )
        raise OutOfDomainError(message)

    def _check_lone_atoms(self, batch: SystemBatch) -> None:
        if self.config.supports_single_atoms or self._allowances.lone_atoms:
            return
        lone = (batch.n_atoms == 1) & ~batch.pbc.any(dim=1)
        if lone.any():
            message = (
                f"structure {int(torch.nonzero(lone)[0])} is a lone atom without periodic axes, which {self.name} was "
                "not trained for; use potential.allowing(lone_atoms=True), on the command line --allow lone-atoms to evaluate the network all the same"
            )
            raise OutOfDomainError(message)


def load(
    path_or_name: str | PathLike[str],
    task: str | None = None,
    device: str | torch.device = "cpu",
    settings: InferenceSettings | None = None,
) -> Potential:
    """Load a model.

    Args:
        path_or_name: A checkpoint of the field (`.pt`), a file converted by Edgewise (`.safetensors`), the name of an
            embedded model ("emt-mini") or of a published one ("uma-s-1p2p1").
        task: Task of calls that name none; needed where the checkpoint has several, unless each call names one.
        device: "cpu", "cuda", "cuda:1", ...
        settings: How to run; None takes the defaults of `InferenceSettings`.

    Returns:
        The potential.

    Raises:
        ModelNotFoundError: No file and no model of this name.
        ModelAccessError: The published model is gated or out of reach; the message says what to do.
        CheckpointError: The file is damaged, not of this format, or of another architecture.
        UnknownTaskError: The checkpoint does not have the task.
        ModeUnavailableError: A mode asked for by name cannot serve.
        InvalidSettingsError: No such device.

    Example:
        >>> import edgewise
        >>> potential = edgewise.load("emt-mini")
        >>> potential.tasks
        ('emt',)
    """
    settings = _checked_settings(settings)
    refuse_before_loading(settings, resolve_device(device))
    with torch.inference_mode(mode=False):
        checkpoint = read_checkpoint(path_or_name)
    return Potential(checkpoint, task=task, device=device, settings=settings)


def _checked_settings(settings: object) -> InferenceSettings:
    if settings is None:
        return InferenceSettings()
    if not isinstance(settings, InferenceSettings):
        message = (
            f"settings is a {type(settings).__name__}; give edgewise.InferenceSettings(...), or make them of a dictionary "
            "with InferenceSettings.from_dict"
        )
        raise InvalidSettingsError(message)
    return settings


def _listed(structures: object) -> list[Any]:
    if not isinstance(structures, Iterable):
        message = f"structures is a {type(structures).__name__}; give ase.Atoms or a list of them"
        raise InvalidStructureError(message)
    return list(structures)


def _is_atoms(value: object) -> bool:
    # Looking at the type's name would miss subclasses, and importing ASE for this would be slow.
    return all(hasattr(value, name) for name in ("positions", "numbers", "cell", "pbc", "info"))


def _served_tasks(config: ModelConfig, scales: dict[str, TaskScales]) -> dict[str, TaskScales]:
    """Keep the tasks that the embedding and the heads know."""
    known = set(config.datasets)
    for head in config.heads:
        if head.wrapper == "per_dataset":
            known &= set(head.datasets)
    served = {name: value for name, value in scales.items() if name in known}
    if not served:
        message = f"the checkpoint's energy tasks {sorted(scales)} match none of its datasets {sorted(known)}"
        raise UnknownTaskError(message)
    return served


def _split(batch: SystemBatch) -> list[SystemBatch]:
    """Cut a batch into runs of whole structures of about `ATOMS_PER_BATCH` atoms."""
    if batch.n_systems == 1:
        return [batch]
    offsets = batch.offsets()
    bounds, begin = [0], 0
    for system in range(batch.n_systems):
        if offsets[system + 1] - begin > ATOMS_PER_BATCH and system > bounds[-1]:
            bounds.append(system)
            begin = offsets[system]
    bounds.append(batch.n_systems)
    return [_between(batch, low, high, offsets) for low, high in pairwise(bounds) if high > low]


def _between(batch: SystemBatch, low: int, high: int, offsets: list[int]) -> SystemBatch:
    atoms, systems = slice(offsets[low], offsets[high]), slice(low, high)
    return replace(
        batch,
        positions=batch.positions[atoms],
        atomic_numbers=batch.atomic_numbers[atoms],
        system_idx=batch.system_idx[atoms] - low,
        cell=batch.cell[systems],
        pbc=batch.pbc[systems],
        n_atoms=batch.n_atoms[systems],
        charge=batch.charge[systems],
        spin=batch.spin[systems],
        tasks=batch.tasks[systems],
    )
