"""The checkpoint duties of an instance: complete those that an own generation reaches, fail those that none can.

The store is read at intervals, at once after a CHECKPOINT message, and every second while a request is open. A request
is judged on the chains as last read, and once more between two commits, before an entry is appended.

A generation whose instance is cut off from the brokers may have a position beyond the cut with records of another
history: an election truncated the log before the log ends were read for the request, the log grew again, and the
instance has not noticed yet. So the leaders are asked first, once for all requests of the same partitions, whether
their logs have the records that the generation has read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator

import structlog

from tandem.backup_avro.chain.entries import PartitionKey, iso
from tandem.backup_avro.chain.generation import ChainError, Generation
from tandem.backup_avro.documents.checkpoint import (
    CheckpointOutcome,
    CheckpointRequest,
    CutJudgement,
    CutStanding,
    checkpoint_entry,
    judge_all,
    judge_cut,
    takes_part,
)
from tandem.backup_avro.errors import TandemError
from tandem.backup_avro.selection.coverage import GuardedPartitions
from tandem.sink.process.rates import TokenBucket
from tandem.sink.store.chain import checkpoints, pins
from tandem.sink.store.chain.chain_writer import ChainWriter, HolderLostError, StoppedError, now_ms
from tandem.sink.store.contract.object_store import ObjectStore

_LOG = structlog.get_logger()
_LOOK_S = 30.0
_LOOK_WHILE_OPEN_S = 1.0
_HINTS, _HINT_EVERY_S = 3, 10.0
"""A token bucket: CHECKPOINT messages that cause a read at once, and seconds until one more may."""


def failed(request: CheckpointRequest, *, at: int, by: str, reason: str) -> CheckpointOutcome:
    """Return the outcome of a request that failed."""
    return CheckpointOutcome(id=request.id, nonce=request.nonce, at=at, by=by, reason=reason)


def expired(request: CheckpointRequest, *, at: int, by: str, detail: str) -> CheckpointOutcome:
    """Return the outcome of a request whose deadline has passed."""
    return failed(request, at=at, by=by, reason=f"not reached by {iso(request.deadline)}: {detail}")


class CheckpointKeeper:
    """The checkpoints as this instance last read them.

    `read_checkpoints`, `finish` and `fail_requests` run in task threads. `held` are the generations that may not be
    cleared; None before the first `read_checkpoints`. `same_logs` returns whether the logs have the records that a
    generation read of some partitions; it raises if the brokers can't tell.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        pair: str,
        me: str,
        same_logs: Callable[[Generation, Collection[PartitionKey]], bool],
    ) -> None:
        self._store = store
        self._pair = pair
        self._me = me
        self._same_logs = same_logs
        self._remembered = checkpoints.CheckpointCache()
        self._looking = threading.Lock()
        self._proven: set[tuple[str, int]] = set()
        self._looked_mono: float | None = None
        self._hints: frozenset[str] = frozenset()
        self._hurries = TokenBucket(_HINTS, _HINT_EVERY_S)
        self._details: dict[str, str] = {}
        self.open: tuple[CheckpointRequest, ...] = ()
        self.held: dict[int, tuple[str, ...]] | None = None

    def due(self, now_mono: float, hints: frozenset[str]) -> bool:
        """Return whether `read_checkpoints` is due; `hints` are the ids of the CHECKPOINT messages that were heard."""
        interval_s = _LOOK_WHILE_OPEN_S if self.open else _LOOK_S
        rested = self._looked_mono is None or now_mono - self._looked_mono >= interval_s
        # A hint that is dropped now comes again with the next tick, a second later.
        if not rested and (hints == self._hints or not self._hurries.take_token(now_mono)):
            return False
        self._hints = hints
        self._looked_mono = now_mono
        return True

    def read_checkpoints(self) -> None:
        """Read all checkpoints, clean up, and fail requests past their deadline. Raises errors of the store."""
        with self._looking:
            found = checkpoints.survey_checkpoints(
                self._store, self._pair, now_ms(self._store), remembered=self._remembered
            )
        still_open = []
        for request in found.open:
            at = now_ms(self._store)
            if at < request.deadline:
                still_open.append(request)
            else:
                detail = self._details.get(request.nonce, "no Active has looked at it")
                self._settle(request, expired(request, at=at, by=self._me, detail=detail))
        nonces = {request.nonce for request in still_open}
        known = dict(self._details)  # The ticking thread adds to it meanwhile.
        self._details = {nonce: text for nonce, text in known.items() if nonce in nonces}
        self._proven = {(nonce, number) for nonce, number in self._proven.copy() if nonce in nonces}
        self.open, self.held = tuple(still_open), found.held
        self._looked_mono = time.monotonic()

    def generations_to_settle(self, mine: Iterable[Generation], guarded: GuardedPartitions | None) -> Iterator[int]:
        """Yield the numbers of the own generations that can complete or must fail an open request (see `finish`)."""
        final = {CutStanding.REACHED, CutStanding.LOST}
        for state in mine:
            if takes_part(state) and any(judge_cut(r, state, guarded).standing in final for r in self.open):
                yield state.number

    def unreachable_requests(
        self, generations: Iterable[Generation], guarded: GuardedPartitions | None
    ) -> list[tuple[CheckpointRequest, CutJudgement]]:
        """Return the requests that no generation will ever reach; note the state of each for its expiry message."""
        states = list(generations)
        found = []
        for request in self.open:
            judgement = judge_all(request, states, guarded)
            self._details[request.nonce] = judgement.detail
            # A partition that is gone from the cluster may be read up to the cut in an entry that was not read here
            # yet: the generation's owner judges between commits.
            gone = any(judge_cut(request, g, guarded).standing is CutStanding.LOST for g in states if takes_part(g))
            if judgement.standing is CutStanding.LOST and not gone:
                found.append((request, judgement))
        return found

    def fail_requests(self, hopeless: Iterable[tuple[CheckpointRequest, CutJudgement]]) -> None:
        """Fail requests. Raises errors of the store."""
        for request, judgement in hopeless:
            at = now_ms(self._store)
            self._settle(request, failed(request, at=at, by=self._me, reason=judgement.detail))

    def finish(self, writer: ChainWriter, guarded: GuardedPartitions | None) -> None:
        """Complete or fail the requests that the chain of `writer` decides; runs between two commits.

        Raises HolderLostError, StoppedError and ChainError, which end the writer. Other errors are logged and tried
        again at the next look: no checkpoint stops a backup.
        """
        for request in self.open:
            try:
                self._finish(writer, request, guarded)
            except (HolderLostError, StoppedError, ChainError):
                raise
            except TandemError as error:
                _LOG.warning("cannot finish a checkpoint, trying again", checkpoint=request.id, error=error)

    def complete_before_seal(self, writer: ChainWriter, guarded: GuardedPartitions | None) -> None:
        """Read the requests once more and complete those that are reached, before the generation is sealed."""
        try:
            self.read_checkpoints()
        except TandemError as error:
            _LOG.warning("cannot look at checkpoints before sealing", error=error)
        self.prove(writer.state, guarded)
        self.finish(writer, guarded)

    def prove(self, state: Generation, guarded: GuardedPartitions | None) -> None:
        """Ask the brokers whether `state` has read, up to the cuts that it reached, the records that the logs hold.

        It may have read records that an election truncated. Its records below a cut do not change, so one proof is
        enough. If the brokers can't tell, they are asked again later.
        """
        if guarded is None or not takes_part(state):
            return
        reached: dict[frozenset[PartitionKey], list[CheckpointRequest]] = {}
        for request in self.open:
            if (request.nonce, state.number) in self._proven:
                continue
            if judge_cut(request, state, guarded).standing is not CutStanding.REACHED:
                continue
            if not _unprovable(request, state, guarded):  # else `finish` fails it
                keys = frozenset(key for key, offset in request.cut.items() if offset > 0)
                reached.setdefault(keys, []).append(request)
        for keys, requests in reached.items():
            names = [request.id for request in requests]
            try:
                same = self._same_logs(state, keys)
            except TandemError as error:
                _LOG.warning("cannot prove checkpoints, trying again", checkpoints=names, error=error)
                continue
            if same:
                self._proven |= {(request.nonce, state.number) for request in requests}
            else:
                _LOG.warning("a log was truncated; its reader is about to be told", checkpoints=names)

    def _finish(self, writer: ChainWriter, request: CheckpointRequest, guarded: GuardedPartitions | None) -> None:
        state = writer.state
        judgement = (
            judge_cut(request, state, guarded) if takes_part(state) else CutJudgement(standing=CutStanding.BEHIND)
        )
        if judgement.standing not in {CutStanding.REACHED, CutStanding.LOST}:
            return
        now = checkpoints.find_checkpoint(self._store, self._pair, request.id)
        if now is None or now.request.nonce != request.nonce or now.outcome is not None:
            return  # deleted, or settled by the other instance
        at = now_ms(self._store)
        if at >= request.deadline:
            return
        if judgement.standing is CutStanding.LOST:
            self._settle(request, failed(request, at=at, by=self._me, reason=judgement.detail))
            return
        if (request.nonce, state.number) not in self._proven:
            gone = _unprovable(request, state, guarded)
            if gone:
                reason = (
                    f"{request.name_of(gone[0])} was deleted, created anew or taken out of the configuration before "
                    "the brokers could confirm that what was stored of it is what they had"
                )
                self._settle(request, failed(request, at=at, by=self._me, reason=reason))
            return
        pin = checkpoints.pin_generation(self._store, request, state.number)
        entry = writer.append(checkpoint_entry(request))
        swept = judge_cut(request, state, guarded)
        if swept.standing is not CutStanding.REACHED:  # a janitor's entry came in between
            self._settle(request, failed(request, at=entry.at, by=self._me, reason=swept.detail))
            return
        mine = CheckpointOutcome(
            id=request.id, nonce=request.nonce, at=entry.at, by=self._me, generation=state.number, seq=entry.seq
        )
        if self._settle(request, mine).generation != state.number:
            pins.release_pin(self._store, self._pair, pin)

    def _settle(self, request: CheckpointRequest, outcome: CheckpointOutcome) -> CheckpointOutcome:
        held = checkpoints.settle_request(self._store, request, outcome)
        if held.completed:
            _LOG.info("checkpoint completed", checkpoint=request.id, generation=held.generation, seq=held.seq)
        else:
            _LOG.warning("checkpoint failed", checkpoint=request.id, reason=held.reason)
        self.open = tuple(other for other in self.open if other.nonce != request.nonce)
        return held


def _unprovable(request: CheckpointRequest, state: Generation, guarded: GuardedPartitions | None) -> list[PartitionKey]:
    """Return the partitions of a cut that the cluster no longer has, so that no broker can prove their records."""
    if guarded is None:
        return []
    return sorted(
        key
        for key, offset in request.cut.items()
        if offset > 0 and state.positions[key].epoch >= 0 and guarded.lacks(key, request.topics.get(key.topic_id))
    )
