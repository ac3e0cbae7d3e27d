"""What causes what in a relay, and what may be adjusted for.

The graph is an assumption, stated so that it can be argued with. Three questions are answered from
it: is the effect identified without adjustment when the arm is drawn; what must be adjusted for
when the policy decides; and which two things must be independent if the graph is right (tested by
the negative control in checks.py).

networkx tells d-separation; the back-door criterion is that, in the graph without what the
treatment causes.

Source: Pearl, Causality, 2nd edition 2009, sections 1.2 and 3.3.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

TREATMENT, OUTCOME = "relayed", "ttft_s"
# Cause, effect. `load` is what queues and links carry at arrival, seen as in_flight.
EDGES = (
    ("text", "shared_prefix_fraction"),
    ("text", "cosine"),
    ("text", "prompt_tokens"),
    ("prompt_tokens", "prefill_s"),
    ("shared_prefix_fraction", "reusable_tokens"),
    ("prompt_tokens", "reusable_tokens"),
    ("reusable_tokens", "wire_s"),
    ("reusable_tokens", "prefill_s"),
    ("link", "wire_s"),
    ("load", "wire_s"),
    ("load", "queue_s"),
    ("relayed", "completed"),
    ("reusable_tokens", "completed"),
    ("completed", "wire_s"),
    ("completed", "prefill_s"),
    ("relayed", "lookup_s"),
    ("lookup_s", "ttft_s"),
    ("wire_s", "ttft_s"),
    ("prefill_s", "ttft_s"),
    ("queue_s", "ttft_s"),
)
# What the cost policy looks at; a lot looks at nothing.
POLICY_EDGES = tuple(
    (cause, TREATMENT)
    for cause in ("prompt_tokens", "shared_prefix_fraction", "link", "load", "reusable_tokens")
)


def graph(policy: bool) -> Any:
    """The graph, with the arm chosen by the policy or drawn; a networkx.DiGraph."""
    import networkx as nx

    return nx.DiGraph([*EDGES, *(POLICY_EDGES if policy else ())])


def is_back_door(causes: Any, adjusted: Iterable[str]) -> bool:
    """Whether adjusting for these identifies the effect of TREATMENT on OUTCOME.

    They must not follow from the treatment, and must block every path into it.

    Args:
        causes: the graph, a networkx.DiGraph.
        adjusted: its nodes.
    """
    import networkx as nx

    given = set(adjusted)
    if given & nx.descendants(causes, TREATMENT):
        return False
    cut = causes.copy()
    cut.remove_edges_from(list(causes.out_edges(TREATMENT)))
    return bool(nx.is_d_separator(cut, {TREATMENT}, {OUTCOME}, given))


def independent(causes: Any, one: str, other: str, given: Iterable[str]) -> bool:
    """Whether the graph says that two things are independent given others."""
    import networkx as nx

    return bool(nx.is_d_separator(causes, {one}, {other}, set(given)))


def identification() -> list[tuple[str, bool]]:
    """What the graph says about the designs of the audit: words, and whether it holds."""
    drawn, decided = graph(policy=False), graph(policy=True)
    seen = ("prompt_tokens", "shared_prefix_fraction", "link", "load")
    return [
        ("a drawn arm needs no adjustment", is_back_door(drawn, ())),
        ("the policy's own log unadjusted does not identify", not is_back_door(decided, ())),
        (
            "adjusted for tokens, prefix, link and load and what is reusable, it does",
            is_back_door(decided, (*seen, "reusable_tokens")),
        ),
        (
            "without the load, it does not",
            not is_back_door(decided, (*seen[:-1], "reusable_tokens")),
        ),
        ("what the relay causes must not be adjusted for", not is_back_door(drawn, ("wire_s",))),
        (
            "cosine tells nothing about TTFT given prefix and length",
            independent(drawn, "cosine", OUTCOME, ("shared_prefix_fraction", "prompt_tokens")),
        ),
    ]
