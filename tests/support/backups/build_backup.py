"""Makes a real backup without Kafka: claims, chains through ChainWriter, container objects, in any store.

    backup = Backup.claim(store, instance="a", topics=[TopicSpec("orders", partitions=2)])
    backup.commit(records("orders", 0, range(10)))
    backup.complete()
    backup.seal()

Positions are those of a tail from offset 0 on, unless `base_end` is given: then what lies below it is a base, read by
one attempt per commit.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import (
    Base,
    Clearing,
    Entry,
    EntryKind,
    GroupOffset,
    Mark,
    Opening,
    Part,
    PartitionKey,
    Position,
    RecordHash,
    StoredObject,
    Taint,
    Topic,
)
from tandem.backup_avro.record.container import Codec, encode_block, encode_header
from tandem.backup_avro.record.current import Record, TimestampType, encode
from tandem.sink.store import ObjectStore, PutResult
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.chain_writer import ChainWriter, Identity, claim, now_ms
from tandem.sink.store.encrypted_objects import ObjectBytes, new_seal, stored_object

PAIR = "shop"
CLUSTER = "cluster-1"
DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic as the backup saw it. The id is made from the name, so that generations agree on it."""

    name: str
    partitions: int = 1
    config: Mapping[str, str] = field(default_factory=lambda: {"cleanup.policy": "compact"})
    topic_id: str = ""

    def topic(self) -> Topic:
        """What the chain holds of it."""
        return Topic(
            name=self.name,
            topic_id=self.topic_id or str(uuid.uuid5(uuid.NAMESPACE_DNS, self.name)),
            partitions=self.partitions,
            replication_factor=1,
            config=dict(self.config),
        )


def records(
    topic: str,
    partition: int,
    offsets: Iterable[int],
    *,
    timestamp: int = 1_700_000_000_000,
    tombstones: Iterable[int] = (),
    keys: int = 100,
) -> list[Record]:
    """Plain records: keys repeat after `keys` offsets; the offsets in `tombstones` have no value."""
    gone = set(tombstones)
    return [
        Record(
            topic=topic,
            partition=partition,
            offset=offset,
            timestamp=timestamp + offset,
            timestamp_type=TimestampType.CREATE_TIME,
            key=f"key-{offset % keys}".encode(),
            value=None if offset in gone else f"value-{offset}".encode(),
            headers=(("source", b"test"),) if offset % 3 == 0 else (),
        )
        for offset in offsets
    ]


@dataclass(slots=True)
class Backup:
    """One generation being written; `writer.state` is its fold."""

    store: ObjectStore
    writer: ChainWriter
    topics: dict[str, Topic]
    codec: Codec = Codec.ZSTANDARD
    block_records: int = 4
    batch_codecs: int = 0
    """The codecs of the batches of the next commits, as `Part.codecs`; 0: not recorded, as by earlier releases."""
    hashed: bool = False
    """Whether positions have the hash of the last record, as those of today's releases have."""
    positions: dict[PartitionKey, Position] = field(default_factory=dict)

    @classmethod
    def claim(
        cls,
        store: ObjectStore,
        *,
        topics: Sequence[TopicSpec],
        number: int = 1,
        instance: str = "a",
        pair: str = PAIR,
        incarnation: str | None = None,
        codec: Codec = Codec.ZSTANDARD,
        block_records: int = 4,
    ) -> Backup:
        """Claim `number` and open its chain."""
        identity = Identity(
            pair=pair, instance=instance, incarnation=incarnation or str(uuid.uuid4()), cluster_id=CLUSTER
        )
        opening = Opening(isolation_level="read_committed", codec=codec.value, sync=secrets.token_hex(16))
        writer = claim(store, identity, number, opening=opening, reason="test", stop=threading.Event())
        found = [spec.topic() for spec in topics]
        return cls(store, writer, {topic.name: topic for topic in found}, codec, block_records)

    @classmethod
    def begun(
        cls, store: ObjectStore, first: Iterable[Record], *, topics: Sequence[TopicSpec] | None = None, **how: Any
    ) -> Backup:
        """Claim, open and commit these records, of topics of one partition unless given; `how` is of `claim`."""
        batch = list(first)
        named = [TopicSpec(name) for name in dict.fromkeys(record.topic for record in batch)]
        backup = cls.claim(store, topics=named if topics is None else topics, **how)
        backup.commit(batch)
        return backup

    @classmethod
    def completed(cls, store: ObjectStore, first: Iterable[Record], **how: Any) -> Backup:
        """The same, and COMPLETE."""
        backup = cls.begun(store, first, **how)
        backup.complete()
        return backup

    @property
    def number(self) -> int:
        return self.writer.state.number

    def key(self, topic: str, partition: int) -> PartitionKey:
        """The partition as the chain names it."""
        return PartitionKey(self.topics[topic].topic_id, partition)

    def commit(
        self,
        batch: Iterable[Record],
        *,
        journal: bool = False,
        ends: Mapping[tuple[str, int], int] | None = None,
        base_end: Mapping[tuple[str, int], int] | None = None,
        log_start: int = 0,
        epoch: int = 0,
        config: Mapping[str, Mapping[str, str]] | None = None,
        groups: Mapping[str, Mapping[tuple[str, int], int]] | None = None,
        marks: Iterable[tuple[int, Mapping[tuple[str, int], int]]] = (),
    ) -> Entry:
        """Store records (ascending per partition) and append a COMMIT at head; one object per partition, or a journal.

        `ends` moves positions beyond the last record (markers, compacted tails). `base_end` counts at a partition's
        first commit only. `config` changes topics. `marks` are times with the ends that moved.
        """
        for name, values in (config or {}).items():
            self.topics[name] = replace(self.topics[name], config=dict(values))
        by_key: dict[tuple[str, int], list[Record]] = {}
        for record in batch:
            by_key.setdefault((record.topic, record.partition), []).append(record)
        at = now_ms(self.store)
        changed: dict[PartitionKey, Position] = {}
        for place in self._places() if not self.positions else sorted(by_key.keys() | (ends or {}).keys()):
            changed[self.key(*place)] = self._advance(
                place,
                by_key.get(place, []),
                end=(ends or {}).get(place, 0),
                base_end=(base_end or {}).get(place, 0),
                log_start=log_start,
                epoch=epoch,
                at=at,
            )
        entry = self.writer.append(
            Entry(
                kind=EntryKind.COMMIT,
                seq=0,
                prev_sha256="",
                incarnation="",
                at=0,
                objects=tuple(self._store_objects(by_key, changed, journal=journal)),
                positions=changed,
                head_at=at,
                topics=tuple(self.topics.values()) if not self.positions or config else (),
                groups={
                    name: tuple(
                        GroupOffset(key=self.key(*place), offset=offset) for place, offset in sorted(offsets.items())
                    )
                    for name, offsets in (groups or {}).items()
                },
                marks=tuple(
                    Mark(at=when, offsets={self.key(*place): end for place, end in ends.items()})
                    for when, ends in marks
                ),
            )
        )
        self.positions |= changed
        return entry

    def _places(self) -> list[tuple[str, int]]:
        return [(topic.name, n) for topic in self.topics.values() for n in range(topic.partitions)]

    def _advance(
        self,
        place: tuple[str, int],
        batch: list[Record],
        *,
        end: int,
        base_end: int,
        log_start: int,
        epoch: int,
        at: int,
    ) -> Position:
        before = self.positions.get(self.key(*place))
        if before is not None:
            base = before.base
        else:
            done = ((log_start, base_end),) if base_end > log_start else ()
            base = Base(
                start=min(log_start, base_end) if base_end else 0,
                end=base_end,
                leader=1,
                attempts=1 if done else 0,
                done=done,
                done_at=at - 1,
            )
        last = batch[-1].offset + 1 if batch else 0
        floor = before.offset if before is not None else base_end
        hashes = () if before is None else before.hashes
        if self.hashed and batch:
            hashes = (RecordHash(batch[-1].offset, hashlib.sha256(encode(batch[-1])).hexdigest()[:12]),)
        return Position(
            offset=max(last, end, floor), epoch=epoch, head_at=at, log_start=log_start, base=base, hashes=hashes
        )

    def _store_objects(
        self, by_key: dict[tuple[str, int], list[Record]], positions: dict[PartitionKey, Position], *, journal: bool
    ) -> Iterable[StoredObject]:
        pieces = []
        for place, batch in sorted(by_key.items()):
            end = positions[self.key(*place)].base.end
            first_commit = self.key(*place) not in self.positions
            base = [record for record in batch if first_commit and record.offset < end]
            pieces += [(place, base, 1)] if base else []
            tail = batch[len(base) :]
            pieces += [(place, tail, None)] if tail else []
        if journal and pieces:
            yield self.put_object(pieces, journal=True)
        elif not journal:
            for piece in pieces:
                yield self.put_object([piece], journal=False)

    def put_object(
        self, pieces: Sequence[tuple[tuple[str, int], Sequence[Record], int | None]], *, journal: bool
    ) -> StoredObject:
        """Encode and store one object of (topic and partition, records, scan) pieces; return what the chain holds."""
        state = self.writer.state
        assert state.opening is not None
        sync = bytes.fromhex(state.opening.sync)
        data = bytearray(encode_header(codec=self.codec, sync=sync))
        parts = []
        for place, batch, scan in pieces:
            start = len(data)
            for at in range(0, len(batch), self.block_records):
                chunk = batch[at : at + self.block_records]
                data += encode_block(b"".join(map(encode, chunk)), len(chunk), codec=self.codec, sync=sync)
            parts.append(
                Part(
                    key=self.key(*place),
                    first=batch[0].offset,
                    last=batch[-1].offset,
                    records=len(batch),
                    tombstones=sum(record.value is None for record in batch),
                    min_timestamp=min(record.timestamp for record in batch),
                    max_timestamp=max(record.timestamp for record in batch),
                    start=start,
                    end=len(data),
                    scan=scan,
                    largest=max(len(encode(record)) for record in batch),
                    uncompressed=sum(len(encode(record)) for record in batch),
                    codecs=self.batch_codecs,
                )
            )
        owner = (state.claim.pair, state.instance, state.number)
        nonce = layout.marked(secrets.token_hex(8), layout.mark_of(self.writer.incarnation))
        (topic, partition), _, _ = pieces[0]
        key = (
            layout.journal_key(*owner, seq=state.seq + 1, nonce=nonce)
            if journal
            else layout.data_key(
                owner, topic=topic, partition=partition, first=parts[0].first, last=parts[0].last, nonce=nonce
            )
        )
        seal = new_seal(self.store, key)
        canvas = ObjectBytes(seal, key=key, size=len(data))
        canvas.write(data)
        stored = canvas.finish()
        assert self.store.put_if_absent(key, bytes(stored)) is PutResult.CREATED
        return stored_object(stored, key=key, journal=journal, parts=tuple(parts), seal=seal)

    def append(self, kind: EntryKind, **fields: object) -> Entry:
        """Append an entry of any kind; `fields` are those of Entry."""
        return self.writer.append(replace(_blank(kind), **fields))  # type: ignore[arg-type]  # the caller names fields

    def complete(self) -> Entry:
        """Append a CONFIRM at head and COMPLETE."""
        time.sleep(0.002)  # head_at must be past the end of the base
        self.append(EntryKind.CONFIRM, head_at=now_ms(self.store))
        return self.append(EntryKind.COMPLETE)

    def restart(self, incarnation: str | None = None) -> Entry:
        """Go on as another incarnation, which reads the chain and appends TAKEOVER."""
        claim_ = self.writer.state.claim
        state = ChainReader(self.store, claim_.pair).load(claim_.generation)
        self.writer = ChainWriter(self.store, state, incarnation or str(uuid.uuid4()), stop=threading.Event())
        return self.append(EntryKind.TAKEOVER, reason="restart")

    def taint(self, topic: str, partition: int, offset: int, reason: str = "gap") -> Entry:
        """Append TAINTED for one partition."""
        return self.append(
            EntryKind.TAINTED, taints=(Taint(key=self.key(topic, partition), offset=offset, reason=reason),)
        )

    def seal(self) -> Entry:
        return self.append(EntryKind.SEALED)

    def clearing(self, stays: Mapping[PartitionKey, str] | None = None) -> Clearing:
        """Append CLEARING of all that is not in `stays`."""
        kept = dict(stays or {})
        going = Clearing(goes=tuple(sorted(key for key in self.positions if key not in kept)), stays=kept)
        self.append(EntryKind.CLEARING, clearing=going)
        return going


def _blank(kind: EntryKind) -> Entry:
    return Entry(kind=kind, seq=0, prev_sha256="", incarnation="", at=0)
