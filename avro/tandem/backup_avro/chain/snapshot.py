"""The folded state of a generation as a SNAPSHOT entry carries it, so that no reader has to start at a chain's start.

It is the complete state before that entry, except for the fields of the claim and of the entry itself. One part changes
its form, for the writer of a SNAPSHOT and for a reader that passes it while reading a chain from its start: the moment
at which a position was last at head, which one number may have recorded for a thousand positions, is written down with
each position, and its skew.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from tandem.backup_avro.chain.entries import EntryKind, Expired, Horizon, JsonObject, PartitionKey, StoredObject
from tandem.backup_avro.chain.integers import is_int64, is_moment
from tandem.backup_avro.chain.json_codec import (
    Fields,
    canonical,
    dump_erased,
    dump_group,
    dump_horizon,
    dump_object,
    dump_offsets,
    dump_opening,
    dump_positions,
    dump_taint,
    dump_topic,
    load_erased,
    load_group,
    load_horizon,
    load_ints,
    load_list,
    load_object,
    load_offsets,
    load_opening,
    load_positions,
    load_reasons,
    load_taint,
    load_topic,
)
from tandem.backup_avro.errors import DamagedError

if TYPE_CHECKING:
    from tandem.backup_avro.chain.generation import Generation

_OBJECTS: Final = "objects"
#: Not recorded by the first releases: a reader that starts with a SNAPSHOT without it does not know what had expired.
EXPIRED: Final = "expired"
#: Likewise: a reader that starts with a SNAPSHOT without it uses the ends of the scans instead.
THROUGH: Final = "through"
#: Likewise: a reader that starts with a SNAPSHOT without it uses the policies and log starts of that time.
COMPACTED_FROM: Final = "compacted_from"


def dump_state(state: Generation) -> JsonObject:
    """Return the state in the form of a SNAPSHOT that is the next entry."""
    return _frame(state) | {_OBJECTS: [dump_object(item) for item in state.objects.values()]}


def is_state(document: JsonObject, state: Generation) -> bool:
    """Whether `document` equals `dump_state(state)`. The objects, by far the largest part, are compared one by one."""
    objects, frame = document.get(_OBJECTS), _frame(state)
    for name in (EXPIRED, THROUGH, COMPACTED_FROM):
        if name not in document:
            frame.pop(name, None)
    return (
        isinstance(objects, list)
        and len(objects) == len(state.objects)
        and all(found == dump_object(item) for found, item in zip(objects, state.objects.values(), strict=True))
        and {name: value for name, value in document.items() if name != _OBJECTS} == frame
    )


def items_of(state: Generation) -> Iterator[bytes]:
    """Yield the up to a million values in the JSON of `dump_state` one by one, without building that JSON."""
    for item in state.objects.values():
        yield canonical(dump_object(item))
    for key in state.positions:
        (partitions,) = dump_positions({key: state.restated(key)}).values()
        yield from map(canonical, partitions.values())
    for groups in state.groups.values():
        for group in groups.values():
            yield canonical(dump_group(group))
    yield from map(canonical, state.replaced)
    yield from (canonical(one) for one in dump_erased(state.erased).values())


def _frame(state: Generation) -> JsonObject:
    """Return the result of `dump_state` without the objects."""
    assert state.opening is not None
    positions = {key: state.restated(key) for key in state.positions}
    document: JsonObject = {
        "opening": dump_opening(replace(state.opening, compacted_from=state.compacted_before)),
        "positions": dump_positions(positions),
        "head_at": state.heads[1],
        "topics": [dump_topic(topic) for topic in state.topics.values()],
        "groups": {name: [dump_group(item) for item in items.values()] for name, items in state.groups.items()},
        "replaced": dict(state.replaced),
        "taints": [dump_taint(taint) for taint in state.taints.values()],
        "moments": [[moment.seq, moment.at, moment.kind.value] for moment in state.moments],
        "snapshot": state.snapshot,
    }
    if state.completed_at is not None:
        document["completed"] = [state.completed_seq, state.completed_at]
    if state.horizon_seq:
        document["horizon"] = dump_horizon(Horizon(seq=state.horizon_seq, offsets=state.horizons))
    if state.fence:
        document["fence"] = state.fence
    if state.erased:
        document["erased"] = dump_erased(state.erased)
    if state.expired:
        document[EXPIRED] = {
            "offsets": dump_offsets({key: item.offset for key, item in state.expired.items()}),
            "seqs": dump_offsets({key: item.seq for key, item in state.expired.items()}),
        }
    if state.unrecorded:
        document["unrecorded"] = state.unrecorded
    if state.through:
        document[THROUGH] = dump_offsets(state.through)
    if state.compacted_from:
        document[COMPACTED_FROM] = dump_offsets(state.compacted_from)
    return document


def load_state(document: JsonObject, where: str) -> dict[str, Any]:
    """Return fields of `Generation` from a document that `dump_state` wrote. DamagedError names `where`."""
    fields = Fields(document, f"{where}: folded")
    positions = load_positions(fields.take_field("positions", dict), where)
    completed = fields.take_field("completed", list, None)
    horizon = fields.take_field("horizon", dict, None)
    expired = fields.take_field(EXPIRED, dict, {})
    opening = load_opening(fields.take_field("opening", dict), where)
    found: dict[str, Any] = {
        "opening": replace(opening, compacted_from={}),
        "compacted_before": opening.compacted_from,
        "positions": positions,
        "heads": (0, fields.moment("head_at")),
        "topics": {
            topic.topic_id: topic for topic in (load_topic(item, where) for item in fields.take_field("topics", list))
        },
        "groups": {
            name: {group.key: group for group in (load_group(item, where) for item in load_list(items, where))}
            for name, items in fields.take_field("groups", dict).items()
        },
        "objects": _objects(fields.take_field(_OBJECTS, list), where),
        "replaced": _replaced(fields.take_field("replaced", dict), where),
        "taints": {
            taint.key: taint for taint in (load_taint(item, where) for item in fields.take_field("taints", list))
        },
        "moments": [_moment(item, where) for item in fields.take_field("moments", list)],
        "earlier_snapshot": fields.take_field("snapshot", int),
        "fence": fields.count("fence", 0),
        "erased": load_erased(fields.take_field("erased", dict, {}), where),
        "expired": _expired(expired, where) if expired else {},
        "unrecorded": load_reasons(fields.take_field("unrecorded", dict, {}), where),
        "through": load_offsets(fields.take_field(THROUGH, dict, {}), where),
        "compacted_from": load_offsets(fields.take_field(COMPACTED_FROM, dict, {}), where),
    }
    fields.refuse_other_fields()
    if completed is not None:
        found["completed_seq"], found["completed_at"] = load_ints(completed, 2, where)
        if not is_moment(found["completed_at"]):
            raise DamagedError(f"{where}: the time of COMPLETE is no time: {found['completed_at']}", code="TDM-A038")
    if horizon is not None:
        swept = load_horizon(horizon, where)
        found["horizon_seq"], found["horizons"] = swept.seq, swept.offsets
    return found


def _objects(documents: list[object], where: str) -> dict[str, StoredObject]:
    objects = {item.key: item for item in (load_object(document, where) for document in documents)}
    if len(objects) < len(documents):
        raise DamagedError(f"{where}: it names an object twice", code="TDM-A039")
    return objects


def _replaced(document: JsonObject, where: str) -> dict[str, int]:
    load_ints(list(document.values()), None, where)
    return dict(document)


def _expired(document: JsonObject, where: str) -> dict[PartitionKey, Expired]:
    fields = Fields(document, f"{where}: expired")
    offsets = load_offsets(fields.take_field("offsets", dict), where)
    seqs = load_offsets(fields.take_field("seqs", dict), where)
    fields.refuse_other_fields()
    if offsets.keys() != seqs.keys():
        raise DamagedError(f"{where}: the expired ranges are not given for the same partitions twice", code="TDM-A040")
    return {key: Expired(offset=offset, seq=seqs[key]) for key, offset in offsets.items()}


def _moment(document: object, where: str) -> tuple[int, int, EntryKind]:
    match document:
        case [seq, at, str(kind)] if is_int64(seq) and is_int64(at) and is_moment(at) and kind in EntryKind.__members__:
            return seq, at, EntryKind(kind)
        case _:
            raise DamagedError(f"{where}: {document!r} is no moment", code="TDM-A041")
