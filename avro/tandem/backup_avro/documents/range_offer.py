"""Range offers: ranges of a generation's scan that a catch-up job has read, for the instance to add to its chain.

The job's workers store data objects below the generation's prefix and then an offer that names them. The objects are no
part of the backup before the chain names them.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.document_limits import LISTS
from tandem.backup_avro.chain.entries import PartitionKey, RecordHash, StoredObject
from tandem.backup_avro.chain.json_codec import VERSION, Fields, canonical, dump_object, load_object, pack
from tandem.backup_avro.chain.object_rules import object_problem
from tandem.backup_avro.chain.typed_json import dump_hash, load_hash
from tandem.backup_avro.errors import DamagedError


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeOffer:
    """The offsets [low, high) of a scan, read from `leader` while the scan's floor was `floor`.

    The range was read from high to low, between `started_at` and `ended_at` (ms by the store's clock), in `took_ms` by
    the reader's own clock. `run` is the job's. `newest` is the hash of the range's last record, if the generation has
    no hash of a record above it; in the store it is an HMAC where data objects are encrypted.
    """

    generation: int
    key: PartitionKey
    floor: int
    leader: int
    low: int
    high: int
    started_at: int
    ended_at: int
    took_ms: int
    objects: tuple[StoredObject, ...]
    run: str
    newest: RecordHash | None = None


def encode_offer(offer: RangeOffer) -> bytes:
    """Return the bytes to store."""
    document = {
        "v": VERSION,
        "enc": None,
        "generation": offer.generation,
        "topic_id": offer.key.topic_id,
        "partition": offer.key.partition,
        "floor": offer.floor,
        "leader": offer.leader,
        "low": offer.low,
        "high": offer.high,
        "started_at": offer.started_at,
        "ended_at": offer.ended_at,
        "took_ms": offer.took_ms,
        "objects": [dump_object(item) for item in offer.objects],
        "run": offer.run,
    }
    if offer.newest is not None:  # rare: readers of before take the other offers
        document["newest"] = dump_hash(offer.newest)
    return pack(canonical(document))


def decode_offer(data: bytes, where: str) -> RangeOffer:
    """Parse an offer. DamagedError names `where`."""
    fields = Fields.of_stored(data, where, LISTS)
    newest = fields.take_field("newest", list, None)
    offer = RangeOffer(
        generation=fields.take_field("generation", int),
        key=PartitionKey(fields.take_field("topic_id", str), fields.take_field("partition", int)),
        floor=fields.take_field("floor", int),
        leader=fields.take_field("leader", int),
        low=fields.take_field("low", int),
        high=fields.take_field("high", int),
        started_at=fields.take_field("started_at", int),
        ended_at=fields.take_field("ended_at", int),
        took_ms=fields.take_field("took_ms", int),
        objects=tuple(load_object(item, where) for item in fields.take_field("objects", list)),
        run=fields.take_field("run", str),
        newest=None if newest is None else load_hash(newest, where),
    )
    fields.refuse_other_fields()
    return offer


def check_offer(offer: RangeOffer, key: str) -> None:
    """Raise DamagedError unless the offer's fields match its key, and it names only objects of that range.

    Planning and resuming use keys alone, so an offer may not contain anything that its key does not name.
    """
    folder, _, name = key.rpartition("offers/")
    said = (*offer.key, offer.floor, offer.leader, offer.low, offer.high)
    if said != layout.offer_of(name) or offer.generation != layout.place_of(key)[1]:
        raise DamagedError(f"{key} holds the offer of another name", code="TDM-A063")
    if len({item.key for item in offer.objects}) < len(offer.objects):
        raise DamagedError(f"{key} names an object twice", code="TDM-A064")
    if offer.newest is not None and not offer.low <= offer.newest.offset < offer.high:
        raise DamagedError(f"{key} holds the hash of a record of other offsets", code="TDM-A135")
    for item in offer.objects:
        if not item.key.startswith(f"{folder}topics/") or "/../" in item.key:
            raise DamagedError(f"{key} names {item.key}, which lies outside {folder}topics/", code="TDM-A065")
        problem = object_problem(item)
        if problem:
            raise DamagedError(f"{key} names an object that no chain accepts: {problem}", code="TDM-A066")
        if any(part.key != offer.key or not offer.low <= part.first <= part.last < offer.high for part in item.parts):
            raise DamagedError(f"{key} names {item.key}, which holds records of other offsets", code="TDM-A067")
