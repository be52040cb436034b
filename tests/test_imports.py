"""Imports run one way, and the core loads numpy and the standard library only."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = "openrlhf_dynamicrubric"
ROOT = Path(__file__).parent.parent / PACKAGE
HEAVY = {"torch", "transformers", "trl", "accelerate", "ray", "vllm", "openrlhf", "pydantic", "datasets", "llguidance", "gguf"}
HEAVY |= {"rich", "matplotlib", "jinja2", "yaml"}

ORDER = [
    "errors",
    "types",
    "text",
    "files",
    "aio",
    "scoring",
    "objectives",
    "prompts",
    "parsing",
    "llm",
    "llm.base",
    "generator",
    "verifier",
    "evaluator",
    "anchors",
    "metrics",
    "records",
]
"""The core, downwards: a module imports only from above itself."""


def source_of(module: str) -> Path:
    path = ROOT / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def imported(path: Path) -> set[str]:
    """Every module that a file imports, at its top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} has a relative import"
            assert node.module
            if node.module == PACKAGE:
                found |= {f"{PACKAGE}.{alias.name}" for alias in node.names}
            else:
                found.add(node.module)
    return found


def test_the_core_is_all_there() -> None:
    assert all(source_of(module).is_file() for module in ORDER)


@pytest.mark.parametrize("module", ORDER)
def test_imports_run_downwards(module: str) -> None:
    own = {name.removeprefix(f"{PACKAGE}.") for name in imported(source_of(module)) if name.startswith(f"{PACKAGE}.")}
    assert own <= set(ORDER[: ORDER.index(module)])


@pytest.mark.parametrize("module", ORDER)
def test_the_core_imports_numpy_and_the_standard_library(module: str) -> None:
    roots = {name.split(".")[0] for name in imported(source_of(module))}
    assert roots <= {*sys.stdlib_module_names, "numpy", PACKAGE}


def loaded_by(statement: str) -> set[str]:
    """Top-level modules in a fresh interpreter after the statement."""
    script = f"import sys\n{statement}\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True)
    return set(done.stdout.split())


def test_importing_the_package_loads_nothing_heavy() -> None:
    loaded = loaded_by(f"import {PACKAGE}")
    assert {PACKAGE, "numpy"} <= loaded
    assert not loaded & HEAVY


def test_importing_all_of_the_core_loads_nothing_heavy() -> None:
    assert not loaded_by("\n".join(f"import {PACKAGE}.{module}" for module in ORDER)) & HEAVY


def test_the_core_works_without_anything_heavy() -> None:
    """A group is scored while imports of the heavy packages fail."""
    script = (
        f"sys.modules.update(dict.fromkeys({sorted(HEAVY)!r}))\n"
        "import asyncio\n"
        f"from {PACKAGE} import Evaluator, ResponseSet\n"
        "from tests.scripted import ScriptedModel\n"
        "judge = Evaluator(generator=ScriptedModel(), verifier=ScriptedModel())\n"
        "assert asyncio.run(judge.evaluate(ResponseSet('x', ('a', 'b')))).scores_K.tolist() == [0.625, 0.375]\n"
        "for name in [name for name in sys.modules if sys.modules[name] is None]: del sys.modules[name]"
    )
    assert not loaded_by(script) & HEAVY


def test_public_names() -> None:
    import openrlhf_dynamicrubric as package

    assert package.__all__ == [
        "Evaluation",
        "Evaluator",
        "EvaluatorConfig",
        "ResponseSet",
        "Rubric",
        "RubricItem",
        "Unscorable",
    ]
    assert all(hasattr(package, name) for name in package.__all__)
    assert (ROOT / "py.typed").is_file()
