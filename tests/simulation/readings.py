"""The judge of readers: as long as a reader's pin is valid, nothing of what it selected under that pin is deleted.

Valid means by the store's clock, and without a gap: whoever looks at the pins in a moment when none holds may delete.
A reader whose store answers, by a clock that goes on, never makes such a gap itself.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from simulation.comparing import ViolationError
from simulation.store import Bucket
from tandem.backup_avro.chain import layout
from tandem.spark_jobs.restore.plan.plan import RestorePlan

_HOLD = tuple[str, int]
"""A reader and the generation that it holds."""


@dataclass(slots=True)
class Readings:
    """Who reads what. `freed` is when, in virtual seconds, the last pin of a generation was removed.

    `fair`: the store answers every call, so that no pin can run out under a reader that is alive.
    """

    bucket: Bucket
    pair: str
    fair: bool = False
    freed: dict[int, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    _pins: dict[str, tuple[_HOLD, int]] = field(default_factory=dict)
    _broken: set[_HOLD] = field(default_factory=set)
    _under_way: dict[str, dict[str, int]] = field(default_factory=dict)
    _careful: set[str] = field(default_factory=set)

    def begin(self, owner: str, plan: RestorePlan) -> None:
        """`owner` has put its pins and found nothing of its plan let go: from now on it relies on them."""
        self.tick()
        pieces = [piece for topic in plan.topics for item in topic.partitions for piece in item.slices]
        wanted = {piece.item.key: piece.generation for piece in pieces}
        self._under_way[owner] = {key: number for key, number in wanted.items() if self.holds(owner, number)}
        for key in self._under_way[owner]:
            if key not in self.bucket.objects:
                raise ViolationError(f"{owner} begins to read {key}, which is deleted")
        self._careful.add(owner)
        self._count("read restore")

    def end(self, owner: str) -> None:
        self._under_way.pop(owner)
        self._careful.discard(owner)

    def stepped(self) -> None:
        """The store's clock goes elsewhere: who put a pin before that may find it run out."""
        self._careful.clear()

    def died(self, process: str) -> None:
        """A reader is dead; its pin is still good for what it read."""
        self._careful = {owner for owner in self._careful if owner.rpartition(".")[0] != process}

    def holds(self, owner: str, generation: int) -> bool:
        """Whether pins of `owner` have held `generation` without a gap until now."""
        mine = (owner, generation)
        return mine not in self._broken and any(hold == mine for hold, _ in self._pins.values())

    def noticed(self, what: str, key: str) -> None:
        """Something has changed in the store. Raises ViolationError."""
        self.tick()
        prefix = layout.pins_prefix(self.pair)
        if key.startswith(prefix):
            if what == "put":
                document = json.loads(self.bucket.objects[key])
                self._pins[key] = ((document["owner"], document["generation"]), document["until"])
                self.tick()
            elif key in self._pins:
                hold, _ = self._pins[key]
                self._drop(key)
                self.freed[hold[1]] = self.bucket.runtime.now
        elif what == "delete":
            for owner, wanted in self._under_way.items():
                if key in wanted and self.holds(owner, wanted[key]):
                    raise ViolationError(f"{key} is deleted, but {owner} reads it and its pin is valid")

    def tick(self) -> None:
        """Let go of what has run out by the store's clock, once and for all: it may go back again."""
        now = self.bucket.now_ms()
        for key in [key for key, (_, until) in self._pins.items() if until <= now]:
            self._drop(key)

    def _drop(self, key: str) -> None:
        hold, _ = self._pins.pop(key)
        if all(other != hold for other, _ in self._pins.values()):
            self._broken.add(hold)
            if self.fair and hold[0] in self._careful:
                raise ViolationError(f"{hold[0]} still reads generation {hold[1]}, but let its pin end")

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1
