"""Worlds in which the truth is known, because we made them.

Each makes rows as a run would, and says what every estimand is. Factors of chance are lognormal
with mean one or normal with mean zero, so that truths are sums of the numbers that stand here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, cast

import numpy as np

from kvrelay.bench.audit.analysis.data import Bools, Column, Data, Floats, Ints
from kvrelay.bench.audit.analysis.schema import Design

RELAY, CONTROL = "relay", "recompute"
_LINKS = np.array(["same-node", "same-node", "100mbit", "100mbit"])
_TOKENS = np.array([256.0, 1024.0, 256.0, 1024.0])
# Seconds to the first token of each stratum; on the slow link a relay of a short prompt loses.
_RECOMPUTE_S = np.array([0.4, 1.6, 0.4, 1.6])
_RELAY_S = np.array([0.1, 0.3, 0.5, 1.2])
EFFECT_S = _RELAY_S - _RECOMPUTE_S
NUM_STRATA = len(EFFECT_S)
_SHARED, _OWN = 0.15, 0.2  # sigma of what a request brings along, and of what it meets


@dataclass(frozen=True, slots=True)
class World:
    """Rows, and what is true of them by estimand; strata by their number."""

    data: Data
    truth: Mapping[str, float]


Maker = Callable[[np.random.Generator], World]


def paired(rng: np.random.Generator, pairs: int = 16, works: bool = True) -> World:
    """The same requests under both arms, so many pairs in each of four strata.

    Args:
        rng: source of chance.
        pairs: in a stratum.
        works: false makes the relay another control.
    """
    stratum = np.repeat(np.arange(NUM_STRATA), pairs)
    n = len(stratum)
    own = _lognormal(rng, _SHARED, n)
    relay_s = (_RELAY_S if works else _RECOMPUTE_S)[stratum]
    both = [
        _RECOMPUTE_S[stratum] * own * _lognormal(rng, _OWN, n),
        relay_s * own * _lognormal(rng, _OWN, n),
    ]
    begun = np.arange(n, dtype=np.float64) * 10.0
    first = rng.random(n) < 0.5
    rows = _rows(
        Design.PAIRED,
        treated=np.repeat([False, True], n),
        ttft_s=np.concatenate(both),
        stratum=np.tile(stratum, 2),
        time_s=np.concatenate([begun + 5.0 * first, begun + 5.0 * ~first]),
        session=np.tile(np.arange(n), 2),
        pair=np.tile(np.arange(n), 2).astype(np.str_),
    )
    effects = EFFECT_S if works else np.zeros(NUM_STRATA)
    by_number = {str(number): float(effect) for number, effect in enumerate(effects)}
    return World(rows, {"direct": float(effects.mean()), **by_number})


def randomised(
    rng: np.random.Generator,
    n: int = 480,
    *,
    fixed: bool = False,
    uneven: bool = False,
    works: bool = True,
    lost: float = 0.0,
) -> World:
    """Requests whose arms are drawn one by one.

    Args:
        rng: source of chance.
        n: requests.
        fixed: every stratum has its share of them exactly; else strata come by chance too.
        uneven: arms are not equally likely, and not the same in all strata.
        works: false makes the relay another control.
        lost: share of relayed rows that are missing (a planted sample ratio mismatch).
    """
    stratum = np.arange(n) % NUM_STRATA if fixed else rng.integers(0, NUM_STRATA, n)
    chance = np.array([0.3, 0.5, 0.5, 0.7])[stratum] if uneven else np.full(n, 0.5)
    treated = rng.random(n) < chance
    own = _lognormal(rng, _SHARED, n)
    relay_s = _RELAY_S if works else _RECOMPUTE_S
    mean_s = np.where(treated, relay_s[stratum], _RECOMPUTE_S[stratum])
    rows = _rows(
        Design.RANDOMISED,
        treated=treated,
        ttft_s=mean_s * own * _lognormal(rng, _OWN, n),
        stratum=stratum,
        propensity=np.where(treated, chance, 1.0 - chance),
        predicted_recompute_s=_RECOMPUTE_S[stratum] * own,
    )
    kept = ~(treated & (rng.random(n) < lost))
    effects = EFFECT_S if works else np.zeros(NUM_STRATA)
    by_number = {str(number): float(effect) for number, effect in enumerate(effects)}
    return World(rows.where(kept), {"direct": float(effects.mean()), **by_number})


def sessions(rng: np.random.Generator, count: int = 60, works: bool = True) -> World:
    """Sessions of 2 to 6 requests, slow or fast together, half of the sessions drawn to relay."""
    sizes = rng.integers(2, 7, count)
    session = np.repeat(np.arange(count), sizes)
    n = len(session)
    relays = rng.permutation(np.arange(count) < count // 2)
    treated = relays[session]
    own = _lognormal(rng, _SHARED, n)
    together = _lognormal(rng, 0.25, count)[session]
    mean_s = np.where(treated & works, 0.5, 1.0)
    rows = _rows(
        Design.SESSIONS,
        treated=treated,
        ttft_s=mean_s * own * together * _lognormal(rng, _OWN, n),
        stratum=np.zeros(n, np.int64),
        session=session,
        predicted_recompute_s=own,
    )
    return World(rows, {"direct": -0.5 if works else 0.0})


def heavy_sessions(rng: np.random.Generator, count: int = 400, size: int = 5) -> World:
    """Sessions whose times are lognormal, so that every quantile is known."""
    session = np.repeat(np.arange(count), size)
    n = len(session)
    treated = rng.permutation(np.arange(count) < count // 2)[session]
    between, within = 0.3, 0.4
    logs = rng.normal(0.0, between, count)[session] + rng.normal(0.0, within, n)
    logs += np.where(treated, math.log(0.5), 0.0)
    rows = _rows(
        Design.SESSIONS,
        treated=treated,
        ttft_s=np.exp(logs),
        stratum=np.zeros(n, np.int64),
        session=session,
    )
    sigma = math.hypot(between, within)
    at = {share: math.exp(sigma * NormalDist().inv_cdf(share)) for share in (0.5, 0.99)}
    return World(rows, {f"{share:g}": -0.5 * quantile for share, quantile in at.items()})


def noncompliance(rng: np.random.Generator, n: int = 600) -> World:
    """Three in ten relays do not complete, and those are requests that take longer anyway."""
    treated = rng.random(n) < 0.5
    would = rng.random(n) < 0.7
    base_s = np.where(would, 0.9, 1.2) * _lognormal(rng, _OWN, n)
    completed = treated & would
    rows = _rows(
        Design.RANDOMISED,
        treated=treated,
        ttft_s=np.where(completed, base_s - 0.4, base_s),
        stratum=np.zeros(n, np.int64),
        completed=completed,
    )
    return World(rows, {"complier": -0.4, "itt": -0.28})


def staggered(rng: np.random.Generator, units: int = 8, periods: int = 10) -> World:
    """Replicas that differ, in times that change, each enabled in a period that was drawn."""
    start = rng.permutation(1 + np.arange(units))
    unit, period = (each.reshape(-1) for each in np.indices((units, periods)))
    slow = rng.normal(0.0, 0.2, units)[unit]
    drift = np.cumsum(rng.normal(0.0, 0.05, periods))[period]
    noise = _autoregressive(rng, (units, periods), 0.05).reshape(-1)
    unit, period, level = (
        np.repeat(each, 4) for each in (unit, period, 1.5 + slow + drift + noise)
    )
    treated = period >= start[unit]
    ttft_s = level - 0.3 * treated + rng.normal(0.0, 0.1, len(level))
    rows = _rows(
        Design.STAGGERED,
        treated=treated,
        ttft_s=np.maximum(ttft_s, 0.0),
        stratum=np.zeros(len(level), np.int64),
        block=period,
        unit=unit.astype(np.str_),
        time_s=period * 100.0 + np.arange(len(level)) % 100,
    )
    return World(rows, {"direct": -0.3})


# On a link that all share, a relay is faster for itself and slows everybody's transfers.
DIRECT_S, CONGESTION_S = -0.2, 0.5
GLOBAL_S = DIRECT_S + CONGESTION_S


def switchback(
    rng: np.random.Generator,
    pairs: int = 12,
    size: int = 24,
    works: bool = True,
    carry: float = 0.0,
) -> World:
    """Blocks in pairs, a coin deciding which of the two relays; a shared link.

    Args:
        rng: source of chance.
        pairs: of blocks.
        size: requests of a block.
        works: false makes the relay another control.
        carry: share of what a block did to the link that the first half of the next one inherits
            (planted carry-over).
    """
    coins = rng.random(pairs) < 0.5
    share = np.column_stack([coins, ~coins]).reshape(-1).astype(np.float64)
    return _shared_link(rng, Design.SWITCHBACK, share, size, works=works, carry=carry)


def saturation(rng: np.random.Generator, blocks: int = 6, size: int = 24) -> World:
    """So many blocks at each share of relays, in random order; a shared link."""
    share = rng.permutation(np.repeat([0.0, 0.25, 0.5, 0.75, 1.0], blocks))
    return _shared_link(rng, Design.SATURATION, share, size, works=True, carry=0.0)


def mixed(rng: np.random.Generator, n: int = 480) -> World:
    """Requests drawn one by one on the same shared link, half of them relays all the time."""
    treated = rng.random(n) < 0.5
    ttft_s = 1.5 + DIRECT_S * treated + CONGESTION_S * 0.5 + rng.normal(0.0, 0.2, n)
    rows = _rows(
        Design.RANDOMISED,
        treated=treated,
        ttft_s=ttft_s,
        stratum=np.full(n, 2),
    )
    return World(rows, {"direct": DIRECT_S, "global": GLOBAL_S})


def logged(rng: np.random.Generator, n: int = 800) -> World:
    """A policy that relays long prompts on idle links, and its log; relaying saves 0.3 s.

    Long prompts take long whatever is done, so by the log alone relays look slow.
    """
    tokens = 256.0 * rng.integers(1, 9, n).astype(np.float64)
    in_flight = rng.integers(0, 4, n).astype(np.float64)
    wants = 0.004 * (tokens - 1152.0) - 0.8 * (in_flight - 1.5)
    relayed = rng.random(n) < np.clip(1.0 / (1.0 + np.exp(-0.5 * wants)), 0.05, 0.95)
    ttft_s = 0.5 + 0.001 * tokens + 0.2 * in_flight - 0.3 * relayed + rng.normal(0.0, 0.1, n)
    rows = _rows(
        Design.RANDOMISED,
        treated=np.ones(n, np.bool_),
        ttft_s=ttft_s,
        stratum=np.zeros(n, np.int64),
        arm=np.full(n, "policy"),
        decided=np.where(relayed, RELAY, CONTROL),
        prompt_tokens=tokens,
        in_flight=in_flight,
        completed=relayed,
    )
    return World(rows, {"direct": -0.3})


def together(worlds: list[World]) -> Data:
    """Rows of several worlds, each with sessions and times of its own, as one run."""
    from kvrelay.bench.audit.analysis.data import from_columns

    names = sorted({name for world in worlds for name in world.data.columns})
    columns: dict[str, list[Any]] = {name: [] for name in names}
    for number, world in enumerate(worlds):
        for name in names:
            values = world.data.columns.get(name)
            plain: list[Any] = [None] * len(world.data) if values is None else values.tolist()
            if name in ("session", "request", "pair"):
                plain = [None if v in (None, "") else f"{number}.{v}" for v in plain]
            if name == "time_s":
                plain = [100_000.0 * number + v for v in plain]
            columns[name] += [None if isinstance(v, float) and math.isnan(v) else v for v in plain]
    return from_columns(columns)


def _shared_link(
    rng: np.random.Generator,
    design: Design,
    share: Floats,
    size: int,
    *,
    works: bool,
    carry: float,
) -> World:
    blocks = len(share)
    block = np.repeat(np.arange(blocks), size)
    place = np.tile(np.arange(size), blocks)
    # Exactly that share of each block's requests, at random places.
    rank = rng.random((blocks, size)).argsort(axis=1).argsort(axis=1).reshape(-1)
    treated = rank < np.round(share * size)[block]
    before = np.concatenate([share[:1], share[:-1]])
    lingers = carry * (place < size // 2)
    on_link = (1.0 - lingers) * share[block] + lingers * before[block]
    drift = _autoregressive(rng, (1, blocks), 0.08)[0][block]
    gain = DIRECT_S * treated + CONGESTION_S * on_link if works else np.zeros(len(block))
    rows = _rows(
        design,
        treated=treated,
        ttft_s=np.maximum(1.5 + gain + drift + rng.normal(0.0, 0.2, len(block)), 0.0),
        stratum=np.full(len(block), 2),
        block=block,
        saturation=share[block],
        time_s=block * 100.0 + place,
    )
    if not works:
        return World(rows, {"global": 0.0})
    return World(rows, {"global": GLOBAL_S, "direct": DIRECT_S, "spillover": CONGESTION_S})


def _rows(
    design: Design, treated: Bools, ttft_s: Floats, stratum: Ints, **columns: Column | Ints
) -> Data:
    """Rows with what every run has; `columns` replaces and adds."""
    n = len(ttft_s)
    order = np.arange(n)
    common: dict[str, Column | Ints] = {
        "design": np.full(n, str(design)),
        "arm": np.where(treated, RELAY, CONTROL),
        "session": order,
        "request": order.astype(np.str_),
        "time_s": order.astype(np.float64),
        "propensity": np.full(n, 0.5),
        "completed": treated,
        "failed": np.zeros(n, np.bool_),
        "ttft_s": ttft_s,
        "link": _LINKS[stratum],
        "tokens": _TOKENS[stratum],
        "load": np.full(n, "idle"),
        "similarity": np.full(n, "high"),
        "language": np.full(n, "en"),
    }
    merged = {**common, **columns}
    merged["relayed_tokens"] = np.where(merged["completed"], _TOKENS[stratum], 0.0)
    merged["session"] = np.asarray(merged["session"]).astype(np.str_)
    by_time = np.argsort(np.asarray(merged["time_s"], np.float64), kind="stable")
    return Data({name: _column(each)[by_time] for name, each in merged.items()})


def _column(values: Column | Ints) -> Column:
    return values.astype(np.float64) if values.dtype.kind == "i" else cast(Column, values)


def _lognormal(rng: np.random.Generator, sigma: float, size: int) -> Floats:
    return np.asarray(rng.lognormal(-sigma * sigma / 2.0, sigma, size))


def _autoregressive(rng: np.random.Generator, shape: tuple[int, int], sigma: float) -> Floats:
    """Noise in which each step keeps half of the one before [rows, steps]."""
    steps = rng.normal(0.0, sigma, shape)
    for step in range(1, shape[1]):
        steps[:, step] += 0.5 * steps[:, step - 1]
    return steps
