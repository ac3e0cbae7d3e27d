"""Streams of requests with a known truth, and whether the payoff estimate is ever wrong about it.

Sessions begin at random, have geometrically many requests of mixed kinds, overlap, and share a
draw and a speed. Times to the first token are heavy-tailed: speed and noise are lognormal, and one
request in thirty has a Pareto-distributed delay on top. Everything random has mean one, so the
truth is known exactly; long sessions have other requests than short ones, so it is not the mean
over sessions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvrelay.policies.confidence import Estimate, Verdict
from kvrelay.policies.decision import Arm
from kvrelay.policies.eviction import Floats, Ints
from kvrelay.policies.observation import Observation
from kvrelay.policies.payoff import PayoffEstimator
from kvrelay.policies.strata import Stratum

# Kinds of requests: seconds recomputed and relayed, chance that one is its session's last. The
# first three as on one node, the others over a slow link; about what prompts of 512 to
# 2048 tokens take with a small model on two cores.
_RECOMPUTE_S = np.array([0.45, 0.95, 2.3, 0.45, 0.95, 2.3])
_RELAY_S = np.array([0.07, 0.09, 0.13, 0.75, 1.1, 1.6])
_ENDS = np.array([0.5, 0.4, 0.25, 0.5, 0.4, 0.25])
_KIND_SHARE = 1.0 / len(_ENDS)
_MAIN_KIND = 0.7  # share of a session's requests that are of its own kind
SPAN_S = 20_000.0
_GAP_S = 30.0
_SPIKES, _SPIKE_SCALE = 1 / 30, 4.0
_DIFFICULTY = 0.3
_STRATUM = Stratum("any", "any", "any")
NORMAL = 1.96
_NAIVE_FROM_SESSIONS = 30


@dataclass(frozen=True, slots=True)
class World:
    """A kind of streams.

    Attributes:
        epsilon: share of sessions for which the lot decides.
        sessions: in a stream.
        tail: Pareto index of the delays: no variance at 2.
        speed: sigma of a session's own lognormal factor.
        relay_error, recompute_error: by which factor predictions are wrong.
        prefers_faster: the policy takes what is predicted to be faster; else it always relays.
        predicts: predictions are logged.
        slower: at half of the stream relays over the link become slower by this factor.
        window: of the estimate, as a share of the stream; none should end just when that does.
    """

    name: str
    epsilon: float
    sessions: int
    tail: float = 3.0
    speed: float = 0.4
    relay_error: float = 1.0
    recompute_error: float = 1.0
    prefers_faster: bool = True
    predicts: bool = True
    slower: float = 1.0
    window: float = 2.0


WORLDS = (
    World("rare draws", 0.01, 24_000, prefers_faster=False),
    World("frequent draws", 0.5, 1_500),
    World("heavy tails", 0.1, 4_000, tail=2.2, speed=0.8),
    World("wrong model", 0.1, 6_000, relay_error=5.0, recompute_error=0.5),
    World("no predictions", 0.2, 2_500, prefers_faster=False, predicts=False),
    World("changing world", 0.2, 6_000, slower=3.0, window=0.38),
)


@dataclass(frozen=True, slots=True)
class Stream:
    """Requests in the order of their times; `truth_s` is what each saves in the mean."""

    observations: list[Observation]
    born_s: Floats
    truth_s: Floats


def request_saving_s(slower: float = 1.0) -> float:
    """The mean saving over all requests."""
    relay_s = _RELAY_S * np.where(np.arange(len(_RELAY_S)) >= 3, slower, 1.0)
    saving_s = _RECOMPUTE_S - relay_s
    per_session = (1 / _ENDS) * (_MAIN_KIND * saving_s + (1 - _MAIN_KIND) * saving_s.mean())
    return float(per_session.sum() / (1 / _ENDS).sum())


def stream_of(world: World, rng: np.random.Generator) -> Stream:
    """One stream of a world."""
    main = rng.integers(0, len(_ENDS), world.sessions)
    sizes = rng.geometric(_ENDS[main])
    session = np.repeat(np.arange(world.sessions), sizes)
    count = len(session)
    begun_s = rng.uniform(0.0, SPAN_S, world.sessions)
    since_s = np.cumsum(rng.exponential(_GAP_S, count))
    first = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    # In this order a first request comes exactly when its session begins.
    times_s = begun_s[session] + (since_s - since_s[first][session])
    order = np.argsort(times_s, kind="stable")
    session, times_s = session[order], times_s[order]

    own = rng.random(count) < _MAIN_KIND
    kind = np.where(own, main[session], rng.integers(0, len(_ENDS), count))
    changed = (times_s >= SPAN_S / 2) & (world.slower != 1.0)
    slower = np.where(changed & (kind >= 3), world.slower, 1.0)
    difficulty = _lognormal(rng, _DIFFICULTY, count)
    relay_s = _RELAY_S[kind] * slower * difficulty
    recompute_s = _RECOMPUTE_S[kind] * difficulty
    told = _lognormal(rng, 0.2, count)
    # The model does not know of the change.
    relay_p = relay_s / slower * told * world.relay_error
    recompute_p = recompute_s * told * world.recompute_error

    prefers_relay = relay_p < recompute_p if world.prefers_faster else np.ones(count, np.bool_)
    draw = rng.random(world.sessions)[session]
    half = world.epsilon / 2
    relays = np.where(draw < half, True, np.where(draw >= 1 - half, False, prefers_relay))
    propensity = np.where(relays == prefers_relay, 1 - half, half)
    noise = _lognormal(rng, world.speed, world.sessions)[session] * _noise(rng, world.tail, count)
    outcome_s = np.where(relays, relay_s, recompute_s) * noise

    arms = (Arm.RECOMPUTE, Arm.RELAY)
    observations = [
        Observation(
            time_s,
            str(number),
            arms[relayed],
            chance,
            arms[wanted],
            taken_s,
            first_p if world.predicts else None,
            second_p if world.predicts else None,
            _STRATUM,
        )
        for time_s, number, relayed, chance, wanted, taken_s, first_p, second_p in zip(
            times_s.tolist(),
            session.tolist(),
            relays.tolist(),
            propensity.tolist(),
            prefers_relay.tolist(),
            outcome_s.tolist(),
            relay_p.tolist(),
            recompute_p.tolist(),
            strict=True,
        )
    ]
    truth_s = np.where(changed, request_saving_s(world.slower), request_saving_s())
    return Stream(observations, begun_s[session], truth_s)


def _lognormal(rng: np.random.Generator, sigma: float, size: int) -> Floats:
    return np.asarray(rng.lognormal(-sigma * sigma / 2, sigma, size))


def _noise(rng: np.random.Generator, tail: float, size: int) -> Floats:
    """Lognormal, some with a Pareto-distributed delay on top; mean one."""
    spikes = (rng.random(size) < _SPIKES) * _SPIKE_SCALE * rng.pareto(tail, size)
    mean = 1.0 + _SPIKES * _SPIKE_SCALE / (tail - 1.0)
    return np.asarray(_lognormal(rng, 0.5, size) * (1.0 + spikes) / mean)


@dataclass(slots=True)
class Watch:
    """What was seen by looking after every request.

    Attributes:
        missed: the interval excluded the truth at some look.
        naive_missed: the interval of a fixed number of sessions did, from 30 sessions on.
        wrong_sign: the interval once told the wrong sign.
        interval_sessions: sessions until there was an interval; None if there never was.
        sign_sessions: sessions until it told the sign.
        width_over_fixed: last width over that of the fixed-n interval of the same scores; None if
            there was no interval in the end.
    """

    missed: bool = False
    naive_missed: bool = False
    wrong_sign: bool = False
    interval_sessions: int | None = None
    sign_sessions: int | None = None
    width_over_fixed: float | None = None


def watch(world: World, seed: int) -> Watch:
    """Estimate over one stream, and look after every request."""
    made = stream_of(world, np.random.default_rng(seed))
    estimator = PayoffEstimator(window_s=world.window * SPAN_S)
    truth = _WindowTruth(made)
    seen = Watch()
    estimate = None
    for number, observed in enumerate(made.observations):
        estimator.observe(observed)
        estimate = estimator.estimate()
        _look(seen, estimate, truth.mean_s(number, estimate.since_s))
    assert estimate is not None
    width_s = estimate.upper_s - estimate.lower_s
    if width_s < np.inf:
        seen.width_over_fixed = width_s / (2 * NORMAL * estimate.stderr_s)
    return seen


def _look(seen: Watch, estimate: Estimate, truth_s: float) -> None:
    lower_s, upper_s = estimate.lower_s, estimate.upper_s
    if not lower_s <= truth_s <= upper_s:
        seen.missed = True
    off_s = abs(estimate.saving_s - truth_s)
    if estimate.sessions >= _NAIVE_FROM_SESSIONS and off_s > NORMAL * estimate.stderr_s:
        seen.naive_missed = True
    if seen.interval_sessions is None and upper_s - lower_s < np.inf:
        seen.interval_sessions = estimate.sessions
    if estimate.verdict is not Verdict.UNKNOWN:
        seen.wrong_sign |= (estimate.verdict is Verdict.PAYS) != (truth_s > 0)
        if seen.sign_sessions is None:
            seen.sign_sessions = estimate.sessions


class _WindowTruth:
    """The mean of the truth over the requests of a window, by what was seen of it."""

    def __init__(self, made: Stream) -> None:
        self._made = made
        self._sums: dict[float, tuple[Floats, Ints]] = {}

    def mean_s(self, number: int, since_s: float) -> float:
        if since_s not in self._sums:
            inside = self._made.born_s >= since_s
            truth_s = np.cumsum(np.where(inside, self._made.truth_s, 0.0))
            self._sums[since_s] = truth_s, np.cumsum(inside)
        sums, counts = self._sums[since_s]
        return float(sums[number] / counts[number])
