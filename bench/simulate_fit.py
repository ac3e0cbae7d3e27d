"""The engines of a simulated cluster, fitted to those that `bench topology` measured on one node.

    recompute = g + a*n + b*n^2                    n: prefix and the request's own tokens
    local hit = g + a*m + b*((c+m)^2 - c^2)        m of them are computed behind c that are there
    relay     = g + a*k + b*((c+k)^2 - c^2) + fixed + bytes / rate

What links add is not fitted: cells over links say how right it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kvrelay.bench.fits import least_relative
from kvrelay.bench.prompts import OTHER_TOKENS
from kvrelay.bench.simulate_world import World
from kvrelay.cluster.errors import ConfigError
from kvrelay.policies.prefill import PrefillCost, Work

BLOCK_TOKENS = 128
SAME_NODE = "same-node"
RAW = "raw"
MEASURED = ("recompute_s", "local_hit_s", "relay_s")
_LEAST_LENGTHS = 3
_LEAST_S_PER_BYTE = 1e-12  # where the copy is too fast to be seen


@dataclass(frozen=True, slots=True)
class Cell:
    """A row of `bench topology`.

    Attributes:
        link: its name.
        tokens: of the prefix that is shared.
        way: transport and codec, if they are told.
        codec: of what was moved.
        seconds: medians of those of `MEASURED` that are there.
        goodput_gbit_per_s: of plain TCP on the link, if it was measured.
    """

    link: str
    tokens: int
    way: str | None
    codec: str
    seconds: Mapping[str, float]
    goodput_gbit_per_s: float | None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Cell:
        """Read a row.

        Raises:
            ConfigError: it is no row of `bench topology`.
        """
        goodput = row.get("goodput_gbit_per_s")
        try:
            return cls(
                link=str(row["link"]),
                tokens=int(row["tokens"]),
                way=row.get("way"),
                codec=str(row.get("codec", RAW)),
                seconds={name: float(row[name]["median"]) for name in MEASURED if name in row},
                goodput_gbit_per_s=None if goodput is None else float(goodput["median"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"--calibrate: not a report of `kvrelay bench topology`: {error!r}"
            ) from None


def fitted(cells: Sequence[Cell], world: World) -> World | None:
    """The same cluster with engines like those measured; None if fewer than three lengths were.

    Args:
        cells: of any links; those on one node with all of `MEASURED` count.
        world: the cluster.
    """
    usable = _usable(cells)
    if len(lengths(cells)) < _LEAST_LENGTHS:
        return None
    places = [_terms(cell, name, world) for cell in usable for name in MEASURED]
    seconds = [cell.seconds[name] for cell in usable for name in MEASURED]
    *prefill, fixed_s, s_per_byte = least_relative(np.array(places), np.array(seconds)).tolist()
    return replace(
        world,
        prefill=PrefillCost(*prefill),
        relay_fixed_s=fixed_s,
        copy_bytes_per_s=1 / max(s_per_byte, _LEAST_S_PER_BYTE),
    )


def lengths(cells: Sequence[Cell]) -> list[int]:
    """To which `fitted` would fit."""
    return sorted({each.tokens for each in _usable(cells)})


def _usable(cells: Sequence[Cell]) -> list[Cell]:
    return [each for each in cells if each.link == SAME_NODE and len(each.seconds) == len(MEASURED)]


def _terms(cell: Cell, name: str, world: World) -> tuple[float, ...]:
    """What the coefficients are multiplied by: those of a prefill, and of a load."""
    blocks = cell.tokens // BLOCK_TOKENS * BLOCK_TOKENS
    # Relay brings the last block too if it is only begun, which the engine's own cache lacks.
    cached = {"recompute_s": 0, "local_hit_s": blocks, "relay_s": cell.tokens}[name]
    work = Work.of(cached, cell.tokens + OTHER_TOKENS - cached)
    load = (1.0, float(cached * world.bytes_per_token)) if name == "relay_s" else (0.0, 0.0)
    return 1.0, float(work.tokens), float(work.squares), *load
