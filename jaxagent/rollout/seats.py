"""Which dialogue sits in which slot, next.

Slots are divided among replicas, which share no keys and values. All samples of a question sit on
one replica, one after the other, so that a slot still holds their prompt when the last of them
starts:

    two replicas of two slots, questions a b c, three samples each
    a0 a1 | b0 b1      a2 b2 next on their own replicas, then c0 c1 c2 wherever slots come free
    first
"""

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from typing import NamedTuple


class Seated(NamedTuple):
    """A dialogue of a group, and its slot."""

    entry: Hashable
    slot: int


class Seats:
    """Free slots, and the groups that wait for them.

    Args:
        slots: of all replicas; slot s belongs to replica s // (slots // replicas).
        groups: the dialogues that belong together, in order.
    """

    def __init__(self, slots: int, *, replicas: int, groups: Iterable[Iterable[Hashable]]):
        self.slots_per_replica = slots // replicas
        self._free = [
            deque(range(at * self.slots_per_replica, (at + 1) * self.slots_per_replica))
            for at in range(replicas)
        ]
        self._queues: list[deque] = [deque() for _ in range(replicas)]
        self._groups = deque(groups)

    def seated(self) -> Iterator[Seated]:
        """Takes free slots for waiting dialogues, the emptiest replica first."""
        while open := [
            (-len(free), at)
            for at, free in enumerate(self._free)
            if free and (self._queues[at] or self._groups)
        ]:
            _, replica = min(open)
            queue = self._queues[replica]
            if not queue:
                queue.extend(self._groups.popleft())
            else:
                yield Seated(queue.popleft(), self._free[replica].popleft())

    def leave(self, slot: int) -> None:
        """Frees a slot."""
        self._free[slot // self.slots_per_replica].append(slot)
