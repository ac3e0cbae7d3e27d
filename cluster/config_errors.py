"""Reads YAML, and turns pydantic's errors into lines that name the field's path and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from kvrelay.cluster.errors import ConfigError

_SHA256 = 'a SHA-256 is 64 hex digits in lower case: printf %s "$KEY" | sha256sum'
_PATTERNS = {
    "name": "a name is letters and digits, with single '.', '_' or '-' between",
    "node": "a label's value is up to 63 letters and digits, with '.', '_' or '-' between",
    "token_sha256": _SHA256,
    "api_key_sha256": _SHA256,
    "trusted_header": "the name of a header is letters, digits and '-'",
}


def read_yaml(path: Path, examples: str, keys: str) -> Mapping[str, Any]:
    """A file's mapping; `examples` is where some lie, `keys` what it has to hold.

    Raises:
        ConfigError: it is not there, cannot be read, or is something else.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; see {examples} for examples") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, Mapping):
        raise ConfigError(f"{path}: expected a mapping with {keys}")
    return content


def all_problems(name: str, problems: list[str]) -> ConfigError:
    """The error that tells of every problem of the file `name`."""
    if len(problems) == 1:
        return ConfigError(f"{name}: {problems[0]}")
    return ConfigError("\n  ".join([f"{name}: {len(problems)} problems", *problems]))


def describe(error: ValidationError, root: type[BaseModel]) -> list[str]:
    """One line per problem, such as `relay.polcy: unknown key; did you mean 'policy'?`."""
    return [_line(item["type"], item["loc"], item["msg"], root) for item in error.errors()]


def _line(kind: str, loc: tuple[int | str, ...], message: str, root: type[BaseModel]) -> str:
    path = format_path(loc) or "file"
    if kind == "extra_forbidden":
        known = _fields_at(root, loc[:-1])
        close = difflib.get_close_matches(str(loc[-1]), known, n=1)
        hint = f"did you mean '{close[0]}'?" if close else f"known: {', '.join(known)}"
        return f"{path}: unknown key; {hint}"
    if kind == "missing":
        return f"{path}: missing, but required"
    if kind == "string_pattern_mismatch" and loc[-1] in _PATTERNS:
        return f"{path}: {_PATTERNS[str(loc[-1])]}"
    text = message.removeprefix("Value error, ")
    return f"{path}: {text[:1].lower()}{text[1:]}"


def format_path(loc: tuple[int | str, ...]) -> str:
    """`("agents", 1, "model")` as `agents[1].model`."""
    path = ""
    for part in loc:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path


def _fields_at(root: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """Names of the fields of the model that sits at `loc`."""
    annotation: Any = root
    for part in loc:
        model = _model_in(annotation)
        if model is not None:
            annotation = model.model_fields[str(part)].annotation
        else:
            annotation = get_args(annotation)[-1]  # the value type of a dict, the item of a list
    model = _model_in(annotation)
    return list(model.model_fields) if model is not None else []


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model itself, or the one in `Model | None`; None for containers."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (dict, list):
        return None
    return next((m for m in map(_model_in, get_args(annotation)) if m is not None), None)
