"""Which arm a request gets by lot: draws that a session keeps, and blocks for the whole cluster.

Pure functions of a secret and an id or a time. Nothing is stored, every engine comes to the same
answer, and whoever knows the secret can tell afterwards what had been drawn.

Two questions, two designs. Draws by session compare requests that share queues and links with
those of the other arm: the *direct* effect, right for the next decision. Blocks switch the whole
cluster: the *global* effect, which alone knows what relays do to each other.
"""

from dataclasses import dataclass, replace
from hashlib import blake2b

from kvrelay.policies.decision import Arm, Decision, Reason

_DRAW_BITS = 53  # as many as a float holds, so that a draw is never rounded up to 1
_BURN_IN = 0.25  # of a cluster's blocks


def session_draw(salt: bytes, epoch: int, session: str) -> float:
    """A uniform draw in [0, 1), always the same for one session within an epoch.

    Args:
        salt: secret of the cluster, so that no client can choose an id for its arm; 1 to 64 bytes.
        epoch: another one gives every session a new draw.

    Raises:
        ValueError: no salt, or one that is too long.
    """
    if not 1 <= len(salt) <= 64:
        raise ValueError(f"the salt must have 1 to 64 bytes, got {len(salt)}")
    text = session.encode("utf-8", "surrogatepass")
    return _uniform(blake2b(text, digest_size=8, key=salt, salt=epoch.to_bytes(16, "little")))


@dataclass(frozen=True, slots=True)
class Assignment:
    """The arm of one request.

    Attributes:
        arm: what to do.
        propensity: probability with which it came to this arm, to be logged.
        explored: the lot decided, whatever was preferred.
    """

    arm: Arm
    propensity: float
    explored: bool


def assign(draw: float, share: float, preferred: Arm) -> Assignment:
    """Let the lot decide for a share of sessions, half of them for each arm.

    To be asked only where both arms are feasible; elsewhere there is nothing to draw, and the
    propensity is 1. Draws at the lower end relay and those at the upper end recompute, so a
    session that was drawn keeps its arm when the share grows; 0.5 is what is preferred.

    Args:
        draw: the session's, in [0, 1).
        share: of sessions for which the lot decides, in [0, 1]; 0 is off.
        preferred: what is done with the others.

    Raises:
        ValueError: draw or share is out of its range.
    """
    if not (0.0 <= draw < 1.0 and 0.0 <= share <= 1.0):
        raise ValueError(f"draw must be in [0, 1) and share in [0, 1], got {draw} and {share}")
    half = share / 2
    if draw < half:
        arm, explored = Arm.RELAY, True
    elif draw > 1.0 - half:
        arm, explored = Arm.RECOMPUTE, True
    else:
        arm, explored = preferred, False
    return Assignment(arm, 1.0 - half if arm is preferred else half, explored)


@dataclass(frozen=True, slots=True)
class Preference:
    """What a policy wants for a request that could be relayed, before any lot.

    Attributes:
        decision: what it would do, with what it expects of both arms.
        relay_tokens: tokens that a relay takes from outside, whichever arm is preferred.
        share: of sessions for which the lot is to decide, in [0, 1]; the less is known, the more.
    """

    decision: Decision
    relay_tokens: int
    share: float = 0.0

    def given(
        self,
        assigned: Assignment,
        otherwise: Arm | None = None,
        because: Reason = Reason.EXPLORED,
    ) -> Decision:
        """The decision on a request that was assigned an arm.

        Args:
            assigned: which, and how probable that was.
            otherwise: what is done without the lot; None: what is preferred.
            because: why it recomputes if it does so although a relay is preferred.
        """
        mine, arm = self.decision, assigned.arm
        relays = arm is Arm.RELAY
        reason = mine.reason
        if arm is not mine.arm:
            reason = Reason.RELAYED if relays else because
        return replace(
            mine,
            arm=arm,
            reason=reason,
            num_tokens=self.relay_tokens if relays else 0,
            propensity=assigned.propensity,
            preferred=mine.arm,
            explored=arm is not (otherwise or mine.arm),
        )


@dataclass(frozen=True, slots=True)
class Switchback:
    """Blocks of time in which the whole cluster has one arm.

    Blocks come in pairs that hold both arms in random order, so slow drift cancels. What is
    counted of a block begins after the burn-in, when what the block before left in queues and on
    links is gone: choose it well above the time that a backlog takes to drain.

    Attributes:
        seed: of the order within pairs.
        block_s: length of a block.
        burn_in_s: how much of its beginning is not counted.
    """

    seed: int
    block_s: float
    burn_in_s: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.burn_in_s < self.block_s:
            raise ValueError(
                f"a block of {self.block_s} s needs a burn-in of at least 0 s that is shorter, "
                f"got {self.burn_in_s} s"
            )

    @classmethod
    def of_cluster(cls, block_s: float) -> "Switchback":
        """The plan to which every engine of a cluster comes by the length of its blocks alone.

        Anyone can tell which arm comes next: whoever sends requests must not go by that.
        """
        return cls(0, block_s, _BURN_IN * block_s)

    def pair(self, time_s: float) -> int:
        """Number of the pair of blocks: the unit that is independent of others."""
        return int(time_s // self.block_s) // 2

    def arm(self, time_s: float) -> Arm:
        """What every request that comes at this time gets, the burn-in included."""
        key = self.seed.to_bytes(16, "little", signed=True)
        first_relays = _uniform(blake2b(str(self.pair(time_s)).encode(), digest_size=8, key=key))
        is_second = int(time_s // self.block_s) % 2 == 1
        return Arm.RELAY if (first_relays < 0.5) != is_second else Arm.RECOMPUTE

    def counted_arm(self, time_s: float) -> Arm | None:
        """The same for analysis: None in the burn-in, whose requests are washed out."""
        return None if time_s % self.block_s < self.burn_in_s else self.arm(time_s)


def _uniform(digest: blake2b) -> float:
    return float(int.from_bytes(digest.digest(), "little") >> (64 - _DRAW_BITS)) / 2.0**_DRAW_BITS
