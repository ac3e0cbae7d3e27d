"""The rows of `kvrelay bench policies`: every policy scored on what was measured of each request.

A pair is one request with both outcomes: recomputed, and with all that matches relayed. So each
policy is scored by replay: it is asked, and is given the outcome of the arm that it chooses. A pair
of a live cell is a round of blocks (policies_live.py): fixed rules decide all requests of a cell
alike, and `cost` has a block of its own, in which it decided itself.

- `oracle` knows the better arm of each cell: the one whose mean over the other half of its pairs is
  smaller, so that it does not profit from the noise of the pair that it is scored on.
- `per_link_constant` has for each link the threshold that is best in hindsight, noise included.
- `owner_affinity` sends the request to the engine that has the prefix. No policy of relay has that
  arm, nor has the oracle.
- On idle cells policies that learn do so link by link, as if each was a deployment of its own: from
  both arms of the other half of the pairs, then from their own decisions.

Regret is the mean over that of the oracle, less 1; over the grid, the mean of the cells' regrets.
Its intervals draw the pairs of each cell anew, the same for all policies; what the oracle and those
that learn have been taught by is held fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvrelay.bench.engines import MAX_MODEL_TOKENS
from kvrelay.bench.replayed import Load, Step, teach
from kvrelay.bench.report import Row
from kvrelay.bench.stats import half_width
from kvrelay.policies import Arm, Candidate, RelayPolicy, RelayView, parse_policy
from kvrelay.policies.baselines import MinTokens
from kvrelay.policies.costs import Costs

Floats = NDArray[np.float64]
ORACLE, PER_LINK, OWNER = "oracle", "per_link_constant", "owner_affinity"
PART = "relay_part"
COST = "cost"
IDLE, BUSY, TAIL, PARTIAL = "idle", "busy", "tail", "partial"
RECOMPUTE, RELAY = str(Arm.RECOMPUTE), str(Arm.RELAY)
MAX_HALF_WIDTH = 0.05
CLOSE_RATIO = 1.3
_DRAWS = 2000
_DIGITS = 5


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One combination of the factors."""

    shared_prefix_fraction: float
    tokens: int
    link: str
    load: str = IDLE

    @property
    def shared_tokens(self) -> int:
        """Tokens of the prompt that another agent has computed."""
        return round(self.shared_prefix_fraction * self.tokens)

    def factors(self) -> Row:
        """As fields of a row."""
        return {
            "shared_prefix_fraction": self.shared_prefix_fraction,
            "tokens": self.tokens,
            "link": self.link,
            "load": self.load,
        }


@dataclass(frozen=True, slots=True)
class Pair:
    """One request with what came of each arm.

    Attributes:
        number: among the pairs of its cell.
        local_hit_s: at the engine that has the prefix; None if none has.
        view: what there was to decide on; None if nothing could be relayed.
        load_s: how much of `relay_s` the load took.
        cost_s: of the block in which `cost` decided; None where it is replayed.
        cost_arms: what it decided there; `cost_explored`, how often by chance.
    """

    cell: Cell
    number: int
    recompute_s: float
    relay_s: float
    local_hit_s: float | None
    view: RelayView | None
    load_s: float
    cost_s: float | None = None
    cost_arms: tuple[str, ...] = ()
    cost_explored: int = 0

    @property
    def half(self) -> int:
        """Which half of its cell it belongs to."""
        return self.number % 2

    @property
    def num_requests(self) -> int:
        """Of each arm."""
        return max(1, len(self.cost_arms))

    def seconds(self, arm: Arm) -> float:
        """The outcome of an arm."""
        return self.relay_s if arm is Arm.RELAY else self.recompute_s


@dataclass(frozen=True, slots=True)
class Score:
    """A policy's choices for each pair, one for each of its requests, and what they took."""

    arms: Sequence[tuple[str, ...]]
    seconds: Floats


def cell_of(sample: Row) -> Cell:
    """The cell of a line of raw data."""
    fraction, tokens = float(sample["shared_prefix_fraction"]), int(sample["tokens"])
    return Cell(fraction, tokens, str(sample["link"]), str(sample["load"]))


def pair_of(sample: Row) -> Pair:
    """A line of raw data as a pair."""
    record, decided = sample["record"], _cost_records(sample)
    return Pair(
        cell=cell_of(sample),
        number=sample["pair"],
        recompute_s=sample["recompute_s"],
        relay_s=sample["relay_s"],
        local_hit_s=sample["local_hit_s"],
        view=view_of(record, sample["similarity"]),
        load_s=record["load_s"],
        cost_s=sample.get("cost_s"),
        cost_arms=tuple(_arm_of(each["relayed_tokens"], cell_of(sample)) for each in decided),
        cost_explored=sum(each["decision"]["explored"] for each in decided),
    )


def _cost_records(sample: Row) -> list[Row]:
    """Of the block in which `cost` decided."""
    return [request["record"] for request in sample.get("requests", {}).get(COST, ())]


def _arm_of(relayed_tokens: int, cell: Cell) -> str:
    """A part is an arm of its own."""
    if not relayed_tokens:
        return RECOMPUTE
    return RELAY if relayed_tokens >= cell.shared_tokens else PART


def view_of(record: Mapping[str, Any], similarity: float | None) -> RelayView | None:
    """What an idle engine saw when it decided on a request that was then relayed.

    One candidate, all that was relayed: parts of it have no measured outcome. The cosine is that
    of the prompt and what is held, which an ingress with an embedding model would have measured.
    """
    if not record["relayed_tokens"]:
        return None
    candidate = Candidate(
        place=record["load_path"],
        num_tokens=record["relayed_tokens"],
        num_bytes=record["num_bytes"],
        absent_bytes=record["fetched_bytes"],
    )
    return RelayView(
        prompt_tokens=record["prompt_tokens"],
        local_tokens=record["local_tokens"],
        candidates=(candidate,),
        requests_waiting=1,  # it counts itself
        similarity=similarity,
    )


def wanted(samples: Sequence[Row], cells: Sequence[Cell], least: int, most: int) -> dict[Cell, int]:
    """How many pairs each cell still needs: up to `least`, and up to `most` while unresolved."""
    by_cell: dict[Cell, list[Pair]] = {cell: [] for cell in cells}
    for sample in samples:
        if (cell := cell_of(sample)) in by_cell:
            by_cell[cell].append(pair_of(sample))
    missing = {}
    for cell, pairs in by_cell.items():
        enough = most if len(pairs) >= least and not is_resolved(pairs) else least
        if len(pairs) < enough:
            missing[cell] = enough - len(pairs)
    return missing


def is_resolved(pairs: Sequence[Pair]) -> bool:
    """Whether the ratio of the arms is known to within 5 %, with 95 % confidence."""
    return half_width([pair.recompute_s / pair.relay_s for pair in pairs]) <= MAX_HALF_WIDTH


def decisions(pairs: Sequence[Pair], policy: str) -> list[Arm]:
    """What a policy decides on each pair, see above."""
    arms: dict[int, Arm] = {}
    for link in sorted({pair.cell.link for pair in pairs}):
        for half in (0, 1):
            mine = [n for n, p in enumerate(pairs) if p.cell.link == link and p.half == half]
            other = [pair for pair in pairs if pair.cell.link == link and pair.half != half]
            student = parse_policy(policy, Costs(MAX_MODEL_TOKENS))
            for pair in other or [pairs[number] for number in mine]:
                for arm in Arm:
                    _teach(student, pair, arm)
            for number in mine:
                view = pairs[number].view
                arms[number] = Arm.RECOMPUTE if view is None else student.decide(view).arm
                _teach(student, pairs[number], arms[number])
    return [arms[number] for number in range(len(pairs))]


def _teach(student: RelayPolicy, pair: Pair, arm: Arm) -> None:
    """What an engine sees of a request that took this arm."""
    if pair.view is None or arm is Arm.RECOMPUTE:
        teach(student, Step(((0, pair.cell.tokens),), pair.recompute_s))
        return
    (candidate,) = pair.view.candidates
    num_bytes, there = candidate.absent_bytes or candidate.num_bytes, candidate.num_tokens
    teach(student, Load(candidate.place, num_bytes, num_bytes, 0, pair.load_s))
    seconds = pair.relay_s - pair.load_s
    teach(student, Step(((there, pair.cell.tokens - there),), seconds))


class Grid:
    """All pairs, and every policy's score on them."""

    def __init__(self, pairs: Sequence[Pair], policies: Sequence[str]) -> None:
        """Replay them, in the order in which they were measured.

        Raises:
            ValueError: there is no such policy.
        """
        self.pairs = pairs
        self.cells = sorted({pair.cell for pair in pairs})
        numbers: dict[Cell, list[int]] = {cell: [] for cell in self.cells}
        for number, pair in enumerate(pairs):
            numbers[pair.cell].append(number)
        self._numbers = {cell: np.array(found) for cell, found in numbers.items()}
        self._again = {
            cell: np.random.default_rng(place).integers(len(found), size=(_DRAWS, len(found)))
            for place, (cell, found) in enumerate(numbers.items())
        }
        self.scores = {ORACLE: self._score(self._oracle())}
        for name in policies:
            self.scores[name] = self._of_policy(name)
        links = sorted({cell.link for cell in self.cells})
        self.thresholds = {link: self._threshold(link) for link in links}
        rules = {link: MinTokens(threshold) for link, threshold in self.thresholds.items()}
        arms = [
            Arm.RECOMPUTE if pair.view is None else rules[pair.cell.link].decide(pair.view).arm
            for pair in pairs
        ]
        self.scores[PER_LINK] = self._score(arms)
        at_owner = [pair.local_hit_s or pair.recompute_s for pair in pairs]
        self.scores[OWNER] = Score([(OWNER,) * p.num_requests for p in pairs], np.array(at_owner))

    def of_cell(self, cell: Cell) -> list[Pair]:
        """Its pairs."""
        return [self.pairs[number] for number in self._numbers[cell]]

    def mean_s(self, policy: str, cell: Cell) -> float:
        """What a policy's choices take in a cell."""
        return float(self.scores[policy].seconds[self._numbers[cell]].mean())

    def regret(self, policy: str, cell: Cell) -> float:
        """As a fraction of the oracle's mean."""
        return self.mean_s(policy, cell) / self.mean_s(ORACLE, cell) - 1

    def regret_draws(self, policy: str, cell: Cell) -> Floats:
        """The same with the cell's pairs drawn anew, many times."""
        numbers, again = self._numbers[cell], self._again[cell]
        own, best = (self.scores[name].seconds[numbers] for name in (policy, ORACLE))
        return np.asarray(own[again].mean(axis=1) / best[again].mean(axis=1) - 1)

    def decided(self, policy: str, cells: Sequence[Cell]) -> dict[str, int]:
        """How often each arm was chosen."""
        choices = [self.scores[policy].arms[n] for cell in cells for n in self._numbers[cell]]
        arms = [arm for each in choices for arm in each]
        return {str(arm): arms.count(arm) for arm in sorted(set(arms))}

    def _score(self, arms: Sequence[Arm]) -> Score:
        seconds = [pair.seconds(arm) for pair, arm in zip(self.pairs, arms, strict=True)]
        pairs = zip(self.pairs, arms, strict=True)
        return Score([(str(arm),) * p.num_requests for p, arm in pairs], np.array(seconds))

    def _of_policy(self, name: str) -> Score:
        """Replayed, but for what `cost` has decided itself."""
        replayed = [pair for pair in self.pairs if name != COST or pair.cost_s is None]
        chosen = iter(decisions(replayed, name))
        arms: list[tuple[str, ...]] = []
        seconds = []
        for pair in self.pairs:
            if name == COST and pair.cost_s is not None:
                arms.append(pair.cost_arms)
                seconds.append(pair.cost_s)
            else:
                arm = next(chosen)
                arms.append((str(arm),) * pair.num_requests)
                seconds.append(pair.seconds(arm))
        return Score(arms, np.array(seconds))

    def _oracle(self) -> list[Arm]:
        best: dict[tuple[Cell, int], Arm] = {}
        for cell in self.cells:
            pairs = self.of_cell(cell)
            for half in (0, 1):
                other = [pair for pair in pairs if pair.half != half] or pairs
                recompute_s, relay_s = (
                    float(np.mean([pair.seconds(arm) for pair in other]))
                    for arm in (Arm.RECOMPUTE, Arm.RELAY)
                )
                best[cell, half] = Arm.RELAY if relay_s < recompute_s else Arm.RECOMPUTE
        return [best[pair.cell, pair.half] for pair in self.pairs]

    def _threshold(self, link: str) -> int:
        """The number of tokens from which on it was best to relay over a link."""
        cells = [cell for cell in self.cells if cell.link == link]
        seen = {
            pair.view.candidates[0].num_tokens
            for cell in cells
            for pair in self.of_cell(cell)
            if pair.view is not None
        }

        def mean_regret(threshold: int) -> float:
            found = []
            for cell in cells:
                taken = [
                    pair.seconds(
                        Arm.RELAY
                        if pair.view and pair.view.candidates[0].num_tokens >= threshold
                        else Arm.RECOMPUTE
                    )
                    for pair in self.of_cell(cell)
                ]
                found.append(float(np.mean(taken)) / self.mean_s(ORACLE, cell))
            return float(np.mean(found))

        return min(sorted({1, *(num_tokens + 1 for num_tokens in seen)}), key=mean_regret)


def summarize(samples: Sequence[Row], policies: Sequence[str]) -> list[Row]:
    """One row per policy for the grid, then one per cell and policy; tails are not of the grid.

    The grid's have `cells`, and no factors. `regret` is a fraction of the oracle's mean; its
    interval is left out where cells have only one pair.
    """
    pairs = [pair_of(sample) for sample in samples if sample["load"] != TAIL]
    if not pairs:
        return []
    grid = Grid(pairs, policies)
    fixed = [*(name for name in policies if name != COST), PER_LINK]
    rows = [_grid_row(grid, name) for name in grid.scores]
    for cell in grid.cells:
        best_s = min(grid.mean_s(name, cell) for name in fixed)
        rows += [_cell_row(grid, name, cell, best_s) for name in grid.scores]
    return rows


def _cell_row(grid: Grid, policy: str, cell: Cell, best_s: float) -> Row:
    pairs = grid.of_cell(cell)
    mean_s = grid.mean_s(policy, cell)
    recompute_s, relay_s = (
        float(np.mean([pair.seconds(arm) for pair in pairs])) for arm in (Arm.RECOMPUTE, Arm.RELAY)
    )
    row = {
        "policy": policy,
        **cell.factors(),
        "pairs": len(pairs),
        "mean_ttft_s": round(mean_s, _DIGITS),
        "regret": _interval(grid.regret(policy, cell), _draws(grid, policy, [cell])),
        "over_best_baseline": round(mean_s / best_s - 1, _DIGITS),
        "decided": grid.decided(policy, [cell]),
        "recompute_over_relay": round(recompute_s / relay_s, _DIGITS),
        "resolved": is_resolved(pairs),
    }
    if policy == COST and pairs[0].cost_s is not None:
        row["explored"] = sum(pair.cost_explored for pair in pairs)
    return row


def _grid_row(grid: Grid, policy: str) -> Row:
    cells = grid.cells
    row: Row = {
        "policy": policy,
        "cells": len(cells),
        "pairs": len(grid.pairs),
        "mean_ttft_s": round(float(np.mean([grid.mean_s(policy, c) for c in cells])), _DIGITS),
        "regret": _interval(_mean_regret(grid, policy), _draws(grid, policy, cells)),
        "decided": grid.decided(policy, cells),
    }
    if COST in grid.scores and policy != COST:
        more = _mean_regret(grid, policy) - _mean_regret(grid, COST)
        own, theirs = _draws(grid, policy, cells), _draws(grid, COST, cells)
        drawn = None if own is None or theirs is None else own - theirs
        row["regret_over_cost"] = _interval(more, drawn)
    if policy == PER_LINK:
        row["min_tokens"] = grid.thresholds
    return row


def _mean_regret(grid: Grid, policy: str) -> float:
    return float(np.mean([grid.regret(policy, cell) for cell in grid.cells]))


def _draws(grid: Grid, policy: str, cells: Sequence[Cell]) -> Floats | None:
    """Mean regret over cells with pairs drawn anew; None if there is nothing to draw from."""
    if any(len(grid.of_cell(cell)) < 2 for cell in cells):
        return None
    return np.asarray(np.mean([grid.regret_draws(policy, cell) for cell in cells], axis=0))


def _interval(estimate: float, draws: Floats | None) -> dict[str, float]:
    """An estimate with its 95 % interval, if there is one."""
    found = {"estimate": round(estimate, _DIGITS)}
    if draws is not None:
        low, high = np.percentile(draws, [2.5, 97.5]).tolist()
        found |= {"low": round(low, _DIGITS), "high": round(high, _DIGITS)}
    return found


def _regret(name: str) -> Callable[[Row], str]:
    """A cell: an estimate in percent, and below it its interval."""

    def cell(row: Row) -> str:
        value = row.get(name)
        if value is None:
            return "-"
        text = f"{value['estimate']:.1%}"
        if "low" in value:
            text += f"\n[dim]{value['low']:.0%} to {value['high']:.0%}[/]"
        return text

    return cell


def _relayed(row: Row) -> str:
    """A cell: of all requests."""
    decided = row["decided"]
    count = sum(decided.values())
    if OWNER in decided:
        return "-"
    return f"{(decided.get(RELAY, 0) + decided.get(PART, 0)) / count:.0%}"


def _cost_regret(row: Row) -> str:
    return f"{row[COST]['regret']['estimate']:.1%}" if row.get(COST) else "-"


CELLS_TABLE: Mapping[str, Callable[[Row], str]] = {
    "link": lambda row: f"{row['link']}\n[dim]{row['load']}[/]",
    "tokens": lambda row: f"{row['tokens']:,}",
    "shared": lambda row: f"{row['shared_prefix_fraction']:.0%}",
    "pairs": lambda row: str(row["pairs"]),
    "better\narm": lambda row: f"{row['mean_ttft_s']:.3f}",
    "recompute\n/ relay": lambda row: f"{row['recompute_over_relay']:.2f}",
    "regret\nof cost": _cost_regret,
    "known": lambda row: "yes" if row["resolved"] else "no",
}
GRID_TABLE: Mapping[str, Callable[[Row], str]] = {
    "policy": lambda row: str(row["policy"]),
    "TTFT\nmean": lambda row: f"{row['mean_ttft_s']:.3f}",
    "regret": _regret("regret"),
    "more\nthan cost": _regret("regret_over_cost"),
    "relayed": _relayed,
}
