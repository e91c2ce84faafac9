"""Who is next: clients take turns, however much each of them asks."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field


class QueueFull(Exception):
    """There is no place; ``own`` says that the client's own places are taken."""

    def __init__(self, *, own: bool) -> None:
        super().__init__()
        self.own = own


@dataclass(slots=True, kw_only=True, eq=False)
class Ticket:
    """A place in the queue, and later one at work."""

    client: str
    turn: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when its turn has come."""
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    """Set whenever it may have moved forward."""


class FairQueue:
    """So many at work; of those that wait, the next is the first of the client that has waited longest for a turn."""

    def __init__(self, *, slots: int, waiting: int, waiting_of_one: int) -> None:
        self.slots, self.most, self.most_of_one = slots, waiting, waiting_of_one
        self.working: set[Ticket] = set()
        self.clients: dict[str, deque[Ticket]] = {}
        """In the order of their turns."""

    @property
    def waiting(self) -> int:
        """How many wait."""
        return sum(map(len, self.clients.values()))

    def join(self, client: str) -> Ticket:
        """A place, or the turn itself where one is free."""
        own = self.clients.get(client, ())
        if len(self.working) >= self.slots and (self.waiting >= self.most or len(own) >= self.most_of_one):
            raise QueueFull(own=len(own) >= self.most_of_one)
        ticket = Ticket(client=client)
        self.clients.setdefault(client, deque()).append(ticket)
        self._go_on()
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Done, or no longer wanted. It may be called twice."""
        if ticket in self.working:
            self.working.discard(ticket)
        elif ticket in (own := self.clients.get(ticket.client, deque())):
            own.remove(ticket)
            if not own:
                del self.clients[ticket.client]
        self._go_on()

    def ahead(self, ticket: Ticket) -> int:
        """How many have their turn before this one: of each client as many as it has turns until then."""
        own = self.clients.get(ticket.client, deque())
        if ticket not in own:
            return 0
        place, before, passed = own.index(ticket), 0, False
        for client, queue in self.clients.items():
            passed = passed or client == ticket.client
            if client != ticket.client:
                before += min(len(queue), place + (not passed))
        return place + before

    def _go_on(self) -> None:
        while len(self.working) < self.slots and self.clients:
            client = next(iter(self.clients))
            queue = self.clients.pop(client)
            ticket = queue.popleft()
            if queue:
                self.clients[client] = queue  # behind all others
            self.working.add(ticket)
            ticket.turn.set()
        for queue in self.clients.values():
            for ticket in queue:
                ticket.moved.set()
