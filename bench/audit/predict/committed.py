"""The laws of an audit that was analysed before: by default of the one that kvrelay ships."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvrelay.bench.audit.analysis.law import Law
from kvrelay.cluster.errors import ConfigError

COMMITTED = Path(__file__).parents[2] / "results" / "audit" / "analysis.json"
_MAKE = "make one with `kvrelay audit run` and `kvrelay audit analyze`"


@dataclass(frozen=True, slots=True)
class Audit:
    """What a prediction takes from an audit.

    Attributes:
        path: of its analysis.
        meta: of its analysis.
        laws: by load.
    """

    path: Path
    meta: Mapping[str, Any]
    laws: Mapping[str, Law]


def load_audit(path: Path | None = None) -> Audit:
    """Read an analysis; None: the committed one.

    Raises:
        ConfigError: there is none, it is damaged, or no law was fitted in it.
    """
    if path is None and not COMMITTED.is_file():
        raise ConfigError(
            "no analysis of an audit comes with this installation, so nothing is known to predict "
            f"from; {_MAKE}, and name its analysis.json with --analysis"
        )
    where = path or COMMITTED
    try:
        analysis = json.loads(where.read_text(encoding="utf-8"))
        rows = analysis["break_even"]["laws"]
        laws = {str(row["load"]): Law.of_dict(row) for row in rows if row["fitted"]}
        why = [str(row["words"]) for row in rows if not row["fitted"]]
        meta = dict(analysis.get("meta") or {})
    except OSError as error:
        raise ConfigError(f"--analysis {where}: {error.strerror or error}; {_MAKE}") from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"--analysis {where}: not the analysis.json of an audit ({error!r}); {_MAKE}"
        ) from None
    if not laws:
        reason = "; ".join(dict.fromkeys(why)) or "it has no pairs of relay and recompute"
        raise ConfigError(f"--analysis {where}: {reason}; use an audit with more lengths and links")
    return Audit(where, meta, laws)
