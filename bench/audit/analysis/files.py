"""Reading and writing audit rows: Parquet, JSON lines, CSV."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kvrelay.bench.audit.analysis.data import Data, from_columns
from kvrelay.bench.audit.analysis.data_errors import BadValue, DataError

# A line that says what the rows after it were measured with, as bench/raw.py writes it.
HEAD = "run"
_READABLE = ".parquet, .jsonl or .csv"


def read(file: Path, names: Mapping[str, str] | None = None) -> Data:
    """Rows of a file, checked and in order.

    Args:
        file: its suffix says what it is.
        names: the column of the file by the name that it has in the schema.

    Raises:
        DataError: it cannot be read, or not analysed (data.from_columns).
    """
    if not file.is_file():
        raise DataError(f"{file} is not there")
    readers = {".parquet": _parquet, ".jsonl": _json_lines, ".csv": _csv}
    reader = readers.get(file.suffix)
    if reader is None:
        raise DataError(f"{file}: {file.suffix or 'no suffix'}; expected {_READABLE}")
    return from_columns(reader(file), names)


def from_rows(rows: Sequence[Mapping[str, Any]]) -> Data:
    """Rows that are in memory, as they are written to JSON lines.

    Raises:
        DataError: they cannot be analysed.
    """
    return from_columns(_by_column(rows))


def write_parquet(data: Data, file: Path) -> None:
    """Keep rows in a file that `read` gives back; the same rows give the same bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {}
    for name in sorted(data.columns):
        values = np.asarray(data.columns[name])
        gaps = np.isnan(values) if values.dtype.kind == "f" else None
        if values.dtype.kind == "U":
            columns[name] = pa.array([value or None for value in values.tolist()], pa.string())
        else:
            columns[name] = pa.array(values, mask=gaps)
    part = file.with_name(f"{file.name}.part")
    pq.write_table(pa.table(columns), part, compression="zstd")
    part.replace(file)


def _parquet(file: Path) -> dict[str, list[Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(file)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{file}: no Parquet file: {error}") from None
    return {name: table.column(name).to_pylist() for name in table.column_names}


def _csv(file: Path) -> dict[str, list[Any]]:
    import pyarrow as pa
    from pyarrow import csv

    # An empty cell is a missing value; "nan" is not, so that it is reported.
    options = csv.ConvertOptions(null_values=[""], strings_can_be_null=True)
    try:
        table = csv.read_csv(file, convert_options=options)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{file}: no CSV file: {error}") from None
    return {name: table.column(name).to_pylist() for name in table.column_names}


def _json_lines(file: Path) -> dict[str, list[Any]]:
    # A run that was killed leaves a last line without its end: no row.
    whole, _, _ = file.read_bytes().rpartition(b"\n")
    rows = []
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise BadValue(f"{file}, line {number}: no JSON: {error}") from None
        if not isinstance(row, dict):
            raise BadValue(f"{file}, line {number}: not an object")
        if set(row) != {HEAD}:
            rows.append(row)
    return _by_column(rows)


def _by_column(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    names = sorted({name for row in rows for name in row})
    return {name: [row.get(name) for row in rows] for name in names}
