"""`tandem restore groups`: sets the offsets of consumer groups after a restore, so that they resume, and rolls back.

Changes are planned first. The offsets that a group has committed are put into the store before they are changed.
"""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.errors import ConfigError, DamagedError, OversizeError, RefusedError, TandemError, bare
from tandem.backup_avro.selection.restorable_state import PartitionSelection
from tandem.sink.store import ObjectMissingError, ObjectStore
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.contract.object_store import PutResult, put_new
from tandem.spark_jobs.reading.newest_first import newest_first
from tandem.spark_jobs.reading.object_reader import ObjectReader
from tandem.spark_jobs.reading.wanted_state import FoundState
from tandem.spark_jobs.restore.groups import group_plan
from tandem.spark_jobs.restore.groups.group_plan import GroupChoice, GroupMove, GroupNote, OffsetBefore
from tandem.spark_jobs.restore.groups.target_groups import TargetGroups
from tandem.spark_jobs.restore.lease.other_restores import short
from tandem.spark_jobs.restore.progress import offset_pages, restore_record
from tandem.spark_jobs.restore.progress.offset_map import OffsetRow, digest_of, stretches
from tandem.spark_jobs.restore.progress.restore_record import RestoreRecord, TopicRecord
from tandem.spark_jobs.restore.target.target_cluster import TargetCluster


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsPlan:
    """The offsets to be set after a restore, in the order group, topic, partition."""

    record: RestoreRecord
    moves: tuple[GroupMove, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreGroups:
    """`tandem restore groups`. `before`: how the names begin under which the offsets of before are kept, if any are."""

    restore: str
    executed: bool
    before: str | None
    offsets: Sequence[GroupMove]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreGroupsRolledBack:
    """`tandem restore groups --rollback`."""

    restore: str
    rolled_back: Literal[True] = True
    offsets: Sequence[OffsetBefore]


def list_restores(store: ObjectStore, pair: str) -> tuple[list[RestoreRecord], dict[str, DamagedError]]:
    """Return all verified restores of a pair, the oldest first, and the errors of unreadable records, by restore id.

    Raises the store's errors.
    """
    found = []
    damaged: dict[str, DamagedError] = {}
    for name in store.list_folders(layout.restores_prefix(pair)):
        try:
            found.append(load(store, pair, name))
        except ConfigError:
            continue  # the restore is unfinished, and has no record
        except DamagedError as error:
            damaged[name] = bare(error)
    return sorted(found, key=lambda record: record.at), damaged


def load(store: ObjectStore, pair: str, restore: str) -> RestoreRecord:
    """Return the record of one restore. Raises ConfigError if there is no verified restore of that id, DamagedError."""
    key = restore_record.record_key(pair, restore)
    try:
        record = restore_record.decode(store.get(key), key)
    except ObjectMissingError as error:
        raise ConfigError(
            f"pair {pair} has no restore {restore} that was verified",
            code="TDM-R014",
            remedy="`tandem restore list` names it; a restore that did not end is resumed by its command",
        ) from error
    if (record.pair, record.id) != (pair, restore):
        raise DamagedError(f"{key} is the record of restore {record.id} of pair {record.pair}", code="TDM-R015")
    return record


def find_restore(store: ObjectStore, pair: str, restore: str) -> RestoreRecord:
    """Return the record of a restore by its id, or by the short id of its plan: then of the last one of that plan.

    Raises like `load`.
    """
    try:
        return load(store, pair, restore)
    except ConfigError:
        of_plan = [record for record in list_restores(store, pair)[0] if short(record.plan) == restore]
        if not of_plan:
            raise
        return of_plan[-1]


def leave(store: ObjectStore, record: RestoreRecord) -> str | None:
    """Put the record of a verified restore; an existing one stays. Return the reason if the record is too large.

    The record is used for groups only: a restore whose record exceeds the size of a document is complete all the same.
    Raises the store's errors.
    """
    try:
        store.put_if_absent(restore_record.record_key(record.pair, record.id), restore_record.encode(record))
    except OversizeError as error:
        return f"`tandem restore groups` can't go by this restore, it left no record: {error}"
    return None


def plan(
    reader: ChainReader, record: RestoreRecord, target: TargetCluster, groups: TargetGroups, choice: GroupChoice
) -> GroupsPlan:
    """Plan the offsets at which groups resume. Nothing is changed.

    Raises RefusedError if the target is not the restored one, or holds other records too, ConfigError for groups that
    are not recorded.
    """
    if not record.groups:
        raise ConfigError(
            f"restore {record.id} recorded no offsets of groups",
            code="TDM-R016",
            remedy="the backup has none on these topics: see `groups` in the configuration",
        )
    topics = target.look(topic.target for topic in record.topics)
    for topic in record.topics:
        found = topics.get(topic.target)
        if found is None or found.topic_id != topic.target_topic_id:
            raise RefusedError(
                f"topic {topic.target} on the target is not the one that restore {record.id} wrote",
                code="TDM-R017",
                remedy="it was deleted since then, or this is another cluster; name the right one, or restore again",
            )
        group_plan.refuse_if_appended(record, topic, found.starts)
    names = {choice.target(name) for name in group_plan.chosen(record, choice)}
    return GroupsPlan(
        record=record,
        moves=tuple(
            group_plan.moves(
                record,
                choice,
                rows=lambda task: offset_pages.read(reader.store, task.page, pair=record.pair, restore=record.id),
                below=_Counter(reader, record).below,
                bounds={
                    (name, number): (item.starts[number], end)
                    for name, item in topics.items()
                    for number, end in item.ends.items()
                },
                present={
                    (name, topic, number): offset
                    for name in sorted(names)
                    for (topic, number), (offset, _) in groups.committed(name).items()
                },
            )
        ),
    )


def carry_out(store: ObjectStore, planned: GroupsPlan, groups: TargetGroups, *, at: int) -> str | None:
    """Set the offsets, group by group, after a note with the group's present offsets was put into the store.

    Returns the key prefix of the notes, None if there was nothing to set. Raises RefusedError for a group with members;
    groups before it, by name, are set by then, and can be rolled back.
    """
    record, execution = planned.record, None
    for number, (name, moves) in enumerate(groupby(planned.moves, key=lambda move: move.group), 1):
        items = tuple(moves)
        present = groups.committed(name)
        before = []
        for move in items:
            offset, metadata = present.get((move.topic, move.partition), (None, ""))
            before.append(
                OffsetBefore(group=name, topic=move.topic, partition=move.partition, offset=offset, metadata=metadata)
            )
        data = group_plan.encode_snapshot(before, at)
        if execution is None:
            note = _first_note(store, record, data)
            execution = note.execution
        else:
            note = GroupNote(execution=execution, number=number)
            put_new(store, note.key(record.pair, record.id), data)
        try:
            groups.commit(name, items)
        except RefusedError:
            # No offset of this group was set: with the note, a rollback would later reset the group to its present
            # offsets, although it has consumed on.
            with suppress(TandemError):
                store.delete([note.key(record.pair, record.id)])
            raise
    return None if execution is None else group_plan.notes_prefix(record.pair, record.id, execution)


def _first_note(store: ObjectStore, record: RestoreRecord, data: bytes) -> GroupNote:
    """Put the first note of an execution, which claims the execution's number. Raises the store's errors."""
    execution = max((note.execution for note in _notes(store, record)), default=0)
    while True:
        execution += 1
        note = GroupNote(execution=execution, number=1)
        key = note.key(record.pair, record.id)
        if store.put_if_absent(key, data) is PutResult.CREATED or store.get(key) == data:
            return note


def _notes(store: ObjectStore, record: RestoreRecord) -> list[GroupNote]:
    found = (GroupNote.of(info.key) for info in store.list(group_plan.notes_prefix(record.pair, record.id)))
    return sorted(note for note in found if note is not None)


def roll_back(
    store: ObjectStore, record: RestoreRecord, groups: TargetGroups, names: Collection[str] | None = None
) -> tuple[tuple[OffsetBefore, ...], dict[str, DamagedError]]:
    """Put back the offsets that groups had committed before they were last set, and delete the notes of that.

    Return these offsets, and by key the errors of unreadable notes that were passed over. Notes are passed over with
    `names` only: those of the same execution as the notes that were found, or of later ones. They stay in the store.

    `names` None: the groups that were set by the last execution; else just these, by their names on the target.
    ConfigError if any of them has nothing to be put back, DamagedError if unreadable notes leave that unknown. Raises
    RefusedError for a group with members; groups before it are put back by then.
    """
    notes = _notes(store, record)
    if not notes:
        raise ConfigError(
            f"after restore {record.id} no group's offsets were set", code="TDM-R018", remedy="there is nothing to undo"
        )
    topics = frozenset(topic.target for topic in record.topics)
    found: dict[str, tuple[GroupNote, tuple[OffsetBefore, ...]]] = {}
    damaged: dict[str, DamagedError] = {}
    for note in reversed(notes):
        if note.execution < notes[-1].execution if names is None else set(names) <= found.keys():
            break
        key = note.key(record.pair, record.id)
        try:
            before = group_plan.decode_snapshot(store.get(key), key, topics)
        except DamagedError as error:
            if names is None:
                raise
            damaged[key] = bare(error)
            continue
        found.setdefault(before[0].group, (note, before))
    unknown = sorted(set(names or ()) - found.keys())
    if unknown:
        raise next(iter(damaged.values()), None) or ConfigError(
            f"after restore {record.id} no offsets of group {unknown[0]} were set",
            code="TDM-R019",
            remedy=f"those of {', '.join(sorted(found))} were; groups are named here as they are called on the target",
        )
    taken = [(name, *found[name]) for name in sorted(found) if names is None or name in names]
    for name, note, before in taken:
        groups.put_back(name, before)
        store.delete([note.key(record.pair, record.id)])
    return tuple(item for _, _, before in taken for item in before), damaged


class _Counter:
    """Counts the source records inside of a row with gaps, by reading them from the backup again."""

    def __init__(self, reader: ChainReader, record: RestoreRecord) -> None:
        self._chains = reader
        self._record = record
        self._objects = ObjectReader(reader.store, apart=True)
        self._selected: Mapping[tuple[str, int], PartitionSelection] | None = None
        self._place: tuple[str, int] | None = None
        self._offsets: dict[OffsetRow, array[int] | None] = {}

    def below(self, topic: TopicRecord, row: OffsetRow, offset: int) -> int | None:
        """Return how many of the row's records have offsets below `offset`.

        None if the backup no longer holds exactly the row's records.
        """
        if row.dense:
            return offset - row.first
        place = (topic.topic_id, row.partition)
        if place != self._place:
            self._place = place
            self._offsets.clear()  # the cache holds one partition at a time
        if row not in self._offsets:
            self._offsets[row] = self._read(topic, row)
        offsets = self._offsets[row]
        return None if offsets is None else bisect.bisect_left(offsets, offset)

    def _read(self, topic: TopicRecord, row: OffsetRow) -> array[int] | None:
        if row.digest is None:
            return None
        selection = self._selection().get((topic.topic_id, row.partition))
        if selection is None:
            return None
        offsets = array("q")
        try:
            for piece in selection.slices:
                if piece.low <= row.last and piece.high > row.first:
                    cut = replace(piece, low=max(piece.low, row.first), high=min(piece.high, row.last + 1))
                    for body in self._objects.bodies(cut):
                        offsets.extend(span[2] for span in body.spans())
        except DamagedError:
            return None
        # Compaction or a filter may have removed other records, even the same number: a count alone proves nothing.
        return offsets if row.digest == digest_of(stretches(offsets)) else None

    def _selection(self) -> Mapping[tuple[str, int], PartitionSelection]:
        if self._selected is None:
            states = self._chains.refresh(tolerant=True)
            numbers = (self._record.generation, None)
            self._selected = next((one for number in numbers if (one := self._select(states, number))), {})
        return self._selected

    def _select(self, states: list[Generation], number: int | None) -> dict[tuple[str, int], PartitionSelection] | None:
        found = FoundState(generations=states, number=number, records=newest_first(self._chains.store))
        try:
            selection = found.select(wanted=lambda _: True, removed=True)
        except (ConfigError, RefusedError, DamagedError):
            return None
        return {(item.key.topic_id, item.key.partition): item for item in selection.partitions}
