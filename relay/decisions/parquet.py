"""Full files of the log as Parquet: about a tenth of the bytes, and read by column.

pyarrow is imported late: an engine needs it once its first file is full, the command line only
where such files are. It parses and writes without Python's lock, so a scheduler does not wait.
"""

import os
from pathlib import Path
from typing import Any

from kvrelay.relay.decisions.rows import RESPONSE_ID, Row, column_types

DRAFT = ".draft"


def convert(lines: Path, table: Path) -> None:
    """Make a file of JSON lines one of Parquet; there is never half of either.

    Raises:
        OSError, pyarrow.ArrowInvalid: it stays as it is.
    """
    import pyarrow.json
    import pyarrow.parquet

    rows = pyarrow.json.read_json(
        lines,
        # In one piece: a column that is not declared gets its type from all of its values.
        read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=lines.stat().st_size),
        parse_options=pyarrow.json.ParseOptions(explicit_schema=_schema()),
    )
    draft = table.with_suffix(DRAFT)
    draft.touch(mode=0o600)
    pyarrow.parquet.write_table(rows, draft, compression="zstd")
    with draft.open("rb") as file:
        os.fsync(file)  # the lines go now
    draft.replace(table)
    lines.unlink()


def read(table: Path, answer: str | None = None) -> list[Row]:
    """The rows of a file; with `answer`, only those of that answer or of that request.

    Raises:
        OSError, pyarrow.ArrowInvalid: it is not there, or damaged.
    """
    import pyarrow.parquet

    wanted = None
    if answer is not None:
        wanted = [[(RESPONSE_ID, "=", answer)], [("request_id", "=", answer)]]
    # The path means nothing, such as folders named `key=value`; and the file is small.
    rows: list[Row] = pyarrow.parquet.read_table(
        table, filters=wanted, partitioning=None, use_threads=False
    ).to_pylist()
    return rows


def _schema() -> Any:
    import pyarrow

    types: dict[Any, Any] = {
        bool: pyarrow.bool_(),
        int: pyarrow.int64(),
        float: pyarrow.float64(),
        str: pyarrow.string(),
        list[str]: pyarrow.list_(pyarrow.string()),
    }
    return pyarrow.schema(
        [(name, types[kind]) for name, kind in column_types().items() if kind in types]
    )
