"""ASE calculator. Conventions: energies in eV, forces in eV/Å, stress as Voigt xx yy zz yz xz xy in eV/Å^3, tension positive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
from ase.calculators.calculator import (
    Calculator as ASECalculator,
)
from ase.calculators.calculator import (
    PropertyNotImplementedError,  # ASE's name for a property that a calculator cannot give; its callers catch it
    all_changes,
    register_calculator_class,
)
from ase.stress import full_3x3_to_voigt_6_stress

from edgewise.errors import InvalidSettingsError, InvalidStructureError
from edgewise.potential import Potential, load
from edgewise.settings import InferenceSettings

if TYPE_CHECKING:
    from os import PathLike

    from ase import Atoms

STATE_IN_INFO = ("charge", "spin")
"""Entries of `atoms.info` that the energy depends on; ASE itself does not watch them."""


class Calculator(ASECalculator):
    """Energies, forces and stresses of a potential for ASE.

    One pass fills energy, free_energy, forces and stress together, and results are replaced, never updated. Total charge
    and spin multiplicity are read from `atoms.info["charge"]` and `atoms.info["spin"]`; changing one of them counts as
    a change of the atoms, changing any other entry does not. Nothing of the atoms is changed.

    With one or two periodic axes the stress is per volume of the given cell.

    Example:
        >>> import edgewise
        >>> from ase.build import bulk
        >>> atoms = bulk("Cu")
        >>> atoms.calc = edgewise.Calculator(edgewise.load("emt-mini"))
        >>> atoms.get_forces().shape
        (1, 3)
    """

    implemented_properties = ["energy", "free_energy", "forces", "stress"]  # noqa: RUF012, ASE declares it so

    def __init__(self, potential: Potential, task: str | None = None, **kwargs: Any) -> None:
        """Wrap a potential.

        Args:
            potential: What `edgewise.load` returned.
            task: Task to use; None takes the potential's own.
            **kwargs: Passed on to ASE's `Calculator`.

        Raises:
            UnknownTaskError: The task is missing or unknown.
            InvalidSettingsError: What was given is no potential, or settings were given as arguments.
        """
        if not isinstance(potential, Potential):
            message = (
                f"the potential is a {type(potential).__name__}; give what edgewise.load returns, or use "
                "Calculator.from_checkpoint with a file or a name"
            )
            raise InvalidSettingsError(message)
        _refuse_settings(kwargs)
        super().__init__(**kwargs)
        self.potential = potential
        self.task = potential.resolve_task(task)
        self.set(model=potential.name, task=self.task)

    @property
    def name(self) -> str:
        """Name under which files and databases keep results."""
        return "edgewise"

    @classmethod
    def from_checkpoint(
        cls,
        path_or_name: str | PathLike[str],
        task: str | None = None,
        device: str = "cpu",
        settings: InferenceSettings | None = None,
        **kwargs: Any,
    ) -> Calculator:
        """Load a model and wrap it.

        Args:
            path_or_name: As for `edgewise.load`.
            task: Task to use; needed where the checkpoint has several.
            device: "cpu", "cuda", ...
            settings: How to run.
            **kwargs: Passed on to ASE's `Calculator`.
        """
        return cls(load(path_or_name, task=task, device=device, settings=settings), **kwargs)

    def check_state(self, atoms: Atoms, tol: float = 1e-15) -> list[str]:
        """Return what has changed since the last results, charge and spin included."""
        changes = super().check_state(atoms, tol=tol)
        if self.atoms is not None and _watched(atoms) != _watched(self.atoms):
            changes.append("info")
        return changes

    def calculate(
        self,
        atoms: Atoms | None = None,
        properties: Sequence[str] = ("energy",),
        system_changes: Sequence[str] = tuple(all_changes),
    ) -> None:
        """Fill `results` with every property at once.

        Raises:
            PropertyNotImplementedError: Stress was asked for and no axis is periodic, or the model gives none.
            EdgewiseError: As for `Potential.predict`.
        """
        super().calculate(atoms, list(properties), list(system_changes))
        if self.atoms is None:
            message = "there are no atoms to calculate; pass atoms or attach the calculator to some"
            raise InvalidStructureError(message)
        if "stress" in properties and not self.atoms.pbc.any():
            message = "there is no stress because no axis is periodic"
            raise PropertyNotImplementedError(message)
        result = self.potential.predict([self.atoms], task=self.task)[0]
        results: dict[str, Any] = {
            "energy": result.energy,
            "free_energy": result.energy,
            "forces": result.forces.copy(),
        }
        if np.isfinite(result.stress).all():
            results["stress"] = full_3x3_to_voigt_6_stress(result.stress)
        self.results = results
        if "stress" in properties and "stress" not in results:
            message = f"there is no stress because {self.potential.name} gives none"
            raise PropertyNotImplementedError(message)


def _watched(atoms: Atoms) -> tuple[str, ...]:
    # Representations compare without surprises whatever a user has stored, arrays and wrong types included.
    return tuple(repr(atoms.info.get(name)) for name in STATE_IN_INFO)


register_calculator_class("edgewise", Calculator)


def _refuse_settings(kwargs: dict[str, Any]) -> None:
    """Refuse what ASE would keep as a parameter without any effect."""
    known = {"device", "settings", *(item.name for item in fields(InferenceSettings))}
    given = sorted(known & set(kwargs))
    if given:
        message = (
            f"{', '.join(given)} cannot be given to the calculator; give them to edgewise.load(..., device=..., "
            "settings=edgewise.InferenceSettings(...)) or to Calculator.from_checkpoint(..., device=..., settings=...)"
        )
        raise InvalidSettingsError(message)
