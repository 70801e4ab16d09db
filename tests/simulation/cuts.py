"""The judge of named checkpoints: what a cut was when its log ends were asked for is kept until it is let go.

* An outcome, once there, never changes as long as its request is there.
* A completed checkpoint that is neither deleted nor past `keep_until` can be restored, and all its objects are there.
* What is restored is exactly the cut: of each key the newest record below it that the log held at the request, nothing
  above. A record that was superseded beyond the cut may be missing only if a cleaner had removed it from a replica when
  the generation committed past it: docs/protocol.md names that under "What is assumed". Where an unclean election cut
  the log after the request, one of the histories since then will do.
* In the end nothing is stuck: no request is open past its deadline, no pin is left of what was deleted or failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from support.restores.restore_plans import make_plan

from simulation.comparing import ViolationError, compare, restored
from simulation.log import Cluster, Record
from simulation.store import Bucket, Store
from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import EntryKind, PartitionKey
from tandem.backup_avro.chain.erasure import without_erased
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.documents.checkpoint import (
    Checkpoint,
    CheckpointOutcome,
    CheckpointRequest,
    decode_outcome,
    decode_request,
    takes_part,
    why_unrestorable,
)
from tandem.backup_avro.errors import RefusedError
from tandem.backup_avro.selection.restorable_state import PartitionSelection
from tandem.sink.store.chain import pins
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.spark_jobs.restore.plan.plan import TopicNaming

#: How long instances may take, in virtual seconds, to see and settle what concerns a checkpoint once all is quiet.
SETTLING_S = 25.0


@dataclass(slots=True)
class Watch:
    """A cut from the moment its log ends were asked for.

    `certain` are the (generation, partition, offset) of those newest records below the cut that a generation which
    takes part has read before any cleaner removed them; `read` is how far each was followed.
    """

    ends: dict[PartitionKey, int]
    lineages: dict[PartitionKey, int]
    newest: dict[PartitionKey, list[Record]]
    read: dict[tuple[int, PartitionKey], int] = field(default_factory=dict)
    certain: set[tuple[int, PartitionKey, int]] = field(default_factory=set)


@dataclass(slots=True)
class _Known:
    """A request that was put, and what became of it. `at`: when the last of it happened, in virtual seconds."""

    request: CheckpointRequest
    at: float
    outcome: CheckpointOutcome | None = None
    objects: frozenset[str] = frozenset()
    let_go: bool = False


@dataclass(slots=True)
class Cuts:
    """All checkpoints of a history. `decode` gives the records of a slice's part.

    `was_erased`: whether an erasure took an object out of its chain, so that it may be deleted.
    """

    cluster: Cluster
    bucket: Bucket
    reader: ChainReader
    states: Callable[[], list[Generation]]
    decode: Callable[..., list[Record]]
    was_erased: Callable[[str], bool]
    counts: dict[str, int] = field(default_factory=dict)
    _open: dict[str, Watch] = field(default_factory=dict)
    _known: dict[str, _Known] = field(default_factory=dict)
    _nonces: dict[str, str] = field(default_factory=dict)
    _pinned: dict[str, float] = field(default_factory=dict)

    # --- what happens -------------------------------------------------------------------------------------------------

    def begin(self, ends: Mapping[PartitionKey, int]) -> Watch:
        """The log ends are asked for right now, and are `ends`."""
        partitions = {key: self.cluster.partitions[key.topic_id, key.partition] for key in ends}
        watch = Watch(
            ends=dict(ends),
            lineages={key: len(partition.lineages) - 1 for key, partition in partitions.items()},
            newest={
                key: list(partition.state(ends[key], partition.lineages[-1]).values())
                for key, partition in partitions.items()
            },
        )
        for state in self.states():
            if takes_part(state) and not state.taints:
                for key in ends:
                    if state.usable(key):
                        watch.read[state.number, key] = state.positions[key].offset
                        watch.certain |= {
                            (state.number, key, record.offset)
                            for record in watch.newest[key]
                            if record.offset < state.positions[key].offset
                        }
        return watch

    def asked(self, request: CheckpointRequest, watch: Watch) -> None:
        """`request`, which is about to be put, asks for the cut of `watch`."""
        self._open[request.nonce] = watch

    def noticed(self, what: str, key: str) -> None:
        """Something has changed in the store. Raises ViolationError."""
        if what == "put" and key.startswith(layout.outcomes_prefix(self.reader.pair)):
            self._settled(decode_outcome(self.bucket.objects[key], key))
        elif key.startswith(layout.outcomes_prefix(self.reader.pair)):
            self._unsettled(key)
        elif what == "put" and key.startswith(layout.checkpoints_prefix(self.reader.pair)):
            request = decode_request(self.bucket.objects[key], key)
            self._known[request.nonce] = _Known(request=request, at=self.bucket.runtime.now)
            self._nonces[key] = request.nonce
            self._count("checkpoint")
        elif what == "put" and key.startswith(layout.pins_prefix(self.reader.pair)):
            self._pinned[key] = self.bucket.runtime.now
        elif key in self._nonces:
            nonce = self._nonces.pop(key)
            self._known[nonce].let_go, self._known[nonce].at = True, self.bucket.runtime.now
            self._open.pop(nonce, None)
            self._count("deleted checkpoint")
        elif what == "delete":
            for known in self._known.values():
                if key in known.objects and not known.let_go and not self.was_erased(key):
                    raise ViolationError(f"{key} is deleted, but belongs to checkpoint {known.request.id}")

    def tick(self) -> None:
        """Let go of what the store's clock has passed, once and for all: it may go back again."""
        now = self.bucket.now_ms()
        for known in self._known.values():
            if known.request.keep_until is not None and now >= known.request.keep_until and not known.let_go:
                known.let_go, known.at = True, self.bucket.runtime.now

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def _present(self, known: _Known) -> bool:
        return self._nonces.get(layout.checkpoint_key(self.reader.pair, known.request.id)) == known.request.nonce

    def _settled(self, outcome: CheckpointOutcome) -> None:
        known = self._known.get(outcome.nonce)
        if known is None or not self._present(known):
            return  # deleted meanwhile: it is swept
        if known.outcome is not None and known.outcome != outcome:
            raise ViolationError(f"checkpoint {outcome.id} was {known.outcome}, now it is {outcome}")
        known.outcome, known.at = outcome, self.bucket.runtime.now
        self._count("completed checkpoint" if outcome.completed else "failed checkpoint")
        watch = self._open.pop(outcome.nonce)
        if outcome.completed and not known.let_go:
            self._exact(known, outcome, watch)

    def _unsettled(self, key: str) -> None:
        nonce = key.removeprefix(layout.outcomes_prefix(self.reader.pair)).removesuffix(".json")
        known = self._known.get(nonce)
        if known is not None and self._present(known):
            raise ViolationError(f"the outcome of checkpoint {known.request.id} is deleted, the request is not")

    # --- what is demanded ---------------------------------------------------------------------------------------------

    def check(self, states: Iterable[Generation]) -> None:
        """Judge all checkpoints on the chains as they are now."""
        if not self._known:
            return
        by_number = {state.number: state for state in states}
        for watch in self._open.values():
            self._follow(watch, by_number)
        now = self.bucket.now_ms()
        for known in self._known.values():
            if known.let_go or known.outcome is None or not known.outcome.completed:
                continue
            why = why_unrestorable(Checkpoint(request=known.request, outcome=known.outcome), by_number, now)
            if why is not None:
                raise ViolationError(f"checkpoint {known.request.id} is completed and can't be restored: {why}")

    def _follow(self, watch: Watch, states: Mapping[int, Generation]) -> None:
        for (number, key), low in watch.read.items():
            high = states[number].positions[key].offset
            if high > low:
                watch.read[number, key] = high
                partition = self.cluster.partitions[key.topic_id, key.partition]
                watch.certain |= {
                    (number, key, record.offset)
                    for record in watch.newest[key]
                    if low <= record.offset < high and not partition.passed_over(record, tail_from=low)
                }

    def _exact(self, known: _Known, outcome: CheckpointOutcome, watch: Watch) -> None:
        """Restore it, as `tandem restore --checkpoint` plans it, and hold that against the log at the request."""
        assert outcome.generation is not None
        assert outcome.seq is not None
        self._follow(watch, {state.number: state for state in self.states()})
        state = self._load(outcome.generation, outcome.seq)
        name = f"checkpoint {outcome.id} in generation {state.number}"
        if [moment.kind for moment in state.moments if moment.seq == outcome.seq] != [EntryKind.CHECKPOINT]:
            raise ViolationError(f"{name}: entry {outcome.seq} is no CHECKPOINT")
        try:
            plan = make_plan([state], pair=self.reader.pair, naming=TopicNaming(), cut=known.request.cut)
        except RefusedError as error:
            raise ViolationError(f"{name} can't be planned: {error}") from error
        items = {item.key: item for topic in plan.topics for item in topic.partitions}
        if known.request.cut != watch.ends or items.keys() != watch.ends.keys():
            raise ViolationError(f"{name} restores {sorted(items)}, the log ends were {watch.ends}")
        for _, item in sorted(items.items()):
            self._exact_partition(known.request, watch, state.number, item)
        known.objects = frozenset(piece.item.key for item in items.values() for piece in item.slices)

    def _load(self, number: int, upto: int) -> Generation:
        """Return a generation as of an entry. One entry at a time: the judge has no threads to read with."""
        state = self.reader.load(number, upto=1)
        for seq in range(2, upto + 1):
            for entry, sha256 in self.reader.entries(number, seq, seq):
                state.apply(entry, sha256)
        now = next(one for one in self.states() if one.number == number)
        return without_erased(state, now)

    def _exact_partition(self, request: CheckpointRequest, watch: Watch, number: int, item: PartitionSelection) -> None:
        key, cut = item.key, watch.ends[item.key]
        name = f"checkpoint {request.id} in generation {number}, {key.topic_id[-2:]}-{key.partition}"
        partition = self.cluster.partitions[key.topic_id, key.partition]
        records = [
            record
            for piece in item.slices
            for record in self.decode(piece.item, piece.part)
            if piece.low <= record.offset < piece.high
        ]
        if any(record.offset >= cut for record in records):
            raise ViolationError(f"{name}: {records[-1]} lies above the cut at {cut}")
        found = restored(name, records, upto=cut, log_start=item.log_start)

        def may_lack(record: Record) -> bool:
            return number in request.witnesses and (number, key, record.offset) not in watch.certain

        first = watch.lineages[key]
        problems = [compare(partition, partition.lineages[first], found, may_lack=may_lack)]
        problems += [compare(partition, lineage, found) for lineage in partition.lineages[first + 1 :]]
        if all(problems):
            raise ViolationError(f"{name} restored up to {cut}: {problems[0]}")

    # --- in the end ---------------------------------------------------------------------------------------------------

    def settled(self, present: Iterable[pins.Pin]) -> None:
        """When all has been quiet for long: nothing is stuck, nothing is left over. Raises ViolationError."""
        clock, before = self.bucket.now_ms(), self.bucket.runtime.now - SETTLING_S
        for known in self._known.values():
            late = clock >= known.request.deadline + SETTLING_S * 1000
            if self._present(known) and known.outcome is None and late and known.at < before:
                raise ViolationError(f"checkpoint {known.request.id} is ongoing, its deadline has passed long ago")
        for pin in present:
            nonce = pin.id.removeprefix(pins.LASTING).rpartition("-")[0]
            known_ = self._known.get(nonce)
            if (
                not pin.lasting
                or known_ is None
                or max(known_.at, self._pinned.get(f"{layout.pins_prefix(self.reader.pair)}{pin.id}.json", 0.0))
                >= before
            ):
                continue
            if not self._present(known_) or (
                known_.outcome is not None and known_.outcome.generation != pin.generation
            ):
                raise ViolationError(f"{pin.id} is left of checkpoint {known_.request.id}")


def reader_of(bucket: Bucket, pair: str) -> ChainReader:
    """Return a reader without a network."""
    return ChainReader(Store(bucket, None), pair)
