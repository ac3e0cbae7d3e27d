"""Carries out `kvrelay bench codecs`: real blocks, progress, report."""

from __future__ import annotations

import random
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np

from kvrelay.bench import codecs, codecs_rows, kv_blocks
from kvrelay.bench.engines import BLOCK_TOKENS
from kvrelay.bench.progress import progress_bar
from kvrelay.bench.prompts import PromptSource
from kvrelay.bench.quiet import QuietGate
from kvrelay.bench.report import Report, kept, new_meta, show
from kvrelay.cluster.cli.console import err, out
from kvrelay.cluster.lifecycle import signals_as_exit
from kvrelay.cluster.model import ensure_model
from kvrelay.relay.codecs.base import NAMES

SMOKE_TOKENS = 2 * kv_blocks.PROMPT_TOKENS
METHOD = """\
One block at a time on one core, from memory into memory that is there. GB/s: raw bytes by CPU time,
median and range over the passes, which run in random order. Ratio: raw by encoded bytes, over the
blocks.
A codec pays below the link rate at which encoding, sending less and decoding one after the other
take as long as sending; with blocks in a pipeline it pays up to faster links."""
NOT_COVERED = """\
--smoke: few blocks, one pass. It shows that every codec gives real blocks back, but says nothing
about how ratios and rates vary."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command was asked for."""

    tokens: int
    repeats: int
    json_file: Path | None
    samples_file: Path | None
    model: str
    seed: int
    quiet_wait_s: float
    smoke: bool


def main(options: Options) -> None:
    """Run the benchmark and leave its report.

    Raises:
        KvrelayError: it cannot run, or its figures would be worth nothing.
    """
    num_prompts = -(-options.tokens // kv_blocks.PROMPT_TOKENS)
    meta = new_meta(
        options.model,
        options.seed,
        engine_kwargs=kv_blocks.ENGINE,
        tokens=num_prompts * kv_blocks.PROMPT_TOKENS,
    )
    meta["versions"] |= {name: version(name) for name in ("lz4", "numba", "numpy")}
    if options.smoke:
        meta["not_covered"] = " ".join(NOT_COVERED.split())
    report = Report(meta, codecs_rows.summarize)
    with ExitStack() as stack:
        stack.enter_context(signals_as_exit())
        stack.enter_context(kept(report, options.json_file, options.samples_file))
        source = ensure_model(options.model, lambda line: err.print(line, highlight=False))
        with err.status("reading text"):
            text = PromptSource.load(source, options.seed)
        prompts = [text.take(kv_blocks.PROMPT_TOKENS).shared for _ in range(num_prompts)]
        num_blocks = num_prompts * kv_blocks.PROMPT_TOKENS // BLOCK_TOKENS
        with progress_bar("computing KV", num_blocks) as advance:
            views = stack.enter_context(kv_blocks.computed(source, prompts, advance))
        # No cluster runs: all that is busy besides this process are others.
        gate = QuietGate("", options.quiet_wait_s)
        blocks = [np.frombuffer(view, np.uint8) for view in views]
        bench = codecs.Bench(blocks, gate, report.samples)
        with err.status("warming up"):
            bench.warm_up()
        try:
            with progress_bar("measuring", options.repeats * len(NAMES)) as advance:
                bench.run(options.repeats, random.Random(options.seed), advance)
        finally:
            meta |= gate.summary()
    _show(report, options)


def _show(report: Report, options: Options) -> None:
    show("what a codec brings, and where it pays", codecs_rows.TABLE, report.rows())
    out.print(METHOD, style="dim", highlight=False, soft_wrap=True)
    waited_s, disturbed = report.meta["waited_s"], report.meta["requests_not_quiet"]
    out.print(
        f"Waited {waited_s:.0f} s for a quiet machine; it was not quiet before {disturbed} passes.",
        style="dim",
        highlight=False,
        soft_wrap=True,
    )
    if options.smoke:
        out.print(NOT_COVERED, style="yellow", highlight=False, soft_wrap=True)
