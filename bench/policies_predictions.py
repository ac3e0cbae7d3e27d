"""How right the policy `cost` was about the future, in what `kvrelay bench policies` measured.

A record has what was predicted of both arms when it was decided, as seconds from the decision to
the first token, and how long that then was. Which arm a request takes is not the policy's choice
here, so nothing is left out because it was expected to be slow. Of a pair

- the relay's outcome is that of the request whose record has the prediction;
- the recomputation's is that of the same prompt recomputed afterwards, of which the engine knew
  nothing yet; where it came first it is not counted.

Of a live block every request tells of the arm that it took, if it looked for what is held. Nothing
counts that the record says is `uncalibrated`, nor the first relays after the link was changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvrelay.bench.policies_rows import COST, IDLE, PARTIAL, RELAY
from kvrelay.bench.report import Row
from kvrelay.policies import Arm

# Relays over a link after which predictions count.
SETTLED_AFTER = 5
NOMINAL = 0.9
_DIGITS = 5


@dataclass(frozen=True, slots=True)
class Prediction:
    """One prediction, and what came of it.

    Attributes:
        p5_s, p50_s, p95_s: what 5, 50 and 95 of 100 such outcomes were to stay below.
        seconds: the outcome.
    """

    load: str
    arm: Arm
    p5_s: float
    p50_s: float
    p95_s: float
    seconds: float

    @property
    def error(self) -> float:
        """How far the median was off, as a fraction of the outcome."""
        return abs(self.p50_s - self.seconds) / self.seconds

    @property
    def is_covered(self) -> bool:
        """Whether the outcome lies in the interval."""
        return self.p5_s <= self.seconds <= self.p95_s


def predictions(sample: Row) -> Iterator[Prediction]:
    """What a line of raw data tells."""
    if sample["load"] != IDLE:
        yield from _of_blocks(sample)
    elif sample["relays_since_link"] >= SETTLED_AFTER:
        record = sample["record"]
        if _relayed_all(record):
            yield from _of(record, IDLE, Arm.RELAY, record["first_token_s"])
        if sample["recompute_place"] > 0:
            yield from _of(record, IDLE, Arm.RECOMPUTE, sample["recompute_first_token_s"])


def summarize(samples: Sequence[Row]) -> list[Row]:
    """One row per load and arm that there are predictions of."""
    found: dict[tuple[str, Arm], list[Prediction]] = {}
    for sample in samples:
        for one in predictions(sample):
            found.setdefault((one.load, one.arm), []).append(one)
    return [_row(load, arm, each) for (load, arm), each in sorted(found.items())]


def binomial_p(successes: int, count: int, share: float) -> float:
    """How likely so improbable a number of successes is, or a less probable one, two-sided."""
    logs = [
        math.lgamma(count + 1)
        - math.lgamma(k + 1)
        - math.lgamma(count - k + 1)
        + k * math.log(share)
        + (count - k) * math.log(1 - share)
        for k in range(count + 1)
    ]
    limit = logs[successes] + 1e-7
    return min(1.0, sum(math.exp(log) for log in logs if log <= limit))


def _of_blocks(sample: Row) -> Iterator[Prediction]:
    # Where a part may be relayed, the prediction is of that, and a forced relay takes all.
    names = (COST,) if sample["load"] == PARTIAL else (COST, RELAY)
    for name in names:
        for request in sample["requests"][name]:
            record = request["record"]
            if _relayed_all(record):
                yield from _of(record, sample["load"], Arm.RELAY, record["first_token_s"])
            elif not record["relayed_tokens"] and not record["num_bytes"]:
                yield from _of(record, sample["load"], Arm.RECOMPUTE, record["first_token_s"])


def _relayed_all(record: Mapping[str, Any]) -> bool:
    """Whether what was decided came to be."""
    planned = record["decision"]["num_tokens"]
    return bool(planned) and bool(record["relayed_tokens"] == planned)


def _of(
    record: Mapping[str, Any], load: str, arm: Arm, seconds: float | None
) -> Iterator[Prediction]:
    decision = record["decision"]
    p5_s, p50_s, p95_s = (decision[f"{arm}_{name}"] for name in ("p5_s", "s", "p95_s"))
    if seconds and p50_s is not None and not decision["uncalibrated"]:
        yield Prediction(load, arm, p5_s, p50_s, p95_s, seconds)


def _row(load: str, arm: Arm, found: Sequence[Prediction]) -> Row:
    covered = sum(one.is_covered for one in found)
    return {
        "load": load,
        "arm": str(arm),
        "predictions": len(found),
        "median_error": round(float(np.median([one.error for one in found])), _DIGITS),
        "covered": round(covered / len(found), _DIGITS),
        "covered_p": round(binomial_p(covered, len(found), NOMINAL), _DIGITS),
        "below": round(sum(one.seconds < one.p5_s for one in found) / len(found), _DIGITS),
    }


PREDICTIONS_TABLE: Mapping[str, Callable[[Row], str]] = {
    "load": lambda row: str(row["load"]),
    "arm": lambda row: str(row["arm"]),
    "requests": lambda row: str(row["predictions"]),
    "median\nerror": lambda row: f"{row['median_error']:.1%}",
    "in the 90 %\ninterval": lambda row: f"{row['covered']:.1%}",
    "p of\n90 %": lambda row: f"{row['covered_p']:.2f}",
    "below it": lambda row: f"{row['below']:.1%}",
}
