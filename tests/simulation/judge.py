"""The judge: after every change in the store, a restore decided and read from the store alone, held against the truth.

What is demanded once a generation is COMPLETE (docs/protocol.md has the argument):

* every partition that was ever confirmed can be restored up to where it was confirmed, from objects that are there;
* what is restored is exactly what the log held: for each key the newest record below the end of the restore, nothing
  lost, nothing stale, nothing that was aborted, nothing of two histories mixed, nothing twice;
* what the cluster no longer has (deleted or recreated topics, records that an unclean election cut off) stays in some
  complete generation, until a person releases it.

What is demanded of checkpoints, of readers' pins and of earlier moments is in `cuts`, `readings` and `moments`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from simulation.comparing import ViolationError, compare, restored
from simulation.cuts import SETTLING_S, Cuts, reader_of
from simulation.erasing import Erasures
from simulation.kafka import decode, encode
from simulation.log import Cluster, Partition, Record
from simulation.moments import Moments
from simulation.readings import Readings
from simulation.store import Bucket, Store
from simulation.vanishing import Vanishing
from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import Part, PartitionKey, StoredObject
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.documents.release import Release, decode_release
from tandem.backup_avro.errors import DamagedError, RefusedError
from tandem.backup_avro.record.varint import decode_long
from tandem.backup_avro.selection.one_history import select_one_history
from tandem.backup_avro.selection.restorable_state import PartitionSelection, Selection, Slice, select
from tandem.sink.store.chain import pins
from tandem.sink.store.chain.chain_reader import ChainReader

_SYNC = 16
_ANY = -1
_ALL = 1 << 62


class _Stored(NamedTuple):
    """What a part of an object holds, as its bytes have it, and the lowest and highest offset of that."""

    records: list[Record]
    lowest: int
    highest: int


@dataclass(slots=True)
class Judge:
    """Keeps what was ever confirmed, and checks."""

    cluster: Cluster
    bucket: Bucket
    pair: str
    reader: ChainReader = field(init=False)
    cuts: Cuts = field(init=False)
    readings: Readings = field(init=False)
    moments: Moments = field(init=False)
    vanishing: Vanishing = field(init=False)
    erasures: Erasures = field(init=False)
    releases: list[tuple[Release, float]] = field(default_factory=list)
    window_ms: int = 0
    """What instances promise (`recovery.window`)."""
    first_complete_at: int | None = None
    """When a generation was complete for the first time, by the store's clock."""
    clock_set_at: int = 0
    """What the store's clock showed when it was last set."""
    pauses: int = 0
    """How often a person asked for a pause or ended one."""
    done: dict[str, int] = field(default_factory=dict)
    """What commands said that they did, and how often."""
    confirmed: dict[PartitionKey, int] = field(default_factory=dict)
    cut_off: dict[PartitionKey, dict[Record, bool]] = field(default_factory=dict)
    checks: int = 0
    restored_records: int = 0
    completes: set[int] = field(default_factory=set)
    _decoded: dict[tuple[str, int], _Stored] = field(default_factory=dict)
    _judged: dict[PartitionKey, object] = field(default_factory=dict)
    _confirmed_at: dict[int, int] = field(default_factory=dict)
    _unread: bool = True
    """Whether a claim or a chain changed since they were read."""
    _grown: list[int] = field(default_factory=list)
    """Which chains got an entry since then, one number for each; _ANY for whatever else changed."""
    robbed: int | None = None
    """A generation of which somebody took objects away; all before it are there."""
    _heads: list[tuple[int, int]] = field(default_factory=list)
    _selection: Selection | None = None
    _former: set[tuple[int, PartitionKey]] = field(default_factory=set)
    """The generations that had read beyond what volumes were put back to."""
    _beyond: dict[PartitionKey, int] = field(default_factory=dict)
    """Up to where generations confirmed a partition that no release names."""

    def __post_init__(self) -> None:
        """Read without a network."""
        self.reader = reader_of(self.bucket, self.pair)
        self.erasures = Erasures(self.cluster, self.states, self._held)
        self.cuts = Cuts(
            self.cluster, self.bucket, self.reader, self.states, self._decode, self.erasures.took_the_place_of
        )
        self.readings = Readings(self.bucket, self.pair)
        self.vanishing = Vanishing(self.cluster, self._held)
        self.moments = Moments(
            self.bucket,
            self.pair,
            self._records,
            self._newest_first,
            self._as_of,
            self.cluster.exists,
            lambda key: {*self.vanishing.taken(key), *self.erasures.erased(key)},
        )

    def states(self) -> list[Generation]:
        """All chains as they are now, wholly cleared ones too."""
        if self._unread:
            try:
                if not self._follow():
                    self.reader.refresh()
            except DamagedError as error:
                raise ViolationError(f"a chain breaks its rules: {error}") from error
            self._unread = False
        return self.reader.history()

    def _follow(self) -> bool:
        """Read on where one chain grew by one entry, as nearly always; return whether that was all there is to read."""
        grown, self._grown = self._grown, []
        if len(grown) != 1:
            return False
        state = next((state for state in self.reader.history() if state.number == grown[0]), None)
        return state is not None and not state.gone and self.reader.follow(state)

    def cut(self, partition: Partition, lost: list[Record]) -> None:
        """An election or a snapshot took `lost` from a log: what was confirmed of it must stay somewhere."""
        key = PartitionKey(partition.topic_id, partition.number)
        for offsets in (self.confirmed, self._beyond):
            if lost and lost[0].offset < offsets.get(key, 0):
                offsets[key] = lost[0].offset
        if partition.set_back_to:
            self._set_back(partition, key)
        watched = self.cut_off.setdefault(key, {})
        for record in lost:
            if not record.control and record.txn not in partition.aborted and record not in partition.vanished:
                watched[record._replace(txn=0)] = False
        self._judged.pop(key, None)

    def _set_back(self, partition: Partition, key: PartitionKey) -> None:
        """Who had read beyond what volumes were put back to knows only about where: it confirms nothing any more.

        What others have confirmed stays owed, and what is lost is watched record by record.
        """
        at = partition.set_back_to[-1]
        has = [state for state in self.states() if key in state.positions]
        self._former |= {(state.number, key) for state in has if state.positions[key].offset > at}
        self._owe_what_others_have(key, has)

    def _owe_what_others_have(self, key: PartitionKey, has: list[Generation]) -> None:
        still = [self._sound(state, key) for state in has if key in state.positions and state.usable(key)]
        for offsets in (self.confirmed, self._beyond):
            if key in offsets:
                offsets[key] = min(offsets[key], max(still, default=0))

    def _look_for_former(self, state: Generation, live: list[Generation]) -> None:
        """Whose tail was stopped by what it compared is not sure of where it was stopped."""
        for key, taint in state.taints.items():
            named = (state.number, key)
            if taint.cut_at is not None and named not in self._former and self._log(key).set_back_to:
                self._former.add(named)
                self._owe_what_others_have(key, live)

    def _log(self, key: PartitionKey) -> Partition:
        return self.cluster.partitions[key.topic_id, key.partition]

    def tick(self) -> None:
        """Look at the store's clock; called before and after it steps, so that nothing that it passed is missed."""
        self.cuts.tick()
        self.readings.tick()

    def noticed(self, what: str, key: str) -> None:
        """Take in a change of the store. Raises ViolationError."""
        self.tick()
        if key.startswith(layout.claims_prefix(self.pair)):
            self._unread = True
            folder, _, entry = key.removeprefix(layout.claims_prefix(self.pair)).partition("/")
            self._grown.append(int(folder) if what == "put" and entry else _ANY)
        self.readings.noticed(what, key)
        self.cuts.noticed(what, key)
        if what == "put" and key.startswith(f"{self.pair}/pauses/"):
            self.pauses += 1
        if what == "put" and key.startswith(f"{self.pair}/releases/"):
            self._release(decode_release(self.bucket.objects[key], key))

    def _release(self, release: Release) -> None:
        """From now on these copies may go: what no later generation has of them is owed no more."""
        before = {key: self._let_go(key) for key in self.confirmed.keys() | self.cut_off.keys()}
        self.releases.append((release, self.bucket.runtime.now))
        later = [s for s in self.states() if s.complete and not s.gone and s.number > release.through]
        for key, through in before.items():
            if self._let_go(key) == through:
                continue
            owed = [self._sound(state, key) for state in later if key in state.positions and state.usable(key)]
            self._beyond[key] = max(owed, default=0)
            watched = self.cut_off.get(key, {})
            held = {record for state in later if state.usable(key) for record in self._held(state, key)}
            self.vanishing.released(key, held)
            watched.update(dict.fromkeys(watched.keys() - held, False))

    def _let_go(self, key: PartitionKey) -> int:
        """Up to which generation some release names a partition, 0 if none does."""
        return max((one.through for one, _ in self.releases if one.names(one.through, key)), default=0)

    def _owed(self, key: PartitionKey, confirmed: int) -> int:
        """Up to where a partition must be restorable. A release counts only for what the cluster no longer has."""
        if self.releases and self._let_go(key) and not self.cluster.exists(key.topic_id):
            return self._beyond.get(key, 0)
        return confirmed

    def counts(self) -> dict[str, int]:
        """Return how often what was asked for by a person."""
        self.vanishing.end()
        return (
            self.cuts.counts
            | self.readings.counts
            | self.moments.counts
            | self.vanishing.counts
            | self.erasures.counts
            | {"release": len(self.releases), "maintenance": self.pauses}
            | self.done
        )

    def count(self, done: Mapping[str, int]) -> None:
        """Take in what a command says that it did."""
        for what, times in done.items():
            self.done[what] = self.done.get(what, 0) + times

    def held(self) -> Callable[[int], bool]:
        """Return what says whether a pin keeps a generation, or did until a short while ago."""
        present = pins.list_pins(Store(self.bucket, None), self.pair)
        self.cuts.settled(present)
        ago = self.bucket.now_ms() - round(SETTLING_S * 1000)
        before = self.bucket.runtime.now - SETTLING_S
        return lambda number: (
            any(pin.holds(number, ago) for pin in present) or self.readings.freed.get(number, 0.0) >= before
        )

    def old_releases(self) -> list[Release]:
        """Return the releases that have been there for long enough to be acted upon."""
        return [release for release, at in self.releases if at < self.bucket.runtime.now - SETTLING_S]

    def check(self) -> None:
        """Judge the store as it is."""
        states = self.states()
        if self.robbed is not None and not any(s.complete and s.number > self.robbed for s in states):
            # What was taken away nobody can restore; all the more must the older copies stay.
            let_go = [s.number for s in states if s.number < self.robbed and (s.clearing or s.cleared)]
            if let_go:
                raise ViolationError(f"generations {let_go} are let go of, and {self.robbed} has lost objects")
            return
        complete = [state for state in states if state.complete]
        if not complete:
            return
        self.checks += 1
        self._cleared_for_nothing(states)
        self.completes |= {state.number for state in complete}
        live = [state for state in complete if not state.gone]
        self._confirm(live)
        self._restorable_within_the_window(complete)
        try:
            selection = self._select(live)
        except RefusedError as error:
            raise ViolationError(f"nothing can be restored: {error}") from error
        chosen = {piece.key: piece for piece in selection.partitions}
        for key, confirmed in self.confirmed.items():
            offset = self._owed(key, confirmed)
            if offset:
                self._partition(key, offset, chosen.get(key), selection, live)
        self._kept_what_was_cut(live)
        self.vanishing.check(states, self._let_go)
        self.cuts.check(states)
        if self.robbed is None:  # a moment of what was taken away is no state any more
            self.moments.check(states)

    def _select(self, live: list[Generation]) -> Selection:
        """Select the newest state; once for as long as no chain has grown."""
        heads = [(state.number, state.seq) for state in live]
        if heads != self._heads or self._selection is None:
            self._heads = heads
            self._selection = select_one_history(
                live, lambda states: select(states, removed=True), self._newest_first, number=None
            )
        return self._selection

    def _newest_first(self, piece: Slice) -> Iterator[tuple[int, bytes]]:
        """Yield what a restore compares of a slice."""
        for record in reversed(self._stored(piece.item, piece.part).records):
            if piece.low <= record.offset < piece.high:
                yield record.offset, encode([record])

    @staticmethod
    def _cleared_for_nothing(states: list[Generation]) -> None:
        """What lets nothing more of a generation go than before is an entry for ever, and comes again at each look."""
        for state in states:
            if state.clearing is not None and state.clearing == state.cleared:
                raise ViolationError(f"generation {state.number} is cleared again, and nothing more of it goes")

    def _restorable_within_the_window(self, complete: list[Generation]) -> None:
        """The moment that lies `window_ms` back can be restored, if a generation was complete by then."""
        now = self.bucket.now_ms()
        if self.first_complete_at is None:
            self.first_complete_at = min(state.completed_at or now for state in complete)
        moment = now - self.window_ms
        # A clock that was set is no measure of what has passed, and nothing is promised of what was stolen.
        if not self.window_ms or self.robbed or moment < max(self.first_complete_at, self.clock_set_at):
            return
        if not any(
            state.clearing is None
            and state.cleared is None
            and _first_moment(state, now) <= moment
            and (state.sealed_at is None or state.sealed_at >= moment)
            for state in complete
        ):
            raise ViolationError(f"of {moment}, {self.window_ms} ms ago, nothing is left that could be restored")

    def _confirm(self, live: list[Generation]) -> None:
        for state in live:
            if self._confirmed_at.get(state.number) == state.seq:
                continue
            self._confirmed_at[state.number] = state.seq
            self._look_for_former(state, live)
            for key in state.positions:
                if state.usable(key):
                    offset = self._sound(state, key)
                    self.confirmed[key] = max(self.confirmed.get(key, 0), offset)
                    if state.number > self._let_go(key):
                        self._beyond[key] = max(self._beyond.get(key, 0), offset)
            for key, watched in self.cut_off.items():
                named = state.number <= self._let_go(key)
                if state.usable(key) and not named and not all(watched.values()):
                    for record in self._held(state, key):
                        if record in watched:
                            watched[record] = True

    def _sound(self, state: Generation, key: PartitionKey) -> int:
        """Up to where a generation confirms a partition: nothing if it is in doubt from its log's start on."""
        taint = state.taints.get(key)
        if taint is not None and taint.offset <= state.positions[key].log_start:
            return 0
        return min(state.sound_offset(key), self._reach_of(key, state, state.positions[key].epoch))

    def _reach_of(self, key: PartitionKey, state: Generation, epoch: int) -> int:
        """Up to where what a generation holds is of the present history: cut-off records are watched one by one."""
        partition = self.cluster.partitions[key.topic_id, key.partition]
        if len(partition.lineages) == 1:
            return _ALL
        _, end = partition.end_of_epoch(epoch)
        return min(state.positions[key].offset, end, self._present(key, partition, state))

    def _present(self, key: PartitionKey, partition: Partition, state: Generation) -> int:
        """All, if a generation is of the history that the present volumes have: neither offset nor epoch tell."""
        if not partition.set_back_to:
            return _ALL
        now = partition.lineages[-1]
        another = (state.number, key) in self._former or any(
            record.offset >= len(now) or now[record.offset]._replace(txn=0) != record
            for record in self._held(state, key)
        )
        return 0 if another else _ALL

    def _known_up_to(self, key: PartitionKey, partition: Partition, state: Generation) -> int:
        """All, or from where on a generation can't tell its records from others that volumes had been put back to.

        It knows no more than the hashes that it keeps: below the place of the cut the last of them decides (seed
        15888).
        """
        taint = state.taints.get(key)
        if taint is None or taint.cut_at is None or not partition.set_back_to:
            return _ALL
        cut = min(partition.set_back_to)
        return max((kept.offset + 1 for kept in state.positions[key].hashes if kept.offset < cut), default=0)

    def _partition(
        self,
        key: PartitionKey,
        offset: int,
        piece: PartitionSelection | None,
        selection: Selection,
        live: list[Generation],
    ) -> None:
        partition = self.cluster.partitions[key.topic_id, key.partition]
        name = f"{key.topic_id[-2:]}-{key.partition}"
        if piece is None:
            holders = [s for s in live if key in s.positions and s.usable(key) and s.sound_offset(key) >= offset]
            if not holders:
                raise ViolationError(f"{name} was confirmed up to {offset} and is in no complete generation any more")
            if not self._may_lack(key, selection, live):
                raise ViolationError(f"{name} was confirmed up to {offset} and is not restored: {selection.incomplete}")
            for state in holders:
                self._read(state, key)
            return
        used = [s for s in live if s.number in piece.generations]
        if piece.sound < min(offset, *(self._known_up_to(key, partition, state) for state in used)):
            raise ViolationError(f"{name} was confirmed up to {offset}, the restore is in doubt from {piece.sound} on")
        epochs = {s.positions[key].epoch for s in used}
        like = [s for s in live if s.usable(key) and key not in s.taints and {s.positions[key].epoch} == epochs]
        known = max(s.positions[key].log_start for s in (*used, *like))
        # After an accident on a topic that only compacts, a copy that has what vanished rightly gives it.
        if piece.log_start < known and len(partition.lineages) == 1 and not partition.vanished:
            raise ViolationError(f"{name} would be restored from {piece.log_start} on, but the log began at {known}")
        mark = (
            piece.end,
            piece.generations,
            piece.warning,
            tuple(s.part.scan for s in piece.slices),
            len(partition.lineages),
        )
        for piece_slice in piece.slices:
            if piece_slice.item.key not in self.bucket.objects:
                raise ViolationError(f"{name}: {piece_slice.item.key} is selected, but deleted")
        if self._judged.get(key) == (mark, partition.start):
            return
        self._judged[key] = (mark, partition.start)
        self._content(name, partition, piece)

    def _may_lack(self, key: PartitionKey, selection: Selection, live: list[Generation]) -> bool:
        """Whether another life of the topic has its name, so that only one of the two can be restored."""
        names = {piece.topic.name for piece in selection.partitions}
        return any(key.topic_id in s.topics and s.topics[key.topic_id].name in names for s in live)

    def _as_of(self, key: PartitionKey, piece: PartitionSelection, *, present: bool = False) -> None:
        partition = self.cluster.partitions[key.topic_id, key.partition]
        self._content(f"{key.topic_id[-2:]}-{key.partition}", partition, piece, present=present)

    def _records(self, piece: PartitionSelection) -> list[Record]:
        records: list[Record] = []
        for piece_slice in piece.slices:
            stored = self._stored(piece_slice.item, piece_slice.part)
            low, high = piece_slice.low, piece_slice.high
            whole = low <= stored.lowest and stored.highest < high
            records += stored.records if whole else [r for r in stored.records if low <= r.offset < high]
        return records

    def check_present_logs(self) -> None:
        """After all trouble a restore gives what the logs are now, and not what they were before volumes were set back.

        Until then the copy of a former log may be the only one that reaches as far. What a log has lost at its end
        belongs to the restored state as long as nothing was written since.
        """
        live = [state for state in self.states() if state.complete and not state.gone]
        for piece in self._select(live).partitions:
            if self.cluster.exists(piece.key.topic_id):
                self._as_of(piece.key, piece, present=True)

    def _content(self, name: str, partition: Partition, piece: PartitionSelection, *, present: bool = False) -> None:
        records = self._records(piece)
        self.restored_records += len(records)
        found = replace(
            restored(name, records, upto=piece.sound, log_start=piece.log_start), joined=len(piece.generations) > 1
        )
        (first,) = (state for state in self.states() if state.number == piece.generations[0])
        tail_from = first.positions[piece.key].base.end

        def may_lack(record: Record) -> bool:
            return partition.passed_over(record, tail_from)

        now = partition.lineages[-1]
        lineages = partition.lineages
        if present:
            lineages = [one for one in lineages if one is now or (found.upto > len(now) and one[: len(now)] == now)]
        problems = [compare(partition, lineage, found, may_lack=may_lack) for lineage in lineages]
        if all(problems):
            raise ViolationError(
                f"{name} restored up to {found.upto} from generations {piece.generations}: {problems[-1]}"
            )
        for record in records:
            if record.offset >= found.upto and not partition.ever_held(record):
                raise ViolationError(f"{name}: {record}, which is in doubt, was never in the log")

    def _kept_what_was_cut(self, live: list[Generation]) -> None:
        for key, watched in self.cut_off.items():
            if not any(watched.values()):
                continue
            newest: dict[int, Record] = {}
            for record, confirmed in watched.items():
                if confirmed and (record.key not in newest or newest[record.key].offset < record.offset):
                    newest[record.key] = record
            holders = [state for state in live if key in state.positions and state.usable(key)]
            held = {state.number: self._held(state, key) for state in holders}
            missing = set(newest.values()).difference(*held.values())
            missing -= {one for one in missing for state in holders if self._swept(one, key, state, held[state.number])}
            missing -= {one for one in missing if one.offset < self._expired_below(key)}
            missing -= {one for one in missing if one.key in self.erasures.erased(key)}
            if missing:
                raise ViolationError(f"confirmed records that were cut off are in no generation any more: {missing}")

    def _expired_below(self, key: PartitionKey) -> int:
        """Up to where a policy has deleted what the log held, in whatever history; 0 for a topic that only compacts."""
        topic = next((one for one in self.cluster.topics.values() if one.topic_id == key.topic_id), None)
        deletes = topic is not None and "delete" in topic.policies
        return self.cluster.partitions[key.topic_id, key.partition].start if deletes else 0

    def _swept(self, record: Record, key: PartitionKey, state: Generation, held: list[Record]) -> bool:
        """Whether a generation of the history that was cut off has let a tombstone go, after all that it deletes."""
        epoch = state.positions[key].epoch
        _, end = self._log(key).end_of_epoch(epoch)
        if (state.number, key) in self._former:
            end = min(end, *self._log(key).set_back_to)
        return (
            record.value is None
            and end <= record.offset < state.horizons.get(key, 0)
            and record.epoch <= epoch
            and not any(one.key == record.key and one.offset <= record.offset for one in held)
        )

    def _held(self, state: Generation, key: PartitionKey) -> list[Record]:
        return [record for item, part in state.live_parts() if part.key == key for record in self._decode(item, part)]

    def _read(self, state: Generation, key: PartitionKey) -> None:
        for item, part in state.live_parts():
            if part.key == key and item.key not in self.bucket.objects:
                raise ViolationError(f"{item.key} holds the last of {key} and is deleted")

    def _decode(self, item: StoredObject, part: Part) -> list[Record]:
        return self._stored(item, part).records

    def _stored(self, item: StoredObject, part: Part) -> _Stored:
        stored = self._decoded.get((item.key, part.start))
        if stored is None:
            body = self.bucket.objects.get(item.key)
            if body is None:
                raise ViolationError(f"{item.key} is in the chain, but deleted")
            found: list[Record] = []
            at = part.start
            while at < part.end:
                count, at = decode_long(body, at)
                size, at = decode_long(body, at)
                block = decode(body[at : at + size])
                if len(block) != count:
                    raise ViolationError(f"{item.key}: a block of {len(block)} records says {count}")
                found += block
                at += size + _SYNC
            if len(found) != part.records:
                raise ViolationError(f"{item.key}: {len(found)} records, the chain says {part.records}")
            offsets = [record.offset for record in found]
            stored = _Stored(found, min(offsets, default=0), max(offsets, default=0))
            self._decoded[item.key, part.start] = stored
        return stored


def _first_moment(state: Generation, otherwise: int) -> int:
    """Return the time of the first entry from which on a complete generation has every record that it read."""
    first = max(state.completed_seq or 0, state.horizon_seq)
    return next((moment.at for moment in state.moments if moment.seq >= first), otherwise)
