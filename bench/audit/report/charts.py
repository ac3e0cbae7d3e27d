"""Pictures of intervals in rows: effects by condition, estimators, direct and global, quality.

A row without an interval has no mark: it says "not measured". What does not fit into the frame ends
in an arrow, and its words say where it really is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from kvrelay.bench.audit.report.blocks import Figure
from kvrelay.bench.audit.report.names import (
    arm_words,
    clean,
    link_words,
    outcome_words,
    stratum_words,
)
from kvrelay.bench.audit.report.numbers import NOT_MEASURED, interval, measured, percent
from kvrelay.bench.audit.report.plot import (
    BOLD,
    FAINT,
    GREY,
    INK,
    NARROW,
    WIDE,
    across,
    figure,
    fitted,
    frame,
    inner_range,
    label,
    legend,
    mark,
    sign_tone,
    tick_words,
    ticks_apart,
    tone_colour,
    width_of,
    wrapped,
)
from kvrelay.bench.audit.report.reading import (
    Analysis,
    Estimate,
    Order,
    Row,
    Stratum,
    arms,
    effects,
    estimate,
    number,
    part,
    primary_outcome,
    relative,
    rows,
    verdict_of,
    verdict_rows,
    words,
)
from kvrelay.bench.audit.report.words import TONES, VERDICTS, comparison_words
from kvrelay.cluster.scales import LinearScale
from kvrelay.cluster.svg import line

_ROW, _TALL_ROW, _GROUP, _EDGE = 24, 42, 30, 8
_LINE = 15
_SIGNS = {"pays": "faster", "costs": "slower", "open": "undecided", "none": NOT_MEASURED}
_VERDICT_WORDS = {TONES[verdict]: said for verdict, said in VERDICTS.items()}


@dataclass(frozen=True, slots=True)
class Bar:
    """A row: `value` is in the unit of the axis, `words` say it with its own."""

    label: str
    value: Estimate | None
    words: str
    tone: str
    group: str = ""


def forest(analysis: Analysis, arm: str = "relay") -> Figure | None:
    """The effect on the primary outcome in every stratum; None if none has an interval."""
    outcome = primary_outcome(analysis)
    bars = []
    for stratum, row in verdict_rows(analysis, arm):
        value = relative(part(row, "latency"))
        bars.append(
            Bar(
                stratum_words(stratum, link=False),
                None if value is None else value.scaled(100.0),
                NOT_MEASURED if value is None else percent(value),
                "none" if value is None else TONES[verdict_of(row)],
                link_words(stratum.link),
            )
        )
    title = f"{outcome_words(outcome)} with {arm_words(arm)} against recompute, in each condition"
    caption = (
        f"Change of the mean {outcome_words(outcome)} in percent with its 95 % interval; left of "
        "zero is faster. Marks tell the verdict, which also asks for throughput and memory."
    )
    axis = f"change of {outcome_words(outcome)}, %"
    return _bars(f"forest-{_key(arm)}", title, caption, axis, bars=bars, tones=_VERDICT_WORDS)


def every_arm(analysis: Analysis) -> Figure | None:
    """All arms beside each other, in the strata in which more than one was tried."""
    outcome = primary_outcome(analysis)
    found: dict[Stratum, list[Bar]] = {}
    for arm in arms(analysis):
        for stratum, row in verdict_rows(analysis, arm):
            value = relative(part(row, "latency"))
            bar = Bar(
                arm_words(arm),
                None if value is None else value.scaled(100.0),
                NOT_MEASURED if value is None else percent(value),
                "none" if value is None else TONES[verdict_of(row)],
                stratum_words(stratum),
            )
            found.setdefault(stratum, []).append(bar)
    several = sorted((pair for pair in found.items() if len(pair[1]) > 1), key=_stratum_order)
    bars = [bar for _, here in several for bar in here]
    title = f"{outcome_words(outcome)} of every arm against recompute"
    caption = (
        f"Change of the mean {outcome_words(outcome)} in percent with its 95 % interval, where "
        "more than one arm was tried; left of zero is faster."
    )
    axis = f"change of {outcome_words(outcome)}, %"
    return _bars("arms", title, caption, axis, bars=bars, tones=_VERDICT_WORDS)


def estimators(analysis: Analysis) -> Figure | None:
    """Relay's effect over all strata by every estimator, so that none is chosen for its result."""
    outcome = primary_outcome(analysis)
    bars = [
        _effect_bar(row, _estimator_words(row), words(row, "estimand"))
        for row in effects(analysis, arm="relay", outcome=outcome, stratum=None)
        if words(row, "estimand") != "quantile"
    ]
    bars.sort(key=lambda bar: bar.group)
    title = f"{outcome_words(outcome)} with relay over all conditions, by every estimator"
    caption = "Change in percent of the control's mean with its 95 % interval; left is faster."
    axis = f"change of {outcome_words(outcome)}, %"
    return _bars("estimators", title, caption, axis, bars=bars, tones=_SIGNS)


def direct_against_global(analysis: Analysis) -> Figure | None:
    """What one request gains by relay beside what all gain if all relay, by link."""
    outcome = primary_outcome(analysis)
    bars = []
    for row in rows(analysis, "direct_against_global"):
        group = comparison_words(row)
        group += ": they differ" if row.get("differ") is True else ""
        for name, said in (("direct", "one request relays"), ("global", "all requests relay")):
            bars.append(_effect_bar(part(row, name), said, group))
    title = "Direct against global effect"
    caption = (
        f"Change of {outcome_words(outcome)} in percent with its 95 % interval; left is faster. "
        "Where the two differ, requests that relay slow each other down or speed others up."
    )
    axis = f"change of {outcome_words(outcome)}, %"
    return _bars("direct-global", title, caption, axis, bars=bars, tones=_SIGNS)


def quality(analysis: Analysis) -> Figure | None:
    """Differences of quality in units of their margins, over all strata where that was tested."""
    bars = []
    found = rows(analysis, "quality")
    whole = {_of_quality(row) for row in found if row.get("stratum") is None}
    for row in found:
        if row.get("stratum") is not None and _of_quality(row) in whole:
            continue  # the table has it
        value = estimate(row, "difference", "low90", "high90")
        margin = number(row, "margin")
        measure, name = outcome_words(words(row, "measure")), arm_words(words(row, "arm"))
        if row.get("stratum") is not None:
            name = f"{name}: {stratum_words(Stratum.parse(words(row, 'stratum')))}"
        if value is None or margin is None or margin <= 0:
            bars.append(Bar(name, None, NOT_MEASURED, "none", measure))
            continue
        tone = "pays" if row.get("equivalent") is True else "open"
        bars.append(Bar(name, value.scaled(1 / margin), interval(value, ""), tone, measure))
    bars.sort(key=lambda bar: bar.group)
    title = "Quality against recompute, within margins fixed beforehand"
    caption = (
        "Difference over its margin with its 90 % interval; the words give the difference itself. "
        "Equivalent if the interval lies within −1 and +1, the shaded band (where only worse "
        "counts, right of −1 is enough)."
    )
    said = {"pays": "equivalent", "open": "not shown to be equivalent", "none": NOT_MEASURED}
    axis = "difference, in margins"
    return _bars("quality", title, caption, axis, bars=bars, tones=said, band=(-1.0, 1.0))


def observational(analysis: Analysis) -> Figure | None:
    """The policy's own log against the randomised effect."""
    outcome = primary_outcome(analysis)
    names = {"naive": "log, as it is", "adjusted": "log, adjusted", "randomised": "randomised"}
    found = part(analysis, "observational")
    bars = [
        _effect_bar(part(found, name), said, "")
        for name, said in names.items()
        if part(found, name)
    ]
    title = "What the policy's own log would have made one believe"
    caption = (
        f"Change of {outcome_words(outcome)} in percent with its 95 % interval; left is faster. "
        "Only the randomised effect is free of what the policy chose by."
    )
    axis = f"change of {outcome_words(outcome)}, %"
    return _bars("observational", title, caption, axis, bars=bars, tones=_SIGNS)


def _of_quality(row: Row) -> tuple[str, str]:
    return words(row, "measure"), words(row, "arm")


def _effect_bar(row: Row, name: str, group: str) -> Bar:
    """A relative effect; one that is known in seconds only is in words and has no mark."""
    value, absolute = relative(row), estimate(row)
    if value is not None:
        return Bar(name, value.scaled(100.0), percent(value), sign_tone(value), group)
    said = NOT_MEASURED if absolute is None else measured(absolute, words(row, "outcome") or "_s")
    return Bar(name, None, said, "none", group)


def _estimator_words(row: Row) -> str:
    design = words(row, "design")
    return words(row, "estimator") + (f", {design}" if design else "")


def _bars(
    key: str,
    title: str,
    caption: str,
    axis: str,
    *,
    bars: Sequence[Bar],
    tones: dict[str, str],
    band: tuple[float, float] | None = None,
) -> Figure | None:
    if not any(bar.value is not None for bar in bars):
        return None
    wide = _drawn(bars, axis, tones, band, is_narrow=False)
    narrow = _drawn(bars, axis, tones, band, is_narrow=True)
    return figure(key, title, caption, (wide, narrow))


def _drawn(
    bars: Sequence[Bar],
    axis: str,
    tones: dict[str, str],
    band: tuple[float, float] | None,
    *,
    is_narrow: bool,
) -> tuple[float, list[str]]:
    """Height and parts of a picture of rows; on a phone a row's label stands above its interval."""
    width = NARROW if is_narrow else WIDE
    row_height = _TALL_ROW if is_narrow else _ROW
    said = max(width_of(bar.words) for bar in bars) + 14
    said = min(said, 170 if is_narrow else 230)
    names = max(width_of(clean(bar.label)) for bar in bars) + _EDGE + 14
    left = _EDGE + 16 if is_narrow else min(max(names, 90), 336)
    right = width - _EDGE - said
    x = _scale(bars, band, left, right)
    used = [tone for tone in tones if any(bar.tone == tone for bar in bars)]
    parts, top = legend([(mark(0, 0, tone), tones[tone]) for tone in used], _EDGE + 6, 12, width)
    axis_top = top + 24
    rows_of_bars: list[str] = []
    spans: list[tuple[float, float]] = []
    y = axis_top + 8.0
    for group, same in groupby(bars, key=lambda bar: bar.group):
        if group:
            y += _GROUP - _LINE
            for heading in wrapped(group, width - 2 * _EDGE, BOLD):
                y += _LINE
                rows_of_bars.append(label(_EDGE, y - 9, heading, weight=600))
        for bar in same:
            rows_of_bars += _row(bar, x, y, row_height, left, is_narrow=is_narrow)
            spans.append((y + row_height - 24, y + row_height - 4))
            y += row_height
    bottom = y + 6
    parts.append(label(left, top + 6, axis, colour=GREY))
    # On a phone labels stand over the frame: lines would cross them all.
    parts += _grid(x, (axis_top, bottom), spans if is_narrow else [(axis_top, bottom)], band)
    return bottom + 24, parts + rows_of_bars


def _row(
    bar: Bar, x: LinearScale, top: float, height: float, left: float, *, is_narrow: bool
) -> list[str]:
    middle = top + (height - 14 if is_narrow else height / 2)
    name_y = top + 15 if is_narrow else middle + 4
    room = NARROW - 2 * _EDGE if is_narrow else left - _EDGE - 10
    parts = [label(_EDGE, name_y, fitted(bar.label, room))]
    colour = tone_colour(bar.tone)
    if bar.value is not None:
        parts += across(x, middle, bar.value, colour)
        parts.append(mark(x.at(bar.value.estimate), middle, bar.tone, f"{bar.label}: {bar.words}"))
    said_at = x.end + 14
    room = (NARROW if is_narrow else WIDE) - said_at
    parts.append(label(said_at, middle + 4, fitted(bar.words, room), colour=colour, weight=500))
    return parts


def _grid(
    x: LinearScale,
    ends: tuple[float, float],
    spans: Sequence[tuple[float, float]],
    band: tuple[float, float] | None,
) -> list[str]:
    """Lines at round values along the spans, with their values at both ends."""
    parts = []
    if band is not None:
        start, end = x.at(band[0]), x.at(band[1])
        parts += [
            f'<rect x="{start:g}" y="{top:g}" width="{end - start:g}" height="{bottom - top:g}" '
            'fill="var(--pays-wash)"/>'
            for top, bottom in spans
        ]
    for tick in ticks_apart(x, 11):
        at = x.at(tick)
        colour, stroke = (INK, 1.2) if tick == 0 else (FAINT, 1.0)
        for top, bottom in spans:
            parts.append(line(at, top, at, bottom, colour=colour, stroke=stroke))
        for y in (ends[0] - 5, ends[1] + 15):
            parts.append(label(at, y, tick_words(tick), anchor="middle", colour=GREY, size=11))
    return parts


def _scale(
    bars: Sequence[Bar], band: tuple[float, float] | None, left: float, right: float
) -> LinearScale:
    low, high = inner_range([bar.value for bar in bars if bar.value is not None], *(band or ()))
    return frame(low, high, left, right)


def _stratum_order(pair: tuple[Stratum, list[Bar]]) -> Order:
    return pair[0].order


def _key(name: str) -> str:
    return "".join(each if each.isascii() and each.isalnum() else "-" for each in name)
