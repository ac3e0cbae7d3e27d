"""Relay if it is predicted to cost less than computing, by what was measured at this engine.

    latency(recompute)  = prefill(ahead + own)                                       median
    latency(relay of m) = max(prefill(ahead), step + load(m)) + prefill(rest)        75th percentile
    price(plan)         = latency + queue_weight * requests behind * prefill(plan's own)

Relay is judged by an upper quantile, since it is what can go wrong; but of the queue, which both
wait for, by the median. `step` is the step about to run: an engine on CPUs hands a load over
behind it. The last term is what others wait for: computing keeps the engine busy, loading does
not, so the more requests wait behind this one, the more a saved prefill is worth.

While recomputing, or relaying all that is held, has a cost that is not known well enough, a fixed
rule decides, and the record says so; but not where a relay is faster however wrong its forecast may
be, within what is believed possible: relays teach what relays cost, and recomputing would not.
Whatever is preferred, a lot gives the other arm now and then: in `exploration` of all sessions, and
in half of them if it is that arm whose cost is not known. The probabilities are in the record.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kvrelay.policies.assignment import Preference, assign
from kvrelay.policies.base import RelayPolicy, RelayView
from kvrelay.policies.costs import Costs
from kvrelay.policies.decision import Arm, Decision, Reason
from kvrelay.policies.forecast import Forecast
from kvrelay.policies.prefill import Work

FALLBACK_MIN_TOKENS = 256
UNSURE_EXPLORATION = 0.5


@dataclass(frozen=True, slots=True)
class _Relay:
    """A candidate with its price. `load` is without what it waits for before it begins."""

    num_tokens: int
    load: Forecast
    latency: Forecast
    price_s: float
    is_sure: bool


class CostPolicy(RelayPolicy):
    """The cheaper arm, by `Costs` that somebody else keeps up to date."""

    def __init__(self, costs: Costs, exploration: float = 0.01, queue_weight: float = 0.5) -> None:
        """See the module's head.

        Args:
            costs: what is known.
            exploration: share of sessions that get the other arm by lot; 0: none do, so that
                what is not known stays so until other requests happen to show it.
            queue_weight: weight of a second that a request behind this one waits for its
                prefill; a second of its own weighs 1.
        """
        if not 0 <= exploration <= UNSURE_EXPLORATION:
            raise ValueError(f"exploration must be in [0, {UNSURE_EXPLORATION}], got {exploration}")
        if queue_weight < 0:
            raise ValueError(f"queue_weight must not be negative, got {queue_weight}")
        self.costs = costs
        self._exploration = exploration
        self._queue_weight = queue_weight

    @property
    def name(self) -> str:
        return "cost"

    def decide(self, view: RelayView) -> Decision:
        wanted = self.prefer(view)
        return wanted.given(assign(view.draw, wanted.share, wanted.decision.arm))

    def prefer(self, view: RelayView) -> Preference:
        """Which arm is cheaper, and for which share of sessions a lot is to decide.

        Whoever draws that lot must not call `decide`, which draws it too.
        """
        own = Work.of(view.local_tokens, view.prompt_tokens - view.local_tokens)
        alone = self.costs.prefill(own, view.beside)
        recompute = alone
        if view.ahead.tokens:
            recompute = self.costs.prefill(view.ahead.plus(own), view.beside)
        relays = self._relays(view)
        relay = relays[0]
        # Where even a slow relay beats a fast prefill, there is nothing to be sure about.
        is_apart = relay.latency.p95_s < recompute.p5_s
        is_sure = alone.is_sure and (relay.is_sure or is_apart)
        if is_sure:
            known = [relay, *(each for each in relays[1:] if each.is_sure)]
            relay = min(known, key=lambda relay: relay.price_s)
            price_s = recompute.p50_s + self._weight(view) * alone.p50_s
            chosen = Arm.RELAY if relay.price_s < price_s else Arm.RECOMPUTE
        else:
            chosen = Arm.RELAY if relay.num_tokens >= FALLBACK_MIN_TOKENS else Arm.RECOMPUTE
        other_is_sure = is_sure or (alone.is_sure if chosen is Arm.RELAY else relay.is_sure)
        share = self._exploration
        if share and not other_is_sure:
            share = UNSURE_EXPLORATION
        decision = Decision(
            chosen,
            _reason(chosen, is_sure),
            relay.num_tokens if chosen is Arm.RELAY else 0,
            relay_s=relay.latency.p50_s,
            relay_p5_s=relay.latency.p5_s,
            relay_p75_s=relay.latency.p75_s,
            relay_p95_s=relay.latency.p95_s,
            recompute_s=recompute.p50_s,
            recompute_p5_s=recompute.p5_s,
            recompute_p75_s=recompute.p75_s,
            recompute_p95_s=recompute.p95_s,
            load_p95_s=relay.load.p95_s,
            uncalibrated=not is_sure,
        )
        # Of the sessions for which the lot decides, half get the other arm.
        return Preference(decision, relay.num_tokens, 2 * share)

    def _relays(self, view: RelayView) -> Sequence[_Relay]:
        """Every candidate, priced."""
        costs, weight = self.costs, self._weight(view)
        queue = costs.prefill(view.ahead, view.beside)
        first = costs.within_a_step(view.ahead)
        step = queue if first == view.ahead else costs.prefill(first, view.beside)
        certain_queue, certain_step = queue.certain(), step.certain()
        relays = []
        for candidate in view.candidates:
            load = costs.load((candidate.place,), candidate.place_bytes, candidate.bytes_ahead)
            there = view.local_tokens + candidate.num_tokens
            rest = costs.prefill(Work.of(there, view.prompt_tokens - there), view.beside)
            priced = certain_queue.or_later(certain_step + load) + rest
            relays.append(
                _Relay(
                    num_tokens=candidate.num_tokens,
                    load=load,
                    latency=queue.or_later(step + load) + rest,
                    price_s=priced.p75_s + weight * rest.p50_s,
                    is_sure=load.is_sure,
                )
            )
        return relays

    def _weight(self, view: RelayView) -> float:
        """Of a second that this request keeps the engine busy, for those behind it."""
        return self._queue_weight * max(0, view.requests_waiting - 1)


def _reason(chosen: Arm, is_sure: bool) -> Reason:
    if chosen is Arm.RELAY:
        return Reason.RELAYED
    return Reason.CHEAPER_TO_RECOMPUTE if is_sure else Reason.UNCALIBRATED
