"""Heads on the coordination topic: how far each chain was, kept where whoever writes to the bucket can't reach. Pure.

The topic is no authority. What it knows, and the bucket lacks, is shown and told; nothing is decided by it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Final

from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.chain.heads import Head, later
from tandem.controller.coordination.bounded_memory import HEADS, BoundedMap
from tandem.controller.coordination.heartbeat import Heartbeat

_LONGEST_ROOT: Final = 1000
"""Characters of a root that are remembered."""
_SHOWN: Final = 3
"""Roots that a heartbeat names."""


def missing(known: Iterable[Head], generations: Iterable[Generation], *, numbers: Collection[int]) -> tuple[Head, ...]:
    """Return the heads that the store does not have, ascending. Of each of `numbers` there is a claim or a chain.

    Of those of them that are not among `generations`, cleared and damaged ones, nothing can be told.
    """
    states: Mapping[int, Generation] = {state.number: state for state in generations}

    def lacks(head: Head) -> bool:
        state = states.get(head.generation)
        return head.generation not in numbers if state is None else head.missing_in(state)

    return tuple(sorted(filter(lacks, known), key=lambda head: head.generation))


@dataclass(frozen=True, slots=True)
class _Said:
    """A head, and the root under which whoever published it stored, None if nobody said."""

    head: Head
    root: str | None


class PublishedHeads:
    """The last head of each generation that was published, of so many generations as heads are remembered of.

    Beside it is the root under which its sender stored: only heartbeats say that, so it may come later than the head.
    One from before somebody changed it is remembered too, for whoever has found that head missing.
    """

    def __init__(self) -> None:
        self._said: BoundedMap[int, _Said] = BoundedMap(HEADS)
        self._elsewhere: BoundedMap[int, _Said] = BoundedMap(HEADS)

    def note(self, message: Heartbeat) -> None:
        """Note what a message of the pair says of its sender."""
        head = message.head
        if head is None:
            return
        said = self._said.get(head.generation)
        root = None if message.terms is None else message.terms.root[:_LONGEST_ROOT]
        if said is None or later(said.head, head) is head:
            if said is not None and said.root not in {None, root}:
                self._elsewhere.note(head.generation, said)
            said = _Said(head, root)
        elif said.head == head and said.root is None:
            said = _Said(head, root)
        self._said.note(head.generation, said)

    def __iter__(self) -> Iterator[Head]:
        return (said.head for said in self._said)

    def root_of(self, head: Head) -> str | None:
        """Return the root under which this very head was published, None if nobody said."""
        return next((said.root for said in self._remembered(head.generation) if said.head == head), None)

    def root_with(self, head: Head) -> str | None:
        """Return what `root_of` does; of a head that others followed, what was said of the first of those."""
        since = (said for said in self._remembered(head.generation) if later(said.head, head) is said.head)
        return self.root_of(head) or next((said.root for said in since), None)

    def _remembered(self, generation: int) -> Iterator[_Said]:
        return filter(None, (self._elsewhere.get(generation), self._said.get(generation)))


def moved(head: Head, was: str, root: str) -> str:
    """Say what became of a head that was published under `was`, and is looked for under `root`."""
    return (
        f"entry {head.seq} of generation {head.generation} was published by who stored under {was}, and is not under "
        f"{root}: store.root was changed"
    )


def summary(lost: Iterable[Head], roots: Iterable[str]) -> str | None:
    """Return which heads are lost, in one sentence; `roots` are others they came from. None if none is."""
    named = ", ".join(f"{head.seq} of generation {head.generation}" for head in lost)
    if not named:
        return None
    under = ", ".join(islice(sorted(set(roots)), _SHOWN))
    moved_from = f"; they were published by who stored under {under}" if under else ""
    return f"entries that were published are not in the store: {named}{moved_from}"


MOVED_REMEDY: Final = (
    "if that is a mistake, stop both instances and set store.root back; if it is meant, the old root keeps the last "
    "backup. Either way delete the coordination topic, which remembers the other place, before both are started again"
)


class LostHeads:
    """Heads that were published, and that a look at the store which began later did not find.

    What was missed once stays so: who looks may itself write the numbers anew that somebody took away. Whoever writes
    to the topic can name heads without end that never were, so the first one of a generation stands for all that are
    missed of it, and those of so many generations as heads are remembered of, for all others.
    """

    def __init__(self) -> None:
        self._missed: dict[int, tuple[Head, float]] = {}
        self._lost: dict[int, Head] = {}

    @property
    def lost(self) -> tuple[Head, ...]:
        """The heads that are lost, in the order in which that was found."""
        return tuple(self._lost.values())

    @property
    def settled(self) -> bool:
        """Whether no head is missed of which a later look has yet to say whether it is lost."""
        return not self._missed

    def look(
        self,
        known: Iterable[Head],
        generations: Collection[Generation],
        *,
        numbers: Collection[int],
        began: float,
        now: float,
    ) -> tuple[Head, ...]:
        """Take what is known `now`, and what a look at the store that `began` then has found; return what is lost anew.

        Both are seconds by one clock.
        """
        before = {number: head for number, (head, _) in self._missed.items()}
        asked = (head for head in chain(known, before.values()) if head.generation not in self._lost)
        missed: dict[int, tuple[Head, float]] = {}
        for head in missing(asked, generations, numbers=numbers):
            # While later ones are published, the one that was missed first, and is asked for last, is waited for.
            since = self._missed[head.generation][1] if head == before.get(head.generation) else now
            missed[head.generation] = head, since
        self._missed = dict(islice(missed.items(), HEADS - len(self._lost)))
        found = tuple(head for head, since in self._missed.values() if since < began)
        for head in found:
            self._lost[head.generation] = head
            del self._missed[head.generation]
        return found
