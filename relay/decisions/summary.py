"""What a log says in all: counts, tokens, bytes and times, by arm and reason."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from kvrelay.policies import Arm
from kvrelay.relay.decisions.rows import Row

TOKENS = ("prompt_tokens", "local_tokens", "relayed_tokens", "recomputed_tokens")


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and 95th percentile of `n` values, in seconds."""

    median: float
    p95: float
    n: int

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread | None":
        """None if there are no values."""
        ordered = sorted(values)
        if not ordered:
            return None
        middle = len(ordered) // 2
        median = (ordered[middle] + ordered[~middle]) / 2
        # The smallest value that 95 % of all do not exceed.
        return cls(median, ordered[-(-95 * len(ordered) // 100) - 1], len(ordered))


@dataclass(slots=True)
class Group:
    """Requests of one arm and reason.

    Attributes:
        tokens: sums of `TOKENS`.
        num_bytes: bytes copied for relays.
        load_s: of each load, see `RelayRecord`.
        first_token_s: seconds to the first token, where records have them.
        estimates: predicted seconds of the arm that was taken, and `first_token_s`, where both are.
    """

    requests: int = 0
    tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TOKENS, 0))
    num_bytes: int = 0
    load_s: list[float] = field(default_factory=list)
    first_token_s: list[float] = field(default_factory=list)
    estimates: list[tuple[float, float]] = field(default_factory=list)

    def add(self, row: Row) -> None:
        """Count a request."""
        self.requests += 1
        for name in TOKENS:
            self.tokens[name] += row[name]
        self.num_bytes += row["num_bytes"]
        if row["load_s"]:
            self.load_s.append(row["load_s"])
        first_token_s, predicted_s = row.get("first_token_s"), predicted(row)
        if first_token_s is not None:
            self.first_token_s.append(first_token_s)
            if predicted_s is not None:
                self.estimates.append((predicted_s, first_token_s))

    def merge(self, other: "Group") -> None:
        """Take in another one's requests."""
        self.requests += other.requests
        for name in TOKENS:
            self.tokens[name] += other.tokens[name]
        self.num_bytes += other.num_bytes
        self.load_s += other.load_s
        self.first_token_s += other.first_token_s
        self.estimates += other.estimates

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; null where there are no values."""
        spreads = {
            "load_s": Spread.of(self.load_s),
            "first_token_s": Spread.of(self.first_token_s),
            "predicted_s": Spread.of(predicted_s for predicted_s, _ in self.estimates),
            "realised_s": Spread.of(realised_s for _, realised_s in self.estimates),
            # Relative to what was realised: 0.1 is 10 %.
            "error_ratio": Spread.of(abs(p - r) / r for p, r in self.estimates if r > 0),
        }
        return {
            "requests": self.requests,
            **self.tokens,
            "num_bytes": self.num_bytes,
            **{name: asdict(spread) if spread else None for name, spread in spreads.items()},
        }


def predicted(row: Row) -> float | None:
    """The estimate of the arm that was taken, in seconds to the first token."""
    estimate: float | None = row.get(
        "decision.relay_s" if row["decision.arm"] == Arm.RELAY else "decision.recompute_s"
    )
    return estimate


def summarise(rows: Iterable[Row]) -> dict[tuple[str, str], Group]:
    """Groups by arm and reason, the largest first."""
    groups: dict[tuple[str, str], Group] = {}
    for row in rows:
        groups.setdefault((row["decision.arm"], row["reason"]), Group()).add(row)
    return dict(sorted(groups.items(), key=lambda item: (-item[1].requests, item[0])))


def total(groups: Iterable[Group]) -> Group:
    """All of them as one."""
    everything = Group()
    for group in groups:
        everything.merge(group)
    return everything
