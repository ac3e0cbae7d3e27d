"""Errors of audit data.

BenchError
 +- DataError          rows that cannot be analysed as they are
     +- MissingColumns   what the schema requires is not there
     +- BadValue         a value that cannot be: not finite, negative, of another kind
     +- UnequalArms      the arms are nothing like what the design assigned
     +- TooLittleData    fewer rows or sessions than an interval needs
"""

from __future__ import annotations

from kvrelay.bench.errors import BenchError


class DataError(BenchError):
    """Rows that cannot be analysed as they are."""


class MissingColumns(DataError):
    """A required column is not there, under its own name or a mapped one."""


class BadValue(DataError):
    """A value that cannot be; the message names the column and the row."""


class UnequalArms(DataError):
    """Arms are so far from the assigned shares that no estimate could be trusted."""


class TooLittleData(DataError):
    """An arm has fewer rows or sessions than an interval needs."""
