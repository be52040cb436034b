"""One tiny model for all tests that do not change it."""

from __future__ import annotations

import pytest

from openrlhf_dynamicrubric.llm.transformers_local import TransformersModel
from tests.llm.support import tiny_model


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TransformersModel:
    return tiny_model(tmp_path_factory.mktemp("tiny"))
