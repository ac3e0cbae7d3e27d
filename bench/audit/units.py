"""The units of a plan, in the order in which they are measured. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from kvrelay.bench.audit.arms import CONTROL
from kvrelay.bench.audit.design import (
    Ask,
    Unit,
    coin_flips,
    cycles,
    gaps,
    orders,
    rng_of,
    texts_of,
    treated_places,
)
from kvrelay.bench.audit.plan import (
    AA,
    PAIRED,
    SESSIONS,
    ArmPlan,
    BusyPlan,
    Plan,
    RandomisedPlan,
    SaturationPlan,
    StaggeredPlan,
    SwitchbackPlan,
)
from kvrelay.bench.audit.session_problems import own_share
from kvrelay.bench.audit.strata import Stratum
from kvrelay.bench.audit.workload.sessions import HAND_OVER
from kvrelay.bench.hit import prefill_estimate_s
from kvrelay.bench.testbed.link import parse_link
from kvrelay.bench.topology import SAME_NODE, estimated_transfer_s

# Each link is visited so often that drift of the machine meets all alike, and so rarely that a
# policy that learns does not meet another link every minute.
_MOST_VISITS, _UNITS_PER_VISIT = 4, 8
# The machine becoming quiet, blocks being saved and heard of, records read: of a block.
_SETTLE_S = 2.2
# The same between two turns of a session, whose first has been settled already.
_TURN_S = 1.8


def planned(plan: Plan) -> list[Unit]:
    """All units of a plan: pairs and sessions link by link, then streams, each in its time."""
    units: list[Unit] = []
    where = [(arm, frozenset(plan.strata_of(arm))) for arm in plan.arms]
    for stratum in plan.all_strata():
        here = [arm for arm, strata in where if stratum in strata]
        units += _pairs(plan, here, stratum, PAIRED)
        units += _pairs(plan, here, stratum, AA)
        units += _sessions(plan, here, stratum)
    found = _in_visits(units, plan.seed)
    for number, randomised in enumerate(plan.randomised):
        found += _randomised(plan.seed, number, randomised)
    for number, saturation in enumerate(plan.saturation):
        found += _saturation(plan.seed, number, saturation)
    for number, switchback in enumerate(plan.switchback):
        found += _switchback(plan.seed, number, switchback)
    for number, staggered in enumerate(plan.staggered):
        found += _staggered(plan.seed, number, staggered)
    return found


def estimate_s(unit: Unit, slowness: float = 1.0) -> float:
    """Roughly how long a unit takes.

    Args:
        unit: what is measured.
        slowness: of the machine, against that of `prefill_estimate_s`.
    """
    stratum = unit.stratum
    prefill_s = slowness * prefill_estimate_s(stratum.tokens)
    transfer_s = 0.0
    if stratum.link != SAME_NODE:
        transfer_s = estimated_transfer_s(parse_link(stratum.link), stratum.tokens)
    total_s = 0.0
    for block in unit.blocks:
        come_s = sum(ask.gap for ask in block) * prefill_s / unit.utilisation
        one_by_one_s = sum(prefill_s if ask.arm == CONTROL else transfer_s for ask in block)
        total_s += _SETTLE_S + len(block) * prefill_s + max(come_s, one_by_one_s)
    return total_s + (unit.turns - HAND_OVER) * _later_turn_s(stratum, slowness)


def _later_turn_s(stratum: Stratum, slowness: float) -> float:
    """Of a turn whose agent has what came before in its cache already, whatever the arm."""
    own_tokens = round(stratum.tokens * own_share(stratum.similarity))
    return _TURN_S + slowness * prefill_estimate_s(own_tokens)


def _pairs(
    plan: Plan, arms_here: Sequence[ArmPlan], stratum: Stratum, design: str
) -> Iterator[Unit]:
    """The same requests under every arm; of `aa`, twice under the control."""
    counts = {arm.name: arm.pairs or 0 for arm in arms_here if design in arm.designs}
    if not counts:
        return
    most, names = max(counts.values()), (design, stratum.name)
    busy = stratum.load == "busy"
    size = plan.busy.requests if busy else 1
    texts = texts_of(plan.seed, most * size, *names)
    both = [plan.control, plan.control]
    found = orders(both if design == AA else list(counts), most, rng_of(plan.seed, *names))
    for number, order in enumerate(found):
        # The control is in every pair; an arm with fewer pairs is in the first ones.
        arms = [arm for arm in order if counts[arm] > number or arm == plan.control]
        come = gaps(size, rng_of(plan.seed, "gaps", *names, number))
        own = texts[number * size : (number + 1) * size]
        blocks = tuple(
            tuple(Ask(arm, text, 1.0, gap) for text, gap in zip(own, come, strict=True))
            for arm in arms
        )
        yield Unit(design, stratum, blocks, number, utilisation=plan.busy.utilisation)


def _sessions(plan: Plan, arms_here: Sequence[ArmPlan], stratum: Stratum) -> Iterator[Unit]:
    """Sessions that have one arm each, for all their turns."""
    arms = [arm for arm in arms_here if SESSIONS in arm.designs]
    if not arms:
        return
    # The same of all arms of a stratum: session_problems.
    shape, turns = arms[0].session_shape, arms[0].turns
    counts = {arm.name: arm.sessions or 0 for arm in arms}
    total = sum(counts.values())
    texts = texts_of(plan.seed, total, SESSIONS, stratum.name)
    drawn = cycles(counts, rng_of(plan.seed, SESSIONS, stratum.name))
    for number, (name, text) in enumerate(zip(drawn, texts, strict=True)):
        ask = Ask(name, text, counts[name] / total)
        yield Unit(SESSIONS, stratum, ((ask,),), number, shape=shape, turns=turns)


def _randomised(seed: int, entry: int, plan: RandomisedPlan) -> Iterator[Unit]:
    for number in range(plan.blocks):
        yield _mixed(seed, ("randomised", entry, number), plan, number, 0.5, saturation=None)


def _saturation(seed: int, entry: int, plan: SaturationPlan) -> Iterator[Unit]:
    counts = dict.fromkeys(plan.shares, plan.blocks_per_share)
    drawn = cycles(counts, rng_of(seed, "saturation", entry))
    for number, share in enumerate(drawn):
        names = ("saturation", entry, number)
        yield _mixed(seed, names, plan, number, share, saturation=share)


def _mixed(
    seed: int,
    names: tuple[object, ...],
    plan: BusyPlan,
    number: int,
    share: float,
    *,
    saturation: float | None,
) -> Unit:
    """A block of which a share is treated."""
    count, rng = plan.requests, rng_of(seed, *names)
    treated = treated_places(count, share, rng)
    real = len(treated) / count
    texts, come = texts_of(seed, count, *names), gaps(count, rng)
    asks = tuple(
        Ask(
            plan.treated if place in treated else CONTROL,
            texts[place],
            real if place in treated else 1 - real,
            come[place],
        )
        for place in range(count)
    )
    return Unit(
        str(names[0]),
        plan.stratum,
        (asks,),
        number,
        block=number,
        saturation=saturation,
        utilisation=plan.utilisation,
    )


def _switchback(seed: int, entry: int, plan: SwitchbackPlan) -> Iterator[Unit]:
    """Two blocks after one another have the same requests; a coin says which arm is first."""
    count = plan.requests
    flips = coin_flips(plan.blocks_per_arm, rng_of(seed, "switchback", entry))
    for pair, treated_first in enumerate(flips):
        names = ("switchback", entry, pair)
        texts, come = texts_of(seed, count, *names), gaps(count, rng_of(seed, "gaps", *names))
        arms = [CONTROL, plan.treated]
        for place, arm in enumerate(arms[::-1] if treated_first else arms):
            asks = tuple(Ask(arm, text, 0.5, gap) for text, gap in zip(texts, come, strict=True))
            number = 2 * pair + place
            yield Unit(
                "switchback",
                plan.stratum,
                (asks,),
                number,
                pair=f"{plan.stratum.name}/{entry}/{pair}",
                block=number,
                utilisation=plan.utilisation,
                drain_times=plan.drain_times,
            )


def _staggered(seed: int, entry: int, plan: StaggeredPlan) -> Iterator[Unit]:
    count = plan.requests
    enabled = rng_of(seed, "staggered", entry).randrange(2)
    for period in range(2 * plan.periods):
        names = ("staggered", entry, period)
        rng, texts = rng_of(seed, *names), texts_of(seed, 2 * count, *names)
        receivers = cycles({0: count, 1: count}, rng)
        arms = dict.fromkeys((0, 1), CONTROL)
        if period >= plan.periods:
            arms[enabled] = plan.treated
        blocks = tuple(
            (Ask(arms[receiver], text, 1.0, receiver=receiver),)
            for receiver, text in zip(receivers, texts, strict=True)
        )
        yield Unit("staggered", plan.stratum, blocks, period, block=period)


def _in_visits(units: Sequence[Unit], seed: int) -> list[Unit]:
    """Link by link, several times over all; there the designs of all strata mixed by lot.

    Those of one design and stratum keep their order, which is what balances them in time.
    """
    groups: dict[tuple[str, Stratum], list[Unit]] = {}
    for unit in units:
        groups.setdefault((unit.design, unit.stratum), []).append(unit)
    most = max((len(group) for group in groups.values()), default=0)
    visits = max(1, min(_MOST_VISITS, most // _UNITS_PER_VISIT))
    links = list(dict.fromkeys(unit.stratum.link for unit in units))
    found: list[Unit] = []
    for visit in range(visits):
        rng = rng_of(seed, "visit", visit)
        for link in rng.sample(links, len(links)):
            parts = [
                [unit for i, unit in enumerate(group) if i * visits // len(group) == visit]
                for (_, stratum), group in groups.items()
                if stratum.link == link
            ]
            found += _mixed_in(parts, rng)
    return found


def _mixed_in(parts: Sequence[Sequence[Unit]], rng: random.Random) -> Iterator[Unit]:
    """All units of all parts, each part in its order."""
    places = [number for number, part in enumerate(parts) for _ in part]
    left = [iter(part) for part in parts]
    for number in rng.sample(places, len(places)):
        yield next(left[number])
