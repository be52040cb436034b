"""The range of TRL that this package relies on, beyond its public interface."""

from __future__ import annotations

from openrlhf_dynamicrubric.errors import MissingDependencyError

LOWEST, BELOW = (1, 16), (1, 17)
RANGE = "trl>=1.16,<1.17"


def check_trl() -> None:
    """Passes with the TRL versions whose internals RubricGeneratorTrainer overrides; tests/trl/test_contract.py pins them.

    With another one an override could silently stop being called, and rubrics be sampled without their schema.

    Raises:
        MissingDependencyError: another version; the message names it and the command that installs a fitting one.
    """
    from importlib.metadata import version

    found = version("trl")
    if not LOWEST <= tuple(int(part) for part in found.split(".")[:2]) < BELOW:
        raise MissingDependencyError(f"the rubric generator's trainer needs {RANGE}, found {found}: pip install '{RANGE}'")
