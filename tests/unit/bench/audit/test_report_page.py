"""The page: valid and self-contained for any analysis, and nothing on it is cut off."""

from __future__ import annotations

import copy
import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest

from kvrelay.bench.audit.report import charts, charts_length, charts_map, page
from kvrelay.bench.audit.report.blocks import Figure
from kvrelay.bench.audit.report.contents import sections
from kvrelay.bench.audit.report.plot import (
    NARROW,
    WIDE,
    frame,
    standalone,
    tick_words,
    ticks_apart,
    width_of,
)

WHOLE: dict[str, Any] = json.loads((Path(__file__).parent / "analysis.json").read_text())
HOSTILE = "</td><script>alert('x')</script>\"'&<img src=x onerror=y>\x00\ud800\u202e\n`|*_[a](b)"
VOID = {"meta", "link", "br", "img", "hr", "input"}
SVG = "{http://www.w3.org/2000/svg}"
# What the report looks for by name; other strings are only shown.
NAMES = frozenset(
    {"arm", "control", "design", "estimand", "estimator", "outcome", "outcome_primary", "verdict"}
)


class Reader(HTMLParser):
    """Keeps tags, attributes and text, and what is not closed as it was opened."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        if len(names) != len(set(names)):
            self.wrong.append(f"{tag} has an attribute twice")
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}> closes something else")

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.wrong == [] and reader.open == []
    ids = [attrs["id"] for _, attrs in reader.tags if "id" in attrs]
    assert len(ids) == len(set(ids)), "an id is there twice"
    return reader


def spoilt(value: Any, but: frozenset[str] = frozenset()) -> Any:
    """An analysis with the same keys and hostile strings, but for those under some keys."""
    if isinstance(value, dict):
        return {key: each if key in but else spoilt(each, but) for key, each in value.items()}
    if isinstance(value, list):
        return [spoilt(each, but) for each in value]
    return HOSTILE + value if isinstance(value, str) else value


def figures(analysis: dict[str, Any]) -> list[Figure]:
    return [figure for section in sections(analysis) for figure in section.figures]


def scaled(value: Any, factor: float) -> Any:
    if isinstance(value, dict):
        return {key: scaled(each, factor) for key, each in value.items()}
    if isinstance(value, list):
        return [scaled(each, factor) for each in value]
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value * factor if is_number else value


ANALYSES = {
    "whole": WHOLE,
    "nothing": {},
    "empty": {key: type(value)() for key, value in WHOLE.items()},
    "of other types": dict.fromkeys(WHOLE, "text"),
    "rows of other types": {key: [None, 1, "text", []] for key in WHOLE},
    "rows without fields": {key: [{}] for key in WHOLE},
    "hostile": spoilt(WHOLE),
    "hostile names": spoilt(WHOLE, NAMES),
    "huge": scaled(WHOLE, 1e98),
    "beyond": scaled(WHOLE, 1e200),
    "tiny": scaled(WHOLE, 1e-98),
    "zero": scaled(WHOLE, 0),
}


@pytest.mark.parametrize("name", ANALYSES)
def test_any_analysis_makes_a_valid_page(name: str) -> None:
    html = page.render(ANALYSES[name])
    html.encode("utf-8")
    reader = read(html)
    assert html.startswith("<!DOCTYPE html>")
    assert [attrs for tag, attrs in reader.tags if tag == "html"] == [{"lang": "en"}]
    assert len([tag for tag, _ in reader.tags if tag == "h1"]) == 1
    words = " ".join(reader.text)
    assert not re.search(r"\b(nan|inf|None|null)\b", words), "a number that is none"


@pytest.mark.parametrize("name", ANALYSES)
def test_a_page_asks_nobody_and_runs_nothing(name: str) -> None:
    html = page.render(ANALYSES[name])
    tags = read(html).tags
    assert not {tag for tag, _ in tags} & {"script", "iframe", "object", "embed", "img", "base"}
    for tag, attrs in tags:
        for attribute, value in attrs.items():
            assert not attribute.startswith("on")
            if attribute in {"href", "src", "xlink:href", "action"}:
                assert value is not None and (value.startswith("#") or value == "data:,"), tag
    assert "url(" not in html and "@import" not in html
    policy = [attrs["content"] for tag, attrs in tags if "http-equiv" in attrs]
    assert policy and str(policy[0]).startswith("default-src 'none'")


def test_what_is_missing_is_said_and_no_number_stands_for_it() -> None:
    reader = read(page.render({}))
    body = " ".join(reader.text[reader.text.index(page.TITLE) + 1 :])
    assert body.count("not measured") >= len(sections({}))
    for section in sections({}):
        assert section.points or section.tables, section.key
    assert figures({}) == []
    for section in sections({}):
        for table in section.tables:
            if section.key not in {"article", "checks"}:
                assert table.rows == (), table.caption


@pytest.mark.parametrize("lost", ["low", "high", "relative_low", "relative_high"])
def test_effects_that_lose_a_bound_lose_their_number(lost: str) -> None:
    analysis = copy.deepcopy(WHOLE)
    for row in analysis["verdicts"]:
        row["latency"] |= {"low": None, "relative": None, lost: None}
    assert charts.forest(analysis) is None
    assert charts_length.by_length(analysis) is None
    html = page.render(analysis)
    assert "relay was not measured in 12" in html


def test_the_same_analysis_gives_the_same_bytes() -> None:
    reordered = json.loads(json.dumps(WHOLE, sort_keys=True))
    for name in ("verdicts", "effects"):
        reordered[name] = list(reversed(reordered[name]))
    assert page.render(WHOLE) == page.render(copy.deepcopy(WHOLE))
    assert charts.forest(WHOLE) == charts.forest(reordered)


def test_a_failed_check_and_a_changed_plan_stand_out() -> None:
    analysis = copy.deepcopy(WHOLE)
    analysis["meta"]["plan_changed"] = True
    reader = read(page.render(analysis))
    kinds = [attrs.get("class") for tag, attrs in reader.tags if tag == "li"]
    facts = kinds.index("costs")  # links have a line each before, of no verdict
    assert kinds[:facts] == ["plain", "plain"] and kinds[facts : facts + 2] == ["costs", "costs"]
    words = " ".join(reader.text)
    assert "FAIL" in words and "CHANGED" in words and WHOLE["meta"]["plan_sha256"] in words


def test_the_caution_and_the_map_are_on_the_page() -> None:
    words = " ".join(read(page.render(WHOLE)).text)
    assert "relay look better than it is on a GPU" in words
    assert "wire seconds per token over prefill seconds per token" in words


def test_phone_rows_name_their_columns() -> None:
    reader = read(page.render(WHOLE))
    cells = [attrs for tag, attrs in reader.tags if tag == "td"]
    assert cells and all(attrs.get("data-label") for attrs in cells)


DRAWN = ["whole", "hostile names", "huge", "tiny", "zero"]


@pytest.mark.parametrize("name", DRAWN)
def test_every_figure_is_named_and_lies_within_its_frame(name: str) -> None:
    found = figures(ANALYSES[name])
    assert name == "zero" or len(found) >= 6
    for figure in found:
        for svg, width in ((figure.wide, WIDE), (figure.narrow, NARROW)):
            root = ET.fromstring(svg)
            assert root.find(f"{SVG}title") is not None and root.find(f"{SVG}desc") is not None
            _, _, across, height = (float(each) for each in str(root.get("viewBox")).split())
            assert across == width and 0 < height < 1e5
            for element in root.iter():
                for attribute in ("x1", "x2", "cx", "x"):
                    if element.tag != f"{SVG}rect" and (value := element.get(attribute)):
                        assert -1 <= float(value) <= width + 1, (figure.key, element.attrib)
                for attribute in ("y1", "y2", "cy", "y"):
                    if element.tag != f"{SVG}rect" and (value := element.get(attribute)):
                        assert -1 <= float(value) <= height + 1, (figure.key, element.attrib)


def boxes(svg: str) -> list[tuple[float, float, float, float, str]]:
    """Left, right, top and bottom of each label, about."""
    found = []
    for element in ET.fromstring(svg).iter(f"{SVG}text"):
        size, words = int(str(element.get("font-size"))), element.text or ""
        x, y = (float(str(element.get(name))) for name in ("x", "y"))
        width, anchor = width_of(words, size), str(element.get("text-anchor"))
        left = x - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
        found.append((left, left + width, y - 0.75 * size, y + 0.2 * size, words))
    return found


@pytest.mark.parametrize("name", ["whole", "hostile names"])
def test_no_label_is_cut_off_or_lies_upon_another(name: str) -> None:
    for figure in figures(ANALYSES[name]):
        for svg, width in ((figure.wide, WIDE), (figure.narrow, NARROW)):
            labels = boxes(svg)
            assert name != "whole" or "…" not in svg, (figure.key, width)
            for left, right, *_, words in labels:
                assert left >= -1 and right <= width + 1, (figure.key, width, words)
            for one, other in combinations(labels, 2):
                apart = one[1] <= other[0] or other[1] <= one[0]
                apart = apart or one[3] <= other[2] or other[3] <= one[2]
                assert apart, (figure.key, width, one, other)


def test_letters_are_large_enough_for_a_phone() -> None:
    for figure in figures(WHOLE):
        sizes = {int(size) for size in re.findall(r'font-size="(\d+)"', figure.narrow)}
        assert min(sizes) >= 11  # 350 units on a screen of 390: as many pixels at the least


def test_every_mark_of_a_forest_has_its_interval() -> None:
    figure = charts.forest(WHOLE)
    assert figure is not None
    root = ET.fromstring(figure.wide)
    intervals = [each for each in root.iter(f"{SVG}line") if each.get("stroke-width") == "2.5"]
    hints = [each.text or "" for each in root.iter(f"{SVG}title")][1:]
    relays = [row for row in WHOLE["verdicts"] if row["arm"] == "relay"]
    assert len(intervals) == len(hints) == len(relays)
    assert all("[" in hint for hint in hints)


def test_points_of_the_map_tell_the_sign_of_their_interval() -> None:
    analysis = copy.deepcopy(WHOLE)
    first, second, third, *_ = analysis["break_even"]["points"]
    first |= {"low": -2.0, "estimate": -1.0, "high": -0.5}
    second |= {"low": 0.5, "estimate": 1.0, "high": 2.0}
    third |= {"low": None}
    analysis["break_even"]["points"] = [first, second, third]
    figure = charts_map.break_even_map(analysis)
    assert figure is not None
    hints = [each.text or "" for each in ET.fromstring(figure.wide).iter(f"{SVG}title")]
    assert len([hint for hint in hints if "tokens: " in hint]) == 2
    assert "relay faster" in figure.wide and "relay slower" in figure.wide


def map_of(analysis: dict[str, Any]) -> str:
    figure = charts_map.break_even_map(analysis)
    assert figure is not None
    return figure.wide


def test_a_crossing_without_a_band_is_not_drawn_nor_told() -> None:
    analysis = copy.deepcopy(WHOLE)
    curve = {"link": "1gbit", "load": "idle", "wire_over_prefill": 0.3,
             "tokens_at_break_even": 700, "low": 500, "high": 900,
             "words": "pays from 700 tokens on [500, 900]"}  # fmt: skip
    analysis["break_even"]["curve"] = [curve]
    assert "break-even at 700" in map_of(analysis)
    assert "pays from 700 tokens on" in page.render(analysis)
    for row in analysis["break_even"]["points"]:
        if row["link"] == "1gbit":
            row["high"] = None
    assert "break-even at 700" not in map_of(analysis)
    assert "pays from 700 tokens on" not in page.render(analysis)


def test_an_interval_beyond_the_frame_ends_in_an_arrow() -> None:
    analysis = copy.deepcopy(WHOLE)
    relays = [row for row in analysis["verdicts"] if row["arm"] == "relay"]
    plain = charts.forest(analysis)
    relays[0]["latency"] |= {"relative": 5e4, "relative_low": 1e4, "relative_high": 9e4}
    far = charts.forest(analysis)
    assert plain is not None and far is not None
    heads = [svg.count('stroke-width="1.6" stroke-linecap') for svg in (plain.wide, far.wide)]
    assert heads == [0, 2]
    assert "+5,000,000" in far.wide.replace("\u00a0", " ")


def test_quality_without_a_margin_has_no_mark() -> None:
    analysis = copy.deepcopy(WHOLE)
    for row in analysis["quality"]:
        row["margin"] = None
    assert charts.quality(analysis) is None


def test_a_picture_of_its_own_brings_its_colours() -> None:
    figure = charts_map.break_even_map(WHOLE)
    assert figure is not None
    root = ET.fromstring(standalone(figure))
    style = root.find(f"{SVG}style")
    assert style is not None and "prefers-color-scheme:dark" in str(style.text)
    used = set(re.findall(r"var\((--[a-z0-9-]+)\)", standalone(figure)))
    assert used <= set(re.findall(r"(--[a-z0-9-]+):", str(style.text)))


def test_values_of_an_axis_do_not_touch_however_long_they_are() -> None:
    for low, high in ((-3e-7, 8e-7), (-0.83, 1.4), (-1e9, 2e9), (-101, 99)):
        scale = frame(low, high, 20, 200)
        ticks = ticks_apart(scale, 11)
        ends = [(scale.at(tick), width_of(tick_words(tick), 11) / 2) for tick in ticks]
        assert len(ticks) >= 2
        assert all(b - a >= half_a + half_b for (a, half_a), (b, half_b) in pairwise(ends))
