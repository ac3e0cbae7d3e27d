"""What an engine has learnt about seconds: of computing tokens, and of loading KV.

    T_step    = g + a * tokens + b * squares          of one step of the engine, see `Work`
    T_load    = t0 + u * bytes + v * bytes_ahead      by way; ahead: of loads under way there

Each is a regression (what it depends on) and the ratios by which that was off lately (how far it
can be trusted), so every forecast is a distribution. A load's seconds are those until its last
block is verified in the engine's memory: reading, decoding and copying overlap block by block,
so they are one figure; that of `arena` is the copy alone.

A way is told by names from the general to the special: place, source, transport, path, codec.
What a load has taken is learnt for each beginning of its way; a forecast is made for the longest
beginning that is known well enough, since at look-up only the first names are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvrelay.policies.forecast import NOTHING, Forecast
from kvrelay.policies.prefill import NO_WORK, PrefillCost, Work
from kvrelay.policies.quantiles import Ratios
from kvrelay.policies.regression import Estimate, Regression

Way = tuple[str, ...]

SCHEMA = 1
# A forecast is trusted after so many observations, and if its coefficients leave it as certain.
SURE_AFTER, SURE_WITHIN = 5, 0.35
# Steps of so few tokens are not compute-bound; how far they are off says nothing about others.
_SHORT_TOKENS = 128
# Fixed seconds and seconds per byte from which the learning starts, by place.
_FIRST_GUESS = {"arena": (0.005, 1e-9), "encoded": (0.01, 4e-9), "nodes": (0.02, 1e-8)}
MAX_WAYS = 64
# A load that did not end in time is taken to go on as before, but for so long at most.
_MAX_EXTRAPOLATION = 4.0


class Learnt:
    """One learnt cost: seconds as a function of x, told apart by kind where spreads differ."""

    def __init__(self, guess: Sequence[float], kinds: int = 1) -> None:
        self._regression = Regression(guess)
        self._ratios = [Ratios() for _ in range(kinds)]

    def forecast(self, x: Sequence[float], kind: int = 0) -> Forecast:
        """Seconds expected at x."""
        estimate = self._regression.predict(x)
        is_sure = self.count >= SURE_AFTER and _is_known(estimate)
        ratios = self._ratios[kind]
        return Forecast.of(estimate, ratios.quantiles, ratios.doubt, is_sure)

    def observe(self, x: Sequence[float], seconds: float, kind: int = 0) -> None:
        """It took so long at x."""
        estimate = self._regression.predict(x)
        if self._regression.observe(x, seconds):
            self._ratios[kind].clear()
        elif _is_known(estimate):  # else it was off for want of knowledge
            self._ratios[kind].add(seconds / estimate.mean, estimate.doubt)

    @property
    def coefficients(self) -> list[float]:
        """Of the regression."""
        return self._regression.coefficients

    @property
    def count(self) -> int:
        """Observations since the start or the last change of the world."""
        return self._regression.count

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        return {
            "coefficients": self.coefficients,
            "count": self.count,
            "ratios": [list(ratios.quantiles) for ratios in self._ratios],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Begin where `to_dict` was taken, but unsure: the world may have changed since.

        Raises:
            ValueError, KeyError, TypeError: that is not such a state.
        """
        self._regression.restore(state["coefficients"])


class Costs:
    """All that one engine has learnt."""

    def __init__(self, step_tokens: int = 2048) -> None:
        """Nothing learnt.

        Args:
            step_tokens: most tokens that the engine computes in one step.
        """
        if step_tokens < 1:
            raise ValueError(f"step_tokens must be at least 1, got {step_tokens}")
        guess = PrefillCost()
        self._step_tokens = step_tokens
        self._prefill = Learnt(
            (guess.fixed_s, guess.per_token_s, guess.per_token_squared_s), kinds=2
        )
        self._loads: dict[Way, Learnt] = {}  # the one observed last stands last

    # Computing

    def prefill(self, work: Work, beside: Work = NO_WORK) -> Forecast:
        """Seconds of the steps that `work` takes; each also computes `beside`."""
        if not work.tokens:
            return NOTHING
        return self._prefill.forecast(self._steps(work, beside), _kind(work))

    def observe_step(self, work: Work, seconds: float) -> None:
        """One step that computed prompts, decoded tokens of others included, took so long."""
        self._prefill.observe((1.0, work.tokens, work.squares), seconds, _kind(work))

    def within_a_step(self, work: Work) -> Work:
        """As much of it as one step computes."""
        if work.tokens <= self._step_tokens:
            return work
        return Work(self._step_tokens, work.squares * self._step_tokens // work.tokens)

    def _steps(self, work: Work, beside: Work) -> tuple[float, float, float]:
        room = max(1, self._step_tokens - beside.tokens)
        count = -(-work.tokens // room)
        return (
            count,
            work.tokens + count * beside.tokens,
            work.squares + count * beside.squares,
        )

    # Loading

    def load(self, way: Way, num_bytes: int, bytes_ahead: int = 0) -> Forecast:
        """Seconds until so many bytes are in the engine's memory."""
        x = (1.0, num_bytes, bytes_ahead)
        best, most = None, -1
        for length in range(len(way), 0, -1):
            learnt = self._loads.get(way[:length])
            if learnt is None:
                continue
            forecast = learnt.forecast(x)
            if forecast.is_sure:
                return forecast
            if learnt.count > most:
                best, most = forecast, learnt.count
        return best or _UNSEEN.get(way[0], _UNSEEN["nodes"]).forecast(x)

    def observe_load(self, way: Way, num_bytes: int, bytes_ahead: int, seconds: float) -> None:
        """A load took so long; `way` as far as it is known now."""
        for length in range(1, len(way) + 1):
            learnt = self._loads.pop(way[:length], None) or _first_guess(way)
            self._loads[way[:length]] = learnt
            learnt.observe((1.0, num_bytes, bytes_ahead), seconds)
        while len(self._loads) > MAX_WAYS:
            del self._loads[next(iter(self._loads))]

    def observe_unfinished_load(
        self, way: Way, num_bytes: int, bytes_ahead: int, loaded_bytes: int, seconds: float
    ) -> None:
        """Of a load, only so many bytes had come when it was given up.

        That it would have taken longer than that is news only if less was expected.
        """
        part = max(loaded_bytes / num_bytes, 1 / _MAX_EXTRAPOLATION)
        whole_s = seconds / min(part, 1.0)
        if whole_s > self.load(way, num_bytes, bytes_ahead).p50_s:
            self.observe_load(way, num_bytes, bytes_ahead, whole_s)

    # Keeping

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types, see `restore`."""
        return {
            "schema": SCHEMA,
            "prefill": self._prefill.to_dict(),
            "loads": [{"way": list(way)} | learnt.to_dict() for way, learnt in self._loads.items()],
        }

    def restore(self, state: Any) -> None:
        """Begin with the coefficients of an earlier life. Nothing is sure before it is seen again.

        Raises:
            ValueError: not what `to_dict` gave; then nothing was taken over.
        """
        try:
            if state["schema"] != SCHEMA:
                raise ValueError(f"schema {state['schema']} is not {SCHEMA}")
            fresh = Costs(self._step_tokens)
            fresh._prefill.restore(state["prefill"])
            for entry in state["loads"][-MAX_WAYS:]:
                way = tuple(str(name) for name in entry["way"])
                fresh._loads[way] = _first_guess(way)
                fresh._loads[way].restore(entry)
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise ValueError(f"no state of costs: {error!r}") from error
        self._prefill, self._loads = fresh._prefill, fresh._loads


def _is_known(estimate: Estimate) -> bool:
    return estimate.sd <= SURE_WITHIN * estimate.mean


def _kind(work: Work) -> int:
    return int(work.tokens >= _SHORT_TOKENS)


def _first_guess(way: Way) -> Learnt:
    fixed_s, per_byte_s = _FIRST_GUESS.get(way[0], _FIRST_GUESS["nodes"])
    return Learnt((fixed_s, per_byte_s, per_byte_s))


# Made once, for to invert a matrix takes longer than to decide; nothing is ever observed there.
_UNSEEN = {place: _first_guess((place,)) for place in _FIRST_GUESS}
