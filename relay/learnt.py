"""What engines keep of the seconds that they have learnt: a file for each model and machine.

    CACHE/kvrelay/calibration/FINGERPRINT-MACHINE.json

Engines of the policy `cost` write it (connector/calibration.py) and begin with it after a restart;
`kvrelay calibrate` shows it. It is `Costs.to_dict()` and beside it, under `recent`, the last
observations, each with what had been predicted of it before. Files without that are read as well.
"""

import platform
import re
from collections import deque
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from kvrelay.policies.costs import MAX_WAYS, SCHEMA, Way
from kvrelay.relay.fingerprint import default_cache

MAX_STEPS, MAX_LOADS = 64, 16  # that are kept: of all steps, of each way's loads
_ID_CHARACTERS = 16  # of the fingerprint, in the file's name


class SeenStep(NamedTuple):
    """A step that computed prompts.

    Attributes:
        time_s: when it had ended, Unix time.
        tokens, squares: its `Work`.
        seconds: what it took.
        predicted_s: the median that was predicted.
    """

    time_s: float
    tokens: int
    squares: int
    seconds: float
    predicted_s: float


class SeenLoad(NamedTuple):
    """A load.

    Attributes:
        time_s: when it had ended, Unix time.
        num_bytes: what it brought.
        bytes_ahead: of other loads that were under way there.
        seconds: what it took.
        predicted_s: the median that was predicted.
    """

    time_s: float
    num_bytes: int
    bytes_ahead: int
    seconds: float
    predicted_s: float


class SeenWay(msgspec.Struct, frozen=True):
    """The last loads of one way, the oldest first."""

    way: Way
    loads: tuple[SeenLoad, ...]


class Recent(msgspec.Struct, frozen=True):
    """The last observations, and the agent whose engine has written them."""

    agent: str = ""
    steps: tuple[SeenStep, ...] = ()
    ways: tuple[SeenWay, ...] = ()


# The 5, 50, 75 and 95 % quantiles of realised to predicted seconds, lately.
Factors = tuple[float, float, float, float]


class PrefillCurve(msgspec.Struct, frozen=True):
    """What steps take, see `policies.costs.Costs`.

    Attributes:
        coefficients: of 1, tokens and squares.
        count: observations since the start or the last change.
        ratios: of short steps and of others.
    """

    coefficients: tuple[float, float, float]
    count: int
    ratios: tuple[Factors, Factors]


class LoadCurve(msgspec.Struct, frozen=True):
    """What loads of one way take; `coefficients` are of 1, bytes and bytes ahead."""

    way: Way
    coefficients: tuple[float, float, float]
    count: int
    ratios: tuple[Factors]


class Saved(msgspec.Struct, frozen=True):
    """One file."""

    schema: int
    prefill: PrefillCurve
    loads: tuple[LoadCurve, ...]
    recent: Recent = Recent()


class Memory:
    """The last observations, while an engine runs."""

    def __init__(self, agent: str) -> None:
        self._agent = agent
        self._steps: deque[SeenStep] = deque(maxlen=MAX_STEPS)
        self._loads: dict[Way, deque[SeenLoad]] = {}  # the one observed last stands last

    def add_step(self, seen: SeenStep) -> None:
        """A step has ended."""
        self._steps.append(seen)

    def add_load(self, way: Way, seen: SeenLoad) -> None:
        """A load has ended; `way` as far as it is known."""
        loads = self._loads.pop(way, None)
        self._loads[way] = loads = deque(maxlen=MAX_LOADS) if loads is None else loads
        loads.append(seen)
        while len(self._loads) > MAX_WAYS:
            del self._loads[next(iter(self._loads))]

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types, see `Recent`."""
        return {
            "agent": self._agent,
            "steps": list(self._steps),
            "ways": [{"way": list(way), "loads": list(of)} for way, of in self._loads.items()],
        }

    def restore(self, state: Any) -> None:
        """Go on behind what `to_dict` gave in an earlier life.

        Raises:
            ValueError: it is nothing like that; then nothing was taken over.
        """
        try:
            recent = msgspec.convert(state, Recent)
        except msgspec.ValidationError as error:
            raise ValueError(f"no last observations: {error}") from error
        self._steps.extend(recent.steps)
        for each in recent.ways:
            for seen in each.loads:
                self.add_load(each.way, seen)


def folder() -> Path:
    """Where the files of this user lie on this machine."""
    return default_cache().parent / "calibration"


def state_path(fingerprint: bytes) -> Path:
    """Where what was learnt of a model on this machine is kept for this user."""
    machine = re.sub(r"[^\w.-]", "_", platform.node()) or "machine"
    return folder() / f"{fingerprint.hex()[:_ID_CHARACTERS]}-{machine}.json"


def engine_and_machine(path: Path) -> tuple[str, str]:
    """What the name of such a file tells: the fingerprint's beginning in hex, and the machine."""
    return path.stem[:_ID_CHARACTERS], path.stem[_ID_CHARACTERS + 1 :]


def read(path: Path) -> Saved:
    """One file.

    Raises:
        ValueError: it is damaged, or of another version.
        OSError: it cannot be read.
    """
    try:
        saved = msgspec.json.decode(path.read_bytes(), type=Saved)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error
    if saved.schema != SCHEMA:
        raise ValueError(f"it is of version {saved.schema}, this kvrelay reads {SCHEMA}")
    return saved
