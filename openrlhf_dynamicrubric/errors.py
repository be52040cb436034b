"""What can go wrong, one class a kind."""

from __future__ import annotations

import reprlib

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80
_SHORT.maxlevel, _SHORT.maxlist, _SHORT.maxtuple, _SHORT.maxdict = 3, 4, 4, 4


def shown(value: object) -> str:
    """A value as an error message shows it: one line, a long or deep one with its middle left out.

    Example:
        >>> shown([1, 2, 3, 4, 5, 6])
        '[1, 2, 3, 4, ...]'
    """
    return _SHORT.repr(value)


class DynamicRubricError(Exception):
    """Root of every error that this package raises on purpose."""


class RubricParseError(DynamicRubricError, ValueError):
    """A model's text is not a valid rubric; the message says why."""


class ModelCallError(DynamicRubricError):
    """A call to a language model gave no usable answer: outage, timeout, prompt too long.

    Never a judgement: whoever catches it leaves the group (or the item) out and counts it.
    """


class DataError(DynamicRubricError, ValueError):
    """A file or a row is not what its schema says; the message names file, line and value."""


class ConfigError(DynamicRubricError, ValueError):
    """An option, or a combination of options, cannot work; the message says what to change."""


class ModelLoadError(DynamicRubricError):
    """A model cannot be loaded as asked: missing files, missing weights, another architecture."""


class PhaseError(DynamicRubricError):
    """A phase of a run failed or cannot start; the run's state on disk stays as it was."""


class UnscorableRunError(DynamicRubricError):
    """No group could be scored for several steps in a row: judges are down or write no valid rubric."""


class MissingDependencyError(DynamicRubricError, ImportError):
    """An optional package is not installed; the message gives the install command."""


class RankError(DynamicRubricError):
    """Work failed on one process of several; raised on all of them with the message of the one that failed."""
