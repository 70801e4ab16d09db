"""The judge of moments: when a handover is over, a restore as of some moment of it, from all generations that held it.

* It ends nowhere below what the newest generation that was complete by then gives alone.
* What is restored is what the log held, as for the newest state: see `judge`.
* All its objects are there.

Which moment of which handover follows from the generation's number alone, so that no history depends on it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from backup_avro.as_of import select_as_of
from backup_avro.chain import Entry, PartitionKey
from backup_avro.errors import ConfigError, RefusedError
from backup_avro.fold import Generation
from backup_avro.selection import PartitionSelection
from simulation.comparing import ViolationError
from simulation.store import Bucket, Store
from sink.chain.reader import ChainReader
from spark_jobs.state import Wish
from spark_jobs.state_choice import moment

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
    """Judges one moment of some handovers, as soon as the former Active is sealed."""

    bucket: Bucket
    pair: str
    content: Callable[[PartitionKey, PartitionSelection], None]
    counts: dict[str, int] = field(default_factory=lambda: {"moment": 0, "united moment": 0})
    _reader: _OneByOne = field(init=False)
    _sealed: set[int] = field(default_factory=set)

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

    def _handover(self, former: Generation, live: list[Generation]) -> None:
        rng = random.Random(former.number)
        began = [g.completed_at for g in live if g.number > former.number and g.completed_at is not None]
        times = [one.at for one in former.moments if began and one.at >= min(began)]
        if times and rng.random() < _SHARE:
            self._judge(live, rng.choice(times))

    def _judge(self, live: list[Generation], at: int) -> None:
        try:
            found = moment(self._reader, live, Wish(at=at))
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
        if alone:
            raise ViolationError(f"{sorted(alone)} are not restored as of {at}, but without {len(others)} others")
