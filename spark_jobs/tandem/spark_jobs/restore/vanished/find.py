"""The keys that vanished from the log of a partition, as the copy that was kept for them has them."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Final

from tandem.backup_avro.chain.entries import PartitionKey
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.errors import RefusedError
from tandem.backup_avro.selection.coverage import begins_later
from tandem.backup_avro.selection.losses import vanished_keys
from tandem.backup_avro.selection.vanished_keys import (
    CopyRecords,
    EncodedBlock,
    LivePart,
    compared_copy,
    counts_prove,
    guarded_from,
    vanished_offsets,
)
from tandem.sink.kafka.lookup.leader_epochs import log_holds
from tandem.sink.store.contract.object_store import ObjectStore
from tandem.sink.transcode.implementation_choice import best_bodies
from tandem.sink.write.vanished_keys_check import parts_of, read_blocks, sound_records

_TABLE_BYTES: Final = 32 << 20
_SAMPLE: Final = 5
_ALL: Final = 1 << 62
#: `KeptPartition.cut_at` of a log that still has what the copies read.
NOT_CUT: Final = _ALL


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPartition:
    """A partition that `kept` alone has keys of. `missing_in`: the first copy that proves that the log lost them.

    `cut_at`: where the log was truncated after those two had read it, if it was. From there on it may have other
    records at the offsets that they have read, and each of them is newer than theirs.
    """

    key: PartitionKey
    topic: str
    kept: Generation
    missing_in: Generation
    cut_at: int = NOT_CUT

    def __str__(self) -> str:
        """Return topic and partition."""
        return f"{self.topic}-{self.key.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LostRecord:
    """The record of a key that vanished: its offset in the log, and its bytes as the copy has them."""

    offset: int
    key: bytes
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LostRecords:
    """The records of a partition to bring back: the last one of each key that vanished and has no newer one.

    `batches`: their offsets, ascending, in batches whose keys fit into memory together. `vanished`: how many keys the
    comparison before clearing has found, or more that are lost now. `sample`: the keys of the first few records.
    """

    partition: KeptPartition
    batches: tuple[array[int], ...]
    vanished: int
    sample: tuple[bytes, ...]

    @property
    def count(self) -> int:
        """The number of records."""
        return sum(map(len, self.batches))


@dataclass(slots=True, kw_only=True)
class LostKeys:
    """The keys of a batch of lost records of a partition, each with the offset of its record."""

    partition: KeptPartition
    offsets: dict[bytes, int]

    @property
    def begin(self) -> int:
        """The offset below which the log has no newer record of any of the keys."""
        return min(self.partition.cut_at, *self.offsets.values(), _ALL)

    def has(self, key: bytes, offset: int) -> bool:
        """Return whether this record of the log is the last one that the copy has of a lost key, or a newer one."""
        last = self.offsets.get(key)
        return last is not None and offset >= min(last, self.partition.cut_at)

    def newer(self, blocks: Iterable[EncodedBlock]) -> Iterator[tuple[bytes, int]]:
        """Yield key and offset of the records of the log for which `has` is true."""
        for body, count in blocks:
            for span in best_bodies().spans(body, count):
                key = body[span[6] : span[7]] if span[5] >= 0 else None
                if key is not None and self.has(key, span[2]):
                    yield key, span[2]

    def drop_newer(self, blocks: Iterable[EncodedBlock]) -> None:
        """Leave each key as it is that has a newer record among these of the log."""
        for key, _ in self.newer(blocks):
            del self.offsets[key]


def kept_partitions(
    generations: Collection[Generation], topics: Collection[str], number: int | None = None
) -> list[KeptPartition]:
    """Return the partitions of `topics` that are kept for keys that vanished, of each partition the newest copy.

    With `number` those of that generation, also if it was not compared yet because nothing of it is to be cleared.
    Raises RefusedError if one of the topics has none, or if no copy is left that proves that its log lost the keys.
    """
    found: dict[PartitionKey, KeptPartition] = {}
    asked = (one for one in generations if number is None or one.number == number)
    for state in sorted(asked, key=lambda one: one.number):
        maybe = number is not None and state.sealed and state.whole
        for key in state.positions if maybe else _kept(state, generations):
            name = state.topics[key.topic_id].name
            if name not in topics:
                continue
            newer = compared_copy(state, generations, key)
            if newer is None and maybe:
                continue
            if newer is None:
                raise RefusedError(
                    f"{name}-{key.partition}: generation {state.number} is kept for its keys, but no copy is left that "
                    "proves which of them were not deleted since",
                    code="TDM-R135",
                    remedy=f"`tandem restore {name} --generation {state.number} --no-merge --suffix .restored` "
                    "restores that copy beside the topic",
                )
            found[key] = KeptPartition(key=key, topic=name, kept=state, missing_in=newer)
    missing = sorted(set(topics) - {one.topic for one in found.values()})
    if missing:
        raise RefusedError(
            f"no copy is kept for keys that vanished of {', '.join(missing)}",
            code="TDM-R136",
            remedy="`tandem status` names the topics that lost keys",
        )
    return [found[key] for key in sorted(found)]


def with_cut(
    partition: KeptPartition, generations: Iterable[Generation], answers: Mapping[int, tuple[int, int]]
) -> KeptPartition:
    """Return the partition with `cut_at`, as copies after the kept one have marked it, and as the leader tells now.

    `answers` are the leader's by generation, for `asked_epochs`: the largest epoch up to that one, and its end.
    """
    key = partition.key
    later = (state for state in generations if state.number > partition.kept.number)
    marked = (state.taints[key].cut_at for state in later if key in state.taints)
    cuts = [max(cut, 0) for cut in marked if cut is not None]
    for state in (partition.kept, partition.missing_in):
        if state.number in answers:
            epoch, end = answers[state.number]
            reached = state.sound_offset(key)
            if not log_holds(epoch, end, of_epoch=state.sound_epoch(key), offset=reached):
                cuts.append(end if 0 <= end < reached and epoch >= 0 else 0)  # 0: nothing tells where
    return replace(partition, cut_at=min(cuts, default=NOT_CUT))


def asked_epochs(partition: KeptPartition) -> dict[int, int]:
    """Return by generation the leader epoch whose end tells whether the log was truncated since that copy read it."""
    epochs = {state.number: state.sound_epoch(partition.key) for state in (partition.kept, partition.missing_in)}
    return {number: epoch for number, epoch in epochs.items() if epoch >= 0}


def _kept(state: Generation, generations: Collection[Generation]) -> list[PartitionKey]:
    """Return the partitions of `state` that stay for lost keys: they were counted, or no newer copy begins as early."""
    counted = vanished_keys(state)
    if not state.complete or not state.sealed:
        return list(counted)
    left = (key for key in sorted(state.positions) if key not in state.going)
    return [key for key in left if key in counted or begins_later(state, key, generations) is not None]


class CopiedPartitions:
    """The records that generations have of some partitions. The objects of a generation are looked through once."""

    def __init__(self, store: ObjectStore, keys: Collection[PartitionKey]) -> None:
        self._store = store
        self._keys = keys
        self._parts: dict[int, dict[PartitionKey, list[LivePart]]] = {}

    def of(self, state: Generation, key: PartitionKey) -> CopyRecords[EncodedBlock]:
        """Return the records of a partition, in the order of the log; reading raises the errors of the store."""
        return CopyRecords(parts=self.parts(state, key), read=partial(read_blocks, self._store, state))

    def parts(self, state: Generation, key: PartitionKey) -> list[LivePart]:
        """Return the live parts of a partition, each with its object, in the order of the log."""
        if state.number not in self._parts:
            found = self._parts[state.number] = parts_of(state, self._keys)
            for parts in found.values():
                parts.sort(key=lambda one: one[1].first)
        return self._parts[state.number][key]

    def blocks(self, state: Generation, key: PartitionKey, begin: int) -> Iterator[EncodedBlock]:
        """Yield the blocks of all parts that reach to `begin` or above it; raises the errors of the store."""
        copy = self.of(state, key)
        for item, part in copy.parts:
            if part.last >= begin:
                yield from copy.read(item, part)


def find_lost_records(
    copies: CopiedPartitions,
    partition: KeptPartition,
    newest: Sequence[Generation],
    live: Callable[[int], Iterable[EncodedBlock]],
    *,
    most_bytes: int = _TABLE_BYTES,
) -> LostRecords:
    """Return the last records of the keys that vanished and have no newer one in the `newest` copies or in the log.

    `live` yields the committed records of the log from an offset on. Where the policy has always deleted, nothing that
    lies below a log start by now is brought back: it has expired. The newer copies and the log are read once for each
    `most_bytes` of lost keys. Raises the errors of the store, of keys and of `live`, and DamagedError.
    """
    older = replace(copies.of(partition.kept, partition.key), begin=_begin(partition, newest))
    newer = sound_records(
        copies.of(partition.missing_in, partition.key), partition.missing_in.sound_offset(partition.key)
    )
    vanished = 0
    batches: list[array[int]] = []
    sample: list[bytes] = []
    for found in vanished_offsets(
        older,
        newer,
        table=best_bodies().key_table(),
        by_counts=counts_prove(partition.missing_in, partition.kept, partition.key),
        most_bytes=most_bytes,
    ):
        if not found:
            continue
        vanished += len(found)
        keys = read_lost_keys(copies, partition, found)
        for state in newest:
            keys.drop_newer(copies.blocks(state, partition.key, keys.begin))
        keys.drop_newer(live(keys.begin))
        left = sorted(keys.offsets.items(), key=itemgetter(1))
        batches.append(array("q", [offset for _, offset in left]))
        sample += [key for key, _ in left[: _SAMPLE - len(sample)]]
    return LostRecords(
        partition=partition,
        batches=tuple(one for one in batches if one),
        vanished=max(vanished, vanished_keys(partition.kept).get(partition.key, 0)),
        sample=tuple(sample),
    )


def _begin(partition: KeptPartition, newest: Iterable[Generation]) -> int:
    """Return the offset below which no record of the kept copy is a loss, as far as any of these copies knows."""
    key, copies = partition.key, (partition.missing_in, *newest)
    return max(guarded_from(state, partition.kept, key) or 0 for state in copies if key in state.positions)


def read_lost_keys(copies: CopiedPartitions, partition: KeptPartition, batch: array[int]) -> LostKeys:
    """Return the keys of the records at these offsets. Raises as `lost_records`."""
    found = {record.key: record.offset for record in lost_records(copies, partition, batch)}
    return LostKeys(partition=partition, offsets=found)


def lost_records(copies: CopiedPartitions, partition: KeptPartition, batch: array[int]) -> Iterator[LostRecord]:
    """Yield the records of the kept copy at these offsets, which ascend, in the order of the log.

    Raises the errors of the store, of keys, and DamagedError.
    """
    copy = copies.of(partition.kept, partition.key)
    for item, part in copy.parts:
        if not _within(batch, part.first, part.last):
            continue
        for body, count in copy.read(item, part):
            spans = [span for span in best_bodies().spans(body, count) if span[5] >= 0]
            wanted = frozenset(_within(batch, spans[0][2], spans[-1][2]) if spans else ())
            for span in spans:
                if span[2] in wanted:
                    yield LostRecord(offset=span[2], key=body[span[6] : span[7]], body=body[span[1] : span[12]])


def _within(offsets: array[int], first: int, last: int) -> array[int]:
    """Return those of the offsets, which ascend, that lie in [first, last]."""
    return offsets[bisect_left(offsets, first) : bisect_right(offsets, last)]
