"""Heads on the coordination topic: the end of each chain, kept out of reach of a principal that can write S3. Pure.

The topic is no authority. A head that it has and the bucket lacks is shown and logged; no decision depends on it.
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
from tandem.sink.process.safe_text import enumerated

_LONGEST_ROOT: Final = 1000
"""Characters of a root that are remembered."""
"""Roots that a heartbeat names."""


def missing(known: Iterable[Head], generations: Iterable[Generation], *, numbers: Collection[int]) -> tuple[Head, ...]:
    """Return the heads that the store does not have, ascending. Each generation in `numbers` has a claim or a chain.

    Heads of those `numbers` that are not among `generations` (cleared and damaged ones) can't be checked and are never
    returned.
    """
    states: Mapping[int, Generation] = {state.number: state for state in generations}

    def lacks(head: Head) -> bool:
        state = states.get(head.generation)
        return head.generation not in numbers if state is None else head.missing_in(state)

    return tuple(sorted(filter(lacks, known), key=lambda head: head.generation))


@dataclass(frozen=True, slots=True)
class _PublishedHead:
    """A published head, and the store root of the instance that published it; None if no message named the root."""

    head: Head
    root: str | None


class PublishedHeads:
    """The last published head of each generation, for at most `HEADS` generations.

    Each head has its sender's store root beside it: only heartbeats carry the root, so it may arrive later than the
    head. If the root of a generation's heads changes, the last head under the former root is remembered too, so that
    a missing head can be explained by the change.
    """

    def __init__(self) -> None:
        self._said: BoundedMap[int, _PublishedHead] = BoundedMap(HEADS)
        self._elsewhere: BoundedMap[int, _PublishedHead] = BoundedMap(HEADS)

    def note(self, message: Heartbeat) -> None:
        """Record the head and the root that a message of one of the pair's instances carries."""
        head = message.head
        if head is None:
            return
        said = self._said.get(head.generation)
        root = None if message.terms is None else message.terms.root[:_LONGEST_ROOT]
        if said is None or later(said.head, head) is head:
            if said is not None and said.root not in {None, root}:
                self._elsewhere.note(head.generation, said)
            said = _PublishedHead(head, root)
        elif said.head == head and said.root is None:
            said = _PublishedHead(head, root)
        self._said.note(head.generation, said)

    def __iter__(self) -> Iterator[Head]:
        return (said.head for said in self._said)

    def root_of(self, head: Head) -> str | None:
        """Return the root under which exactly this head was published; None if no message named it."""
        return next((said.root for said in self._remembered(head.generation) if said.head == head), None)

    def root_with(self, head: Head) -> str | None:
        """Return the root of `head` as `root_of` does, else the root of the first remembered head that followed it."""
        since = (said for said in self._remembered(head.generation) if later(said.head, head) is said.head)
        return self.root_of(head) or next((said.root for said in since), None)

    def _remembered(self, generation: int) -> Iterator[_PublishedHead]:
        return filter(None, (self._elsewhere.get(generation), self._said.get(generation)))


def describe_moved_head(head: Head, was: str, root: str) -> str:
    """Return a sentence about a head that was published under `was` and is missing under `root`."""
    return (
        f"entry {head.seq} of generation {head.generation} was published by who stored under {was}, and is not under "
        f"{root}: store.root was changed"
    )


def summary(lost: Iterable[Head], roots: Iterable[str]) -> str | None:
    """Return one sentence that names the lost heads, and `roots`, the other roots they came from; None without any."""
    named = enumerated([f"{head.seq} of generation {head.generation}" for head in lost])
    if not named:
        return None
    under = enumerated(sorted(set(roots)), 3)
    moved_from = f"; they were published by who stored under {under}" if under else ""
    return f"entries that are known to have been written are not in the store: {named}{moved_from}"


MOVED_REMEDY: Final = (
    "if that is a mistake, stop both instances and set store.root back; if it is meant, the old root keeps the last "
    "backup. Either way delete the coordination topic, which remembers the other place, before both are started again"
)


class LostHeads:
    """Published heads that the store lacked in a read that began after they were known.

    A lost head stays lost: the instance that reads may itself write new entries under the numbers that were deleted. A
    principal with Write on the topic can publish any number of heads that never existed, so the first missing head of
    a generation stands for all of that generation, and at most `HEADS` generations are remembered.
    """

    def __init__(self) -> None:
        self._missed: dict[int, tuple[Head, float]] = {}
        self._lost: dict[int, Head] = {}

    @property
    def lost(self) -> tuple[Head, ...]:
        """The lost heads, in the order in which the losses were found."""
        return tuple(self._lost.values())

    @property
    def settled(self) -> bool:
        """Whether no missing head waits for a later read of the store to confirm that it is lost."""
        return not self._missed

    def find_lost(
        self,
        known: Iterable[Head],
        generations: Collection[Generation],
        *,
        numbers: Collection[int],
        began: float,
        now: float,
    ) -> tuple[Head, ...]:
        """Compare the heads known at `now` with a read of the store that began at `began`; return the newly lost heads.

        `began` and `now` are seconds by one clock.
        """
        before = {number: head for number, (head, _) in self._missed.items()}
        asked = (head for head in chain(known, before.values()) if head.generation not in self._lost)
        missed: dict[int, tuple[Head, float]] = {}
        for head in missing(asked, generations, numbers=numbers):
            # The head that was missed first comes last in `asked`, so it keeps its time while later ones are published.
            since = self._missed[head.generation][1] if head == before.get(head.generation) else now
            missed[head.generation] = head, since
        self._missed = dict(islice(missed.items(), HEADS - len(self._lost)))
        found = tuple(head for head, since in self._missed.values() if since < began)
        for head in found:
            self._lost[head.generation] = head
            del self._missed[head.generation]
        return found
