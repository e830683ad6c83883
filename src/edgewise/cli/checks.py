"""Checks of option values: each names the one value that is wrong, and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Iterable

from edgewise.errors import InvalidSettingsError


def require_one_of(name: str, value: str, allowed: Iterable[str]) -> None:
    """Refuse a value that is none of the allowed ones.

    Raises:
        InvalidSettingsError: It is not.
    """
    choices = tuple(allowed)
    if value not in choices:
        message = f"{name} is {value!r}; allowed are {', '.join(choices)}"
        raise InvalidSettingsError(message)


def require_positive(name: str, value: float, unit: str = "") -> None:
    """Refuse a number that is zero, negative or not finite.

    Raises:
        InvalidSettingsError: It is.
    """
    if not (math.isfinite(value) and value > 0):
        message = f"{name} is {value}{unit and ' ' + unit}; it has to be finite and greater than 0"
        raise InvalidSettingsError(message)


def require_at_least(name: str, value: float, least: float, unit: str = "") -> None:
    """Refuse a number below a bound, or one that is not finite.

    Raises:
        InvalidSettingsError: It is.
    """
    if not (math.isfinite(value) and value >= least):
        message = f"{name} is {value}{unit and ' ' + unit}; it has to be finite and at least {least}"
        raise InvalidSettingsError(message)


def require_finite(name: str, value: float, unit: str = "") -> None:
    """Refuse NaN and infinity.

    Raises:
        InvalidSettingsError: It is one of them.
    """
    if not math.isfinite(value):
        message = f"{name} is {value}{unit and ' ' + unit}; it has to be finite"
        raise InvalidSettingsError(message)
