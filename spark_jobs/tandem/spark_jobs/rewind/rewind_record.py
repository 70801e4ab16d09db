"""What a rewind leaves in the store: its record, and the offsets of all that it wrote, so that it can be rewound.

`<pair>/restores/rewind-<id>/rewind.json` is put before anything is written, and `…/<n>-<nonce>.json`
before each transaction in partition n is committed. Offsets of a transaction that was not committed after all are
those of aborted records, which no reader of committed records sees.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.document_limits import ENTRY_JSON
from tandem.backup_avro.chain.entries import from_iso, iso
from tandem.backup_avro.chain.json_codec import VERSION, Fields, canonical, pack
from tandem.backup_avro.errors import ConfigError, DamagedError
from tandem.sink.store import ObjectMissingError, ObjectStore
from tandem.sink.store.contract.object_store import put_new
from tandem.spark_jobs.restore.live_write.offset_ranges import OffsetRange


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindRecord:
    """A rewind that began at `at` (ms). `checkpoint` holds the state before it; None: it cannot be rewound."""

    id: str
    pair: str
    topic: str
    topic_id: str
    at: int
    by: str
    checkpoint: str | None


def new_rewind_id() -> str:
    """Return an id for a rewind."""
    return secrets.token_hex(8)


def put_record(store: ObjectStore, record: RewindRecord) -> None:
    """Put the record of a new rewind. Raises errors of the store."""
    document = {
        "v": VERSION,
        "id": record.id,
        "pair": record.pair,
        "topic": record.topic,
        "topic_id": record.topic_id,
        "at": iso(record.at),
        "by": record.by,
        "checkpoint": record.checkpoint,
    }
    put_new(store, f"{_prefix(record.pair, record.id)}rewind.json", pack(canonical(document)))


def find_record(store: ObjectStore, pair: str, rewind_id: str) -> RewindRecord:
    """Return the record of a rewind. Raises ConfigError if there is none, DamagedError, errors of the store."""
    if not layout.is_name(rewind_id):
        raise _unknown(pair, rewind_id)
    key = f"{_prefix(pair, rewind_id)}rewind.json"
    try:
        fields = Fields.of_stored(store.get(key), key, ENTRY_JSON)
    except ObjectMissingError:
        raise _unknown(pair, rewind_id) from None
    try:
        record = RewindRecord(
            id=fields.take_field("id", str),
            pair=fields.take_field("pair", str),
            topic=fields.take_field("topic", str),
            topic_id=fields.take_field("topic_id", str),
            at=from_iso(fields.take_field("at", str)),
            by=fields.take_field("by", str),
            checkpoint=fields.take_field("checkpoint", str, None),
        )
    except ValueError as error:
        raise DamagedError(f"{key}: {error}", code="TDM-R147") from error
    fields.refuse_other_fields()
    return record


def _unknown(pair: str, rewind_id: str) -> ConfigError:
    return ConfigError(
        f"pair {pair} has no rewind {rewind_id}", code="TDM-R148", remedy="each rewind prints its id when it begins"
    )


def _prefix(pair: str, rewind_id: str) -> str:
    return layout.restore_prefix(pair, f"rewind-{rewind_id}")


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenOffsets:
    """Notes the offsets that a rewind writes in one partition."""

    store: ObjectStore
    pair: str
    rewind: str
    partition: int

    def note(self, ranges: Sequence[OffsetRange]) -> None:
        """Put the offsets of a transaction. Raises errors of the store."""
        key = f"{_prefix(self.pair, self.rewind)}{self.partition}-{secrets.token_hex(8)}.json"
        put_new(self.store, key, pack(canonical({"v": VERSION, "ranges": [list(one) for one in ranges]})))

    def noted(self) -> list[OffsetRange]:
        """Return all noted offsets, ascending. Raises errors of the store, DamagedError."""
        return list(
            written_offsets(self.store, self.pair, self.rewind, partition=self.partition).get(self.partition, ())
        )


def written_offsets(
    store: ObjectStore, pair: str, rewind_id: str, *, partition: int | None = None
) -> Mapping[int, Sequence[OffsetRange]]:
    """Return partition -> noted offsets, ascending, of all partitions or of one.

    Raises errors of the store, DamagedError.
    """
    prefix = _prefix(pair, rewind_id)
    found: dict[int, list[OffsetRange]] = {}
    for info in store.list(prefix if partition is None else f"{prefix}{partition}-"):
        number, dash, _ = info.key.removeprefix(prefix).partition("-")
        if dash and number.isdecimal():
            fields = Fields.of_stored(store.get(info.key), info.key, ENTRY_JSON)
            ranges = fields.take_field("ranges", list)
            if not all(
                isinstance(one, list) and len(one) == 2 and all(type(at) is int for at in one) for one in ranges
            ):
                raise DamagedError(f"{info.key}: ranges of offsets were expected", code="TDM-R149")
            found.setdefault(int(number), []).extend((one[0], one[1]) for one in ranges)
    return {number: sorted(ranges) for number, ranges in found.items()}
