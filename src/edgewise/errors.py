"""Every error that a user can cause.

Each class derives from `EdgewiseError` and from the built-in exception that fits, so that callers may catch either.
A message says what was given, what is allowed and the way out.
"""

from __future__ import annotations


class EdgewiseError(Exception):
    """Base of all errors raised by Edgewise on purpose."""


class InvalidSettingsError(EdgewiseError, ValueError):
    """Settings that contradict each other or hold a value that is not allowed."""


class ModeUnavailableError(EdgewiseError, RuntimeError):
    """An execution mode was asked for by name where it cannot serve."""


class CheckpointError(EdgewiseError, ValueError):
    """A checkpoint file cannot be used; the message says why."""


class UnsafeCheckpointError(CheckpointError):
    """A checkpoint asks for an object that the format does not need; nothing of the file was run."""


class UnsupportedModelError(CheckpointError):
    """A readable checkpoint of an architecture or an option that Edgewise does not implement."""


class ModelNotFoundError(EdgewiseError, FileNotFoundError):
    """No file, embedded model or published model has the given name."""


class ModelAccessError(EdgewiseError, PermissionError):
    """A published model is gated, or cannot be downloaded from here."""


class UnknownTaskError(EdgewiseError, ValueError):
    """The task is missing, or the checkpoint does not have it."""


class InvalidStructureError(EdgewiseError, ValueError):
    """A structure cannot be evaluated: empty, not finite, coincident atoms or a singular cell."""


class OutOfDomainError(InvalidStructureError):
    """A structure holds elements, or is of a kind, that the model was not made for."""


class ChargeSpinError(EdgewiseError, ValueError):
    """Total charge or spin multiplicity is out of range or not allowed under the task."""


class ChargeSpinTypeError(ChargeSpinError, TypeError):
    """Total charge or spin multiplicity is not an integer."""


class PropertyUnavailableError(EdgewiseError, RuntimeError):
    """The model or the mode cannot give the property that was asked for."""


class NonFiniteResultError(EdgewiseError, ArithmeticError):
    """The network returned NaN or infinity for a structure."""


class MissingExtraError(EdgewiseError, ImportError):
    """An optional package is needed; the message holds the command that installs it."""


class RunFailedError(EdgewiseError, RuntimeError):
    """A relaxation or a dynamics run stopped before its end; what was written so far is readable."""


class EdgewiseWarning(UserWarning):
    """Something that a user should know about a model or a result that is still given."""
