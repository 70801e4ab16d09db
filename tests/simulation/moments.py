"""The judge of moments: when a handover is over, a restore as of some moment of it, from all generations that held it.

* It ends nowhere below what the newest generation complete by then gives alone (of topics that were not recreated).
* What is restored is what the log held, as for the newest state: see `judge`.
* All its objects are there.

When a sweep has left records out, the moments that it leaves give what they gave before: of each partition as far, and
of each key the same record, or none where it was a tombstone.

Which moment of which handover or sweep follows from the chain's numbers alone, so that no history depends on it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace

from simulation.comparing import ViolationError, restored
from simulation.log import Record
from simulation.store import Bucket, Store
from tandem.backup_avro.chain.entries import Entry, PartitionKey
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.errors import ConfigError, RefusedError
from tandem.backup_avro.selection.one_history import Records
from tandem.backup_avro.selection.restorable_state import PartitionSelection
from tandem.backup_avro.selection.state_as_of import select_as_of
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.spark_jobs.reading.wanted_state import FoundState, StateRequest
from tandem.spark_jobs.state.find_state import moment

_SHARE = 0.5
"""Of the handovers that are looked at: each takes a few milliseconds."""


class _OneByOne(ChainReader):
    """Reads one entry after the other: the judge is no simulated thread, and may not wait for any."""

    def entries(self, number: int, first: int, last: int) -> Iterator[tuple[Entry, str]]:
        """Yield entries [first, last] with the hash of their bytes."""
        for seq in range(first, last + 1):
            yield from super().entries(number, seq, seq)


@dataclass(slots=True)
class Moments:
    """Judges one moment of some handovers, as soon as the former Active is sealed, and two of each sweep.

    `records` gives what is restored of a partition, `newest_first` what a restore compares of a slice, `content`
    compares what is restored with the log, `exists` says of a topic id whether the cluster has it, `taken` which keys
    of a partition an accident took a record of: copies may differ in those, whichever of them a restore is of.
    """

    bucket: Bucket
    pair: str
    records: Callable[[PartitionSelection], list[Record]]
    newest_first: Records
    content: Callable[[PartitionKey, PartitionSelection], None]
    exists: Callable[[str], bool]
    taken: Callable[[PartitionKey], Collection[int]]
    counts: dict[str, int] = field(default_factory=lambda: {"moment": 0, "united moment": 0, "sweep": 0})
    _reader: _OneByOne = field(init=False)
    _sealed: set[int] = field(default_factory=set)
    _looked: dict[int, int] = field(default_factory=dict)
    """Of each generation that was swept, up to which entry it was looked for sweeps."""

    def __post_init__(self) -> None:
        """Read without a network."""
        self._reader = _OneByOne(Store(self.bucket, None), self.pair)

    def check(self, states: Iterable[Generation]) -> None:
        """Judge what has come to its end since the last time. Raises ViolationError."""
        live = [state for state in states if not state.gone]
        for state in live:
            if state.sealed and state.number not in self._sealed:
                self._sealed.add(state.number)
                self._handover(state, live)
            if state.horizon_seq and state.seq > self._looked.get(state.number, 0):
                first = self._looked.get(state.number, state.seq - 1) + 1
                self._looked[state.number] = state.seq
                for entry, _ in self._reader.entries(state.number, first, state.seq):
                    if entry.horizon is not None:
                        self._sweep(state, entry.seq, live)

    def _handover(self, former: Generation, live: list[Generation]) -> None:
        rng = random.Random(former.number)
        began = [g.completed_at for g in live if g.number > former.number and g.completed_at is not None]
        times = [one.at for one in former.moments if began and one.at >= min(began)]
        if times and rng.random() < _SHARE:
            self._judge(live, rng.choice(times))

    def _sweep(self, state: Generation, seq: int, live: list[Generation]) -> None:
        """Judge the oldest moment that a sweep left, and another one."""
        self.counts["sweep"] += 1
        before = self._reader.load(state.number, upto=1)
        for later in range(2, seq):
            for entry, sha256 in self._reader.entries(state.number, later, later):
                before.apply(entry, sha256)
        former = [before if other.number == state.number else other for other in live]
        left = [one.at for one in state.moments if one.seq >= state.horizon_seq]
        for at in {left[0], random.Random(seq).choice(left)}:
            was, now = self._tells(former, at), self._tells(live, at)
            if was is not None and was != now:
                raise ViolationError(
                    f"entry {seq} of generation {state.number}, a sweep, changed the state as of {at}: {was}, now {now}"
                )
            self._judge(live, at)

    def _tells(self, live: list[Generation], at: int) -> dict[str, tuple[int, list[Record]]] | None:
        """Return where each partition ends as of a moment, and the newest record of each key that was not deleted."""
        try:
            united = self._moment(live, at).select(wanted=lambda _: True, removed=False)
        except (ConfigError, RefusedError):
            return None
        told = {}
        for piece in united.partitions:
            name = f"{piece.topic.name}-{piece.key.partition}"
            found = restored(name, self.records(piece), upto=piece.sound, log_start=piece.log_start)
            taken = self.taken(piece.key)
            newest = [one for one in found.newest.values() if one.value is not None and one.key not in taken]
            told[name] = (piece.sound, sorted(newest))
        return told

    def _moment(self, live: list[Generation], at: int) -> FoundState:
        return replace(moment(self._reader, live, StateRequest(at=at)), records=self.newest_first)

    def _judge(self, live: list[Generation], at: int) -> None:
        try:
            found = self._moment(live, at)
        except (ConfigError, RefusedError):
            return  # the store's clock was set back: nothing is as of then
        first, *others = found.past
        united = found.select(wanted=lambda _: True, removed=False)
        alone = {piece.key: piece for piece in select_as_of(first).partitions}
        self.counts["moment"] += 1
        self.counts["united moment"] += len(united.used) > 1
        for piece in united.partitions:
            name = f"{piece.topic.name}-{piece.key.partition} as of {at}"
            before = alone.pop(piece.key, None)
            if before is not None and piece.sound < before.sound and piece.key not in first.generation.taints:
                raise ViolationError(f"{name} ends at {piece.sound}, at {before.sound} without {len(others)} others")
            for one in piece.slices:
                if one.item.key not in self.bucket.objects:
                    raise ViolationError(f"{name}: {one.item.key} is selected, but deleted")
            self.content(piece.key, piece)
        # A later generation may have known by then that the topic was deleted (seed 21104), or recreated: then what
        # bears its name is restored.
        bears = {piece.topic.name: piece.key.topic_id for piece in united.partitions}
        later = (past.generation for past in others if past.number > first.number)
        deleted = {topic_id for state in later for topic_id, topic in state.topics.items() if topic.removed}
        missing = sorted(
            key
            for key, piece in alone.items()
            if (key.topic_id not in deleted or self.exists(key.topic_id))
            and bears.get(piece.topic.name, key.topic_id) == key.topic_id
        )
        if missing:
            raise ViolationError(f"{missing} are not restored as of {at}, but without {len(others)} others")
