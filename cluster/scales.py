"""Axes of the pictures: where a value lies, and which round numbers are written beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Scale:
    """An axis and where it is drawn; what lies beyond is at its end.

    Attributes:
        low: the value at `start`; less than `high`.
        high: the value at `end`.
        start: pixels; may be more than `end`, as upright axes are.
        end: pixels.
    """

    low: float
    high: float
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class LinearScale(_Scale):
    """Of equal differences."""

    def at(self, value: float) -> float:
        """The pixel of a value."""
        inside = min(max(value, self.low), self.high)
        part = (inside - self.low) / (self.high - self.low)
        return round(self.start + (self.end - self.start) * part, 1)

    def ticks(self, about: int = 6) -> list[float]:
        """Round numbers, about so many."""
        rough = (self.high - self.low) / about
        unit = 10.0 ** math.floor(math.log10(rough))
        step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        digits = max(0, 3 - math.floor(math.log10(step)))  # without what 3 * 0.1 has too much
        return [round(step * number, digits) for number in range(first, last + 1)]


@dataclass(frozen=True, slots=True)
class LogScale(_Scale):
    """Of equal factors; `low` is positive."""

    def at(self, value: float) -> float:
        """The pixel of a value."""
        inside = min(max(value, self.low), self.high)
        part = math.log(inside / self.low) / math.log(self.high / self.low)
        return round(self.start + part * (self.end - self.start), 1)

    def ticks(self) -> list[float]:
        """Round numbers, seven at most."""
        exponents = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for digits in ((1, 2, 5), (1, 3), (1,)):
            marks = [digit * 10.0**exponent for exponent in exponents for digit in digits]
            inside = [mark for mark in marks if self.low <= mark <= self.high]
            if len(inside) <= 7:
                break
        return inside[:: math.ceil(len(inside) / 7) or 1]
