"""The slow work of an instance: one function per action, which `TaskBoard` runs.

Every action is idempotent: if its effect is already there, it succeeds. `TaskBoard` keeps an action marked as under way
until the chains have been read again after it ended, so that no tick decides on an old view.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import structlog

from tandem.backup_avro.chain.entries import Clearing, Opening, Part, PartitionKey, Taint
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.chain.heads import Head
from tandem.backup_avro.documents.coordination_message import CoordinationEvent
from tandem.backup_avro.documents.release import released
from tandem.backup_avro.errors import TransientError, bare
from tandem.backup_avro.selection import completion, coverage, losses
from tandem.backup_avro.selection.completion import NO_EARLIER, EarlierPositions, Shortfall
from tandem.backup_avro.selection.coverage import Cover, GuardedPartitions
from tandem.backup_avro.selection.vanished_keys import known_compaction
from tandem.controller.coordination.heartbeat import head_fields
from tandem.controller.decision.pair_rules import active_of
from tandem.controller.instance.history_proof import HistoryProver, NotProvenError, cut_taint
from tandem.controller.instance.task_board import InUseError
from tandem.controller.watch.guarded_cluster import GuardedCluster, as_guarded
from tandem.sink.encryption.key_ring import keys_of
from tandem.sink.encryption.record_keys import RecordKeys
from tandem.sink.read.log_identity import RewrittenRecord
from tandem.sink.read.reader_context import FetchSource
from tandem.sink.store.chain import chain_writer
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.chain_writer import ChainWriter, HolderLostError, Identity
from tandem.sink.store.chain.releases import ReleaseReader
from tandem.sink.store.contract.object_store import ObjectStore
from tandem.sink.write.clear_generation import clear_generation
from tandem.sink.write.commit import complete_entry, sealed_entry, tainted_entry, takeover_entry
from tandem.sink.write.compare_copies import CopyComparison
from tandem.sink.write.confirm import (
    CoverLostError,
    ObjectLoss,
    ObjectLostError,
    ReadBack,
    confirm_objects,
    lost_objects,
    needed_part,
)
from tandem.sink.write.vanished_keys_check import VanishedKeysCheck

_LOG = structlog.get_logger()
_MARKED_WITHIN_S = 60.0
"""Seconds that the holder of a copy of another history has to mark it. One that reads notices within a few."""
_LITTLE = 256 << 20
"""Bytes that may be read back while commits wait, which takes a few seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPolicy:
    """Settings of the tasks: whether stored objects are read back, and whether keys are compared before clearing.

    `guard_bytes` is the memory for the keys that are compared.
    """

    read_back: bool
    guard_keys: bool = True
    guard_bytes: int = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unmarked:
    """A copy of another history that is not marked, as of the last times at which its holder was at the logs' ends."""

    heads: Mapping[PartitionKey, int]
    since_mono: float


Publish = Callable[..., None]
_Covers: TypeAlias = Mapping[int, Sequence[PartitionKey]]
"""Partitions to clear, by the number of the newest generation that covers them (`coverage.newest_covers`)."""


class InstanceTasks:
    """The slow actions of an instance. `writers` are those of the generations that this incarnation holds."""

    def __init__(
        self,
        *,
        store: ObjectStore,
        cluster: GuardedCluster,
        open_source: Callable[[], FetchSource],
        identity: Identity,
        opening: Callable[[bytes], Opening],
        policy: TaskPolicy,
        publish: Publish,
        stop: threading.Event,
        before_seal: Callable[[ChainWriter, GuardedPartitions | None], None] = lambda writer, guarded: None,  # noqa: ARG005
    ) -> None:
        self._store = store
        self._cluster = cluster
        self._prover = HistoryProver(cluster, open_source, RecordKeys(keys_of(store)))
        self._identity = identity
        self._opening = opening
        self._copies = CopyComparison(store, stop=stop)
        self._read_back = policy.read_back
        self._guard = VanishedKeysCheck(store, stop=stop, most_bytes=policy.guard_bytes) if policy.guard_keys else None
        self._done_reading: dict[int, ReadBack] = {}
        self._publish = publish
        self._stop = stop
        self._before_seal = before_seal
        self._chains = self._reader()
        self._chains_lock = threading.Lock()
        self.writers: dict[int, ChainWriter] = {}
        self._uncovered: dict[int, CoverLostError] = {}
        self._vanished: dict[int, Mapping[PartitionKey, str]] = {}
        self._unmarked: dict[int, _Unmarked] = {}

    @property
    def uncovered(self) -> dict[int, CoverLostError]:
        """The own generations that are kept because a generation that covers them has lost objects; for any thread."""
        return dict(self._uncovered)

    @property
    def guards_keys(self) -> bool:
        """Whether keys are compared at all."""
        return self._guard is not None

    @property
    def vanished(self) -> dict[int, Mapping[PartitionKey, str]]:
        """What was found by `compare`, by generation: partitions that lost keys, with reasons; for any thread."""
        return dict(self._vanished)

    def _generations(self) -> list[Generation]:
        """Return all generations as they are now. Reads only the new entries: chains grow by an entry a minute."""
        with self._chains_lock:
            live = [state.frozen_copy() for state in self._chains.refresh(tolerant=True)]
            self._chains.forget_ended()
            return live

    def _guarded(self, generations: Iterable[Generation]) -> GuardedPartitions:
        """Ask the brokers for the guarded partitions; return them with all that `generations` have read of the topics.

        Raises errors of the brokers.
        """
        known = list(generations)
        return as_guarded(self._identity.cluster_id, self._cluster.guarded(), known).with_all_of(known)

    def _reader(self) -> ChainReader:
        return ChainReader(self._store, self._identity.pair)

    def claim(self, number: int, reason: str, earlier: Sequence[Generation] = ()) -> None:
        """Claim and open generation `number`, which remembers what `earlier` ones tell of policies.

        But what a person released is not remembered: a policy that deletes is meant there. Raises the store's errors.
        """
        known = known_compaction(earlier)
        newest = max((state.number for state in earlier), default=0)
        if any(seen_by < newest for _, seen_by in known.values()):
            let_go = ReleaseReader(self._store, self._identity.pair).refresh(tolerant=True)
            known = {key: since for key, since in known.items() if not any(r.names(since[1], key) for r in let_go)}
        writer = chain_writer.claim(
            self._store,
            self._identity,
            number,
            opening=replace(self._opening(secrets.token_bytes(16)), compacted_from=known),
            reason=reason,
            stop=self._stop,
        )
        # If the store's answer was late, the watch has seen the claim already, and the generation is being read.
        self.writers.setdefault(number, writer)
        _LOG.info("claimed", generation=number, reason=reason)
        self._publish(CoordinationEvent.CATCHING_UP, generation=number, reason=reason)

    def take_over(self, number: int) -> None:
        """Append TAKEOVER to the chain of a generation that an earlier incarnation of this instance left."""
        writer = self._load(number)
        if writer.state.holder != self._identity.incarnation:
            writer.append(takeover_entry("restart"))
            _LOG.info("took over", generation=number, seq=writer.state.seq)
        self.writers[number] = writer

    def reload(self, number: int) -> ChainWriter:
        """Return a fresh writer after a failure; HolderLostError if another incarnation holds the chain now."""
        writer = self._load(number)
        if writer.state.holder != self._identity.incarnation:
            raise HolderLostError(
                f"generation {number}: incarnation {writer.state.holder} has taken the chain over", code="TDM-I020"
            )
        self.writers[number] = writer
        return writer

    def _writer(self, number: int, generations: list[Generation]) -> ChainWriter:
        """Return the writer of a generation without a pipeline, on a state at least as new as in `generations`.

        A decision on an older state would be wrong: another writer of this process may have appended since.
        """
        writer = self.writers.get(number)
        read = next((g.seq for g in generations if g.number == number), 0)
        return self.reload(number) if writer is None or writer.in_doubt or writer.state.seq < read else writer

    def _load(self, number: int) -> ChainWriter:
        return ChainWriter(self._store, self._reader().load(number), self._identity.incarnation, stop=self._stop)

    def prove_cuts(self, number: int, earlier: EarlierPositions = NO_EARLIER) -> frozenset[Shortfall]:
        """Return the shortfalls of generation `number` against another one that truncated logs explain.

        The brokers prove that `number` has all that the log has. The proof stays valid: a log does not get back the
        records that an election cut off. Raises NotProvenError if a shortfall is none of that kind or can't be proven
        now, and errors of the brokers.
        """
        generations = self._generations()
        mine = next((g for g in generations if g.number == number), None)
        if mine is None:
            return frozenset()
        guarded = self._guarded(generations)
        found = completion.shortfalls(mine, generations, guarded, earlier)
        for other in generations:
            self._prover.cut_off(other, mine, [short.key for short in found if short.generation == other.number])
        self._refuse_another_history(generations, found)
        return frozenset(found)

    def _refuse_another_history(self, generations: Iterable[Generation], found: Iterable[Shortfall]) -> None:
        """Raise NotProvenError if a generation with a higher position read other records and is not yet tainted.

        Its holder is about to append that taint. If it has done nothing for a minute, it is appended here: the holder
        may be gone for good. A sealed generation takes no more taints and is not compared: a restore joins two
        generations only at a record that both hold, so the sealed one's records stay apart.
        """
        for other in generations:
            above = {short.key: short.offset for short in found if short.generation == other.number}
            rewritten = self._prover.compare(other, above) if above and not other.sealed else {}
            if not rewritten:
                self._unmarked.pop(other.number, None)
                continue
            self._mark_in_time(other, rewritten)
            key, first = min(rewritten.items())
            raise NotProvenError(
                f"generation {other.number} has read another history of {other.name_of(key)} and does not say so yet: "
                f"{first.reason}",
                code="TDM-I021",
                remedy=f"wait, it is marked within a minute; or start {other.instance}, which marks it",
            )

    def _mark_in_time(self, other: Generation, rewritten: Mapping[PartitionKey, RewrittenRecord]) -> None:
        """Append the taints that the holder of a COMPLETE generation has not appended within a minute.

        A holder that still finds one of these logs at its end is at work, with a leader that tells it something else:
        the minute begins again. Raises ChainError if it has sealed the generation meanwhile.
        """
        heads = {key: other.head_at(key) for key in rewritten}
        waits = self._unmarked.get(other.number)
        if waits is None or waits.heads != heads:
            waits = self._unmarked[other.number] = _Unmarked(heads=heads, since_mono=time.monotonic())
        if time.monotonic() < waits.since_mono + _MARKED_WITHIN_S:
            return
        taints = tuple(cut_taint(other, key, why.reason, cut_at=why.cut_at) for key, why in sorted(rewritten.items()))
        self._load(other.number).append(tainted_entry(taints))
        _LOG.error(
            "marked a copy of another history in place of its holder",
            generation=other.number,
            instance=other.instance,
            partitions=len(taints),
            first=other.name_of(taints[0].key),
            why=taints[0].reason,
            remedy=f"start {other.instance}; `tandem release` lets the records go when they are not needed any more",
        )

    def read_on(self) -> None:
        """Read all chains up to their heads. The last read may be a week old.

        `complete`, which keeps commits waiting, then reads only the entries that came since. Raises errors of the
        store.
        """
        self._generations()

    def read_back(self, number: int) -> None:
        """Read back the objects of generation `number`, until at most 256 MiB are left, for which commits may wait.

        Does nothing for a store that checks checksums itself. `complete` reports objects with wrong bytes. Raises the
        store's errors; objects that were read until then are not read again.
        """
        if not self._read_back:
            return
        done = self._done_reading.setdefault(number, ReadBack(self._store))
        before = None
        while not self._stop.is_set():
            mine = next((g for g in self._generations() if g.number == number), None)
            items = [] if mine is None else done.not_read_back(mine)
            size = sum(item.bytes for item in items)
            # Less is stored during each pass, unless the store is slower than the log, or stored bytes are wrong.
            if size <= _LITTLE or (before is not None and size > before / 2):
                return
            _LOG.info("reading back what was stored", generation=number, objects=len(items), bytes=size)
            done.ahead(items, self._stop)
            before = size

    def complete(
        self,
        writer: ChainWriter,
        cut: frozenset[Shortfall] = frozenset(),
        earlier: EarlierPositions = NO_EARLIER,
    ) -> None:
        """Append COMPLETE if no obstacle is left, after topics were listed and all chains read once more.

        Runs between two commits, so that the chain does not grow meanwhile. `cut` is the result of `prove_cuts`,
        `earlier` what the others had a little earlier. If an object is lost, the generation is tainted instead.
        """
        mine = writer.state
        if mine.complete:
            return
        # Read after the last commit of this generation, so that none that became COMPLETE meanwhile is missed. It must
        # not take long, because this generation can't commit meanwhile; so only new entries of the chains are read.
        others = [g for g in self._generations() if g.number != mine.number]
        guarded = self._guarded([mine, *others])
        found = completion.obstacles(mine, others, guarded, cut, earlier)
        if found:
            _LOG.info("not complete yet", generation=mine.number, obstacles=len(found), first=found[0])
            return
        try:
            count = confirm_objects(
                self._store, mine, read_back=self._read_back, done=self._done_reading.get(mine.number)
            )
        except ObjectLostError as error:
            # Every try would fail, and no other generation is built as long as this one may become COMPLETE.
            _LOG.error("can't become complete, another generation is needed", generation=mine.number, error=error)
            writer.append(tainted_entry(_taints(mine, ((part, str(error.args[0])) for part in error.item.parts))))
            return
        self._done_reading.pop(mine.number, None)
        writer.append(complete_entry(f"{len(mine.positions)} partitions read through, {count} objects confirmed"))
        _LOG.info("complete", generation=mine.number, partitions=len(mine.positions), objects=count)
        self._publish(CoordinationEvent.COMPLETE, **head_fields(Head.of(mine)))
        former = active_of(others)
        if former is not None:
            self._publish(
                CoordinationEvent.PASSIVATE,
                target=former.instance,
                generation=former.number,
                reason=f"{mine.number} is complete",
            )

    def lost_taints(self, number: int, found: Iterable[ObjectLoss] = ()) -> tuple[Taint, ...]:
        """Return the taints of a COMPLETE own generation for the objects that a restore needs and the store lacks.

        `found` are losses that were found earlier; they count if the chain still names their objects.

        A lost object does not come back, so another generation is needed. A scan is consistent as of its end only, so
        a partition that lost a part of its base has lost the whole base.
        """
        state = self._read(number)
        still = [loss for loss in found if loss.item.key in state.objects]
        lost = [*still, *lost_objects(self._store, state, partial(self._read, number))]
        parts = ((part, f"{item.key} {what}") for item, what in lost for part in item.parts)
        return _taints(state, (one for one in parts if needed_part(state, one[0])))

    def taint(self, writer: ChainWriter, taints: tuple[Taint, ...]) -> None:
        """Append the taints of `lost_taints`, unless the generation is sealed, or tainted and so being replaced."""
        if writer.state.taints or writer.state.sealed:
            return
        writer.append(tainted_entry(taints))
        _LOG.error(
            "objects of this generation are lost",
            generation=writer.state.number,
            partitions=len(taints),
            first=taints[0].reason,
            remedy="another generation is built without being asked; find the process that changes the bucket",
        )

    def _read(self, number: int) -> Generation:
        """Return a generation as it is now.

        Raises TransientError if it can't be read, or is wholly cleared: the caller's decision has to be made again.
        """
        found = next((g for g in self._generations() if g.number == number), None)
        if found is None:
            raise TransientError(
                f"generation {number} can't be read any more, or was cleared a moment ago", code="TDM-I022"
            )
        return found

    def _confirm(self, number: int, covering: Iterable[Generation]) -> None:
        """Raise CoverLostError unless all objects of all the `covering` generations are in the store."""
        self._require_objects(number, covering)
        self._uncovered.pop(number, None)

    def _require_objects(self, number: int, covering: Iterable[Generation]) -> None:
        """Raise CoverLostError unless all objects of the `covering` generations are in the store.

        A chain proves only that an object was stored once. A principal that can delete one instance's data must not be
        able to make the other instance delete its own.
        """
        for state in covering:
            lost = lost_objects(self._store, state, partial(self._read, state.number))
            if lost:
                error = CoverLostError(number, state.number, lost)
                self._uncovered[number] = bare(error)
                raise error

    def seal(self, number: int, successor: int) -> None:
        """Append SEALED if the successor covers the generation, checked once more on fresh chains and with the brokers.

        Does nothing if it does not. Raises NotProvenError, and errors of the brokers, if it can't be proven now that
        both have read the same logs; CoverLostError if the successor has lost objects.
        """
        generations = self._generations()
        writer = self._writer(number, generations)
        if writer.state.sealed:
            return
        guarded = self._guarded(generations)
        newer = next((g for g in generations if g.number == successor), None)
        if newer is None or coverage.uncovered_partitions(newer, writer.state, guarded):
            return
        # Before SEALED, because a sealed generation takes no more taints.
        cut = self._prover.cut_off(writer.state, newer, coverage.doubtful_partitions(newer, writer.state, guarded))
        covered = coverage.covered_partitions(newer, writer.state, guarded)
        cut += self._prover.rewritten(writer.state, newer, set(covered).difference(taint.key for taint in cut))
        self._refuse_what_is_back(writer.state, newer, guarded)
        self._confirm(number, [newer])
        if cut:
            writer.append(tainted_entry(cut))
            _tell_kept(writer.state, {taint.key: taint.reason for taint in cut})
        self._before_seal(writer, guarded)
        topics = coverage.topics_to_mark(writer.state, guarded)
        writer.append(sealed_entry(f"covered by generation {successor}", topics=topics))
        _LOG.info("sealed", generation=number, successor=successor)
        self._publish(CoordinationEvent.PASSIVATED, **head_fields(Head.of(writer.state)))

    def _refuse_what_is_back(self, mine: Generation, newer: Generation, guarded: GuardedPartitions) -> None:
        """Raise NotProvenError if a log has all again that a mark calls cut off, and `newer` has not read it yet.

        The other instance may have marked it while another leader had other records.
        """
        behind = [
            key
            for key, position in mine.positions.items()
            if guarded.has(key) and coverage.cut_off(mine, key) and newer.positions[key].offset < position.offset
        ]
        for key in sorted(self._prover.still_there(mine, behind)) if behind else ():
            raise NotProvenError(
                f"the log of {mine.name_of(key)} has all again that generation {mine.number} has read, and "
                f"generation {newer.number} stands below it: waiting until that has read it, or for another one",
                code="TDM-I051",
            )

    def clear(self, number: int, wanted: Clearing, *, complete: bool = True) -> None:
        """Clear the partitions of a generation that may go, decided once more on fresh chains.

        `complete` is whether it was COMPLETE at the decision. A build that was given up may have become COMPLETE since,
        even sealed: then the decision how many sealed generations are kept comes first, and nothing is cleared.
        Raises CoverLostError if a covering generation has lost objects, TransientError if its chain can't be read,
        InUseError if the generation has pins, NotProvenError as `_rewritten_covers`.
        """
        generations = self._generations()
        unreadable = any(damaged > number for damaged in self._chains.damaged)
        writer = self._writer(number, generations)
        begun = writer.state.clearing
        given_up: frozenset[PartitionKey] = frozenset()
        kept: dict[PartitionKey, str] = {}
        if begun is None or unreadable:
            guarded = self._guarded(generations)
            let_go = released(ReleaseReader(self._store, self._identity.pair).refresh(tolerant=True), writer.state)
            # Released partitions that the cluster does not have now, or whose records it has lost, need no cover.
            given_up = frozenset(
                key
                for key in let_go
                if not guarded.has(key) or losses.found_lost(writer.state, key, guarded=True) is not None
            )
        if begun is None:
            again = coverage.clearing(writer.state, generations, guarded, let_go)
            if writer.state.complete is not complete or again is None or set(again.goes) < set(wanted.goes):
                _LOG.info("not clearing after all", generation=number)
                return
            asked = frozenset(again.goes).difference(given_up)
            covers = coverage.newest_covers(writer.state, asked, generations)
            kept |= self._unproven(writer.state, covers, generations, guarded)
            kept |= dict.fromkeys(self._cut_off(writer.state, covers, generations, guarded), losses.CUT_OFF_KEPT)
            wanted = _without(again, kept)
            wanted = self._without_vanished(writer.state, wanted, generations, let_go)
        goes = (begun or wanted).goes
        if coverage.unseen_cover(writer.state, goes, generations, unreadable=unreadable, given_up=given_up):
            raise TransientError(
                f"generation {number} is kept, because no readable chain covers it",
                code="TDM-I023",
                remedy="bring the damaged chain back, `tandem verify` names it, or wait until another generation is "
                "complete; `tandem failover` asks for one",
            )
        covering = coverage.generations_relied_on(writer.state, goes, generations)
        outcome = clear_generation(
            self._store, writer, wanted, stop=self._stop, confirm=lambda: self._confirm(number, covering)
        )
        if begun is None and (writer.state.clearing is not None or not outcome.pinned):
            _tell_kept(writer.state, kept)
        if outcome.pinned:
            owners = ", ".join(sorted({pin.owner for pin in outcome.pinned}))
            raise InUseError(
                f"generation {number} is in use by {owners}; it is cleared when they are done", code="TDM-I024"
            )
        if writer.state.gone:
            self.writers.pop(number, None)
        if writer.state.clearing is None:  # otherwise the process is stopping, and the next one continues the clearing
            self._copies.forget(number)
            if self._guard is not None:
                self._guard.forget(number)
            self._vanished.pop(number, None)
            self._publish(CoordinationEvent.CLEARED, **head_fields(Head.of(writer.state)))

    def _cut_off(
        self, mine: Generation, covers: _Covers, generations: list[Generation], guarded: GuardedPartitions
    ) -> set[PartitionKey]:
        """Return the covered partitions of which the logs lack records that `mine` has read, as brokers tell.

        SEALED proved that the cover of that time had read the same logs, if they were guarded then. The newest cover is
        another one by now, or has another history. Raises NotProvenError, and errors of the brokers.
        """
        found = set(self._rewritten_covers(mine, covers, generations, guarded))
        asked = {key for keys in covers.values() for key in keys if guarded.has(key)}
        doubtful = coverage.unproven_covers(mine, asked - found, generations, guarded)
        for newer in {g.number: g for g in doubtful.values()}.values():
            keys = [key for key, g in doubtful.items() if g is newer]
            try:
                found.update(taint.key for taint in self._prover.cut_off(mine, newer, keys))
            except NotProvenError:  # of one of them, as a rule
                found.update(key for key in keys if self._is_cut_off(mine, newer, key, generations))
        asked -= found
        return found | self._prover.compare(mine, asked - mine.found_empty(asked)).keys()

    def _is_cut_off(
        self, mine: Generation, newer: Generation, key: PartitionKey, generations: list[Generation]
    ) -> bool:
        """Return whether the log lacks records that `mine` has read of a partition which `newer` covers.

        The log may have been cut below both. Once a later generation is COMPLETE, none can cover the partition any
        more, and no holder of a sealed one marks it. Raises NotProvenError before.
        """
        try:
            return bool(self._prover.cut_off(mine, newer, [key]))
        except NotProvenError:
            if not self._is_beyond_cover(mine, newer, key, generations):
                raise
            return True

    def _unproven(
        self, mine: Generation, covers: _Covers, generations: list[Generation], guarded: GuardedPartitions
    ) -> dict[PartitionKey, str]:
        """Return the covered partitions of which neither brokers nor records prove that their cover has them.

        No broker can be asked about what is not guarded. Raises CoverLostError if a cover has lost objects.
        """
        found: dict[PartitionKey, str] = {}
        states = {state.number: state for state in generations}
        for number, keys in covers.items():
            asked = [key for key in keys if not guarded.has(key)]
            if asked:
                self._require_objects(mine.number, [states[number]])
                unproven = self._copies.unproven(mine, states[number], asked)
                found |= dict.fromkeys(unproven, losses.NOT_PROVEN_KEPT)
        return found

    def _rewritten_covers(
        self, mine: Generation, covers: _Covers, generations: list[Generation], guarded: GuardedPartitions
    ) -> frozenset[PartitionKey]:
        """Return the covered partitions of which no generation that read the present log has the records.

        SEALED proved that `mine` and its cover had read one history. A broker's volume may have been put back to a
        snapshot since then, and the cover is tainted only when its holder has noticed. A taint that does not reach down
        to a common offset proves as little. Another generation may cover the partition then, so NotProvenError is
        raised; unless a later one is COMPLETE and the log lacks what `mine` has read: none can cover it any more.
        """
        states = {state.number: state for state in generations}
        kept: set[PartitionKey] = set()
        for number, keys in covers.items():
            newer, asked, refuted = states[number], [], {}
            for key in filter(guarded.has, keys):
                if not coverage.cut_off(newer, key):
                    asked.append(key)
                elif coverage.common_offset(newer, key) < mine.positions[key].offset:
                    refuted[key] = newer.taints[key].reason
            refuted |= {key: found.reason for key, found in self._prover.compare(newer, asked).items()}
            for key, reason in refuted.items():
                if not self._is_beyond_cover(mine, newer, key, generations):
                    raise NotProvenError(_KEPT.format(mine.number, number, mine.name_of(key), reason), code="TDM-I025")
                kept.add(key)
        return frozenset(kept)

    def _without_vanished(
        self,
        mine: Generation,
        wanted: Clearing,
        generations: Collection[Generation],
        let_go: Collection[PartitionKey],
    ) -> Clearing:
        """Return `wanted` without the partitions of a complete generation that end with keys which their logs lost.

        Those that stay because the log start moved are compared too, to tell how many keys it took. Released partitions
        are not compared. Raises what `VanishedKeysCheck.vanished` raises.
        """
        if self._guard is None or not mine.complete:
            return wanted
        already = mine.cleared.goes if mine.cleared is not None else ()
        begun = {key for key in wanted.stays if coverage.begins_later(mine, key, generations) is not None}
        asked = sorted(set(wanted.goes).union(begun).difference(already, let_go))
        return _without(wanted, self._guard.vanished(mine, generations, asked))

    def compare(self, number: int) -> None:
        """Compare the keys of a sealed generation that is not to be cleared yet, so that lost ones are told of at once.

        The results count for the clearing, too. Raises what `VanishedKeysCheck.vanished` raises.
        """
        generations = self._generations()
        mine = next((g for g in generations if g.number == number and g.sealed and g.complete and g.whole), None)
        if self._guard is None or mine is None:
            return
        newer = [g for g in generations if g.number > number and g.complete]
        covered = [key for key in mine.positions if any(coverage.cover(g, mine, key) is Cover.COVERED for g in newer)]
        self._vanished[number] = self._guard.vanished(mine, generations, sorted(covered))

    def _is_beyond_cover(
        self, mine: Generation, newer: Generation, key: PartitionKey, generations: list[Generation]
    ) -> bool:
        """Return whether the log lacks what `mine` has read, as one that is COMPLETE after its refuted cover shows."""
        later = coverage.successor(newer, generations)
        return later is not None and key in later.positions and self._log_lacks(mine, later, key)

    def _log_lacks(self, mine: Generation, later: Generation, key: PartitionKey) -> bool:
        """Return whether the log, as `later` has read it, lacks records that `mine` has read of a partition."""
        return bool(self._prover.rewritten(mine, later, [key]) or self._prover.cut_off(mine, later, [key]))


def _tell_kept(state: Generation, kept: Mapping[PartitionKey, str]) -> None:
    for key, why in sorted(kept.items()):
        _LOG.error(
            "records are kept that no other generation is known to have",
            generation=state.number,
            partition=state.name_of(key),
            why=why,
            remedy="`tandem release` lets them go when they are not needed any more",
        )


_KEPT = "generation {} is kept until another one covers it: generation {} covers {}, but {}"


def _without(wanted: Clearing, kept: Mapping[PartitionKey, str]) -> Clearing:
    """Return `wanted` with the partitions of `kept` among those that stay, each with its reason."""
    goes = tuple(key for key in wanted.goes if key not in kept)
    return Clearing(goes=goes, stays=wanted.stays | dict(sorted(kept.items())))


def _taints(state: Generation, lost: Iterable[tuple[Part, str]]) -> tuple[Taint, ...]:
    """Return a taint for each untainted partition that lost a part, at the offset where the first loss begins."""
    found: dict[PartitionKey, Taint] = {}
    for part, what in lost:
        # No part of the base (scanned or swept records, and those read until the scan was done) may be missing: the
        # records below the loss are no consistent state of the log either.
        tail = part.first >= state.state_from(part.key) and state.read_through(part.key)
        offset = part.first if tail else min(part.first, state.positions[part.key].base.start)
        before = found.get(part.key)
        if part.key not in state.taints and (before is None or offset < before.offset):
            found[part.key] = Taint(key=part.key, offset=offset, reason=what)
    return tuple(found[key] for key in sorted(found))
