"""What the article claims outside its table 5.1, with a rule for each claim."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvrelay.bench.audit.report.article_rules import (
    Judgement,
    Range,
    at_level,
    by_order,
    by_range,
    changes,
    cosines,
    latency_outcome,
    spread,
    transfers,
)
from kvrelay.bench.audit.report.names import clean, link_words
from kvrelay.bench.audit.report.numbers import (
    NOT_MEASURED,
    between,
    percent,
    seconds,
    tokens,
    unsigned,
)
from kvrelay.bench.audit.report.other_engines import relayed_words
from kvrelay.bench.audit.report.reading import (
    SAME_NODE,
    Analysis,
    Estimate,
    Row,
    best_by_stratum,
    effects,
    estimate,
    link_order,
    number,
    part,
    relative,
    rows,
    verdict_of,
    verdict_rows,
    words,
)
from kvrelay.bench.audit.report.tables import key_rates

_LONG_TOKENS = 128 * 1024
_LOSSY = ("relay_int8", "relay_int4", "relay_layers")
_RARE = Range(0.0, 0.01)
_NEVER = Range(0.0, 0.05)
Judge = Callable[[Analysis], Judgement]


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim, what the article says in its words of numbers, and the rule that judges it."""

    claim: str
    article: str
    judge: Judge


def _threshold(is_same_node: bool, claimed: tuple[float, float]) -> Judge:
    """Relay pays above a cosine within `claimed`, and does not below."""

    def judge(analysis: Analysis) -> Judgement:
        known = cosines(analysis)
        if not known:
            return _without_cosines(analysis)
        pays: dict[str, list[bool]] = {level: [] for level in known}
        for stratum, row in verdict_rows(analysis, "relay"):
            verdict = verdict_of(row)
            is_here = (stratum.link == SAME_NODE) == is_same_node
            if is_here and stratum.similarity in known and verdict not in (None, "undecided"):
                pays[stratum.similarity].append(verdict == "pays")
        above = [level for level in known if known[level].low > claimed[1] and pays[level]]
        below = [level for level in known if known[level].high < claimed[0] and pays[level]]
        ours = "; ".join(
            f"{clean(level)}, cosine {_cosine(known[level])}: pays in {sum(pays[level])} of "
            f"{len(pays[level])} decided conditions"
            for level in sorted(known, key=lambda each: -known[each].estimate)
            if pays[level]
        )
        if not ours:
            return Judgement(NOT_MEASURED, "not_testable", "no decided condition on such links")
        too_high = [level for level in above if not all(pays[level])]
        too_low = [level for level in below if any(pays[level])]
        if too_high or too_low:
            parts = [f"does not always pay at {clean(level)} similarity" for level in too_high]
            parts += [f"pays at {clean(level)} similarity" for level in too_low]
            return Judgement(ours, "refuted", "relay " + " and ".join(parts))
        if above and below:
            why = "pays at every level above the threshold and at none below it"
            return Judgement(ours, "confirmed", why)
        why = "no level lies above the threshold" if below else "no level lies below the threshold"
        return Judgement(ours, "not_testable", why)

    return judge


def _without_cosines(analysis: Analysis) -> Judgement:
    """No cosine of the levels is known: does cosine matter at all once the prefix is given?"""
    check = next((row for row in rows(analysis, "checks")
                  if row.get("name") == "negative_control"), None)  # fmt: skip
    if check is None or not isinstance(check.get("passed"), bool):
        return Judgement(NOT_MEASURED, "not_testable", "the cosine of our levels is not measured")
    ours = clean(words(check, "words")) or "negative control: cosine given the shared prefix"
    if check["passed"]:
        why = "given the shared prefix, cosine has no effect: no cosine can be the threshold"
        return Judgement(ours, "refuted", why)
    why = "cosine has an effect beyond the shared prefix, but the levels' cosine is not measured"
    return Judgement(ours, "not_testable", why)


def _more_similar_gains_more(analysis: Analysis) -> Judgement:
    found = changes(analysis, latency_outcome(analysis))
    names = ("high similarity", "low similarity")
    return by_order(at_level(found, ["high"]), at_level(found, ["low"]), percent, names)


def _medium_gains(analysis: Analysis) -> Judgement:
    found = changes(analysis, latency_outcome(analysis))
    names = ("medium similarity", "low similarity")
    return by_order(at_level(found, ["medium"]), at_level(found, ["low"]), percent, names)


def _less_similar_transfers_longer(analysis: Analysis) -> Judgement:
    found = transfers(analysis)
    names = ("high similarity", "low similarity")
    return by_order(at_level(found, ["high"]), at_level(found, ["low"]), _duration, names)


def _foreign(outcome: str, claimed: Range) -> Judge:
    """Relay of another architecture's KV: rows of that factor, or what such an engine took over."""

    def judge(analysis: Analysis) -> Judgement:
        chosen = effects(analysis, heterogeneity="architecture", outcome=outcome)
        found = [
            (stratum, value)
            for stratum, row in best_by_stratum(chosen)
            if (value := relative(row)) is not None
        ]
        if found:
            return by_range(claimed, found, percent)
        why = "KV of another architecture is refused before it is moved, and no arm injects it"
        tried = [r for r in rows(analysis, "heterogeneity") if r.get("kind") == "architecture"]
        if tried:
            ours = f"tokens relayed: {relayed_words(tried[0])}"
            return Judgement(ours, "not_testable", why)
        known = [row for row in rows(analysis, "controls") if isinstance(row.get("passed"), bool)]
        if not known:
            return Judgement(NOT_MEASURED, "not_testable", why)
        passed = sum(row["passed"] for row in known)
        ours = f"controls with KV of the same model: {passed} of {len(known)} controls as expected"
        return Judgement(ours, "not_testable", why)

    return judge


def _long(analysis: Analysis) -> Judgement:
    """At 128K tokens the transfer outweighs what it saves."""
    points = [
        (length, value)
        for row in rows(part(analysis, "break_even"), "points")
        if (length := number(row, "tokens")) is not None and (value := estimate(row)) is not None
    ]
    if not points:
        return Judgement(NOT_MEASURED, "not_testable", "no point of the break-even map")
    longest = max(length for length, _ in points)
    here = sorted(
        (value for length, value in points if length == longest), key=lambda each: each.estimate
    )
    ours = f"{between(_change(here[0]), _change(here[-1]))} at {tokens(longest)}"
    if longest < _LONG_TOKENS:
        why = f"the longest prompts here have {tokens(longest)}, not 128K"
        return Judgement(ours, "not_testable", why)
    if any(value.sign < 0 for value in here):
        return Judgement(ours, "refuted", "relay is faster at that length on at least one link")
    if all(value.sign > 0 for value in here):
        return Judgement(ours, "confirmed", "relay is slower at that length on every link")
    return Judgement(ours, "not_testable", "undecided: intervals hold zero")


def _compress(analysis: Analysis) -> Judgement:
    """Lossy codecs rescue transfers that do not pay raw."""
    lossy = [pair for arm in _LOSSY for pair in changes(analysis, latency_outcome(analysis), arm)]
    if lossy:
        return by_range(Range(-1.0, 0.0), lossy, percent)
    why = "no arm quantises, prunes or leaves out layers"
    codecs = {arm: changes(analysis, latency_outcome(analysis), arm)
              for arm in ("relay_raw", "relay_lz4")}  # fmt: skip
    if not all(codecs.values()):
        return Judgement(NOT_MEASURED, "not_testable", why)
    slowest = max((stratum.link for found in codecs.values() for stratum, _ in found),
                  key=link_order)  # fmt: skip
    parts = [
        f"{arm.removeprefix('relay_')} "
        f"{spread([pair for pair in found if pair[0].link == slowest], percent)}"
        for arm, found in codecs.items()
    ]
    ours = f"lossless only, {link_words(slowest)}: {'; '.join(parts)}"
    return Judgement(ours, "not_testable", why)


def _key(start: str, rate: str, claimed: Range, *, is_inside: bool) -> Judge:
    """A rate of the key whose name begins so lies within `claimed`, or outside of it."""

    def judge(analysis: Analysis) -> Judgement:
        row = next((each for each in rows(analysis, "keys")
                    if words(each, "key").startswith(start)), None)  # fmt: skip
        value = None if row is None else key_rates(row)[rate == "wrong"]
        if row is None or value is None:
            why = "this key was not replayed" if row is None else "this key found nothing"
            return Judgement(NOT_MEASURED, "not_testable", why)
        ours = _rate_words(row, value, rate)
        edge = f"{100 * claimed.high:.0f}\u00a0%"
        if claimed.holds(value):
            why = f"the whole interval is at or under {edge}"
            return Judgement(ours, "confirmed" if is_inside else "refuted", why)
        if claimed.excludes(value):
            why = f"the whole interval is above {edge}"
            return Judgement(ours, "refuted" if is_inside else "confirmed", why)
        return Judgement(ours, "not_testable", f"undecided: the interval holds {edge}")

    return judge


def _rate_words(row: Row, value: Estimate, rate: str) -> str:
    n = number(row, "n") or 0.0
    kind = "of hits wrong" if rate == "wrong" else "of prompts hit"
    return f"{percent(value, sign=False)} {kind}, {unsigned(n, 0)} prompts"


def _where_transfer_is_cheap(analysis: Analysis) -> Judgement:
    """Wherever the wire takes less than the prefill it saves, relay is faster; else it is not."""
    points = [
        (ratio, value)
        for row in rows(part(analysis, "break_even"), "points")
        if (ratio := number(row, "wire_over_prefill")) is not None
        and (value := estimate(row)) is not None
        and value.sign
    ]
    if not points:
        return Judgement(NOT_MEASURED, "not_testable", "no decided point of the break-even map")
    cheap = [value for ratio, value in points if ratio < 1]
    dear = [value for ratio, value in points if ratio >= 1]
    wrong = sum(value.sign > 0 for value in cheap) + sum(value.sign < 0 for value in dear)
    ours = (
        f"faster at {sum(value.sign < 0 for value in cheap)} of {len(cheap)} decided points where "
        f"the wire is cheaper, at {sum(value.sign < 0 for value in dear)} of {len(dear)} elsewhere"
    )
    if wrong:
        why = f"not so at {wrong} of {len(points)} points: there are costs besides the wire's"
        return Judgement(ours, "refuted", why)
    if cheap and dear:
        return Judgement(ours, "confirmed", "every decided point is on its side")
    return Judgement(ours, "not_testable", "all points lie on one side of equal cost")


OTHERS = (
    Claim("The more similar, the more latency falls: high against low similarity",
          "−35 to −50 % against +5 to +20 %", _more_similar_gains_more),
    Claim("A paraphrase gains too: medium against low similarity",
          "−30 to +10 % against +5 to +20 %", _medium_gains),
    Claim("The less similar, the longer the transfer: high against low similarity",
          "5 to 15 ms against 30 to 60 ms", _less_similar_transfers_longer),
    Claim("Relay pays from a cosine of about 0.80 to 0.85 on, within a node",
          "0.80 to 0.85", _threshold(True, (0.80, 0.85))),
    Claim("Relay pays from a cosine of about 0.9 on, between nodes",
          "0.9", _threshold(False, (0.90, 0.90))),
    Claim("Relay pays where the transfer costs less than the computation that it saves",
          "the last question of its decision flow", _where_transfer_is_cheap),
    Claim("KV of another architecture (Llama-3-8B into Qwen-7B): latency",
          "about +15 %", _foreign("ttft_s", Range(0.10, 0.20))),
    Claim("KV of another architecture (Llama-3-8B into Qwen-7B): perplexity soars",
          "at least doubled, as we read it", _foreign("perplexity", Range(1.0, float("inf")))),
    Claim("At 128K tokens the transfer becomes the bottleneck",
          "transfer outweighs what is saved", _long),
    Claim("Then compress: quantise, sparsify, or send key layers only",
          "relay pays again", _compress),
    Claim("A hash of the whole prompt finds nothing",
          "no hit", _key("hash of the whole prompt", "hits", _NEVER, is_inside=True)),
    Claim("The first 50 tokens as the key find wrong KV",
          "wrong hits, odd output", _key("first 50 tokens", "wrong", _RARE, is_inside=False)),
    Claim("A semantic hash with first tokens finds KV that can be reused",
          "its proposed key", _key("semantic hash", "wrong", _RARE, is_inside=True)),
)  # fmt: skip


def _cosine(value: Estimate) -> str:
    return f"{value.estimate:.2f} [{value.low:.2f}, {value.high:.2f}]"


def _duration(value: Estimate) -> str:
    return seconds(value, sign=False)


def _change(value: Estimate) -> str:
    return seconds(value)
