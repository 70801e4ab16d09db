"""An erasure: `tandem erase`, with the code of `spark_jobs.erasure`, and the judge of what it leaves.

What Spark deals out to its workers is done one after the other. A record of an erased key may be missing from then on,
also while the erasure is under way or after it was killed. Nothing else may change: no other key's record goes, no
older value of an erased key comes back, and a checkpoint or a moment that could be restored still can.

An erasure that says that it is clean has left no record of the keys in what was read before it began.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from simulation.client import Desk
from simulation.comparing import ViolationError
from simulation.janitor import Bodies
from simulation.log import Cluster, Record
from simulation.store import Store
from tandem.backup_avro.chain.entries import PartitionKey
from tandem.backup_avro.chain.generation import Generation
from tandem.sink.store.chain import pins
from tandem.spark_jobs.erasure import erase_object, eraser
from tandem.spark_jobs.erasure.erase_object import ErasedObject, ErasureTask, SearchedKeys, erase_all
from tandem.spark_jobs.erasure.eraser import Eraser

#: How long an erasure's pin lasts in virtual ms.
_PIN_MS = 9_000


@dataclass(slots=True)
class Erasures:
    """Knows which keys were erased. `held` gives the records that a generation has of a partition."""

    cluster: Cluster
    states: Callable[[], list[Generation]]
    held: Callable[[Generation, PartitionKey], list[Record]]
    counts: dict[str, int] = field(default_factory=dict)

    def begin(self, topic: str, key: int) -> dict[tuple[int, PartitionKey], int]:
        """Write its tombstones: from now on records of `key` may be missing, and nobody writes it.

        Return where complete generations end, by number and partition.

        They will read no record below that again.
        """
        ends: dict[tuple[int, PartitionKey], int] = {}
        ids = {topic_id for state in self.states() for topic_id, one in state.topics.items() if one.name == topic}
        there = self.cluster.topics.get(topic)
        if there is not None:
            ids.add(there.topic_id)
        for (topic_id, _), partition in self.cluster.partitions.items():
            if topic_id in ids and key not in partition.erased:
                partition.erased.add(key)
                partition.append(key, None)
        for state in self.states():
            if state.complete and not state.gone:
                ends |= {
                    (state.number, place): position.offset
                    for place, position in state.positions.items()
                    if place.topic_id in ids
                }
        self._count("erasure")
        return ends

    def clean(self, key: int, ends: dict[tuple[int, PartitionKey], int]) -> None:
        """Judge an erasure that says that it is clean. Raises ViolationError."""
        self._count("clean erasure")
        for state in self.states():
            for (number, place), end in ends.items():
                if number != state.number or state.gone or not state.usable(place):
                    continue
                for record in self.held(state, place):
                    if record.key == key and record.offset < end:
                        raise ViolationError(f"{record} was erased, and generation {number} still has it")

    def done(self, records: int) -> None:
        """Count what an erasure has rewritten."""
        self._count("erased record", records)

    def erased(self, key: PartitionKey) -> set[int]:
        """Return the keys of a partition that were erased, or are being."""
        return self.cluster.partitions[key.topic_id, key.partition].erased

    def took_the_place_of(self, key: str) -> bool:
        """Whether an erasure has taken an object out of its chain."""
        return any(key in state.erased for state in self.states())

    def _count(self, what: str, times: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + times


def erase(store: Store, desk: Desk, pair: str, topic: str, key: int) -> tuple[int, bool]:
    """Do what the command does on consent. Return the number of erased records, and whether it is clean."""

    def run(tasks: Sequence[ErasureTask], write: bool) -> Iterable[ErasedObject]:
        found: list[ErasedObject] = []
        for task in tasks:
            desk.think(1.0)
            found += erase_all(store, keys, (task,), write=write)
        return found

    keys = SearchedKeys(keys=frozenset({key.to_bytes(4, "big", signed=True)}))
    job = Eraser(store, pair, topic, keys, run)
    plan = job.plan()
    desk.think(8.0)
    outcome = job.carry_out(plan)
    return sum(one.records for one in outcome.generations), outcome.clean


def wire() -> None:
    """Put these in the place of what needs real records."""
    erase_object.best_bodies = cast("Any", Bodies)
    erase_object._FEW = 0  # type: ignore[misc]
    eraser.pins = cast(
        "Any", SimpleNamespace(**(vars(pins) | {"hold_pins": partial(pins.hold_pins, lifetime_ms=_PIN_MS)}))
    )
