"""Makes folded generations from a few words, for tests of the pure rules: entries are applied, nothing is stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import (
    Base,
    Claim,
    Clearing,
    Entry,
    EntryKind,
    Opening,
    Part,
    PartitionKey,
    Position,
    StoredObject,
    Taint,
    Topic,
    sha256_hex,
)
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.chain.json_codec import decode_entry, encode_claim, encode_entry
from tandem.backup_avro.chain.snapshot import dump_state
from tandem.backup_avro.selection.coverage import GuardedPartitions

PAIR = "shop"
CLUSTER = "cluster-1"
OPENING = Opening(isolation_level="read_committed", codec="null", sync="0" * 32)


def key(topic: str = "t", partition: int = 0) -> PartitionKey:
    """A partition of the topic whose id is its name."""
    return PartitionKey(topic, partition)


def topic(name: str = "t", *, partitions: int = 1, removed: bool = False, topic_id: str = "") -> Topic:
    """A topic whose id is its name, unless given."""
    return Topic(
        name=name,
        topic_id=topic_id or name,
        partitions=partitions,
        replication_factor=1,
        config={"cleanup.policy": "compact"},
        removed=removed,
    )


def done_base(end: int = 0, *, start: int = 0, at: int = 10) -> Base:
    """A base that was read by one attempt."""
    done = ((start, end),) if end > start else ()
    return Base(start=start, end=end, leader=1, attempts=1 if done else 0, done=done, done_at=at)


def position(
    offset: int = 0, *, epoch: int = 1, head_at: int = 20, log_start: int = 0, base: Base | None = None
) -> Position:
    """A position; its base is empty and done unless given."""
    return Position(offset=offset, epoch=epoch, head_at=head_at, log_start=log_start, base=base or done_base())


def part(first: int, last: int, *, of: PartitionKey | None = None, scan: int | None = None, start: int = 100) -> Part:
    """A part with a record at each offset."""
    return Part(
        key=of or key(),
        first=first,
        last=last,
        records=last - first + 1,
        tombstones=0,
        min_timestamp=1,
        max_timestamp=2,
        start=start,
        end=start + 50,
        scan=scan,
    )


def guarded(*topics: Topic) -> GuardedPartitions:
    """What the cluster has."""
    return GuardedPartitions(
        cluster_id=CLUSTER, topics={item.topic_id: (item.name, item.partitions) for item in topics}
    )


@dataclass(slots=True)
class Chain:
    """A generation under construction; every method appends one entry. `at` counts up by itself."""

    number: int = 1
    instance: str = "a"
    incarnation: str = "a-1"
    claimed_at: int = 0
    state: Generation = field(init=False)
    entries: list[Entry] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        claim = Claim(
            generation=self.number,
            pair=PAIR,
            instance=self.instance,
            incarnation=self.incarnation,
            cluster_id=CLUSTER,
            nonce="0" * 16,
            at=self.claimed_at,
            reason="test",
        )
        self.state = Generation(claim=claim, head_sha256=sha256_hex(encode_claim(claim)), at=self.claimed_at)

    def entry(self, kind: EntryKind, **content: Any) -> Entry:
        """The next entry as an honest holder would write it."""
        defaults: dict[str, Any] = {
            "seq": self.state.seq + 1,
            "prev_sha256": self.state.head_sha256,
            "incarnation": self.incarnation,
            "at": self.state.at + 1,
        }
        return Entry(kind=kind, **(defaults | content))

    def append(self, kind: EntryKind, **content: Any) -> Chain:
        """Append an entry of any kind."""
        return self.put(self.entry(kind, **content))

    def put(self, entry: Entry) -> Chain:
        self.state.apply(entry, sha256_hex(encode_entry(entry)))
        self.entries.append(entry)
        return self

    def open(self) -> Chain:
        return self.append(EntryKind.OPEN, opening=OPENING)

    def object(self, *parts: Part, name: str = "") -> StoredObject:
        """An object below this generation's prefix."""
        place = layout.data_prefix(PAIR, self.instance, self.number)
        journal = len({item.key for item in parts}) > 1
        return StoredObject(
            key=f"{place}journal/{name or self.state.seq}.avro",
            journal=journal,
            bytes=max(item.end for item in parts),
            sha256="ab" * 32,
            parts=tuple(replace(item, sha256="cd" * 32) for item in parts) if journal else parts,
        )

    def commit(self, positions: Mapping[PartitionKey, Position], *parts: Part, **content: Any) -> Chain:
        """Append COMMIT; topics that the chain does not know come with it, under their ids."""
        new = {item.topic_id for item in positions} - self.state.topics.keys()
        topics = tuple(topic(name, partitions=8) for name in sorted(new))
        objects = (self.object(*parts),) if parts else ()
        return self.append(
            EntryKind.COMMIT, **{"positions": dict(positions), "objects": objects, "topics": topics} | content
        )

    def complete(self) -> Chain:
        return self.append(EntryKind.COMPLETE)

    def snapshot(self, **changes: Any) -> Entry:
        """The next entry as a SNAPSHOT of the state, with `changes` to its fields; it is not appended."""
        fields = {"snapshot": self.state.seq + 1, "folded": dump_state(self.state)}
        return self.entry(EntryKind.SNAPSHOT, **(fields | changes))

    def begun(self, entry: Entry) -> Generation:
        """The state of whoever begins with a SNAPSHOT as it is stored. DamagedError names `x`."""
        data = encode_entry(entry)
        return Generation.from_snapshot(self.state.claim, decode_entry(data, "x"), sha256_hex(data), "x")

    def seal(self) -> Chain:
        return self.append(EntryKind.SEALED)

    def taint(
        self, offset: int, of: PartitionKey | None = None, *, cut_at: int | None = None, epoch: int | None = None
    ) -> Chain:
        taint = Taint(key=of or key(), offset=offset, reason="a gap", cut_at=cut_at, epoch=epoch)
        return self.append(EntryKind.TAINTED, taints=(taint,))

    def clearing(self, stays: Iterable[PartitionKey] = ()) -> Chain:
        """Append CLEARING of all but `stays`."""
        kept = dict.fromkeys(stays, "kept")
        goes = tuple(sorted(self.state.positions.keys() - kept.keys()))
        return self.append(EntryKind.CLEARING, clearing=Clearing(goes=goes, stays=kept))

    def cleared(self) -> Chain:
        """Append CLEARED for the CLEARING before."""
        return self.append(EntryKind.CLEARED, clearing=self.state.clearing)

    def takeover(self, incarnation: str) -> Chain:
        """Append TAKEOVER and go on as that incarnation."""
        self.incarnation = incarnation
        return self.append(EntryKind.TAKEOVER)


def complete_generation(number: int, offsets: Mapping[PartitionKey, int], *, instance: str = "a", **how: Any) -> Chain:
    """A COMPLETE generation whose tail holds all records from 0 to the offsets; `how` goes to the positions."""
    chain = Chain(number=number, instance=instance, incarnation=f"{instance}-1").open()
    parts = [part(0, end - 1, of=of, start=100 + 50 * n) for n, (of, end) in enumerate(offsets.items()) if end]
    chain.commit({of: position(end, **how) for of, end in offsets.items()}, *parts)
    return chain.complete()


def grown(chain: Chain, of: PartitionKey, offset: int, **how: Any) -> Chain:
    """Read one partition on."""
    before = chain.state.positions[of]
    fields = {"head_at": before.head_at + 1, "offset": offset} | how
    return chain.commit({of: replace(before, **fields)}, part(before.offset, offset - 1, of=of))
