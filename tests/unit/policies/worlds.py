"""Simulated worlds: what loads and steps take there, for policies to find out."""

import random
from dataclasses import dataclass, field

from kvrelay.policies import Arm, Candidate, Costs, Decision, RelayPolicy, RelayView, Work
from kvrelay.policies.prefill import PrefillCost

# SmolLM2-135M: blocks of 128 tokens have 2.95 MB.
BLOCK_TOKENS, BLOCK_BYTES = 128, 2_949_120
UNSHAPED, MBIT_200, MBIT_100 = 1e9, 25e6, 12.5e6
NODES = ("nodes",)
LOAD_DEADLINE_S, DEADLINE_FLOOR_S, PATIENCE = 30.0, 2.0, 3.0


@dataclass
class World:
    """One engine and one link; `serve` lets a policy decide and tells `costs` what it took."""

    rng: random.Random
    bytes_per_s: float
    costs: Costs = field(default_factory=lambda: Costs(step_tokens=8192))
    truth: PrefillCost = field(default_factory=PrefillCost)
    noise: float = 0.08

    def view(self) -> RelayView:
        """A request of 1,024 to 2,048 tokens beyond what the engine has itself.

        Its prefix costs more behind a long local hit, and its load behind another one.
        """
        held = BLOCK_TOKENS * self.rng.randint(8, 16)
        local, ahead = self.rng.choice([(0, 0), (2048, 0), (0, 16 * BLOCK_BYTES)])
        num_bytes = held // BLOCK_TOKENS * BLOCK_BYTES
        return RelayView(
            prompt_tokens=local + held + 32,
            local_tokens=local,
            candidates=(Candidate("nodes", held, num_bytes, num_bytes, ahead),),
            draw=self.rng.random(),
        )

    def step_s(self, work: Work) -> float:
        truth = self.truth
        return (
            truth.fixed_s
            + truth.per_token_s * work.tokens
            + truth.per_token_squared_s * work.squares
        )

    def load_s(self, view: RelayView) -> float:
        (candidate,) = view.candidates
        return 0.02 + (candidate.num_bytes + candidate.bytes_ahead) / self.bytes_per_s

    def ttft_s(self, view: RelayView, arm: Arm) -> float:
        """What an arm takes on average."""
        if arm is Arm.RECOMPUTE:
            return self.step_s(_own(view))
        return self.load_s(view) + self.step_s(_rest(view))

    def serve(self, policy: RelayPolicy, view: RelayView) -> Decision:
        """Decide, and observe what came of it."""
        decision = policy.decide(view)
        noise = self.rng.lognormvariate(0, self.noise)
        if decision.arm is Arm.RECOMPUTE:
            self.costs.observe_step(_own(view), self.step_s(_own(view)) * noise)
            return decision
        (candidate,) = view.candidates
        num_bytes, ahead = candidate.num_bytes, candidate.bytes_ahead
        load_s = self.load_s(view) * noise
        deadline_s = PATIENCE * (decision.load_p95_s or LOAD_DEADLINE_S)
        deadline_s = min(LOAD_DEADLINE_S, max(DEADLINE_FLOOR_S, deadline_s))
        if load_s <= deadline_s:
            self.costs.observe_load(NODES, num_bytes, ahead, load_s)
            work = _rest(view)
        else:
            loaded = max(0, int(num_bytes - (load_s - deadline_s) * self.bytes_per_s))
            self.costs.observe_unfinished_load(NODES, num_bytes, ahead, loaded, deadline_s)
            work = _own(view)
        noise = self.rng.lognormvariate(0, self.noise)
        self.costs.observe_step(work, self.step_s(work) * noise)
        return decision

    def scored(self, policy: RelayPolicy, count: int) -> tuple[float, float]:
        """Of the next decisions that are not left to chance: the share that is right, that is at
        most 15 % worse than the other arm, and the regret, by how much all are worse than the
        best ones."""
        chosen, best = [], []
        for _ in range(count):
            view = self.view()
            decision = self.serve(policy, view)
            if not decision.explored:
                chosen.append(self.ttft_s(view, decision.arm))
                best.append(min(self.ttft_s(view, arm) for arm in Arm))
        right = sum(mine <= 1.15 * other for mine, other in zip(chosen, best, strict=True))
        return right / len(chosen), sum(chosen) / sum(best) - 1


def _own(view: RelayView) -> Work:
    return Work.of(view.local_tokens, view.prompt_tokens - view.local_tokens)


def _rest(view: RelayView) -> Work:
    there = view.local_tokens + view.candidates[0].num_tokens
    return Work.of(there, view.prompt_tokens - there)
