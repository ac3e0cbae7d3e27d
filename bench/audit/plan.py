"""The plan of an audit: what is asked and how it will be answered, written down before any data.

A YAML file with strict keys. Its hash is that of the content, not of the file: comments, order and
what is left at a default change nothing. It goes with the data and into the report, so that a plan
that was changed afterwards is seen to be.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)

from kvrelay.bench.audit.analysis.data import MIN_PER_ARM
from kvrelay.bench.audit.analysis.schema import OUTCOMES
from kvrelay.bench.audit.arms import ARMS, CONTROL, TREATED
from kvrelay.bench.audit.controls.kinds import Kind
from kvrelay.bench.audit.session_problems import session_problems
from kvrelay.bench.audit.strata import FACTORS, Stratum
from kvrelay.bench.audit.workload.sessions import HAND_OVER, Shape
from kvrelay.bench.hit import longest_tokens
from kvrelay.bench.testbed.link import parse_link
from kvrelay.bench.topology import SAME_NODE
from kvrelay.cluster.config_errors import all_problems, describe, read_yaml
from kvrelay.cluster.errors import ConfigError

ALL = "all"
PAIRED, SESSIONS, AA = "paired", "sessions", "aa"
SHORTEST_TOKENS = 128
MOST_TURNS = 32


def _check_link(value: str) -> str:
    if value != SAME_NODE:
        try:
            parse_link(value)
        except ConfigError as error:
            raise ValueError(error.message) from None
    return value


def _check_tokens(value: int) -> int:
    if not SHORTEST_TOKENS <= value <= longest_tokens():
        raise ValueError(f"a prompt can have {SHORTEST_TOKENS} to {longest_tokens()} tokens")
    return value


def _check_arm(value: str) -> str:
    if value not in ARMS:
        raise ValueError(f"unknown arm '{value}'; known: {', '.join(ARMS)}")
    return value


def _check_outcome(value: str) -> str:
    if value not in OUTCOMES:
        raise ValueError(f"unknown outcome '{value}'; known: {', '.join(OUTCOMES)}")
    return value


def _check_treated(value: str) -> str:
    if value not in TREATED:
        raise ValueError(f"'{value}' cannot treat a stream; one of: {', '.join(TREATED)}")
    return value


def _check_distinct(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(set(values)) < len(values):
        raise ValueError("an entry stands twice")
    return values


def _names(value: object) -> object:
    """`all` stands for itself."""
    return (ALL,) if value == ALL else value


LinkName = Annotated[str, AfterValidator(_check_link)]
Tokens = Annotated[int, AfterValidator(_check_tokens)]
ArmName = Annotated[str, AfterValidator(_check_arm)]
OutcomeName = Annotated[str, AfterValidator(_check_outcome)]
TreatedArm = Annotated[str, AfterValidator(_check_treated)]
Load = Literal["idle", "busy"]
Similarity = Literal["high", "medium", "low"]
Language = Literal["en", "zh"]
Share = Annotated[float, Field(ge=0, le=1)]
Distinct = AfterValidator(_check_distinct)


class _Strict(BaseModel):
    """Unknown keys are errors, and what was read is not changed afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Outcomes(_Strict):
    """Columns that are compared: `primary` decide, `secondary` are reported beside them."""

    primary: tuple[OutcomeName, ...] = Field(min_length=1)
    secondary: tuple[OutcomeName, ...] = ()


class Power(_Strict):
    """What the sample sizes are to be enough for.

    Attributes:
        effect_relative: smallest difference that matters, over the control's mean.
        sd_relative: expected standard deviation of a difference within a pair, over the same.
        turn_correlation: expected between two turns of a session: with 1 they tell no more than
            one, with 0 as much as two sessions.
        alpha: of a two-sided test; power: to find that effect.
    """

    effect_relative: float = Field(default=0.1, gt=0)
    sd_relative: float = Field(default=0.15, gt=0)
    turn_correlation: float = Field(default=0.5, ge=0, le=1)
    alpha: float = Field(default=0.05, gt=0, lt=0.5)
    power: float = Field(default=0.9, gt=0.5, lt=1)


class Factors(_Strict):
    """Levels of the factors; the strata are their product."""

    link: Annotated[tuple[LinkName, ...], Distinct] = Field(min_length=1)
    tokens: Annotated[tuple[Tokens, ...], Distinct] = Field(min_length=1)
    load: Annotated[tuple[Load, ...], Distinct] = Field(min_length=1)
    similarity: Annotated[tuple[Similarity, ...], Distinct] = Field(min_length=1)
    language: Annotated[tuple[Language, ...], Distinct] = Field(min_length=1)

    def product(self) -> Iterator[Stratum]:
        """All combinations, in the order in which the levels stand."""
        for levels in product(self.link, self.tokens, self.load, self.similarity, self.language):
            yield Stratum(*levels)


class Excluded(_Strict):
    """Strata that are left out: those with one of the named levels in each of these factors."""

    link: tuple[LinkName, ...] | None = None
    tokens: tuple[Tokens, ...] | None = None
    load: tuple[Load, ...] | None = None
    similarity: tuple[Similarity, ...] | None = None
    language: tuple[Language, ...] | None = None

    def matches(self, stratum: Stratum) -> bool:
        """Whether it is left out."""
        for factor in FACTORS:
            levels = getattr(self, factor)
            if levels is not None and getattr(stratum, factor) not in levels:
                return False
        return True


class ArmPlan(_Strict):
    """One arm, where it is measured and how often.

    Attributes:
        designs: `paired`: the same request as under the control; `sessions`: sessions of its own,
            drawn; `aa`: the control against itself.
        strata: names such as `same-node/512/idle/high/en`, or `all`.
        pairs: in each stratum, of `paired` and `aa`; `sessions`: the same of `sessions`. No fewer
            than an analysis needs of an arm.
        session_shape: of the design `sessions`: who takes turns, and what prompts go on from
            (sessions.py). All arms of a stratum have one.
        turns: of a session, A's first one included; two are one hand-over.
    """

    name: ArmName
    designs: Annotated[tuple[Literal["paired", "sessions", "aa"], ...], Distinct] = Field(
        min_length=1
    )
    strata: Annotated[tuple[str, ...], BeforeValidator(_names)] = (ALL,)
    pairs: int | None = Field(default=None, ge=MIN_PER_ARM)
    sessions: int | None = Field(default=None, ge=MIN_PER_ARM)
    session_shape: Shape = Shape.PIPELINE
    turns: int = Field(default=3, ge=HAND_OVER, le=MOST_TURNS)


class StreamPlan(_Strict):
    """A sequence of requests, one stratum, the control and one other arm.

    Attributes:
        link, tokens, similarity, language: its stratum, with the load that its kind has.
        treated: the arm that is compared with the control.
        requests: of a block.
    """

    link: LinkName
    tokens: Tokens = 512
    similarity: Similarity = "high"
    language: Language = "en"
    treated: TreatedArm = "relay"
    requests: int = Field(default=12, ge=4)

    @property
    def stratum(self) -> Stratum:
        """That of its requests."""
        return Stratum(self.link, self.tokens, self._load(), self.similarity, self.language)

    def _load(self) -> Load:
        return "busy"


class BusyPlan(StreamPlan):
    """A stream whose requests come whatever becomes of the others.

    Attributes:
        utilisation: share of its time that B's engine would compute if all were recomputed.
    """

    utilisation: float = Field(default=0.5, gt=0, le=2)


class SwitchbackPlan(BusyPlan):
    """Blocks of one arm each, in turn; every block begins when the one before has drained.

    Attributes:
        drain_times: a block has to last so many times as long as its queues then take to empty.
        burn_in: share of a block's requests, its first, that the analysis leaves out.
    """

    blocks_per_arm: int = Field(ge=2)
    drain_times: float = Field(default=5.0, ge=1)
    burn_in: float = Field(default=0.2, ge=0, lt=1)


class SaturationPlan(BusyPlan):
    """Blocks in which such a share of the requests is treated."""

    shares: Annotated[tuple[Share, ...], Distinct] = (0.0, 0.25, 0.5, 0.75, 1.0)
    blocks_per_share: int = Field(ge=1)


class RandomisedPlan(BusyPlan):
    """Blocks in which each request has its arm by lot, half of them either."""

    blocks: int = Field(ge=1)


class StaggeredPlan(StreamPlan):
    """Two receiving engines on B's node, asked in turn, one request at a time.

    One of them, drawn, is treated from the middle on, the other never.

    Attributes:
        periods: blocks in each half, of `requests` for each engine.
    """

    periods: int = Field(default=2, ge=1)

    def _load(self) -> Load:
        return "idle"


class Busy(_Strict):
    """What `busy` means for pairs: a block of requests for each arm, at the same times.

    Attributes:
        requests: of a block.
        utilisation: share of its time that B's engine would compute if all were recomputed.
    """

    requests: int = Field(default=4, ge=2)
    utilisation: float = Field(default=0.7, gt=0, le=2)


class Controls(_Strict):
    """Controls of the quality measures, in an engine of their own.

    Attributes:
        examples: each goes through all controls, guard on and off.
        tokens: of each context.
    """

    examples: int = Field(default=12, ge=2)
    tokens: int = Field(default=512, ge=128, le=1536, multiple_of=128)


class Heterogeneity(_Strict):
    """Engines that differ from engine A in one thing each, beside it on a store of their own.

    Attributes:
        examples: each is asked of every engine, with relay and without.
        tokens: of each context.
        kinds: in what they differ.
    """

    examples: int = Field(default=12, ge=MIN_PER_ARM)
    tokens: int = Field(default=512, ge=128, le=1536, multiple_of=128)
    kinds: Annotated[tuple[Kind, ...], Distinct] = Field(default=tuple(Kind), min_length=1)


class Plan(_Strict):
    """A whole audit.

    Attributes:
        question: in words.
        seed: of everything that is drawn.
        control: what every arm is compared with.
        margins: of non-inferiority or equivalence, by outcome.
        strata, exclude_strata: see `Plan.all_strata`.
        exclusions: reasons for which a row is left out: flags of rows (data.py).
        warm_up_requests: that each link gets, at least, before anything counts.
        quiet_wait_s: how long a quiet machine is waited for, at most, before each block and turn.
        message_tokens: what A writes in a session's first turn.
        output_tokens: what is written in answer to each measured request.
        model: `demo`, a folder or a Hugging Face id.
        embedding_model: measures the cosine of prompts, see `relay.embedding_model`; None takes
            `minilm` where the extra `embed` is installed, and measures none elsewhere.
    """

    question: str = Field(min_length=1)
    seed: int = Field(ge=0)
    control: Literal["recompute"] = "recompute"
    outcomes: Outcomes
    margins: dict[OutcomeName, Annotated[float, Field(gt=0)]] = {}
    strata: Factors
    exclude_strata: list[Excluded] = []
    arms: list[ArmPlan] = Field(min_length=1)
    switchback: list[SwitchbackPlan] = []
    saturation: list[SaturationPlan] = []
    randomised: list[RandomisedPlan] = []
    staggered: list[StaggeredPlan] = []
    controls: Controls | None = None
    heterogeneity: Heterogeneity | None = None
    busy: Busy = Busy()
    power: Power = Power()
    exclusions: tuple[Literal["failed", "warm_up", "not_quiet"], ...] = ("failed", "warm_up")
    warm_up_requests: int = Field(default=8, ge=1)
    quiet_wait_s: float = Field(default=5.0, ge=0, le=600)
    message_tokens: int = Field(default=16, ge=1, le=256)
    output_tokens: int = Field(default=8, ge=1, le=256)
    model: str = Field(default="demo", min_length=1)
    embedding_model: str | None = Field(default=None, min_length=1)

    def all_strata(self) -> tuple[Stratum, ...]:
        """The product of the factors less what is excluded."""
        excluded = self.exclude_strata
        return tuple(
            stratum
            for stratum in self.strata.product()
            if not any(each.matches(stratum) for each in excluded)
        )

    def strata_of(self, arm: ArmPlan) -> tuple[Stratum, ...]:
        """Where an arm is measured."""
        if arm.strata == (ALL,):
            return self.all_strata()
        return tuple(Stratum.parse(name) for name in arm.strata)

    def streams(self) -> tuple[StreamPlan, ...]:
        """All streams, in the order in which they stand."""
        return (*self.randomised, *self.saturation, *self.switchback, *self.staggered)

    def links(self) -> tuple[str, ...]:
        """Every link that is needed, each once."""
        found = [stratum.link for arm in self.arms for stratum in self.strata_of(arm)]
        return tuple(dict.fromkeys([*found, *(stream.link for stream in self.streams())]))

    def lengths(self) -> tuple[int, ...]:
        """Every length of prompts that is needed, in order."""
        found = {stratum.tokens for arm in self.arms for stratum in self.strata_of(arm)}
        return tuple(sorted(found | {stream.tokens for stream in self.streams()}))

    def goes_back(self) -> bool:
        """Whether some turn of a session has KV relayed from B to A."""
        return any(
            SESSIONS in arm.designs
            and arm.turns > HAND_OVER
            and arm.session_shape is not Shape.FAN_OUT
            for arm in self.arms
        )

    def canonical(self) -> str:
        """The content as YAML in one form: all keys, in order, defaults included."""
        # What is not asked for is no content: plans older than the key keep their hash.
        absent = {"heterogeneity"} if self.heterogeneity is None else None
        content = self.model_dump(mode="json", exclude=absent)
        return yaml.safe_dump(content, sort_keys=True, allow_unicode=True, width=88)

    @property
    def sha256(self) -> str:
        """The hash that goes with the data."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()


def load_plan(source: Path | Mapping[str, Any]) -> Plan:
    """Read and check a plan.

    Args:
        source: a YAML file, or its content.

    Raises:
        ConfigError: it cannot be read, or it names every field that cannot work.
    """
    name = "plan" if isinstance(source, Mapping) else str(source)
    content = (
        source
        if isinstance(source, Mapping)
        else read_yaml(source, "bench/plans/", "keys such as question and arms")
    )
    try:
        plan = Plan.model_validate(content)
    except ValidationError as error:
        raise all_problems(name, describe(error, Plan)) from None
    if problems := list(_problems(plan)):
        raise all_problems(name, problems)
    return plan


def _stream_problems(plan: Plan) -> Iterator[str]:
    for name in ("switchback", "saturation", "randomised", "staggered"):
        strata = [stream.stratum for stream in getattr(plan, name)]
        for i, stratum in enumerate(strata):
            if (first := strata.index(stratum)) != i:
                yield f"{name}[{i}]: the same stratum as {name}[{first}]"


def _problems(plan: Plan) -> Iterator[str]:
    """What concerns several fields, each with its path."""
    yield from _stream_problems(plan)
    known = {stratum.name: stratum for stratum in plan.all_strata()}
    if not known:
        yield "exclude_strata: nothing is left; exclude less"
        return
    controls: dict[str, set[str]] = {PAIRED: set(), SESSIONS: set()}
    wrong = False
    for i, arm in enumerate(plan.arms):
        for problem in _arm_problems(arm, known):
            wrong = True
            yield f"arms[{i}].{problem}"
        if arm.name == plan.control and not wrong:
            for design in set(arm.designs) & set(controls):
                controls[design] |= {stratum.name for stratum in plan.strata_of(arm)}
    if wrong:
        return
    yield from _comparison_problems(plan, controls)
    yield from session_problems(plan)


def _comparison_problems(plan: Plan, controls: Mapping[str, set[str]]) -> Iterator[str]:
    """Arms that stand twice, and those without a control (its strata, by design)."""
    seen: dict[tuple[str, str, str], int] = {}
    for i, arm in enumerate(plan.arms):
        for design, stratum in product(arm.designs, plan.strata_of(arm)):
            if (first := seen.setdefault((arm.name, design, stratum.name), i)) != i:
                yield f"arms[{i}]: {arm.name}, {design}, {stratum.name} is arms[{first}]'s already"
                break
            if design in controls and stratum.name not in controls[design]:
                yield (
                    f"arms[{i}].strata: no {design} {plan.control} in {stratum.name}, so there "
                    "would be nothing to compare with"
                )
                break


def _arm_problems(arm: ArmPlan, known: Mapping[str, Stratum]) -> Iterator[str]:
    if arm.strata != (ALL,):
        for i, name in enumerate(arm.strata):
            if name not in known:
                yield f"strata[{i}]: '{name}' is none of the {len(known)} strata of this plan"
    if SESSIONS in arm.designs:
        names: Iterable[str] = known if arm.strata == (ALL,) else arm.strata
        if any(known[name].load == "busy" for name in names if name in known):
            yield "strata: sessions are measured one at a time, so busy strata need paired"
    for design, field in ((PAIRED, "pairs"), (AA, "pairs"), (SESSIONS, "sessions")):
        if design in arm.designs and getattr(arm, field) is None:
            yield f"{field}: missing, but design {design} needs it"
    if AA in arm.designs and arm.name != CONTROL:
        yield f"designs: aa compares the control with itself, not {arm.name}"
