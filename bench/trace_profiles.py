"""What generated traces are made of: applications, and three fitted to published traces.

Each profile was fitted by hand until its statistics were those published of one real trace; which
they are, and how closely they are met, is in tests/unit/bench/test_trace_profiles.py.

Sources: Qin et al., Mooncake, FAST 2025, table 2 and appendix (tool&agent); Wang et al., KVCache
Cache in the Wild, USENIX ATC 2025, arXiv 2506.02634 (trace A, coder); and for what those do not
tell (medians, quantiles, gaps, LRU's hit ratios) the survey "Real-world LLM workloads and
cross-request KV-cache reuse/eviction" (September 2026), which computed it from the released files.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

Rng = np.random.Generator


@dataclass(frozen=True, slots=True)
class LogNormal:
    """A log-normal quantity, cut off at `limit`."""

    median: float
    sigma: float
    limit: float = float("inf")

    def draw(self, rng: Rng) -> float:
        return min(self.limit, self.median * math.exp(self.sigma * rng.standard_normal()))

    def tokens(self, rng: Rng) -> int:
        return max(1, round(self.draw(rng)))

    def at(self, quantile: float) -> int:
        """Tokens at a quantile in (0, 1)."""
        deviation = statistics.NormalDist().inv_cdf(quantile)
        return max(1, round(min(self.limit, self.median * math.exp(self.sigma * deviation))))


@dataclass(frozen=True, slots=True)
class Application:
    """One kind of client.

    Attributes:
        share: of the sessions.
        num_prompts: how many system prompts its sessions choose from.
        skew: exponent of the Zipf law by which they choose.
        prompt: tokens of a system prompt.
        document_share: of the sessions, those whose prompt goes on with a shared document.
        new_document_share: of those, the ones that are the first to read theirs.
        recent_documents: a document read again is one of the last so many readings'.
        document: tokens of a document.
        first: tokens of a session's own text in its first turn.
        more: tokens of the text that a later turn appends.
        output: tokens of an answer.
        second_turn: probability of a second turn.
        next_turn: probability of each later turn.
        gap_s: between a session's requests.
    """

    share: float
    num_prompts: int
    skew: float
    prompt: LogNormal
    document_share: float
    new_document_share: float
    recent_documents: int
    document: LogNormal
    first: LogNormal
    more: LogNormal
    output: LogNormal
    second_turn: float
    next_turn: float
    gap_s: LogNormal


@dataclass(frozen=True, slots=True)
class Profile:
    """What a trace is generated from.

    Attributes:
        num_requests: of the published trace.
        duration_s: sets the rate of sessions, so that the trace lasts as long as published.
        max_input_tokens: longer prompts end their session.
        burstiness: coefficient of variation of the time between sessions; 1 is Poisson.
    """

    name: str
    block_tokens: int
    num_requests: int
    duration_s: float
    max_input_tokens: int
    burstiness: float
    applications: tuple[Application, ...]

    @property
    def mean_turns(self) -> float:
        """Requests per session, if none grew too long."""
        return sum(
            app.share * (1 + app.second_turn / (1 - app.next_turn)) for app in self.applications
        )

    def scaled(self, share: float) -> Profile:
        """The same stream for a share of the time."""
        num_requests = max(1, round(share * self.num_requests))
        return replace(self, num_requests=num_requests, duration_s=share * self.duration_s)


_NO_DOCUMENTS: dict[str, Any] = {
    "document_share": 0.0,
    "new_document_share": 1.0,
    "recent_documents": 1,
    "document": LogNormal(1, 0.0),
}

# Conversations with long texts below one block that all share; single tool calls below a
# system prompt of 12 blocks; a third system prompt; and a fourth that hardly anybody uses.
TOOL_AGENT = Profile(
    name="tool_agent",
    block_tokens=512,
    num_requests=23_608,
    duration_s=3_450.0,
    max_input_tokens=126_000,
    burstiness=1.5,
    applications=(
        Application(
            share=0.35,
            num_prompts=1,
            skew=1.0,
            prompt=LogNormal(520, 0.0),
            first=LogNormal(4_700, 1.25, 100_000),
            more=LogNormal(500, 1.5, 20_000),
            output=LogNormal(260, 0.9, 2_000),
            second_turn=0.23,
            next_turn=0.62,
            gap_s=LogNormal(130, 1.2),
            **_NO_DOCUMENTS,
        ),
        Application(
            share=0.50,
            num_prompts=1,
            skew=1.0,
            prompt=LogNormal(6_150, 0.0),
            first=LogNormal(480, 0.7, 14_000),
            more=LogNormal(200, 1.0),
            output=LogNormal(13, 0.6, 1_000),
            second_turn=0.0,
            next_turn=0.0,
            gap_s=LogNormal(130, 1.2),
            **_NO_DOCUMENTS,
        ),
        Application(
            share=0.149,
            num_prompts=1,
            skew=1.0,
            prompt=LogNormal(2_600, 0.0),
            first=LogNormal(2_000, 1.1, 30_000),
            more=LogNormal(200, 1.4, 8_000),
            output=LogNormal(17, 0.8, 1_000),
            second_turn=0.15,
            next_turn=0.3,
            gap_s=LogNormal(130, 1.2),
            **_NO_DOCUMENTS,
        ),
        Application(
            share=0.001,
            num_prompts=1,
            skew=1.0,
            prompt=LogNormal(1_100, 0.0),
            first=LogNormal(2_000, 1.1, 30_000),
            more=LogNormal(200, 1.4, 8_000),
            output=LogNormal(60, 1.0, 1_000),
            second_turn=0.1,
            next_turn=0.3,
            gap_s=LogNormal(130, 1.2),
            **_NO_DOCUMENTS,
        ),
    ),
)

# Chat; and search and files, whose prompts hold long texts.
BAILIAN_A = Profile(
    name="bailian_a",
    block_tokens=16,
    num_requests=43_058,
    duration_s=7_050.0,
    max_input_tokens=32_768,
    burstiness=1.5,
    applications=(
        Application(
            share=0.70,
            num_prompts=40,
            skew=1.0,
            prompt=LogNormal(80, 0.9, 2_000),
            document_share=0.27,
            new_document_share=0.17,
            recent_documents=150,
            document=LogNormal(370, 1.1, 6_000),
            first=LogNormal(75, 1.25, 9_000),
            more=LogNormal(30, 1.4, 6_000),
            output=LogNormal(360, 0.55, 4_000),
            second_turn=0.42,
            next_turn=0.60,
            gap_s=LogNormal(120, 1.6),
        ),
        Application(
            share=0.30,
            num_prompts=20,
            skew=1.0,
            prompt=LogNormal(150, 0.9, 2_000),
            document_share=0.48,
            new_document_share=0.45,
            recent_documents=60,
            document=LogNormal(2_700, 0.8, 8_000),
            first=LogNormal(2_000, 0.95, 8_500),
            more=LogNormal(300, 1.6, 8_000),
            output=LogNormal(410, 0.55, 4_000),
            second_turn=0.36,
            next_turn=0.55,
            gap_s=LogNormal(125, 1.6),
        ),
    ),
)

CODER = Profile(
    name="coder",
    block_tokens=16,
    num_requests=43_011,
    duration_s=6_750.0,
    max_input_tokens=16_400,
    burstiness=1.5,
    applications=(
        Application(
            share=1.0,
            num_prompts=30,
            skew=1.1,
            prompt=LogNormal(1_900, 0.5, 6_000),
            document_share=0.35,
            new_document_share=0.4,
            recent_documents=300,
            document=LogNormal(900, 0.9, 8_000),
            first=LogNormal(1_200, 1.2, 9_500),
            more=LogNormal(130, 1.4, 8_000),
            output=LogNormal(450, 1.1, 6_000),
            second_turn=0.265,
            next_turn=0.645,
            gap_s=LogNormal(135, 1.75),
        ),
    ),
)

PROFILES = {profile.name: profile for profile in (TOOL_AGENT, BAILIAN_A, CODER)}
