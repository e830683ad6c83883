"""Energy over volume, and its fit by ASE."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from ase import Atoms, units
from ase.calculators.calculator import Calculator
from ase.eos import EquationOfState
from numpy.typing import NDArray

from edgewise.cli.checks import require_at_least, require_one_of, require_positive
from edgewise.errors import InvalidSettingsError, RunFailedError

FORMS = ("birchmurnaghan", "vinet", "murnaghan", "birch", "pouriertarantola", "sj")
FEWEST_POINTS = 5
LARGEST_SPAN = 0.5
"""Fraction of the volume."""


@dataclass(frozen=True)
class EquationOptions:
    """How to sample and fit.

    Attributes:
        span: Largest change of the volume, as a fraction; 0.06 samples from -6 % to +6 %.
        points: Number of volumes.
        form: Equation to fit, one of `FORMS`.
    """

    span: float = 0.06
    points: int = 9
    form: str = "birchmurnaghan"

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            InvalidSettingsError: A value is not allowed.
        """
        require_positive("span", self.span)
        if self.span >= LARGEST_SPAN:
            message = f"span is {self.span}; it has to be less than {LARGEST_SPAN}, a fraction of the volume"
            raise InvalidSettingsError(message)
        require_at_least("points", self.points, FEWEST_POINTS)
        require_one_of("form", self.form, FORMS)


@dataclass(frozen=True)
class EquationResult:
    """Outcome of an equation of state.

    Attributes:
        volumes: [n], Å^3.
        energies: [n], eV.
        volume: Å^3 of the fitted minimum.
        energy: eV at the minimum.
        bulk_modulus: GPa.
        length_scale: Factor on the lattice vectors of the given cell at the minimum.
        curve: Volumes and energies of the fitted curve.
        in_range: Whether the minimum lies between the sampled volumes.
    """

    volumes: NDArray[np.float64]
    energies: NDArray[np.float64]
    volume: float
    energy: float
    bulk_modulus: float
    length_scale: float
    curve: tuple[NDArray[np.float64], NDArray[np.float64]]
    in_range: bool


def equation_of_state(
    atoms: Atoms,
    calculator: Calculator,
    options: EquationOptions,
    report: Callable[[int, str], None] | None = None,
) -> EquationResult:
    """Compute energies of scaled cells, atoms moving with the cell, and fit them.

    Args:
        atoms: A structure with three periodic axes; it is not changed.
        calculator: Any ASE calculator.
        options: How.
        report: Called with the number of energies done and a note.

    Raises:
        InvalidSettingsError: Not all axes are periodic.
        RunFailedError: The energies have no minimum that could be fitted.
    """
    if not atoms.pbc.all():
        message = f"an equation of state needs three periodic axes; pbc is {atoms.pbc.tolist()}"
        raise InvalidSettingsError(message)
    scales = np.linspace(1 - options.span, 1 + options.span, options.points)
    volumes, energies = [], []
    for done, scale in enumerate(scales, 1):
        scaled = atoms.copy()
        scaled.set_cell(atoms.cell.array * scale ** (1 / 3), scale_atoms=True)
        scaled.calc = calculator
        volumes.append(scaled.get_volume())
        energies.append(scaled.get_potential_energy())
        if report is not None:
            report(done, f"{volumes[-1]:.2f} Å^3, {energies[-1]:.4f} eV")
    equation = EquationOfState(volumes, energies, eos=options.form)
    try:
        with warnings.catch_warnings():
            # A minimum outside of the samples is reported in the result.
            warnings.simplefilter("ignore")
            volume, energy, modulus = equation.fit(warn=False)
    except (ValueError, RuntimeError) as error:
        message = f"the energies have no minimum that {options.form} can be fitted to ({error}); relax the cell first"
        raise RunFailedError(message) from error
    curve = equation.getplotdata()
    return EquationResult(
        volumes=np.array(volumes),
        energies=np.array(energies),
        volume=float(volume),
        energy=float(energy),
        bulk_modulus=float(modulus / units.GPa),
        length_scale=float((volume / atoms.get_volume()) ** (1 / 3)),
        curve=(np.asarray(curve[4]), np.asarray(curve[5])),
        in_range=bool(min(volumes) <= volume <= max(volumes)),
    )
