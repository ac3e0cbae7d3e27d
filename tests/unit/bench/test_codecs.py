"""`bench codecs`: what is measured, and the rows that come of it."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

from kvrelay.bench import codecs, codecs_rows
from kvrelay.bench.errors import BenchError
from kvrelay.bench.quiet import QuietGate
from kvrelay.relay.codecs.base import NAMES, Codec, Octets
from kvrelay.relay.codecs.raw import RawCodec

BLOCK = 40_000


def blocks(count: int) -> list[Octets]:
    rng = np.random.default_rng(1)
    numbers = rng.standard_normal((count, BLOCK // 2)).astype(np.float32)
    halves = (numbers.view(np.uint32) >> 16).astype(np.uint16)
    return list(halves.view(np.uint8))


def samples() -> list[dict[str, Any]]:
    """Two passes over three blocks: half the bytes saved, 1 GB/s and 2 GB/s each way."""
    found = []
    for repeat, seconds in ((0, 3e-3), (1, 1.5e-3)):
        found.append(
            {
                "codec": "split",
                "repeat": repeat,
                "block_bytes": 1_000_000,
                "encode_s": seconds,
                "decode_s": seconds,
                "encoded_bytes": [400_000, 500_000, 600_000],
                "others_cores": 0.0,
                "steal_cores": 0.0,
            }
        )
    return found


def test_a_row() -> None:
    (row,) = codecs_rows.summarize(samples())
    assert row["codec"] == "split"
    assert (row["blocks"], row["block_bytes"]) == (3, 1_000_000)
    assert row["ratio"] == {"min": 1.666667, "median": 2.0, "max": 2.5, "n": 3}
    assert row["encode_gb_per_s"] == {"min": 1.0, "median": 1.5, "max": 2.0, "n": 2}
    assert row["decode_gb_per_s"] == row["encode_gb_per_s"]
    assert row["break_even_gbit_per_s"] == {"min": 2.0, "median": 3.0, "max": 4.0, "n": 2}
    json.dumps(row)
    for cell in codecs_rows.TABLE.values():
        assert cell(row)


def test_nothing_measured_yet() -> None:
    assert codecs_rows.summarize([]) == []


def test_every_codec_is_measured_on_every_block() -> None:
    found: list[dict[str, Any]] = []
    bench = codecs.Bench(blocks(codecs.BATCH + 3), QuietGate("", 0.0), found)
    bench.warm_up()
    assert found == []
    advanced: list[float] = []
    bench.run(1, random.Random(1), advanced.append)
    assert len(advanced) == len(NAMES)
    assert {sample["codec"] for sample in found} == set(NAMES)
    for sample in found:
        assert len(sample["encoded_bytes"]) == codecs.BATCH + 3
        assert sample["encode_s"] > 0 and sample["decode_s"] > 0
    rows = {row["codec"]: row for row in codecs_rows.summarize(found)}
    assert rows["split"]["ratio"]["median"] > 1.3
    assert rows["raw"]["break_even_gbit_per_s"]["max"] == 0


def test_a_codec_that_loses_something_ends_the_run() -> None:
    class Lossy(RawCodec):
        def decode(self, encoded: Any, target: Any) -> None:
            super().decode(encoded, target)
            target[-1] ^= 1

    lossy: Codec = Lossy()
    with pytest.raises(BenchError, match="another block"):
        codecs.Bench(blocks(2), QuietGate("", 0.0), [])._pass(lossy, blocks(2))
