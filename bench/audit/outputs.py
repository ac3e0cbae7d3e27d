"""From the rows of a run, or of somebody else, to data, analysis and report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvrelay.bench.audit import extras
from kvrelay.bench.audit.folder import PLAN, ROWS, STATE, read_object
from kvrelay.bench.audit.plan import load_plan
from kvrelay.cluster.errors import ConfigError

DATA, ANALYSIS = "data.parquet", "analysis.json"
_WARM_UP = "warm_up"


@dataclass(frozen=True, slots=True)
class Source:
    """Where rows are, and by which plan they were taken.

    Attributes:
        rows: their file.
        out: folder for what is made of them.
        plan: None for rows that no plan is known of.
        run_plan_sha256: of the plan that they were taken by; empty if nobody tells.
        plan_changed: it was another one for some of them.
        discarded_requests: made to warm up, and not among the rows.
        not_measured: columns that the run could not fill, and why.
        sections: of the analysis that are not made of rows.
    """

    rows: Path
    out: Path
    plan: Path | None
    run_plan_sha256: str = ""
    plan_changed: bool = False
    discarded_requests: int = 0
    not_measured: Mapping[str, str] = field(default_factory=dict)
    sections: Mapping[str, Any] = field(default_factory=dict)


def source_of(where: Path, plan: Path | None, out: Path | None) -> Source:
    """The rows of a run's folder, or of a file.

    Args:
        where: the folder, or the file.
        plan: instead of the folder's own.
        out: instead of the folder, or the file's.

    Raises:
        ConfigError: there are none.
    """
    if where.is_file():
        return Source(where, out or where.parent, plan)
    rows = next((where / name for name in (ROWS, DATA) if (where / name).is_file()), None)
    if rows is None:
        raise ConfigError(f"{where}: neither a file nor a folder with {ROWS} or {DATA}")
    own = where / PLAN
    state = read_object(where / STATE)
    return Source(
        rows,
        out or where,
        plan or (own if own.is_file() else None),
        str(state.get("plan_sha256", "")),
        bool(state.get("plan_changed", False)),
        int(state.get("discarded_requests", 0)),
        dict(state.get("not_measured", {})),
        extras.sections(where),
    )


def require() -> None:
    """Fail at once where nothing could be analysed in the end.

    Raises:
        ConfigError: with the remedy.
    """
    try:
        import kvrelay.bench.audit.analysis.analyze
        import kvrelay.bench.audit.report.article  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"an analysis needs {error.name or error}; pip install 'kvrelay[audit]'"
        ) from None


def analyze(source: Source, columns: Mapping[str, str]) -> Path:
    """Write `data.parquet` and `analysis.json`; where the latter is.

    The same rows and plan give the same bytes.

    Args:
        source: of the rows.
        columns: names of the file's columns by those that they have in the schema.

    Raises:
        ConfigError: the plan cannot be read, or what analyses is not installed.
        DataError: the rows cannot be analysed.
    """
    require()
    from kvrelay.bench.audit.analysis import analyze as analysis
    from kvrelay.bench.audit.analysis import break_even, files, pairs
    from kvrelay.bench.audit.analysis.settings import Settings
    from kvrelay.bench.audit.report import article, described

    settings = Settings()
    if source.plan is not None:
        plan = load_plan(source.plan)
        changed = source.plan_changed or source.run_plan_sha256 not in ("", plan.sha256)
        settings = Settings.from_plan(plan.model_dump(mode="json"), plan.sha256, changed)
    data = files.read(source.rows, columns)
    source.out.mkdir(parents=True, exist_ok=True)
    if source.rows.resolve() != (source.out / DATA).resolve():
        files.write_parquet(data, source.out / DATA)
    left, _ = analysis.exclude(data, settings)
    relayed = pairs.pairs_of(left.columns, "relay", settings.control, settings.primary[0])
    others: dict[str, Any] = {"break_even": break_even.break_even(relayed, settings.seed)}
    lists = {name: values.tolist() for name, values in left.columns.items()}
    lists["stratum"] = left.stratum().tolist()
    others |= described.described(lists, source.not_measured)
    others |= source.sections
    found = analysis.analyze(data, settings, others)
    excluded: dict[str, int] = found["meta"]["excluded"]
    excluded[_WARM_UP] = excluded.get(_WARM_UP, 0) + source.discarded_requests
    found["article"] = article.judge(found)
    analysis.write(found, source.out / ANALYSIS)
    return source.out / ANALYSIS


def report(folder: Path) -> list[Path]:
    """Write the report of an analysis that is there; the files.

    Raises:
        BenchError: it is not.
    """
    from kvrelay.bench.audit.report import writing

    return list(writing.write(folder))
