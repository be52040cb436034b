"""What the TRL tests share: a tiny model on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny import build_tiny_model


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("models") / "tiny")
