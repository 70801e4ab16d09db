"""Folding a chain into the state of its generation, and the rules that each entry must satisfy.

`Generation.apply` is the only function that changes a state: writers apply what they wrote, readers what they read, and
both refuse the same entries. An entry that breaks a rule raises ChainError and leaves the state unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from typing import Self

from tandem.backup_avro.chain.entries import (
    Base,
    Claim,
    Clearing,
    Entry,
    EntryKind,
    Expired,
    GroupOffset,
    Opening,
    Part,
    PartitionKey,
    Position,
    StoredObject,
    Taint,
    Topic,
)
from tandem.backup_avro.chain.erasure import apply_erasure, check_erasure, forget_deleted
from tandem.backup_avro.chain.object_rules import (
    beyond_reason,
    check_sweep,
    name_problem,
    object_problem,
    objects_problem,
    sweeps_sealed,
    was_read,
)
from tandem.backup_avro.chain.snapshot import COMPACTED_FROM, EXPIRED, THROUGH, is_state, load_state
from tandem.backup_avro.errors import DamagedError

_HOLDER_ONLY = frozenset(
    {
        EntryKind.COMMIT,
        EntryKind.CONFIRM,
        EntryKind.COMPLETE,
        EntryKind.TAINTED,
        EntryKind.CHECKPOINT,
        EntryKind.SEALED,
        EntryKind.SNAPSHOT,
    }
)
_SAYS_NOTHING = frozenset({EntryKind.TAKEOVER, EntryKind.REWRITE, EntryKind.CLEARING, EntryKind.CLEARED})
_AFTER_SEALED = frozenset({EntryKind.CLEARING, EntryKind.CLEARED, EntryKind.TAKEOVER})


class ChainError(DamagedError):
    """A chain entry breaks a rule: a wrong link or writer, a position that moves back, a part outside of its range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """An entry that a restore can name: the records committed up to `seq` are the state as of `at`."""

    seq: int
    at: int
    kind: EntryKind


@dataclass(slots=True, kw_only=True)
class Generation:
    """The folded state of one generation. `seq` 0 and `head_sha256` = the claim's hash before the first entry.

    `positions_seq` is the last entry that named each position, `heads` the (seq, head_at) of the last entry that
    recorded that all other positions were at head: `head_at()` combines the two. `skews` and `heads_skew` are by how
    many ms the local clock of the writers of these entries was ahead of the store's: `skew()` combines them.

    `said_seq` is the last entry of the chain's holder, not of a janitor, as far as entries were applied one by one:
    observers use it to decide whether an instance is still working. It is no part of the state.
    """

    claim: Claim
    head_sha256: str
    seq: int = 0
    at: int = 0
    holder: str = ""
    said_seq: int = field(default=0, compare=False)
    snapshot: int = 0
    earlier_snapshot: int = 0
    """The SNAPSHOT before the latest one, for readers of a state from before the latest one."""
    opening: Opening | None = None
    positions: dict[PartitionKey, Position] = field(default_factory=dict)
    positions_seq: dict[PartitionKey, int] = field(default_factory=dict)
    skews: dict[PartitionKey, int | None] = field(default_factory=dict)
    heads: tuple[int, int] = (0, 0)
    heads_skew: int | None = None
    topics: dict[str, Topic] = field(default_factory=dict)
    groups: dict[str, dict[PartitionKey, GroupOffset]] = field(default_factory=dict)
    unrecorded: dict[str, str] = field(default_factory=dict)
    objects: dict[str, StoredObject] = field(default_factory=dict)
    replaced: dict[str, int] = field(default_factory=dict)
    taints: dict[PartitionKey, Taint] = field(default_factory=dict)
    horizons: dict[PartitionKey, int] = field(default_factory=dict)
    """Below these offsets only the newest record of each key is left; the state as of a lower offset is gone."""
    horizon_seq: int = 0
    """The entry that is the oldest restorable moment, 0 if no sweep has set a horizon."""
    fence: int = 0
    """The latest entry that fenced janitors off, 0 if none did."""
    erased: dict[str, StoredObject | None] = field(default_factory=dict)
    """By the keys of objects that an erasure rewrote, what holds their other records, None if there are none."""
    expired: dict[PartitionKey, Expired] = field(default_factory=dict)
    """What has expired by age or size, for topics whose policy is `delete`."""
    through: dict[PartitionKey, int] = field(default_factory=dict)
    """The offset of each partition when it was first read through: below it the scan lacks superseded records."""
    compacted_from: dict[PartitionKey, int] = field(default_factory=dict)
    """The log start of each partition when the policy was first `compact` alone in this generation.

    From there on, nothing but compaction may remove records, unless somebody changes the policy later.
    """
    compacted_before: Mapping[PartitionKey, tuple[int, int]] = field(default_factory=dict)
    """What earlier generations tell of that, as `Opening.compacted_from`."""
    missing: dict[PartitionKey, int] = field(default_factory=dict)
    """Only for a generation as of a moment: below these offsets some records of that moment may have expired since."""
    moments: list[Moment] = field(default_factory=list)
    completed_at: int | None = None
    completed_seq: int | None = None
    sealed_at: int | None = None
    clearing: Clearing | None = None
    clearing_by: str | None = None
    cleared: Clearing | None = None
    going: frozenset[PartitionKey] = frozenset()
    """The partitions that CLEARING or CLEARED delete, as a set: thousands of partitions are looked up at every tick."""

    @classmethod
    def from_snapshot(cls, claim: Claim, entry: Entry, sha256: str, where: str) -> Self:
        """Return the state after a SNAPSHOT entry, whose bytes hash to `sha256`. DamagedError names `where`."""
        if entry.kind is not EntryKind.SNAPSHOT or entry.folded is None or entry.snapshot != entry.seq:
            raise DamagedError(f"{where}: no SNAPSHOT, though a later entry says so", code="TDM-A001")
        fields = load_state(entry.folded, where)
        moments = [Moment(seq=seq, at=at, kind=kind) for seq, at, kind in fields.pop("moments")]
        state = cls(
            claim=claim,
            head_sha256=sha256,
            seq=entry.seq,
            at=entry.at,
            holder=entry.incarnation,
            snapshot=entry.seq,
            positions_seq=dict.fromkeys(fields["positions"], entry.seq),
            skews={key: position.skew for key, position in fields["positions"].items()},
            moments=moments,
            **fields,
        )
        problem = _check_folded(state)
        if problem:
            raise DamagedError(f"{where}: {problem}", code="TDM-A002")
        state._recall_through(entry)
        return state

    @property
    def number(self) -> int:
        """The generation's number."""
        return self.claim.generation

    @property
    def instance(self) -> str:
        """The instance that owns the generation."""
        return self.claim.instance

    @property
    def complete(self) -> bool:
        """Whether the generation became COMPLETE. It stays true when the generation is sealed or cleared."""
        return self.completed_at is not None

    @property
    def sealed(self) -> bool:
        """Whether the generation is sealed and takes no more records."""
        return self.sealed_at is not None

    @property
    def gone(self) -> bool:
        """Whether all of the generation is cleared."""
        return self.cleared is not None and not self.cleared.stays

    def usable(self, key: PartitionKey) -> bool:
        """Whether a restore may choose this generation for `key`: COMPLETE, `key` read through, not being cleared."""
        return self.complete and self.read_through(key) and key not in self.going

    def compacted_since(self, key: PartitionKey) -> tuple[int, int] | None:
        """Return the log start when the policy was first `compact` alone, and the generation that has seen it.

        That is this one, or else the last earlier one that OPEN tells of. None: no generation has seen such a policy.
        """
        if key in self.compacted_from:
            return self.compacted_from[key], self.number
        return self.compacted_before.get(key) if key in self.positions else None

    def head_at(self, key: PartitionKey) -> int:
        """Return the last moment at which the position of `key` is known to have been the log's end."""
        position = self.positions[key]
        seq, at = self.heads
        return max(position.head_at, at) if seq > self.positions_seq[key] else position.head_at

    def skew(self, key: PartitionKey) -> int | None:
        """Return by how many ms the writer's clock was ahead of the store's at `head_at`; None if it is not recorded.

        So `head_at(key) + skew(key)` is the same moment by the clock of the machine that observed it.
        """
        seq, at = self.heads
        if seq > self.positions_seq[key] and at >= self.positions[key].head_at:
            return self.heads_skew
        return self.skews.get(key)

    def restated(self, key: PartitionKey) -> Position:
        """Return the position of `key` in the form in which a later entry repeats it unchanged."""
        return replace(self.positions[key], head_at=self.head_at(key), skew=self.skew(key))

    def read_through(self, key: PartitionKey) -> bool:
        """Whether the scan of `key` is done and the tail was at head after that."""
        position = self.positions.get(key)
        return position is not None and position.base.done_at is not None and self.head_at(key) > position.base.done_at

    def sound_offset(self, key: PartitionKey) -> int:
        """Return the offset (exclusive) up to which the tail of `key` is beyond doubt: its position or its taint."""
        position = self.positions[key]
        taint = self.taints.get(key)
        return position.offset if taint is None else min(taint.offset, position.offset)

    def sound_epoch(self, key: PartitionKey) -> int:
        """Return the leader epoch at `sound_offset`; the position's, which is never lower, if it is not recorded."""
        taint = self.taints.get(key)
        return self.positions[key].epoch if taint is None or taint.epoch is None else taint.epoch

    @property
    def whole(self) -> bool:
        """Whether no part of the generation is cleared or being cleared."""
        return self.clearing is None and self.cleared is None

    def told_from(self, key: PartitionKey) -> int:
        """Return the lowest offset from which on the records of `key` here may follow another copy's records below it.

        The records below it were scanned or swept: only the newest record of each key is left there, without the
        tombstones that states beyond that offset do not need.
        """
        return max(self.positions[key].base.end, self.horizons.get(key, 0))

    def state_from(self, key: PartitionKey) -> int:
        """Return the lowest offset for which all stored records of `key` below it are known to be a state of the log.

        It is not the scan's end: while the scan runs, records that are written above its end supersede records below,
        and the log cleaner may remove those before the scan reads them. So the state includes all that the tail read
        until the scan was done.
        """
        return max(self.through.get(key, 0), self.told_from(key))

    def keeps_state_at(self, key: PartitionKey, offset: int) -> bool:
        """Whether the records left below `offset` still are the state as of it: it does not lie below the horizon."""
        return offset >= self.horizons.get(key, 0)

    def name_of(self, key: PartitionKey) -> str:
        """Return `topic-partition` for messages."""
        topic = self.topics.get(key.topic_id)
        return f"{topic.name if topic else key.topic_id}-{key.partition}"

    def counts(self, part: Part) -> bool:
        """Whether a part belongs to the backup: read by the tail, or by a scan attempt that was not given up."""
        if part.scan is None:
            return True
        position = self.positions.get(part.key)
        return position is not None and position.base.counts(part.scan)

    def live_parts(self) -> Iterator[tuple[StoredObject, Part]]:
        """Yield each part that belongs to the backup, with its object, in commit order."""
        for item in self.objects.values():
            for part in item.parts:
                if self.counts(part):
                    yield item, part

    def found_empty(self, keys: Iterable[PartitionKey]) -> frozenset[PartitionKey]:
        """Return those of `keys` whose logs were read to their ends and had no record: no hash and no part is here."""
        known = ((key, self.positions.get(key)) for key in keys)
        empty = frozenset(key for key, at in known if at is not None and at.base.complete and not at.hashes)
        return empty and empty.difference(part.key for _, part in self.live_parts())

    def frozen_copy(self) -> Generation:
        """Return a copy that later entries do not change: entries replace values and never change one in place."""
        return replace(
            self,
            positions=dict(self.positions),
            positions_seq=dict(self.positions_seq),
            skews=dict(self.skews),
            topics=dict(self.topics),
            groups=dict(self.groups),
            unrecorded=dict(self.unrecorded),
            objects=dict(self.objects),
            replaced=dict(self.replaced),
            taints=dict(self.taints),
            horizons=dict(self.horizons),
            erased=dict(self.erased),
            expired=dict(self.expired),
            through=dict(self.through),
            compacted_from=dict(self.compacted_from),
            moments=list(self.moments),
        )

    def outline(self) -> Generation:
        """Return the facts that remain of a wholly cleared generation: its owner, the times of its entries, a taint.

        Objects, partitions and moments, thousands of them, are dropped, for readers that list many generations.
        """
        assert self.gone
        return Generation(
            claim=self.claim,
            head_sha256=self.head_sha256,
            seq=self.seq,
            at=self.at,
            holder=self.holder,
            snapshot=self.snapshot,
            opening=self.opening,
            completed_at=self.completed_at,
            taints=dict(islice(self.taints.items(), 1)),
            completed_seq=self.completed_seq,
            sealed_at=self.sealed_at,
            clearing_by=self.clearing_by,
            cleared=Clearing(goes=(), stays={}),
        )

    def apply(self, entry: Entry, sha256: str) -> None:
        """Apply the next entry, whose bytes hash to `sha256`. ChainError, and no change, if it breaks a rule.

        Another thread may read the state meanwhile. It deletes objects of an offer that the positions have passed and
        that are not in `objects`: so objects are added before positions advance, and a replaced key is at any time
        in `objects` or in `replaced`.
        """
        check(self, entry)
        self.seq = entry.seq
        self.head_sha256 = sha256
        self.at = entry.at
        if entry.kind in {EntryKind.OPEN, EntryKind.TAKEOVER} or entry.incarnation == self.holder:
            self.said_seq = entry.seq
        if entry.kind is EntryKind.SNAPSHOT:
            self.earlier_snapshot = self.snapshot
        self.snapshot = entry.snapshot
        for topic in entry.topics:
            self.topics[topic.topic_id] = topic
        if entry.replaced and not entry.objects and entry.horizon is None:
            self._apply_expiry(entry)
        for item in entry.objects:
            self.objects[item.key] = item
        for key in entry.replaced:
            self.replaced[key] = entry.at
            del self.objects[key]
        for key in entry.deleted:
            del self.replaced[key]
        forget_deleted(self, entry)
        apply_erasure(self, entry)
        self.positions.update(entry.positions)
        self.positions_seq.update(dict.fromkeys(entry.positions, entry.seq))
        for named, position in entry.positions.items():
            self.skews[named] = entry.skew if position.skew is None else position.skew
        if entry.head_at is not None:
            self.heads = (entry.seq, entry.head_at)
            self.heads_skew = entry.skew
        for name, offsets in entry.groups.items():
            self.groups[name] = {item.key: item for item in offsets}
        self.unrecorded = self.unrecorded if entry.unrecorded is None else entry.unrecorded
        for taint in entry.taints:
            before = self.taints.get(taint.key)
            self.taints[taint.key] = taint if before is None else _both(before, taint)
        self._keep_through(entry)
        self._keep_compacted(entry)
        self._apply_kind(entry)

    def _apply_kind(self, entry: Entry) -> None:
        match entry.kind:
            case EntryKind.OPEN:
                assert entry.opening is not None
                self.opening = replace(entry.opening, compacted_from={})
                self.compacted_before = entry.opening.compacted_from
                self.holder = entry.incarnation
            case EntryKind.TAKEOVER:
                self.holder = entry.incarnation
            case EntryKind.COMMIT | EntryKind.CONFIRM | EntryKind.CHECKPOINT:
                self.moments.append(Moment(seq=entry.seq, at=entry.at, kind=entry.kind))
            case EntryKind.COMPLETE:
                if self.completed_at is None:
                    self.completed_at = entry.at
                    self.completed_seq = entry.seq
                    self.moments.append(Moment(seq=entry.seq, at=entry.at, kind=entry.kind))
            case EntryKind.SEALED:
                self.sealed_at = entry.at
            case EntryKind.CLEARING:
                self.clearing = entry.clearing
                self.clearing_by = entry.incarnation
                self.going |= frozenset(entry.clearing.goes if entry.clearing is not None else ())
            case EntryKind.CLEARED:
                self._drop_cleared(entry)
            case EntryKind.SNAPSHOT:
                # The same values that a reader has whose reading starts with this entry.
                self.positions = {key: self.restated(key) for key in self.positions}
                self.positions_seq = dict.fromkeys(self.positions, entry.seq)
                self.skews = {key: position.skew for key, position in self.positions.items()}
                self.heads = (0, self.heads[1])
                self.heads_skew = None
                assert entry.folded is not None
                if EXPIRED not in entry.folded:
                    self.expired = {}
                self._recall_through(entry)
            case EntryKind.REWRITE:
                self._apply_sweep(entry)
            case _:  # TAINTED: `apply` has applied all of it
                pass

    def _keep_through(self, entry: Entry) -> None:
        """Record the positions of the partitions that this entry is the first to show as read through."""
        if len(self.through) == len(self.positions):
            return
        told = self.positions.keys() if entry.head_at is not None else entry.positions.keys()
        for key in told - self.through.keys():
            if self.read_through(key):
                self.through[key] = self._first_state(key)

    def _keep_compacted(self, entry: Entry) -> None:
        """Record the log starts of the partitions that this entry is the first to show as compacted only."""
        named = {topic.topic_id for topic in entry.topics}
        told = [key for key in self.positions if key.topic_id in named] if named else entry.positions
        self.compacted_from |= {key: self._begin(key) for key in told if self._newly_compacted(key)}

    def _newly_compacted(self, key: PartitionKey) -> bool:
        topic = self.topics.get(key.topic_id)
        return key not in self.compacted_from and topic is not None and topic.policies == {"compact"}

    def _begin(self, key: PartitionKey) -> int:
        return max(self.positions[key].log_start, 0)

    def _first_state(self, key: PartitionKey) -> int:
        position, taint = self.positions[key], self.taints.get(key)
        if position.base.start >= position.base.end:  # nothing was scanned
            return position.base.end
        if taint is not None and taint.offset > position.base.start:
            # The writer of a taint knows what was at head since the last commit; nothing is sound if nothing was.
            return min(taint.offset, position.offset)
        return position.offset

    def _recall_through(self, entry: Entry) -> None:
        """Use what the SNAPSHOT tells in place of what one of an earlier release does not have, as all readers do.

        Those are the scan ends for `through`, and the present policies and log starts for `compacted_from`.
        """
        assert entry.folded is not None
        if THROUGH not in entry.folded:
            self.through = {
                key: position.base.end for key, position in self.positions.items() if self.read_through(key)
            }
        if COMPACTED_FROM not in entry.folded:
            self.compacted_from = {}
            self.compacted_from = {key: self._begin(key) for key in self.positions if self._newly_compacted(key)}

    def _apply_expiry(self, entry: Entry) -> None:
        """Record as expired the records that a REWRITE removes without a replacement and without a horizon."""
        for name in entry.replaced:
            for part in self.objects[name].parts:
                if self.counts(part):
                    before = self.expired.get(part.key, Expired(0, 0))
                    self.expired[part.key] = Expired(max(part.last + 1, before.offset), entry.seq)

    def _apply_sweep(self, entry: Entry) -> None:
        if entry.horizon is not None:
            self.horizon_seq = max(self.horizon_seq, entry.horizon.seq)
            for key, offset in entry.horizon.offsets.items():
                self.horizons[key] = max(offset, self.horizons.get(key, 0))
        if entry.fence:
            self.fence = entry.seq

    def _drop_cleared(self, entry: Entry) -> None:
        assert entry.clearing is not None
        goes = frozenset(entry.clearing.goes)
        self.going |= goes
        self.cleared = entry.clearing
        self.clearing = None
        self.objects = {
            key: item for key, item in self.objects.items() if any(part.key not in goes for part in item.parts)
        }


def _both(before: Taint, later: Taint) -> Taint:
    """Return the combination of two taints of a partition: sound is what both call sound; the lower cut counts.

    A tail only moves forward, so the gaps and cuts that it finds later lie above the first. But a stored object that is
    found missing later may lie anywhere, for example at the start of a scan that was read after the tail had its gap.
    """
    lowest = later if later.offset < before.offset else before
    cuts = [taint.cut_at for taint in (before, later) if taint.cut_at is not None]
    return replace(lowest, cut_at=min(cuts, default=None))


def check(state: Generation, entry: Entry) -> None:
    """Raise ChainError unless `entry` may follow `state`."""
    problem = (
        _check_links(state, entry)
        or _check_order(state, entry)
        or _check_writer(state, entry)
        or _check_positions(state, entry)
        or objects_problem(state, entry)
        or check_sweep(state, entry)
        or check_erasure(state, entry)
        or _check_clearing(state, entry)
        or _check_snapshot(state, entry)
    )
    if problem:
        raise ChainError(f"generation {state.number}, entry {entry.seq} ({entry.kind}): {problem}", code="TDM-A003")


def _check_links(state: Generation, entry: Entry) -> str | None:
    if entry.seq != state.seq + 1:
        return f"entry {state.seq + 1} was expected"
    if entry.prev_sha256 != state.head_sha256:
        return "its link is not the hash of the entry before it"
    return None


def _check_order(state: Generation, entry: Entry) -> str | None:
    if (entry.kind is EntryKind.OPEN) != (state.seq == 0):
        return "OPEN comes first and once"
    if entry.kind is EntryKind.OPEN and entry.opening is None:
        return "OPEN says nothing"
    if state.gone:
        return "the generation is cleared"
    over = state.sealed or state.clearing is not None or state.cleared is not None
    if over and entry.kind not in _AFTER_SEALED and not sweeps_sealed(state, entry):
        return "nothing but CLEARING and CLEARED may follow SEALED or CLEARING"
    if entry.kind is EntryKind.SEALED and not state.complete:
        return "only a COMPLETE generation is sealed"
    if entry.kind is EntryKind.CLEARING and state.complete and not state.sealed:
        return "a COMPLETE generation is sealed before it is cleared"
    if entry.kind is EntryKind.CLEARING and state.clearing is not None:
        return "it is being cleared already"
    return None


def _check_writer(state: Generation, entry: Entry) -> str | None:
    if entry.kind is EntryKind.OPEN and entry.incarnation != state.claim.incarnation:
        return "OPEN is written by the incarnation that claimed the number"
    if entry.kind in _HOLDER_ONLY and entry.incarnation != state.holder and not _marks_a_cut(state, entry):
        return f"written by incarnation {entry.incarnation}, but {state.holder} holds the chain"
    if entry.kind is EntryKind.CLEARING and state.complete and entry.incarnation != state.holder:
        return "only its holder clears a generation that was COMPLETE"
    if entry.kind is EntryKind.CLEARED and entry.incarnation not in {state.holder, state.clearing_by}:
        return "only who cleared it says that it is cleared"
    return None


def _marks_a_cut(state: Generation, entry: Entry) -> bool:
    """Whether an entry marks records that the log has lost, which anybody may: they are kept, and cover nothing."""
    marks = entry.kind is EntryKind.TAINTED and state.complete and bool(entry.taints)
    return marks and all(taint.cut_at is not None for taint in entry.taints)


def _check_snapshot(state: Generation, entry: Entry) -> str | None:
    if entry.kind is not EntryKind.SNAPSHOT:
        if entry.folded is not None:
            return "only SNAPSHOT holds a state"
        return None if entry.snapshot == state.snapshot else f"it names {entry.snapshot} as the latest SNAPSHOT"
    if entry.snapshot != entry.seq:
        return "it does not name itself as the latest SNAPSHOT"
    if entry.tells_of_cluster or entry.objects:
        return "it says more than what was said before"
    same = entry.folded is not None and is_state(entry.folded, state)
    return None if same else "it is not what the entries before it add up to"


def _check_folded(state: Generation) -> str | None:
    """Return why no chain can lead to the state of a SNAPSHOT, None if one can: its reader knows nothing else."""
    if not 0 <= state.earlier_snapshot < state.seq:
        return f"entry {state.earlier_snapshot} is no SNAPSHOT before it"
    told = [0, *(moment.seq for moment in state.moments), state.seq]
    if any(before >= after for before, after in pairwise(told)):
        return "its moments are not in order"
    unknown = next((key for key in state.positions if key.topic_id not in state.topics), None)
    if unknown is not None:
        return f"a position of topic id {unknown.topic_id}, which it does not know"
    for key, offset in state.through.items():
        position = state.positions.get(key)
        if position is None or offset > position.offset:
            return f"{state.name_of(key)} was read through up to {offset}, where it does not stand yet"
    unread = next((key for key in state.compacted_from if key not in state.positions), None)
    if unread is not None:
        return f"{state.name_of(unread)} began to be compacted, and was not read so far"
    problems = (name_problem(state, key) for key in (*state.replaced, *state.erased))
    return next(filter(None, problems), None) or next(
        filter(None, (_check_folded_object(state, item) for item in state.objects.values())), None
    )


def _check_folded_object(state: Generation, item: StoredObject) -> str | None:
    if item.key in state.replaced:
        return f"{item.key} is replaced, and is not"
    beyond = (part for part in item.parts if not was_read(state, part))
    return (
        name_problem(state, item.key)
        or object_problem(item)
        or next((f"{item.key}: {beyond_reason(part)}" for part in beyond), None)
    )


def _check_positions(state: Generation, entry: Entry) -> str | None:
    if entry.kind in _SAYS_NOTHING and (entry.marks or entry.tells_of_cluster):
        return "what is read of the cluster is for the holder's commits to say"
    if entry.head_at is not None and entry.head_at < state.heads[1]:
        return f"the time at which all was at head goes back from {state.heads[1]} to {entry.head_at}"
    topics = state.topics.keys() | {topic.topic_id for topic in entry.topics}
    for key, position in entry.positions.items():
        if key.topic_id not in topics:
            return f"a position of topic id {key.topic_id}, which the chain does not know"
        before = state.positions.get(key)
        if before is None:
            continue
        if position.offset < before.offset:
            return f"the position of {state.name_of(key)} goes back from {before.offset} to {position.offset}"
        if state.read_through(key) and position.head_at <= (before.base.done_at or 0):
            return f"{state.name_of(key)} was read through, and its time at head goes back behind that"
        problem = _check_base(before.base, position.base)
        if problem:
            return f"the base of {state.name_of(key)} {problem}"
    return None


def _check_base(old: Base, new: Base) -> str | None:
    """Return what is wrong with `new` after `old`. Attempts stay counted or void until the scan restarts."""
    if old.complete:
        return None if new == old else "is done and changes no more"
    if new.floor < old.floor or new.attempts < old.attempts:
        return "goes back"
    if new.floor > old.floor:
        return None if new.floor > old.attempts else "starts again, but attempts made before would count"
    if (new.start, new.end) != (old.start, old.end):
        return "changes its range without starting again"
    if not set(old.void) <= set(new.void):
        return "takes back that an attempt is void"
    if not all(any(low <= first and last <= high for low, high in new.done) for first, last in old.done):
        return "takes back what was done"
    return None


def _check_clearing(state: Generation, entry: Entry) -> str | None:
    if entry.kind not in {EntryKind.CLEARING, EntryKind.CLEARED}:
        return None if entry.clearing is None else "only CLEARING and CLEARED name what goes"
    if entry.clearing is None:
        return "it does not name what goes and what stays"
    if entry.kind is EntryKind.CLEARED and entry.clearing != state.clearing:
        return "it names something else than the CLEARING before it"
    goes = set(entry.clearing.goes)
    if goes | entry.clearing.stays.keys() != state.positions.keys():
        return "it does not name every partition"
    if not goes.isdisjoint(entry.clearing.stays):
        return "a partition both goes and stays"
    if state.cleared is not None and not goes.issuperset(state.cleared.goes):
        return "what is gone already can't stay"
    return None
