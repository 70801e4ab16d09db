"""What a rewind would do, and what it did: counts and samples of each partition, as they are printed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tandem.backup_avro.chain.entries import iso
from tandem.backup_avro.json_fields import NOT_IN_JSON, UNLESS_NONE, in_json
from tandem.backup_avro.record.current import NO_TIMESTAMP
from tandem.spark_jobs.rewind.key_changes import ChangeKind, KeyChange, shown_hash

#: Keys of one partition that are shown.
SAMPLE: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeFigures:
    """The changes of one kind: their number, and the range of offsets and timestamps of the newest live records.

    Times are those of the producers (or the broker, with LogAppendTime), None where no record has one.
    `without_record`: keys of which the log holds no record any more, not even a tombstone; they have no offset.
    """

    keys: int = 0
    first_offset: int | None = None
    last_offset: int | None = None
    first_at: str | None = None
    last_at: str | None = None
    without_record: int = 0


class FiguresCount:
    """Counts changes of one kind."""

    def __init__(self) -> None:
        self._keys = self._without = 0
        self._offsets: tuple[int, int] | None = None
        self._times: tuple[int, int] | None = None

    def add(self, change: KeyChange) -> None:
        """Count one change."""
        self._keys += 1
        if change.live is None:
            self._without += 1
            return
        self._offsets = _wider(self._offsets, change.live.offset)
        if change.live.timestamp != NO_TIMESTAMP:
            self._times = _wider(self._times, change.live.timestamp)

    def figures(self) -> ChangeFigures:
        """Return the counts."""
        first, last = self._offsets or (None, None)
        first_at, last_at = self._times or (None, None)
        return ChangeFigures(
            keys=self._keys,
            first_offset=first,
            last_offset=last,
            first_at=time_text(first_at),
            last_at=time_text(last_at),
            without_record=self._without,
        )


def _wider(bounds: tuple[int, int] | None, number: int) -> tuple[int, int]:
    return (number, number) if bounds is None else (min(bounds[0], number), max(bounds[1], number))


def time_text(timestamp: int | None) -> str | None:
    """Return a timestamp (ms) in ISO 8601; None for None, and for a time outside the range of `datetime`."""
    try:
        return None if timestamp is None else iso(timestamp)
    except (ValueError, OverflowError, OSError):
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleKey:
    """One key of the plan, by its hash (BLAKE2b of 128 bits, in hex). Offsets are None where there is no record.

    `key` is the key itself, if that was asked for: text, or base64 as `encoding` says.
    """

    kind: ChangeKind
    partition: int
    hash: str
    old_offset: int | None
    live_offset: int | None
    live_at: str | None
    key: str | None = field(default=None, metadata=UNLESS_NONE)
    encoding: str | None = field(default=None, metadata=UNLESS_NONE)

    @classmethod
    def of(cls, partition: int, change: KeyChange, key: tuple[str, str] | None) -> SampleKey:
        """Return the entry of a change; `key` and its encoding if they are to be shown."""
        live = change.live
        text, encoding = key or (None, None)
        return cls(
            kind=change.kind,
            partition=partition,
            hash=shown_hash(change.key),
            old_offset=None if change.old is None else change.old.offset,
            live_offset=None if live is None else live.offset,
            live_at=None if live is None or live.timestamp == NO_TIMESTAMP else time_text(live.timestamp),
            key=text,
            encoding=encoding,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRewind:
    """The plan of one partition. Compared were the state below `moment_end` and the live log in [log_start, head).

    `left_out`: changed keys that the options leave as they are. `expired`: keys whose record of the moment the topic's
    retention has deleted since, which are left as they are. `without_key`: live records without a key, which a rewind
    leaves as they are. `seconds` is how long the comparison took.
    """

    partition: int
    moment_end: int
    log_start: int
    head: int
    keys: int
    changes: Mapping[ChangeKind, ChangeFigures] = field(default_factory=dict)
    left_out: int = 0
    expired: int = 0
    without_key: int = 0
    passes: int = 1
    seconds: float = 0.0
    sample: tuple[SampleKey, ...] = field(default=(), metadata=NOT_IN_JSON)
    error: str | None = field(default=None, metadata=UNLESS_NONE)

    @property
    def planned(self) -> int:
        """The number of keys that a rewind writes."""
        return sum(one.keys for one in self.changes.values())


#: How the description of a choice begins that takes the keys whose newest record a rewind wrote.
BY_REWIND: Final = "a newest record by rewind"


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindPlan:
    """`tandem rewind`: how the live topic differs from the state at a moment.

    `as_of` is the moment that was found, None for a state that is not one of a chain's moments (a checkpoint has its
    id). `generation` and `seq` name what the state rests on. `key_choice` describes the options that leave keys out.
    """

    pair: str
    topic: str
    topic_id: str
    generation: int
    seq: int
    as_of: str | None
    checkpoint: str | None
    key_choice: Sequence[str]
    partitions: tuple[PartitionRewind, ...]
    warnings: tuple[str, ...] = ()

    @property
    @in_json
    def changes(self) -> dict[ChangeKind, int]:
        """The number of keys of each kind."""
        return {kind: sum(_keys(one, kind) for one in self.partitions) for kind in ChangeKind}

    @property
    @in_json
    def planned(self) -> int:
        """The number of keys that a rewind writes."""
        return sum(one.planned for one in self.partitions)

    @property
    @in_json
    def sample(self) -> list[SampleKey]:
        """Some of the keys."""
        return [one for part in self.partitions for one in part.sample]

    @property
    def errors(self) -> tuple[str, ...]:
        """Why partitions could not be compared."""
        return errors_of((one.partition, one.error) for one in self.partitions)


def _keys(part: PartitionRewind, kind: ChangeKind) -> int:
    found = part.changes.get(kind)
    return 0 if found is None else found.keys


def errors_of(parts: Iterable[tuple[int, str | None]]) -> tuple[str, ...]:
    """Return the errors of partitions with their numbers."""
    return tuple(f"partition {number}: {error}" for number, error in parts if error is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenPartition:
    """What was written in one partition. `left_alone`: keys of the plan that others wrote meanwhile."""

    partition: int
    written: int = 0
    left_alone: int = 0
    left_alone_sample: tuple[str, ...] = ()
    seconds: float = 0.0
    error: str | None = field(default=None, metadata=UNLESS_NONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindReport:
    """`tandem rewind` when it has written. `id` is that of the rewind, `checkpoint` holds the state before it."""

    id: str
    pair: str
    topic: str
    as_of: str | None
    state_checkpoint: str | None
    checkpoint: str | None
    planned: int
    partitions: tuple[WrittenPartition, ...]

    @property
    @in_json
    def written(self) -> int:
        """The number of keys that were written."""
        return sum(one.written for one in self.partitions)

    @property
    @in_json
    def left_alone(self) -> int:
        """The number of keys of the plan that others wrote meanwhile."""
        return sum(one.left_alone for one in self.partitions)

    @property
    def errors(self) -> tuple[str, ...]:
        """Why partitions were not written, or not as a whole."""
        return errors_of((one.partition, one.error) for one in self.partitions)
