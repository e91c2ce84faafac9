"""Clients take turns, and a full queue says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from knee.commands.serve.desk import FairQueue, QueuePlace
from knee.commands.serve.security import Refusal


def run(test: Callable[[FairQueue], None], **sizes: int) -> None:
    async def inside() -> None:
        test(FairQueue(**{"slots": 1, "waiting": 100, "waiting_of_one": 100, **sizes}))

    asyncio.run(inside())


def order(queue: FairQueue, tickets: dict[str, QueuePlace]) -> list[str]:
    """Names in the order of their turns."""
    found = []
    while queue.working:
        (now,) = queue.working
        found.append(next(name for name, ticket in tickets.items() if ticket is now))
        queue.leave(now)
    return found


def test_a_client_with_many_questions_does_not_hold_up_others() -> None:
    def test(queue: FairQueue) -> None:
        tickets = {f"a{i}": queue.join("a") for i in range(4)}
        tickets |= {f"b{i}": queue.join("b") for i in range(2)} | {"c0": queue.join("c")}
        ahead = {name: queue.waiting.index(ticket) for name, ticket in tickets.items() if ticket in queue.waiting}
        served = order(queue, tickets)
        assert served == ["a0", "a1", "b0", "c0", "a2", "b1", "a3"]
        # what a client is told is how many it then waits for
        assert [ahead[name] for name in served[1:]] == list(range(6))

    run(test)


def test_who_leaves_gives_the_place_up() -> None:
    def test(queue: FairQueue) -> None:
        first, second, third = (queue.join(name) for name in "abc")
        queue.leave(second)
        queue.leave(second)
        assert queue.waiting == [third]
        queue.leave(first)
        assert third.turn.is_set()
        queue.leave(third)
        assert not queue.working

    run(test)


def test_a_full_queue_refuses() -> None:
    def test(queue: FairQueue) -> None:
        queue.join("a")
        queue.join("a")
        with pytest.raises(Refusal) as full:
            queue.join("a")
        assert full.value.response.status_code == 429
        queue.join("b")
        with pytest.raises(Refusal) as full:
            queue.join("c")
        assert full.value.response.status_code == 503

    run(test, waiting=2, waiting_of_one=1)


def test_as_many_work_as_there_are_places() -> None:
    def test(queue: FairQueue) -> None:
        tickets = [queue.join(str(i)) for i in range(5)]
        assert [ticket.turn.is_set() for ticket in tickets] == [True, True, True, False, False]
        queue.leave(tickets[1])
        assert tickets[3].turn.is_set()

    run(test, slots=3)
