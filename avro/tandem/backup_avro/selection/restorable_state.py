"""Which generations, objects, byte ranges and offset ranges a restore reads, decided from folded chains alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tandem.backup_avro.chain.entries import CompactValue, Opening, Part, PartitionKey, StoredObject, Topic
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.errors import ConfigError, RefusedError
from tandem.backup_avro.selection.coverage import common_offset, cut_off, only_compacts
from tandem.backup_avro.selection.losses import keeps_lost_keys

Parts = dict[PartitionKey, list[tuple[StoredObject, Part]]]
"""The live parts of each partition, with their objects."""


class Slice(CompactValue, frozen=True, kw_only=True, gc=False):
    """The records with offsets in [low, high) of one part of one data object.

    `opening` is its generation's, which determines the headers of all its objects; None for a connector's file.
    """

    generation: int
    opening: Opening | None
    item: StoredObject
    part: Part
    low: int
    high: int

    @property
    def whole(self) -> bool:
        """Whether all records of the part are selected, so that its counts are exact."""
        return self.low <= self.part.first and self.part.last < self.high


class Join(NamedTuple):
    """From offset `at` on the records of `generation` follow those that others read below it."""

    generation: int
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSelection:
    """The records of one partition that are restored, in offset order; slices don't overlap.

    `generations` are those that the records come from, the one with the lowest offsets first.
    `end` is the moment (exclusive); from `sound` on, if that is lower, the records are in doubt, as `warning` says.
    """

    key: PartitionKey
    topic: Topic
    slices: tuple[Slice, ...]
    log_start: int
    sound: int
    end: int
    generations: tuple[int, ...]
    warning: str | None = None
    log_start_from: tuple[int, ...] = ()
    """Generations that contribute no records, but are the only ones that know this `log_start`."""
    expired: int | None = None
    """Below this offset some records of the state may have expired, None if none have."""
    joins: tuple[Join, ...] = ()
    """Where another generation continues, ascending: only offset and epoch justify a join, see `one_history`."""

    @property
    def records(self) -> int:
        """Number of stored records, exact if every slice is whole, else an upper bound."""
        return sum(piece.part.records for piece in self.slices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What a restore reads: `generation` is the one it rests on, `seq` its chain entry, `incomplete` what it lacks.

    Both numbers are 0 where a connector's files are read, which have no chain.
    """

    generation: int
    seq: int
    partitions: tuple[PartitionSelection, ...]
    incomplete: tuple[str, ...] = ()

    @property
    def used(self) -> frozenset[int]:
        """The generations that the selection depends on: the one that it rests on, and those that add to it."""
        besides = (number for item in self.partitions for number in (*item.generations, *item.log_start_from))
        return frozenset((self.generation, *besides))

    @property
    def source_text(self) -> str:
        """The generation or the files that the selection rests on, for messages."""
        return f"generation {self.generation}" if self.generation else "the root"


def restorable(generations: Iterable[Generation]) -> list[Generation]:
    """Return the generations that a restore may rest on, best first: COMPLETE ones with a partition that is usable.

    Whole ones come before those that are partly cleared, untainted before tainted (which are sound up to the taint, and
    get a warning), newer before older. Partitions that a CLEARING deletes can't be chosen from then on.
    """
    usable = [g for g in generations if g.complete and (g.whole or any(g.usable(key) for key in g.positions))]
    return sorted(usable, key=lambda g: (g.whole, not g.taints, g.number), reverse=True)


def choose_generation(generations: Iterable[Generation], number: int | None = None) -> Generation:
    """Return the generation that a restore rests on: `number` if given, else the best. RefusedError if none is left."""
    candidates = restorable(generations)
    if number is not None:
        candidates = [g for g in candidates if g.number == number]
    if not candidates:
        what = "no generation is" if number is None else f"generation {number} is not"
        raise RefusedError(
            f"{what} complete and free of clearing",
            code="TDM-A130",
            remedy="`tandem status` shows what there is and what is still missing",
        )
    return candidates[0]


def select(
    generations: Sequence[Generation],
    *,
    number: int | None = None,
    wanted: Callable[[Topic], bool] = lambda _: True,
    until: Mapping[PartitionKey, int] | None = None,
    merge: bool = True,
    removed: bool = False,
) -> Selection:
    """Select the newest state, or the state as of the offset vector `until`.

    A partition that the generation lacks, because it was created later or never was read through, comes from the next
    best one that has it. With `removed`, the last backup of a deleted topic is selected too, unless another topic has
    its name now.

    With `merge`, records that another complete generation holds contiguously above the chosen one's position, or above
    its taint, are added, if the other one's tail read them in the same leader epoch: records that it scanned may lack
    the tombstones of records below, and between two epochs the log may have been cut and have grown again. In these two
    cases the other generation's own copy of the partition is used instead, unless `number` names the generation to rest
    on.

    Records that only tainted generations have come last, with a warning: the chosen one's, or those that others read on
    in the same leader epoch. Where a generation may not continue from there, the warning alone names what is left out.
    Records below the highest known log start are left out, unless the topic only compacts: then the selection rests on
    an older copy that has them, if the other copies continue from it.
    """
    chosen = choose_generation(generations, number)
    others = [g for g in restorable(generations) if g.number != chosen.number] if merge else []
    return unite(chosen, others, freely=number is None, wanted=wanted, until=until, removed=removed)


def unite(
    chosen: Generation,
    others: Sequence[Generation],
    *,
    freely: bool,
    wanted: Callable[[Topic], bool] = lambda _: True,
    until: Mapping[PartitionKey, int] | None = None,
    removed: bool = False,
) -> Selection:
    """Select from one generation, and add from others, the best first, as `select` describes.

    Only if `freely`, partitions that it lacks come from others, and their copies replace its own where necessary.
    """
    universe = [chosen, *others] if freely and until is None else [chosen]
    topics, passed_over = _topics(universe, removed=removed)
    parts = {g.number: parts_by_key(g) for g in (chosen, *others)}
    partitions, incomplete = [], []
    for key in sorted({key for state in universe for key in state.positions}):
        topic = topics[key.topic_id]
        if topic.topic_id in passed_over or not wanted(topic):
            continue
        holders = [state for state in universe if key in state.positions and state.usable(key)]
        if not holders:
            if key in chosen.positions:
                incomplete.append(chosen.name_of(key))
            continue
        rest_on = _best_generation(holders, key)
        # Nothing continues records that were cut off: other generations are only named.
        beside = _not_cut_off(holders, key) if cut_off(rest_on, key) else (chosen, *others)
        piece = _select_partition(
            rest_on,
            [g for g in beside if g is not rest_on],
            parts,
            (key, topic),
            None if until is None else until.get(key),
            instead=freely,
        )
        partitions.append(_from_before_a_loss(piece, holders, parts) if len(universe) > 1 else piece)
    return Selection(
        generation=chosen.number, seq=chosen.seq, partitions=_wide_enough(partitions), incomplete=tuple(incomplete)
    )


def _wide_enough(partitions: Sequence[PartitionSelection]) -> tuple[PartitionSelection, ...]:
    """Return the partitions with topics of the full number of partitions: an older generation may know one more."""
    counts: dict[str, int] = {}
    for item in partitions:
        topic_id = item.key.topic_id
        counts[topic_id] = max(counts.get(topic_id, item.topic.partitions), item.key.partition + 1)
    return tuple(
        item
        if (count := counts[item.key.topic_id]) == item.topic.partitions
        else replace(item, topic=replace(item.topic, partitions=count))
        for item in partitions
    )


def _best_generation(holders: Sequence[Generation], key: PartitionKey) -> Generation:
    """Return the generation that a partition's state is taken from; the first of equally good ones.

    It is one of the log's present history. One of a history that was partly cut off is used only if no copy of the
    present history is a state of the log beyond doubt and that one is.
    """
    present = [
        state
        for state in _not_cut_off(holders, key)
        if not (_reads_a_former_log(state, key, holders) or _is_refuted_by_epochs(state, key, holders))
    ]
    if any(_is_state(state, key) for state in present):
        return present[0]
    if any(_is_state(state, key) for state in _not_cut_off(holders, key)):
        return min(holders, key=lambda state: _left_behind(state, key))
    return min(holders, key=lambda state: (not _is_state(state, key), _left_behind(state, key)))


def _reads_a_former_log(state: Generation, key: PartitionKey, holders: Iterable[Generation]) -> bool:
    """Whether a later generation found the log cut, in the same epoch, below what `state` has read.

    `state` was not checked against the log after that. Where volumes were restored to a snapshot, offset and epoch
    alone would join both histories (decision 80).
    """
    return any(
        other.number > state.number
        and cut_off(other, key)
        and other.sound_epoch(key) == state.sound_epoch(key)
        and 0 <= (other.taints[key].cut_at or 0) < state.sound_offset(key)
        for other in holders
    )


def _is_refuted_by_epochs(state: Generation, key: PartitionKey, holders: Iterable[Generation]) -> bool:
    """Whether another generation, at head later, has read as far or further, and its last record has a lower epoch.

    Leader epochs never fall along a log. So the two have read two histories: the volumes of brokers were restored to a
    snapshot, with the epochs of its time. Which was at head later has read the present one.
    """
    here = state.positions[key]
    return any(
        not cut_off(other, key)
        and 0 <= other.positions[key].epoch < here.epoch
        and other.positions[key].offset >= here.offset
        and other.head_at(key) > state.head_at(key)
        for other in holders
    )


def _not_cut_off(holders: Iterable[Generation], key: PartitionKey) -> list[Generation]:
    """Return the generations that hold no cut-off records of the partition."""
    return [state for state in holders if not cut_off(state, key)]


def _is_state(state: Generation, key: PartitionKey) -> bool:
    """Whether the records of a partition below a generation's taint are a state that the log was in."""
    return state.sound_offset(key) >= state.state_from(key)


def _left_behind(state: Generation, key: PartitionKey) -> tuple[bool, int, int]:
    """Return a sort key: how much of a generation's history the log has left because an election cut it off."""
    if not cut_off(state, key):
        return False, 0, 0
    return True, -state.sound_epoch(key), -state.sound_offset(key)


def select_cut(
    state: Generation, cut: Mapping[PartitionKey, int], *, wanted: Callable[[Topic], bool] = lambda _: True
) -> Selection:
    """Select exactly a cut, from the one generation that holds it: per partition the records below it, no others.

    `state` is the generation as of the chain entry that completed the cut, so later rewrites and taints do not matter.
    Topics are selected even if they were deleted by then. RefusedError if `state` lacks some of it.
    """
    parts = {state.number: parts_by_key(state)}
    partitions = []
    for key, end in sorted(cut.items()):
        if not state.usable(key) or state.positions[key].offset < end:
            raise RefusedError(
                f"generation {state.number} does not hold {state.name_of(key)} up to offset {end} "
                f"as of entry {state.seq}",
                code="TDM-A131",
                remedy="report it: the checkpoint must not have been completed; restore without --checkpoint",
            )
        check_horizon([state], key, end)
        if wanted(state.topics[key.topic_id]):
            partitions.append(
                _select_partition(state, [], parts, (key, state.topics[key.topic_id]), end, instead=False)
            )
    return Selection(generation=state.number, seq=state.seq, partitions=tuple(partitions))


def bounded(selection: Selection, generations: Sequence[Generation], until: Mapping[tuple[str, int], int]) -> Selection:
    """Return a selection without the records at or above these offsets, (topic, partition) -> offset.

    A bound below the position at which the first scan was done gets a warning: records that were superseded by then had
    been compacted. Raises ConfigError for a partition that is not selected, RefusedError for an offset beyond the
    selected records.
    """
    if not until:
        return selection
    states = {state.number: state for state in generations}
    left = dict(until)
    partitions = []
    for piece in selection.partitions:
        offset = left.pop((piece.topic.name, piece.key.partition), None)
        if offset is None:
            partitions.append(piece)
            continue
        if offset > piece.end:
            raise RefusedError(
                f"{piece.topic.name}-{piece.key.partition} reaches up to offset {piece.end}, not to {offset}",
                code="TDM-A132",
                remedy="leave the bound out for all there is",
            )
        needed = {one.generation for one in piece.slices if one.low < offset}
        check_horizon((states[number] for number in sorted(needed)), piece.key, offset)
        warnings = [piece.warning] if piece.warning is not None and offset > piece.sound else []
        # Records that others add were read by their tails, from an offset on that is a state already.
        told = states[piece.generations[0]].state_from(piece.key)
        if offset < told:
            warnings.append(
                f"below offset {told} there is only what compaction had left by then: not a state of the past"
            )
        slices = tuple(replace(one, high=min(one.high, offset)) for one in piece.slices if one.low < offset)
        partitions.append(
            replace(
                piece,
                slices=tuple(one for one in slices if one.part.first < one.high),
                end=offset,
                sound=min(piece.sound, offset),
                warning="; ".join(warnings) or None,
                expired=_expired_below(piece, states, offset),
            )
        )
    if left:
        names = ", ".join(f"{topic}:{number}" for topic, number in sorted(left))
        raise ConfigError(
            f"--until names {names}, which is not restored", code="TDM-A133", remedy="see --dry-run for what is"
        )
    return replace(selection, partitions=tuple(partitions))


def _expired_below(piece: PartitionSelection, states: Mapping[int, Generation], end: int) -> int | None:
    """Return `expired` of a selection cut at `end`: when the log ended there is unknown, so all expiry counts."""
    if end == piece.end:
        return piece.expired
    ever = (states[number].expired.get(piece.key) for number in piece.generations)
    return _expired((item.offset for item in ever if item is not None), piece.log_start, end)


def check_horizon(states: Iterable[Generation], key: PartitionKey, offset: int) -> None:
    """Raise RefusedError if retention has swept records that a state as of `offset` needs."""
    for state in states:
        if not state.keeps_state_at(key, offset):
            raise RefusedError(
                f"generation {state.number} does not hold the state of {state.name_of(key)} as of offset {offset}: "
                f"below {state.horizons[key]} only the newest record of each key is left",
                code="TDM-A107",
                remedy="the horizon of `tandem retention` was put there; choose a later state",
            )


def _topics(universe: Iterable[Generation], *, removed: bool) -> tuple[dict[str, Topic], set[str]]:
    """Return all topics by id, each from the newest generation that knows it, and the ids that are passed over.

    A topic that the newest generation does not know was deleted before that generation began, or was created after it
    listed the topics for COMPLETE: then a generation that is still being read has it first, and may know the end of a
    topic of the same name that the newest one has.
    """
    newest_first = sorted(universe, key=lambda g: g.number, reverse=True)
    newest = newest_first[0]
    topics: dict[str, Topic] = {}
    gone: list[str] = []
    for state in newest_first:
        for topic_id, topic in state.topics.items():
            if topic_id not in topics:
                topics[topic_id] = topic
                if topic.removed or (state is not newest and _was_gone(topic_id, state, newest)):
                    gone.append(topic_id)
    # A topic id that no generation has read through yet replaces no other one.
    restored = {key.topic_id for state in newest_first for key in state.positions if state.usable(key)}
    ended = {topic_id for state in newest_first for topic_id, topic in state.topics.items() if topic.removed}
    lives: dict[str, list[str]] = {}
    for topic_id in topics.keys() - gone:
        lives.setdefault(topics[topic_id].name, []).append(topic_id)
    order = list(topics)
    for ids in lives.values():  # newest first: the last topic id of a name that no generation saw removed
        ids.sort(key=lambda topic_id: (topic_id not in restored, topic_id in ended, order.index(topic_id)))
        gone.extend(ids[1:])
    passed_over = set()
    taken = {name for name, ids in lives.items() if ids[0] in restored}
    for topic_id in gone:  # newest first: of several topic ids of one name the last
        name = topics[topic_id].name
        if not removed or name in taken:
            passed_over.add(topic_id)
        if topic_id in restored:
            taken.add(name)
    return topics, passed_over


def _was_gone(topic_id: str, state: Generation, newest: Generation) -> bool:
    """Whether a topic unknown to `newest` was deleted before it began: `state` is sealed, or had read it by then."""
    bases = [position.base for key, position in state.positions.items() if key.topic_id == topic_id]
    return state.sealed or any(base.done_at is not None and base.done_at < newest.claim.at for base in bases)


def _select_partition(
    chosen: Generation,
    others: list[Generation],
    parts: dict[int, Parts],
    what: tuple[PartitionKey, Topic],
    until: int | None,
    *,
    instead: bool,
) -> PartitionSelection:
    key, topic = what
    position = chosen.positions[key]
    log_start, epoch = position.log_start, chosen.sound_epoch(key)
    kept_for_keys = keeps_lost_keys(chosen, key)
    if kept_for_keys:  # the log start may have moved by what lost them
        log_start = min(log_start, position.base.start)
    own_end = position.offset if until is None else min(until, position.offset)
    end = min(own_end, chosen.sound_offset(key))
    slices = slices_of(chosen, parts[chosen.number].get(key, ()), 0, end)
    used, joins = [chosen.number], list[Join]()
    # A scan in doubt is no state that another generation's records could continue.
    joining = list(others) if instead or _is_state(chosen, key) else []
    while joining:
        other = next((g for g in joining if _reach(g, key, end=end, epoch=epoch, until=until) is not None), None)
        if other is None:
            break
        joining.remove(other)
        there, reach = other.positions[key], _reach(other, key, end=end, epoch=epoch, until=until)
        assert reach is not None
        mine, told_from = parts[other.number].get(key, ()), other.told_from(key)
        if other.sound_epoch(key) == epoch and end >= told_from:
            slices.extend(slices_of(other, mine, end, reach))
            used.append(other.number)
            joins.append(Join(other.number, end))
            log_start = _raised(log_start, there.log_start, (chosen, other), key)
        elif instead and reach >= other.state_from(key):
            slices = slices_of(other, mine, 0, reach)
            used, joins = [other.number], []
            log_start = _raised(there.log_start, log_start, (chosen, other), key)
        else:
            continue
        end, epoch = reach, other.sound_epoch(key)
        joining = [g for g in others if g.number not in used]
    if instead and until is None:
        further = (g for g in others if _reach(g, key, end=end, epoch=epoch, until=None) is not None)
        whole = next((g for g in further if _is_state(g, key)), None)
        if whole is not None:  # the log was cut inside of a scanned or swept range: only a whole copy is consistent
            return _select_partition(whole, [], parts, what, None, instead=False)
    known_by: tuple[int, ...] = ()
    if until is None:  # records that any of them saw deleted from the log stay deleted
        same = [
            g for g in others if g.usable(key) and g.sound_epoch(key) == epoch and not only_compacts((chosen, g), key)
        ]
        know = max(same, key=lambda g: g.positions[key].log_start, default=None if kept_for_keys else chosen)
        if know is not None and know.positions[key].log_start > log_start:
            log_start, known_by = know.positions[key].log_start, (know.number,)
        log_start = max(log_start, 0)
    taken = _SelectedRecords(key=key, slices=slices, used=used, joins=joins, end=end, epoch=epoch)
    _take_in_doubt(taken, chosen, others, parts, until)
    kept = [piece if piece.low >= log_start else replace(piece, low=log_start) for piece in taken.slices]
    kept = [piece for piece in kept if piece.low < piece.high and piece.part.last >= piece.low]
    return PartitionSelection(
        key=key,
        topic=topic,
        slices=tuple(sorted(kept, key=lambda piece: max(piece.part.first, piece.low))),
        log_start=log_start,
        sound=end,
        end=taken.end,
        generations=tuple(taken.used),
        warning="; ".join(taken.warnings) or None,
        log_start_from=tuple(number for number in known_by if number not in taken.used),
        expired=_expired(
            (g.missing.get(key, 0) for g in (chosen, *others) if g.number in taken.used), log_start, taken.end
        ),
        joins=tuple(taken.joins),
    )


def _raised(log_start: int, other: int, states: Iterable[Generation], key: PartitionKey) -> int:
    """Return a log start, or the other generation's if that is higher and the topic's policy deletes records."""
    return log_start if only_compacts(states, key) else max(log_start, other)


def _from_before_a_loss(
    piece: PartitionSelection, holders: Sequence[Generation], parts: dict[int, Parts]
) -> PartitionSelection:
    """Return a partition with an older copy's records below its log start, if that moved by a loss alone.

    The newer copies began at that log start. Their scans may lack tombstones of records below it, so only their tails
    may continue the older copy. Where they can't, a warning names the older copy.
    """
    key = piece.key
    rests_on = [state for state in holders if state.number == piece.generations[0]]
    older = [
        state
        for state in holders
        if max(state.positions[key].log_start, 0) < piece.log_start
        and only_compacts((*rests_on, state), key)
        and not cut_off(state, key)
        and any(part.first < piece.log_start for _, part in parts[state.number].get(key, ()))
    ]
    older.sort(key=lambda state: (state.positions[key].log_start, -state.number))
    for state in older:
        others = [other for other in holders if other is not state]
        whole = _select_partition(state, others, parts, (key, piece.topic), None, instead=False)
        if whole.sound >= piece.sound and whole.log_start < piece.log_start:
            return whole
    if not older:
        return piece
    number = older[0].number
    warnings = [text for text in (piece.warning,) if text is not None]
    warnings.append(
        f"the log start moved to {piece.log_start} though the policy is compact alone; generation {number} holds "
        f"records below it that may have been deleted since: `--generation {number} --no-merge` restores its own copy"
    )
    return replace(piece, warning="; ".join(warnings))


def _expired(offsets: Iterable[int], log_start: int, end: int) -> int | None:
    """Return the offset in [log_start, end) below which some records have expired, None if none have."""
    highest = min(max(offsets, default=0), end)
    return highest if highest > max(log_start, 0) else None


def _reach(other: Generation, key: PartitionKey, *, end: int, epoch: int, until: int | None) -> int | None:
    """Return how far (exclusive) `other` reaches beyond `end` in the same history, None if it does not.

    An offset and the epoch of the record before it identify all records below; so the sound part counts by its own
    epoch, not by the epoch of the present position.
    """
    there = other.positions.get(key)
    if there is None or not other.usable(key) or other.sound_epoch(key) < epoch:
        return None
    reach = common_offset(other, key)
    if until is not None:
        reach = min(until, reach)
    return reach if end < reach else None


@dataclass(slots=True, kw_only=True)
class _SelectedRecords:
    """The records of a partition selected so far: up to `end`, in leader epoch `epoch`."""

    key: PartitionKey
    slices: list[Slice]
    used: list[int]
    joins: list[Join]
    end: int
    epoch: int
    warnings: list[str] = field(default_factory=list)

    def add_generation(self, state: Generation, parts: Parts, reach: int, warning: str) -> None:
        """Add a generation's records from `end` up to `reach`."""
        self.slices.extend(slices_of(state, parts.get(self.key, ()), self.end, reach))
        if state.number not in self.used:
            self.used.append(state.number)
            self.joins.append(Join(state.number, self.end))
        self.end, self.epoch = reach, state.positions[self.key].epoch
        self.warnings.append(warning)


def _take_in_doubt(
    taken: _SelectedRecords,
    chosen: Generation,
    others: Iterable[Generation],
    parts: Mapping[int, Parts],
    until: int | None,
) -> None:
    """Add records that no generation has without doubt, except of a history that the log has left; warn of all of it.

    Other generations' records come last. An instance whose generation was tainted reads on until it is sealed, and
    confirms records that the instance which replaces it may not have read before the first one died.
    """
    key = taken.key
    tainted = [g for g in (chosen, *others) if key in g.taints and g.usable(key)]
    tails = {
        g.number: g.positions[key].offset if until is None else min(until, g.positions[key].offset) for g in tainted
    }
    newer = (g for g in tainted if g.number in taken.used and g.number > chosen.number and not cut_off(g, key))
    for state in (*(g for g in tainted if g is chosen), *newer):
        more = tails[state.number] > taken.end and state.positions[key].epoch >= taken.epoch
        if more and _follows(state, taken):
            why = f"tainted above offset {taken.end}: {state.taints[key].reason}"
            taken.add_generation(state, parts[state.number], tails[state.number], why)
            break
    # Of cut-off records only those that the log kept; a generation that was already used has no more.
    kept = {g.number: _kept(g, key, tails[g.number]) for g in tainted}
    for state in sorted(tainted, key=lambda g: (not _goes_on(g, taken), -kept[g.number])):
        reason, reach = state.taints[key].reason, kept[state.number]
        if reach <= taken.end or state.positions[key].epoch < taken.epoch:
            continue
        if _goes_on(state, taken):
            why = f"from offset {taken.end} on only generation {state.number} has it, which is tainted: {reason}"
            taken.add_generation(state, parts[state.number], reach, why)
        else:
            taken.warnings.append(
                f"generation {state.number}, tainted ({reason}), read up to offset {reach}; what it has from "
                f"{taken.end} on is left out, as it may not go on from there: "
                f"`--generation {state.number}` restores its own copy"
            )


def _kept(state: Generation, key: PartitionKey, reach: int) -> int:
    """Return the offset up to which the log kept what a tainted generation read up to `reach`, as far as is known."""
    cut_at = state.taints[key].cut_at
    return reach if cut_at is None else min(reach, cut_at)


def _follows(state: Generation, taken: _SelectedRecords) -> bool:
    """Whether a generation's records above `taken.end` may follow: they are its own, or were not scanned.

    A scan lacks superseded records, and tombstones that were removed by then: appended to another generation's records
    it would bring back keys that neither copy has.
    """
    return taken.used == [state.number] or state.told_from(taken.key) <= taken.end


def _goes_on(state: Generation, taken: _SelectedRecords) -> bool:
    """Whether the tail of a tainted generation continued to read the log that was read up to `taken.end`.

    It did if all its records since its taint are of that one epoch: an epoch has one leader, whose log only grows.
    """
    there = state.positions[taken.key]
    return state.sound_epoch(taken.key) == there.epoch == taken.epoch and state.told_from(taken.key) <= taken.end


def parts_by_key(state: Generation) -> Parts:
    """Return the live parts of each partition, with their objects, in commit order."""
    found: Parts = {}
    for item, part in state.live_parts():
        found.setdefault(part.key, []).append((item, part))
    return found


def slices_of(state: Generation, parts: Iterable[tuple[StoredObject, Part]], low: int, high: int) -> list[Slice]:
    """Return the slices of these parts of a generation within the offsets [low, high), in the order of the parts."""
    return [
        Slice(generation=state.number, opening=state.opening, item=item, part=part, low=low, high=high)
        for item, part in parts
        if part.first < high and part.last >= low
    ]
