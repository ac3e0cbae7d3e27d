"""What a policy gets to see of a request, and of the engine at that moment."""

import random
from collections.abc import Collection, Iterable, Mapping

from kvrelay.policies import Candidate, RelayView, Work
from kvrelay.policies.assignment import session_draw
from kvrelay.policies.prefill import NO_WORK
from kvrelay.relay.blocks import Match
from kvrelay.relay.connector.request import Tracked


def candidates(
    plans: Mapping[int, Match], slot_bytes: int, loading: Iterable[Tracked]
) -> tuple[Candidate, ...]:
    """Plans by the tokens that they bring, as candidates in the same order."""
    ahead: dict[str, int] = {}
    for other in loading:
        if other.candidate is not None:
            place = other.candidate.place
            ahead[place] = ahead.get(place, 0) + other.candidate.place_bytes
    return tuple(
        Candidate(
            plan.place,
            num_tokens,
            len(plan.headers) * slot_bytes,
            len(plan.absent) * slot_bytes,
            ahead.get(plan.place, 0),
        )
        for num_tokens, plan in plans.items()
    )


def draw_for(session_id: str | None, salt: bytes) -> float:
    """What chance says of a request, in [0, 1): the same for all requests of a session.

    Args:
        session_id: as the client gives it; None: the request stands for itself.
        salt: another one gives every session another draw.
    """
    return random.random() if session_id is None else session_draw(salt, 0, session_id)


def relay_view(
    tracked: Tracked,
    num_local: int,
    candidates: tuple[Candidate, ...],
    *,
    others: Iterable[Tracked],
    loading: Collection[Tracked],
    running: Work,
) -> RelayView:
    """The view of one request.

    Args:
        tracked: the request.
        num_local: tokens that the engine has of it.
        candidates: what else can be had.
        others: all live requests.
        loading: those whose load has not been reported, and others that left meanwhile.
        running: what steps under way compute.
    """
    waiting = total = 0
    ahead, beside = running, NO_WORK
    for other in others:
        total += 1
        if not other.admitted:
            waiting += 1
        elif other.loading:
            continue
        elif other.first_token_s is not None:
            beside = beside.plus(Work.of(other.request.num_computed_tokens, 1))
        else:
            there = other.request.num_computed_tokens
            ahead = ahead.plus(Work.of(there, max(0, other.request.num_tokens - there)))
    return RelayView(
        prompt_tokens=tracked.request.num_tokens,
        local_tokens=num_local,
        candidates=candidates,
        requests_waiting=waiting,
        requests_running=total - waiting,
        loads_in_flight=len(loading),
        bytes_in_flight=sum(o.candidate.num_bytes for o in loading if o.candidate is not None),
        similarity=tracked.labels.embedding_cosine,
        ahead=ahead,
        beside=beside,
        draw=tracked.draw,
    )
