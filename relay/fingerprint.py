"""The model fingerprint: everything besides tokens that KV bytes are a function of."""

import json
import os
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import blake3

from kvrelay.relay.keys import digest_fields

WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf")


@dataclass(frozen=True, slots=True)
class ModelFingerprint:
    """Any difference in any field means: no relay between the two.

    Attributes:
        weights: digest over all weight bytes.
        weight_epoch: changed whenever weights are updated in place.
        config: the resolved model configuration after overrides, as canonical JSON, and what else
            the encoding of positions depends on.
        dtype, kv_cache_dtype, quantization: as resolved.
        block_tokens: tokens of an engine block.
        slot_bytes: bytes of a block of all layers.
        attention: backend and the memory layout it packs blocks in.
        parallel: rank and size of the ranks that share a layer.
        engine: version of the engine.
    """

    weights: str
    weight_epoch: str
    config: str
    dtype: str
    kv_cache_dtype: str
    quantization: str
    block_tokens: int
    slot_bytes: int
    attention: str
    parallel: str
    engine: str

    def digest(self) -> bytes:
        """32 bytes, the seed of the key chain."""
        fields = asdict(self)
        return digest_fields(
            (f"{name}={fields[name]}".encode() for name in sorted(fields)), b"kvrelay.model"
        )


def canonical_json(value: object) -> str:
    """JSON with sorted keys; what JSON does not know goes in by its string."""
    return json.dumps(value, sort_keys=True, default=str)


def weights_digest(folder: Path, cache: Path | None = None) -> str:
    """Digest over the bytes of all weight files of a model or adapter folder.

    A file's digest is kept by (path, inode, size, mtime), so a restart reads nothing again.

    Args:
        folder: a model's folder, or a single weight file.
        cache: where digests are kept; None reads every time.

    Raises:
        FileNotFoundError: there are no weights in it.
    """
    if folder.is_file():
        files = [folder]
    else:
        files = sorted(path for path in folder.iterdir() if path.suffix in WEIGHT_SUFFIXES)
    if not files:
        raise FileNotFoundError(f"no weights ({', '.join(WEIGHT_SUFFIXES)}) in {folder}")
    known = _load(cache)
    fresh: dict[str, str] = {}
    hasher = blake3.blake3()
    for path in files:
        stat = path.stat()
        identity = f"{path.resolve()}:{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}"
        digest = known.get(identity)
        if digest is None:
            digest = blake3.blake3(max_threads=blake3.blake3.AUTO).update_mmap(path).hexdigest()
            fresh[identity] = digest
        hasher.update(f"{path.name}:{stat.st_size}:{digest}\n".encode())
    if fresh and cache is not None:
        _save(cache, known | fresh)
    return hasher.hexdigest()


def folder_digest(files: Iterable[Path]) -> bytes:
    """Digest over named small files, such as an adapter's configuration."""
    parts = []
    for path in sorted(files):
        parts += [path.name.encode(), path.read_bytes()]
    return digest_fields(parts, b"kvrelay.files")


def default_cache() -> Path:
    """Where weight digests are kept for this user."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "kvrelay" / "weights.json"


def _load(cache: Path | None) -> dict[str, str]:
    try:
        return dict(json.loads(cache.read_text())) if cache is not None else {}
    except (OSError, ValueError):
        return {}  # a missing or damaged cache costs one more read of the weights


def _save(cache: Path, digests: dict[str, str]) -> None:
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=cache.parent, delete=False) as file:
            json.dump(digests, file)
        Path(file.name).replace(cache)
    except OSError:
        return  # a read-only home costs one more read of the weights
