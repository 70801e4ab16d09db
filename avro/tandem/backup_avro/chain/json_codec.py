"""Claims and chain entries as JSON: canonical bytes out, strict parsing in.

A large entry is stored as one gzip member of its JSON (`gunzip -c` shows it): a thousand partitions with their offsets,
hashes and positions are half a megabyte a minute, of which a tenth is new. The hashes are of the stored bytes.

The link of the next entry authenticates every entry but the last of a chain. For the last one, from which instances
continue, the stored bytes carry their own checksum: gzip has its CRC-32, and a small entry begins with a field `_sum`.
So do those of the documents that no link covers: offers, releases, pauses, checkpoints, pins, results, and the
documents of restores. A claim is covered by its OPEN.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Mapping
from typing import Any, Self

from tandem.backup_avro.chain.document_limits import ENTRY_JSON, SMALL, problem_of, problem_of_items
from tandem.backup_avro.chain.entries import (
    Base,
    Claim,
    Clearing,
    Entry,
    EntryKind,
    GroupOffset,
    Horizon,
    JsonObject,
    Mark,
    Opening,
    Part,
    PartitionKey,
    Position,
    StoredObject,
    Taint,
    Topic,
    from_iso,
    iso,
)
from tandem.backup_avro.chain.integers import is_int64, is_moment
from tandem.backup_avro.chain.typed_json import (
    dump_envelope,
    dump_position,
    load_envelope,
    load_hash,
    partition_number,
    typed_entry,
    typed_object,
    typed_position,
)
from tandem.backup_avro.errors import DamagedError, NewerFormatError, OversizeError
from tandem.backup_avro.record.compression import gunzip, gzip

VERSION = 1
#: Documents of at least so many bytes are compressed.
PACKED_FROM = 8192
_GZIP = b"\x1f\x8b"
_SUM = b'{"_sum":"'
_SUM_DIGITS = 16
"""Hex digits of the SHA-256 of the canonical bytes. The name sorts before all others, so the JSON stays canonical."""
_TO_OBJECTS = 3
"""Levels of an entry's JSON above each data object in the state that it holds: entry, state, list."""
_NEWER = "use a newer release"
_FOREIGN = "no release writes that: find the process that writes to the bucket"
_BRING_BACK = "bring the object back from the bucket's versions or a replica"
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def canonical(value: object) -> bytes:
    """Return the canonical bytes of a document, or of a value in one: equal values have equal bytes."""
    return _CANONICAL.encode(value).encode()


def _canonical_in_pieces(document: JsonObject) -> bytes:
    """Return the same bytes as `canonical`, without the whole text of a SNAPSHOT in memory beside its bytes."""
    out = io.BytesIO()
    _write(out, document, _TO_OBJECTS)
    return out.getvalue()


def _write(out: io.BytesIO, value: object, levels: int) -> None:
    """Write a value; the contents of up to `levels` levels of objects and lists are encoded one by one."""
    if not (levels and value and isinstance(value, dict | list)):
        out.write(canonical(value))
        return
    named = isinstance(value, dict)
    mark = b"{" if named else b"["
    for inner in sorted(value) if named else value:
        out.write(mark)
        if named:
            out.write(canonical(inner) + b":")
        _write(out, value[inner] if named else inner, levels - 1)
        mark = b","
    out.write(b"}" if named else b"]")


def pack(data: bytes) -> bytes:
    """Return the bytes to store for the canonical bytes of an entry, or of another document except a claim.

    Raises OversizeError if they exceed the limit of all readers.
    """
    _refuse(problem_of(data, ENTRY_JSON))
    return gzip(data) if len(data) >= PACKED_FROM else b"".join((_SUM, _sum(data), b'",', data[1:]))


def look_for_room(items: Iterable[bytes]) -> None:
    """Raise OversizeError if an entry with these JSON values exceeds the limit of all readers, before it is built.

    An entry that passes may still be too large because of its other fields; `pack` raises then.
    """
    _refuse(problem_of_items(items, ENTRY_JSON))


def _refuse(problem: str | None) -> None:
    if problem:
        raise OversizeError(
            f"a document would not be readable: {problem}",
            code="TDM-A005",
            remedy="back up fewer partitions with one pair, and begin a new generation",
        )


def _sum(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest()[:_SUM_DIGITS].encode()


def unpack(data: bytes, where: str, most: int = ENTRY_JSON) -> bytes:
    """Return a document's canonical bytes, at most `most`, from the stored ones. DamagedError names `where`.

    Documents of the first releases have no sum; a sum whose own name is damaged is an unknown field.
    """
    plain = _unpack(data, where, most)
    problem = problem_of(plain, most)
    if problem:
        raise DamagedError(f"{where}: {problem}", code="TDM-A006", remedy=_FOREIGN)
    return plain


def _unpack(data: bytes, where: str, most: int) -> bytes:
    if data.startswith(_SUM):
        end = len(_SUM) + _SUM_DIGITS
        plain = b"{" + data[end + 2 :]
        if data[len(_SUM) : end + 2] != _sum(plain) + b'",':
            raise DamagedError(
                f"{where}: its bytes are not those that were written", code="TDM-A007", remedy=_BRING_BACK
            )
        return plain
    if data[:2] != _GZIP:
        return data
    try:
        return gunzip(data, most)
    except DamagedError as error:
        raise DamagedError(f"{where}: {error.args[0]}", code=error.code, remedy=error.remedy) from error


def encode_claim(claim: Claim) -> bytes:
    """Return the claim's canonical bytes."""
    return canonical(
        {
            "v": VERSION,
            "enc": None,
            "generation": claim.generation,
            "pair": claim.pair,
            "instance": claim.instance,
            "incarnation": claim.incarnation,
            "cluster_id": claim.cluster_id,
            "nonce": claim.nonce,
            "at": iso(claim.at),
            "reason": claim.reason,
        }
    )


def encode_entry(entry: Entry) -> bytes:
    """Return the entry's canonical bytes. Empty fields are left out, except `v`, `enc` and the links."""
    document: JsonObject = {
        "v": VERSION,
        "enc": None,
        "kind": entry.kind.value,
        "seq": entry.seq,
        "prev_sha256": entry.prev_sha256,
        "incarnation": entry.incarnation,
        "at": iso(entry.at),
        "snapshot": entry.snapshot,
    }
    if entry.objects:
        document["objects"] = [dump_object(item) for item in entry.objects]
    if entry.positions:
        document["positions"] = dump_positions(entry.positions)
    if entry.topics:
        document["topics"] = [dump_topic(topic) for topic in entry.topics]
    if entry.groups:
        document["groups"] = {name: [dump_group(item) for item in items] for name, items in entry.groups.items()}
    if entry.marks:
        document["marks"] = [{"at": mark.at, "offsets": dump_offsets(mark.offsets)} for mark in entry.marks]
    document |= {
        name: value
        for name, value in (
            ("replaced", list(entry.replaced) or None),
            ("deleted", list(entry.deleted) or None),
            ("fence", entry.fence or None),
            ("erased", dump_erased(entry.erased) or None),
            ("taints", [dump_taint(taint) for taint in entry.taints] or None),
            ("opening", entry.opening and dump_opening(entry.opening)),
            ("clearing", entry.clearing and _dump_clearing(entry.clearing)),
            ("horizon", entry.horizon and dump_horizon(entry.horizon)),
            ("since", entry.since),
            ("head_at", entry.head_at),
            ("skew", entry.skew),
            ("checkpoint", entry.checkpoint),
            ("reason", entry.reason),
            ("unrecorded", entry.unrecorded),
            ("folded", entry.folded),
        )
        if value is not None
    }
    return canonical(document) if entry.folded is None else _canonical_in_pieces(document)


def dump_opening(opening: Opening) -> JsonObject:
    """Return the JSON form of an opening."""
    document: JsonObject = {"isolation_level": opening.isolation_level, "codec": opening.codec, "sync": opening.sync}
    known = {key: list(since) for key, since in opening.compacted_from.items()}
    return document | ({"compacted_from": dump_offsets(known)} if known else {})


def dump_horizon(horizon: Horizon) -> JsonObject:
    """Return the JSON form of a horizon."""
    return {"seq": horizon.seq, "offsets": dump_offsets(horizon.offsets)}


def _dump_clearing(clearing: Clearing) -> JsonObject:
    return {"goes": [_dump_key(key) for key in clearing.goes], "stays": dump_offsets(clearing.stays)}


def dump_object(item: StoredObject) -> JsonObject:
    """Return the JSON form of a data object."""
    document: JsonObject = {
        "key": item.key,
        "journal": item.journal,
        "bytes": item.bytes,
        "sha256": item.sha256,
        "parts": [_dump_part(part) for part in item.parts],
    }
    if item.envelope is not None:
        document["envelope"] = dump_envelope(item.envelope)
    return document


def dump_erased(erased: Mapping[str, StoredObject | None]) -> JsonObject:
    """Return the JSON form of what took the place of objects."""
    return {key: None if item is None else dump_object(item) for key, item in erased.items()}


def _dump_part(part: Part) -> JsonObject:
    document: JsonObject = {
        "topic_id": part.key.topic_id,
        "partition": part.key.partition,
        "first": part.first,
        "last": part.last,
        "records": part.records,
        "tombstones": part.tombstones,
        "min_timestamp": part.min_timestamp,
        "max_timestamp": part.max_timestamp,
        "start": part.start,
        "end": part.end,
    }
    known = {"scan": part.scan, "sha256": part.sha256, "largest": part.largest, "uncompressed": part.uncompressed}
    document |= {name: value for name, value in known.items() if value is not None}
    if part.codecs:
        document["codecs"] = part.codecs
    return document


def dump_positions(positions: dict[PartitionKey, Position]) -> JsonObject:
    """Return the JSON form of positions: topic id, then partition number, then the position."""
    return dump_offsets({key: dump_position(position) for key, position in positions.items()})


def dump_topic(topic: Topic) -> JsonObject:
    """Return the JSON form of a topic."""
    document: JsonObject = {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "partitions": topic.partitions,
        "replication_factor": topic.replication_factor,
        "config": topic.config,
    }
    if topic.removed:
        document["removed"] = True
    return document


def dump_taint(taint: Taint) -> JsonObject:
    """Return the JSON form of a taint."""
    document = _dump_key(taint.key) | {"offset": taint.offset, "reason": taint.reason}
    optional = {"cut_at": taint.cut_at, "epoch": taint.epoch}
    return document | {name: value for name, value in optional.items() if value is not None}


def dump_group(item: GroupOffset) -> JsonObject:
    """Return the JSON form of a group's offset."""
    return _dump_key(item.key) | {"offset": item.offset, "epoch": item.epoch, "metadata": item.metadata}


def _dump_key(key: PartitionKey) -> JsonObject:
    return {"topic_id": key.topic_id, "partition": key.partition}


def dump_offsets(offsets: Mapping[PartitionKey, Any]) -> JsonObject:
    """Return the JSON form of an offset vector, or of other values: topic id, then partition number, then the value."""
    document: JsonObject = {}
    for key, value in offsets.items():
        document.setdefault(key.topic_id, {})[str(key.partition)] = value
    return document


class Fields:
    """Strict access to a JSON object: each field is taken once with its type, and no field may be left over."""

    __slots__ = ("_left", "_where")

    def __init__(self, document: object, where: str) -> None:
        if not isinstance(document, dict):
            raise DamagedError(f"{where}: a JSON object was expected", code="TDM-A008")
        self._left: JsonObject = dict(document)
        self._where = where

    def take_field(self, name: str, kind: type[Any], default: object = ...) -> Any:  # noqa: ANN401 (the caller names the type)
        """Return field `name`, which must be a `kind`; `default` if it is absent and a default is given."""
        value = self._left.pop(name, default)
        if type(value) is kind and (kind is not int or is_int64(value)):  # JSON gives no subclasses; True is no number
            return value
        if value is ...:
            raise DamagedError(f"{self._where}: field {name} is missing", code="TDM-A009")
        if value is not default:
            raise DamagedError(f"{self._where}: field {name} is not a {kind.__name__}", code="TDM-A010")
        return value

    def moment(self, name: str, default: object = ...) -> Any:  # noqa: ANN401 (as `take`)
        """Return field `name`, ms since the epoch; `default` as in `take`. Refuses a time that can't be shown."""
        value = self.take_field(name, int, default)
        if value is not default and not is_moment(value):
            raise DamagedError(f"{self._where}: field {name} is no time: {value}", code="TDM-A011")
        return value

    def count(self, name: str, default: object = ...) -> Any:  # noqa: ANN401 (as `take`)
        """Return field `name`, a whole number >= 0; `default` as in `take`."""
        value = self.take_field(name, int, default)
        if value is not default and value < 0:
            raise DamagedError(f"{self._where}: field {name} is negative: {value}", code="TDM-A012")
        return value

    def refuse_other_fields(self) -> None:
        """Raise NewerFormatError if a field was not taken."""
        if self._left:
            raise NewerFormatError(f"{self._where}: unknown field {min(self._left)}", code="TDM-A013", remedy=_NEWER)

    @classmethod
    def of_stored(cls, data: bytes, where: str, most: int = SMALL) -> Self:
        """Parse a document that `pack` wrote, or at most `most` canonical bytes, and check the version fields."""
        return cls.of_bytes(unpack(data, where, most), where)

    @classmethod
    def of_bytes(cls, data: bytes, where: str) -> Self:
        """Parse JSON bytes and check the version fields."""
        try:
            document = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise DamagedError(f"{where}: not valid JSON", code="TDM-A014") from error
        if b"\\ud" in data or b"\\uD" in data:  # canonical bytes have these only as an escaped backslash and text
            try:
                canonical(document)
            except UnicodeEncodeError as error:
                raise DamagedError(f"{where}: it holds an unpaired surrogate", code="TDM-A015") from error
        return cls.of_document(document, where)

    @classmethod
    def of_document(cls, document: object, where: str) -> Self:
        """Check the version fields of a document."""
        fields = cls(document, where)
        version = fields.take_field("v", int)
        if version != VERSION:
            raise NewerFormatError(f"{where}: format version {version} is not known", code="TDM-A016", remedy=_NEWER)
        if fields.take_field("enc", dict, None) is not None:
            raise NewerFormatError(f"{where}: encrypted; this release cannot read it", code="TDM-A017", remedy=_NEWER)
        return fields


def decode_claim(data: bytes, where: str) -> Claim:
    """Parse a claim. DamagedError names `where`."""
    fields = Fields.of_bytes(data, where)
    claim = Claim(
        generation=fields.count("generation"),
        pair=fields.take_field("pair", str),
        instance=fields.take_field("instance", str),
        incarnation=fields.take_field("incarnation", str),
        cluster_id=fields.take_field("cluster_id", str),
        nonce=fields.take_field("nonce", str),
        at=_at(fields.take_field("at", str), where),
        reason=fields.take_field("reason", str),
    )
    fields.refuse_other_fields()
    return claim


def decode_entry(data: bytes, where: str) -> Entry:
    """Parse a chain entry, packed or not. DamagedError names `where`. `Generation.apply` checks the links."""
    plain = unpack(data, where, ENTRY_JSON)
    typed = typed_entry(plain)
    fields = Fields.of_bytes(plain, where) if typed is None else Fields.of_document(typed.others, where)
    kind_name = fields.take_field("kind", str)
    if kind_name not in EntryKind.__members__:
        raise NewerFormatError(f"{where}: unknown kind {kind_name}", code="TDM-A018", remedy=_NEWER)
    opening = fields.take_field("opening", dict, None)
    clearing = fields.take_field("clearing", dict, None)
    horizon = fields.take_field("horizon", dict, None)
    entry = Entry(
        kind=EntryKind(kind_name),
        seq=fields.count("seq"),
        prev_sha256=fields.take_field("prev_sha256", str),
        incarnation=fields.take_field("incarnation", str),
        at=_at(fields.take_field("at", str), where),
        snapshot=fields.count("snapshot"),
        objects=typed.objects
        if typed is not None
        else tuple(load_object(item, where) for item in fields.take_field("objects", list, ())),
        replaced=tuple(_text(item, where) for item in fields.take_field("replaced", list, ())),
        deleted=tuple(_text(item, where) for item in fields.take_field("deleted", list, ())),
        horizon=None if horizon is None else load_horizon(horizon, where),
        since=fields.take_field("since", int, None),
        fence=fields.take_field("fence", bool, False),
        erased=load_erased(fields.take_field("erased", dict, {}), where),
        positions=typed.positions
        if typed is not None
        else load_positions(fields.take_field("positions", dict, {}), where),
        head_at=fields.moment("head_at", None),
        skew=fields.take_field("skew", int, None),
        topics=tuple(load_topic(item, where) for item in fields.take_field("topics", list, ())),
        groups={
            name: tuple(load_group(item, where) for item in load_list(items, where))
            for name, items in fields.take_field("groups", dict, {}).items()
        },
        unrecorded=load_reasons(fields.take_field("unrecorded", dict, None), where),
        marks=tuple(_load_mark(item, where) for item in fields.take_field("marks", list, ())),
        taints=tuple(load_taint(item, where) for item in fields.take_field("taints", list, ())),
        opening=None if opening is None else load_opening(opening, where),
        clearing=None if clearing is None else _load_clearing(clearing, where),
        checkpoint=fields.take_field("checkpoint", str, None),
        reason=fields.take_field("reason", str, None),
        folded=fields.take_field("folded", dict, None),
    )
    fields.refuse_other_fields()
    return entry


def _at(text: str, where: str) -> int:
    try:
        return from_iso(text)
    except ValueError as error:
        raise DamagedError(f"{where}: {text!r} is not a time", code="TDM-A019") from error


def load_object(document: object, where: str) -> StoredObject:
    """Parse the JSON form of a data object."""
    typed = typed_object(document)
    if typed is not None:
        return typed
    fields = Fields(document, f"{where}: object")
    envelope = fields.take_field("envelope", dict, None)
    item = StoredObject(
        key=fields.take_field("key", str),
        journal=fields.take_field("journal", bool),
        bytes=fields.count("bytes"),
        sha256=fields.take_field("sha256", str),
        parts=tuple(_load_part(part, where) for part in fields.take_field("parts", list)),
        envelope=None if envelope is None else load_envelope(Fields(envelope, f"{where}: envelope"), where),
    )
    fields.refuse_other_fields()
    return item


def load_erased(document: JsonObject, where: str) -> dict[str, StoredObject | None]:
    """Parse the JSON form of what took the place of objects."""
    return {key: None if item is None else load_object(item, where) for key, item in document.items()}


def _load_part(document: object, where: str) -> Part:
    fields = Fields(document, f"{where}: part")
    part = Part(
        key=PartitionKey(fields.take_field("topic_id", str), fields.take_field("partition", int)),
        first=fields.take_field("first", int),
        last=fields.take_field("last", int),
        records=fields.count("records"),
        tombstones=fields.count("tombstones"),
        min_timestamp=fields.take_field("min_timestamp", int),
        max_timestamp=fields.take_field("max_timestamp", int),
        start=fields.take_field("start", int),
        end=fields.take_field("end", int),
        scan=fields.take_field("scan", int, None),
        sha256=fields.take_field("sha256", str, None),
        largest=fields.take_field("largest", int, None),
        uncompressed=fields.take_field("uncompressed", int, None),
        codecs=fields.count("codecs", 0),
    )
    fields.refuse_other_fields()
    return part


def _load_by_key(document: object, where: str) -> dict[PartitionKey, Any]:
    values: dict[PartitionKey, Any] = {}
    if not isinstance(document, dict):
        raise DamagedError(f"{where}: a JSON object was expected", code="TDM-A021")
    for topic_id, partitions in document.items():
        if not isinstance(partitions, dict):
            raise DamagedError(f"{where}: {topic_id}: a JSON object was expected", code="TDM-A022")
        for partition, value in partitions.items():
            try:
                values[PartitionKey(topic_id, partition_number(partition))] = value
            except ValueError as error:
                raise DamagedError(f"{where}: {partition!r} is not a partition number", code="TDM-A023") from error
    return values


def load_offsets(document: object, where: str) -> dict[PartitionKey, int]:
    """Parse the JSON form of an offset vector."""
    offsets = _load_by_key(document, where)
    for offset in offsets.values():
        load_ints([offset], 1, where)
    return offsets


def load_positions(document: object, where: str) -> dict[PartitionKey, Position]:
    """Parse the JSON form of positions."""
    return {key: _load_position(value, where) for key, value in _load_by_key(document, where).items()}


def _load_position(document: object, where: str) -> Position:
    typed = typed_position(document)
    if typed is not None:
        return typed
    fields = Fields(document, f"{where}: position")
    inner = Fields(fields.take_field("base", dict), f"{where}: base")
    base = Base(
        start=inner.take_field("start", int),
        end=inner.take_field("end", int),
        leader=inner.take_field("leader", int),
        attempts=inner.take_field("attempts", int),
        floor=inner.take_field("floor", int),
        done=tuple(load_ints(item, 2, where) for item in inner.take_field("done", list)),  # type: ignore[misc]  # length checked
        open=tuple(load_ints(item, 3, where) for item in inner.take_field("open", list, ())),  # type: ignore[misc]  # as above
        void=load_ints(inner.take_field("void", list, ()), None, where),
        done_at=inner.moment("done_at", None),
        epoch=inner.take_field("epoch", int, -1),
    )
    inner.refuse_other_fields()
    position = Position(
        offset=fields.take_field("offset", int),
        epoch=fields.take_field("epoch", int),
        head_at=fields.moment("head_at"),
        log_start=fields.take_field("log_start", int),
        base=base,
        skew=fields.take_field("skew", int, None),
        hashes=tuple(load_hash(item, where) for item in fields.take_field("hashes", list, ())),
    )
    fields.refuse_other_fields()
    return position


def load_ints(values: object, length: int | None, where: str) -> tuple[int, ...]:
    """Parse a list of whole numbers, of the given `length` unless it is None."""
    if (
        not isinstance(values, list | tuple)
        or (length is not None and len(values) != length)
        or not all(map(is_int64, values))
    ):
        raise DamagedError(f"{where}: a list of whole numbers was expected", code="TDM-A025")
    return tuple(values)


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise DamagedError(f"{where}: a string was expected", code="TDM-A026")
    return value


def load_reasons(document: JsonObject | None, where: str) -> dict[str, str] | None:
    """Parse the JSON form of reasons by name; None if there is none."""
    return None if document is None else {name: _text(why, where) for name, why in document.items()}


def load_list(value: object, where: str) -> list[object]:
    """Return a value that must be a list; DamagedError otherwise."""
    if not isinstance(value, list):
        raise DamagedError(f"{where}: a list was expected", code="TDM-A027")
    return value


def load_topic(document: object, where: str) -> Topic:
    """Parse the JSON form of a topic."""
    fields = Fields(document, f"{where}: topic")
    topic = Topic(
        name=fields.take_field("name", str),
        topic_id=fields.take_field("topic_id", str),
        partitions=fields.take_field("partitions", int),
        replication_factor=fields.take_field("replication_factor", int),
        config={name: _text(value, where) for name, value in fields.take_field("config", dict).items()},
        removed=fields.take_field("removed", bool, False),
    )
    fields.refuse_other_fields()
    return topic


def load_taint(document: object, where: str) -> Taint:
    """Parse the JSON form of a taint."""
    fields = Fields(document, f"{where}: taint")
    taint = Taint(
        key=PartitionKey(fields.take_field("topic_id", str), fields.take_field("partition", int)),
        offset=fields.take_field("offset", int),
        reason=fields.take_field("reason", str),
        cut_at=fields.take_field("cut_at", int, None),
        epoch=fields.take_field("epoch", int, None),
    )
    fields.refuse_other_fields()
    return taint


def load_group(document: object, where: str) -> GroupOffset:
    """Parse the JSON form of a group's offset."""
    fields = Fields(document, f"{where}: group offset")
    item = GroupOffset(
        key=PartitionKey(fields.take_field("topic_id", str), fields.take_field("partition", int)),
        offset=fields.take_field("offset", int),
        epoch=fields.take_field("epoch", int),
        metadata=fields.take_field("metadata", str),
    )
    fields.refuse_other_fields()
    return item


def _load_mark(document: object, where: str) -> Mark:
    fields = Fields(document, f"{where}: mark")
    mark = Mark(at=fields.moment("at"), offsets=load_offsets(fields.take_field("offsets", dict), where))
    fields.refuse_other_fields()
    return mark


def load_horizon(document: object, where: str) -> Horizon:
    """Parse the JSON form of a horizon."""
    fields = Fields(document, f"{where}: horizon")
    seq, offsets = fields.take_field("seq", int), load_offsets(fields.take_field("offsets", dict), where)
    fields.refuse_other_fields()
    return Horizon(seq=seq, offsets=offsets)


def load_opening(document: object, where: str) -> Opening:
    """Parse the JSON form of an opening."""
    fields = Fields(document, f"{where}: opening")
    compacted = fields.take_field("compacted_from", dict, {})
    opening = Opening(
        isolation_level=fields.take_field("isolation_level", str),
        codec=fields.take_field("codec", str),
        sync=fields.take_field("sync", str),
        compacted_from={key: load_ints(value, 2, where) for key, value in _load_by_key(compacted, where).items()},  # type: ignore[misc]  # length checked
    )
    fields.refuse_other_fields()
    if len(opening.sync) != 32 or any(digit not in "0123456789abcdef" for digit in opening.sync):
        raise DamagedError(f"{where}: the sync marker is not 32 hex digits", code="TDM-A028")
    return opening


def _load_clearing(document: object, where: str) -> Clearing:
    fields = Fields(document, f"{where}: clearing")
    goes = []
    for item in fields.take_field("goes", list):
        inner = Fields(item, f"{where}: clearing")
        goes.append(PartitionKey(inner.take_field("topic_id", str), inner.take_field("partition", int)))
        inner.refuse_other_fields()
    stays = {key: _text(reason, where) for key, reason in _load_by_key(fields.take_field("stays", dict), where).items()}
    fields.refuse_other_fields()
    return Clearing(goes=tuple(goes), stays=stays)
