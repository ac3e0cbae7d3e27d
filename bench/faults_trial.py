"""One injection, from its prompt to the proof that nothing of it is left; see faults.py."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from kvrelay.bench.driven import BLOCK_TOKENS, EngineEnded, text_tokens
from kvrelay.bench.errors import BenchError
from kvrelay.bench.faults import Injection, contradiction
from kvrelay.bench.faults_inject import STRIKES
from kvrelay.bench.faults_lab import Lab
from kvrelay.bench.faults_sites import Prompt, Replica, View
from kvrelay.bench.leftovers import Leftovers
from kvrelay.bench.report import Row
from kvrelay.policies import Reason
from kvrelay.relay.keys import BlockKey

PROMPT_TOKENS = 32 * BLOCK_TOKENS + 20
SHORT_TOKENS = 3 * BLOCK_TOKENS + 5
OTHER = [7, 11, 13, 17, 19, 23, 29, 31]
ANSWER_TOKENS = 8
# A generates meanwhile; where A is killed it would go on for seconds.
BESIDE_TOKENS, ENDLESS_TOKENS = 48, 1000
_ANSWER_LIMIT_S = 60.0
_RECOVERY_LIMIT_S = 90.0
_SETTLE_LIMIT_S = 25.0
_KNOWN_LIMIT_S = 1.0
_MOMENT_POLL_S = 0.001
_PAUSE_S = 0.1


@dataclass(slots=True)
class Outcome:
    """What came of one injection; see `faults_rows.summarize`.

    Attributes:
        missed: all blocks had come before the fault was there, or came in spite of it.
        notes: what was wrong.
    """

    reason: str = ""
    missed: bool = False
    requests: int = 0
    failures: int = 0
    wrong_tokens: int = 0
    wrong_reason: int = 0
    leases_leaked: int = 0
    bytes_leaked: int = 0
    requests_on_killed: int = 0
    faults_caught: int = 0
    answer_s: float | None = None
    recompute_s: float | None = None
    time_lost_s: float | None = None
    recovery_s: float | None = None
    replica_recovery_s: float | None = None
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> Row:
        """The fields that have a value."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(slots=True)
class Trials:
    """Carries out injections, one after the other; adds one of `samples` for each."""

    lab: Lab
    rng: random.Random
    samples: list[Row]
    _leftovers: Leftovers = field(init=False)
    _prompts: int = 0

    def __post_init__(self) -> None:
        self._leftovers = Leftovers(self.lab)

    def warm_up(self, injections: Sequence[Injection]) -> None:
        """Relay once in every way that will be taken, and see that nothing is left of it.

        Raises:
            BenchError: it does not work without any fault.
        """
        outcome = Outcome()
        for way in {injection.way for injection in injections}:
            self.lab.set_way(way)
            self._recover(outcome, time.monotonic())
        self._settle(outcome)
        if outcome.notes:
            raise BenchError(f"without any fault: {'; '.join(outcome.notes)}")

    def run(self, injection: Injection) -> Outcome:
        """Inject one fault.

        Raises:
            BenchError: a surviving engine does not answer, or relay does not recover.
        """
        self._leftovers.note()
        caught = self._leftovers.caught()
        outcome = Outcome()
        factors = {
            "fault": injection.fault,
            "variant": injection.variant.name,
            "way": "/".join(injection.way),
            "after_blocks": injection.after_blocks,
        }
        try:
            self._inject(injection, outcome)
            self._settle(outcome)
            for process, count in self._leftovers.caught().items():
                outcome.faults_caught += count - caught.get(process, 0)
        except BenchError:
            if outcome.failures:
                self.samples.append(factors | outcome.to_dict())
            raise
        self.samples.append(factors | outcome.to_dict())
        return outcome

    def _inject(self, injection: Injection, outcome: Outcome) -> None:
        lab = self.lab
        lab.set_way(injection.way)
        # That this works without the fault: TCP may still be waiting for what the last one did.
        self._recover(outcome, time.monotonic(), PROMPT_TOKENS)
        prompt, beside = self._prompt(PROMPT_TOKENS), self._prompt(SHORT_TOKENS)
        strike = STRIKES[injection.fault](lab, injection, prompt, self.rng)
        strike.compute()
        keys, a, view = strike.keys, lab.a, lab.near.sight()
        beside_tokens = ENDLESS_TOKENS if strike.kills_a else BESIDE_TOKENS
        self._ask(a, beside, beside_tokens)
        strike.aim()
        if injection.after_blocks is None:
            strike.strike()
        question = self._with_more(prompt)
        self._ask(lab.b, question, ANSWER_TOKENS)
        if injection.after_blocks is not None:
            self._await_moment(view, keys, injection.after_blocks)
            strike.strike()
            # Too late, if all has come meanwhile.
            outcome.missed = lab.b.engine.answered() or view.landed(keys) == len(keys)
        struck_s = time.monotonic()
        answer = self._answer("B", lab.b, outcome)
        strike.lift()
        since_s = struck_s if strike.kills else time.monotonic()
        heard = None
        if strike.kills_a:
            self._count_on_killed(a, outcome)
            self._replica_is_back(struck_s, outcome)
        else:
            heard = self._answer("A", a, outcome)
        outcome.recovery_s = self._recover(outcome, since_s)
        # What takes B's time comes last.
        self._judge(injection, prompt, answer, outcome)
        if heard is not None:
            self._check_tokens("A", heard, self._recomputed(beside, beside_tokens), outcome)

    # Requests

    def _prompt(self, num_tokens: int) -> Prompt:
        self._prompts += 1
        return Prompt(text_tokens(self._prompts, num_tokens))

    def _with_more(self, prompt: Prompt) -> Prompt:
        return Prompt(prompt.tokens + OTHER, prompt.salt)

    def _ask(self, replica: Replica, prompt: Prompt, max_tokens: int) -> None:
        replica.engine.begin("one", prompt.tokens, max_tokens=max_tokens, salt=prompt.salt)

    def _answer(self, name: str, replica: Replica, outcome: Outcome) -> dict[str, Any]:
        """The answer of a replica that no fault has killed.

        Raises:
            BenchError: there is none; nothing can be asked of that engine any more.
        """
        outcome.requests += 1
        try:
            if replica.engine.answered(_ANSWER_LIMIT_S):
                answer: dict[str, Any] = replica.engine.end()
                return answer
            problem = f"no answer in {_ANSWER_LIMIT_S:.0f} s"
        except RuntimeError as error:
            problem = str(error).splitlines()[0]
        outcome.failures += 1
        outcome.notes.append(f"{name}: {problem}")
        raise BenchError(f"a request to {name} failed: {problem}")

    def _recomputed(self, prompt: Prompt, max_tokens: int) -> dict[str, Any]:
        """What B says when it computes everything itself: nobody has blocks of this salt."""
        answer: dict[str, Any] = self.lab.b.engine.one(
            prompt.tokens,
            max_tokens=max_tokens,
            salt=uuid.uuid4().hex,
            kvrelay={"mode": "recompute"},
        )
        return answer

    def _check_tokens(
        self, name: str, answer: dict[str, Any], right: dict[str, Any], outcome: Outcome
    ) -> None:
        if answer["tokens"] != right["tokens"]:
            outcome.wrong_tokens += 1
            outcome.notes.append(f"{name} says {answer['tokens']}, not {right['tokens']}")

    def _judge(
        self, injection: Injection, prompt: Prompt, answer: dict[str, Any], outcome: Outcome
    ) -> None:
        right = self._recomputed(self._with_more(prompt), ANSWER_TOKENS)
        self._check_tokens("B", answer, right, outcome)
        outcome.reason = answer["record"]["reason"]
        variant = injection.variant
        if injection.after_blocks is not None and outcome.reason == Reason.RELAYED:
            # Where that may not be, all the rest was on its way when the fault came.
            outcome.missed |= Reason.RELAYED not in variant.reasons
        if outcome.missed:
            variant = replace(variant, reasons=variant.reasons | {Reason.RELAYED})
        wrong = contradiction(answer["record"], variant, len(prompt.tokens), answer["cached"])
        if wrong is not None:
            outcome.wrong_reason += 1
            outcome.notes.append(wrong)
        outcome.answer_s, outcome.recompute_s = answer["seconds"], right["seconds"]
        outcome.time_lost_s = answer["seconds"] - right["seconds"]

    def _count_on_killed(self, a: Replica, outcome: Outcome) -> None:
        """The request that A had when it was killed; or it had ended before."""
        try:
            a.engine.end()
            outcome.requests += 1
        except EngineEnded:
            outcome.requests_on_killed += 1

    # Afterwards

    def _await_moment(self, view: View, keys: Sequence[BlockKey], after_blocks: int) -> None:
        """Wait until blocks are on their way, and so many have landed; or B has answered."""
        b = self.lab.b.engine
        while not b.answered():
            begun = after_blocks > 0 or view.client.stats()["reserved"] > 0
            if begun and view.landed(keys) >= after_blocks:
                return
            time.sleep(_MOMENT_POLL_S)

    def _replica_is_back(self, struck_s: float, outcome: Outcome) -> None:
        self._ask(self.lab.a, self._prompt(SHORT_TOKENS), 1)
        self._answer("A", self.lab.a, outcome)
        outcome.replica_recovery_s = time.monotonic() - struck_s

    def _recover(self, outcome: Outcome, since_s: float, num_tokens: int = SHORT_TOKENS) -> float:
        """Seconds until B has relayed a prompt of that length from A again.

        Raises:
            BenchError: it does not, or a request fails.
        """
        reason = "its store has not heard of A's blocks"
        answers: list[tuple[Prompt, dict[str, Any]]] = []
        while reason != Reason.RELAYED:
            if time.monotonic() - since_s > _RECOVERY_LIMIT_S:
                raise BenchError(
                    f"B does not relay from A again after {_RECOVERY_LIMIT_S:.0f} s: {reason}"
                )
            prompt = self._prompt(num_tokens)
            self._ask(self.lab.a, prompt, 1)
            self._answer("A", self.lab.a, outcome)
            if self.lab.await_known(self.lab.a, prompt, _KNOWN_LIMIT_S):
                question = self._with_more(prompt)
                self._ask(self.lab.b, question, ANSWER_TOKENS)
                answer = self._answer("B", self.lab.b, outcome)
                answers.append((question, answer))
                reason = answer["record"]["reason"]
            if reason != Reason.RELAYED:
                time.sleep(_PAUSE_S)
        passed_s = time.monotonic() - since_s
        for question, answer in answers:
            right = self._recomputed(question, ANSWER_TOKENS)
            self._check_tokens("B", answer, right, outcome)
        return passed_s

    def _settle(self, outcome: Outcome) -> None:
        """Wait until nothing is left, or long enough to call it leaked."""
        end_s = time.monotonic() + _SETTLE_LIMIT_S
        while (left := self._leftovers.look()).what and time.monotonic() < end_s:
            time.sleep(_PAUSE_S)
        outcome.leases_leaked, outcome.bytes_leaked = left.leases, left.num_bytes
        if left.what:
            outcome.notes.append(f"left over: {left.what}")
