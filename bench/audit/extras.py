"""What an audit tells beside its rows: keys replayed, controls of quality, engines that differ.

Each is a file of the run's folder, `{"plan_sha256": ..., "rows": [...]}`, made once for a plan: its
rows are a section of the analysis.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvrelay.bench.audit.folder import read_object
from kvrelay.bench.audit.material import Material
from kvrelay.bench.audit.plan import PAIRED, Controls, Heterogeneity, Plan
from kvrelay.bench.audit.units import planned
from kvrelay.bench.engines import BLOCK_TOKENS
from kvrelay.bench.progress import progress_bar
from kvrelay.bench.report import Row, write_atomically
from kvrelay.cluster.model import ensure_model

if TYPE_CHECKING:
    from kvrelay.bench.audit.controls.trials import Example

SECTIONS = ("keys", "controls", "heterogeneity")
MODEL = "heterogeneity-model"  # a folder that is there while an engine needs it


def make(plan: Plan, folder: Path) -> None:
    """Make what the folder lacks of this plan.

    Raises:
        KvrelayError: the model is not there, or an isolated engine failed.
    """
    makers: dict[str, Callable[[Plan], list[Row]]] = {"keys": _keys}
    if plan.controls is not None:
        makers["controls"] = _controls
    if plan.heterogeneity is not None:
        makers["heterogeneity"] = lambda each: _heterogeneity(each, folder)
    for name, maker in makers.items():
        file = folder / f"{name}.json"
        if read_object(file).get("plan_sha256") != plan.sha256:
            content = {"plan_sha256": plan.sha256, "rows": maker(plan)}
            write_atomically(file, json.dumps(content, indent=1) + "\n")


def sections(folder: Path) -> dict[str, list[Row]]:
    """The sections that are there."""
    found = {name: read_object(folder / f"{name}.json").get("rows") for name in SECTIONS}
    return {name: rows for name, rows in found.items() if rows is not None}


def replayed_keys(plan: Plan, material: Material) -> list[Row]:
    """Hits and wrong reuses of each key, on the prompts of all pairs: A's, B's, and so on."""
    from kvrelay.bench.audit.controls.keys import all_keys, replay

    prompts = []
    for unit in planned(plan):
        if unit.design == PAIRED:
            for ask in unit.blocks[0]:
                made = material.pair(unit.stratum, ask.text)
                prompts += [made.first, made.second]
    return list(replay(prompts, all_keys(BLOCK_TOKENS))) if prompts else []


def _keys(plan: Plan) -> list[Row]:
    return replayed_keys(plan, Material.load(ensure_model(plan.model)))


def _controls(plan: Plan) -> list[Row]:
    from kvrelay.bench.audit.controls import controls_rows, trials

    assert plan.controls is not None
    model = ensure_model(plan.model)
    examples = _examples(model, plan.controls, plan.seed)
    num_trials = len(examples) * 2 * len(trials.Content)
    with progress_bar("controls", float(num_trials)) as advance:
        found = trials.measure(model, examples, plan.seed, advance=advance)
        return list(controls_rows.rows(found))


def _heterogeneity(plan: Plan, folder: Path) -> list[Row]:
    from kvrelay.bench.audit.controls import heterogeneity, heterogeneity_rows

    assert plan.heterogeneity is not None
    model, kinds = ensure_model(plan.model), plan.heterogeneity.kinds
    examples = _examples(model, plan.heterogeneity, plan.seed)
    with progress_bar("heterogeneity", float(len(kinds) * len(examples))) as advance:
        pairings = heterogeneity.measure(model, examples, kinds, folder / MODEL, advance=advance)
        return list(heterogeneity_rows.rows(pairings))


def _examples(model: Path | str, asked: Controls | Heterogeneity, seed: int) -> list[Example]:
    """As many and as long as the plan asks for."""
    from transformers import AutoTokenizer

    from kvrelay.bench.audit.controls.controls_examples import stated_numbers

    tokenizer = AutoTokenizer.from_pretrained(str(model))

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False))

    def decode(tokens: Any) -> str:
        return str(tokenizer.decode(list(tokens)))

    return stated_numbers(encode, decode, asked.examples, asked.tokens, seed)
