"""The back-end whose ranges are read by a catch-up job on Spark: lists the offers that the job stores.

The job plans its ranges from the chain. A range that is not accepted, its offer is deleted, and the job reads it again.
The offers are documents that others may write, so each one is checked before it counts as a range that was read.

An offer does not tell what had expired when its range was read. So where the policy deletes, another back-end reads the
lowest range of a scan: it finds the log start as of then, which is no lower than it was for all ranges read before,
because the same leader has led since, or the scan begins again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from weakref import WeakSet

import structlog

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import Base, PartitionKey
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.documents.range_offer import RangeOffer, check_offer, decode_offer
from tandem.backup_avro.errors import DamagedError
from tandem.sink.encryption.key_ring import keys_of
from tandem.sink.kafka.events import TopicPartition
from tandem.sink.process import clock
from tandem.sink.process.rates import RatedLog
from tandem.sink.read.progress.next_scan_range import ScanPlan
from tandem.sink.read.reader_context import ReaderContext
from tandem.sink.read.scan.accept_ranges import RangeAcceptor, RangeRefusal, complete_empty_scan, is_in_chain
from tandem.sink.read.scan.range_tasks import OfferedRange, RangeRead, continues_scan, is_of_scan, offered_ranges
from tandem.sink.read.scan.scan_lane import RangeBackEnd
from tandem.sink.store.contract.object_store import ObjectMissingError, StoreTransientError

_LOG = structlog.get_logger()
_RATED = RatedLog(_LOG)
_LOOK_S = 2.0
_LONGEST_REST_S = 600.0
_WAITING = "offers"


class _ListedOffer(NamedTuple):
    """An offer: its key, and what its name says. First listed at `seen`, not yet at `missing` (`process.clock`)."""

    name: str
    range: OfferedRange
    seen: float
    missing: float


class SparkRanges(RangeBackEnd):
    """Accepts offers until all scans are done. After `patience_s` without one other back-ends read the rest."""

    def __init__(
        self, context: ReaderContext, state: Generation, acceptor: RangeAcceptor, *, patience_s: float
    ) -> None:
        self._context = context
        self._state = state
        self._acceptor = acceptor
        self._folder = layout.offers_prefix(state.claim.pair, state.claim.instance, state.number)
        self._data = layout.data_prefix(state.claim.pair, state.claim.instance, state.number) + "topics/"
        self._patience_s = patience_s
        self._waiting: set[TopicPartition] = set()
        self._seen: dict[str, tuple[float, float]] = {}
        self._looked_at = math.inf
        self._refused: list[RangeOffer] = []
        self._handed_over: WeakSet[ScanPlan] = WeakSet()
        self._lowest_left: list[TopicPartition] = []
        self._look_at = self._moved_at = self._idle_since = clock.now()
        self._given_up = False
        self._looking: Iterator[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether a scan is not done yet."""
        return bool(self._waiting)

    @property
    def waits(self) -> bool:
        """Whether nothing can be done until the job has offered more."""
        return self.busy and self._looking is None

    def wants(self, scan: ScanPlan) -> bool:
        """Return whether a job may still read ranges of a scan."""
        return not self._given_up and scan not in self._handed_over

    def add(self, tp: TopicPartition) -> None:
        """Wait for the ranges of a partition."""
        if not complete_empty_scan(self._context, tp):
            self._waiting.add(tp)

    def remove(self, tp: TopicPartition) -> None:
        """Forget a partition."""
        self._waiting.discard(tp)

    def step(self, timeout_s: float) -> Sequence[TopicPartition]:
        """Accept new offers. Once no scan waits for offers, list ever more rarely for useless ones to delete.

        Each offer takes a request or two, and the tail waits meanwhile: a listing that is not done in `timeout_s` goes
        on in the next step.
        """
        now = clock.now()
        if self._looking is None and now >= self._look_at:
            if self._waiting:
                self._idle_since = now
            self._look_at = now + min(max(_LOOK_S, now - self._idle_since), _LONGEST_REST_S)
            self._looking = self._look()
        if self._looking is None:
            return ()
        left = self._go_on(self._looking, until=now + timeout_s)
        lowest, self._lowest_left = self._lowest_left, []
        return [*left, *lowest]

    def _go_on(self, looking: Iterator[None], *, until: float) -> Sequence[TopicPartition]:
        try:
            for _ in looking:
                if clock.now() >= until:
                    return ()
        except StoreTransientError as error:
            _LOG.warning("cannot look for offers, trying again", error=error)
        self._looking = None
        waiting = sorted(self._waiting)
        if waiting and clock.now() - self._moved_at <= self._patience_s:
            self._context.trouble[_WAITING] = (
                f"the bases of {len(waiting)} partitions wait for a catch-up job: run `tandem catch-up`"
            )
            return ()
        self._context.trouble.pop(_WAITING, None)
        if waiting:
            self._given_up = True
            self._waiting.clear()
            _LOG.warning(
                "no catch-up job has offered a range for long, this instance scans itself",
                partitions=len(waiting),
                seconds=round(self._patience_s),
            )
        return waiting

    def _look(self) -> Iterator[None]:
        """List the offers once, in steps of one offer each. A partition may change or go between two steps."""
        by_key: dict[PartitionKey, list[_ListedOffer]] = {}
        over: list[str] = []
        began = clock.now()
        seen: dict[str, tuple[float, float]] = {}
        for name, found in offered_ranges(info.key for info in self._context.store.list(self._folder)).items():
            if self._is_over(found.key, found.low):
                over.append(name)
            else:
                times = seen[name] = self._seen.get(name, (clock.now(), self._looked_at))
                by_key.setdefault(found.key, []).append(_ListedOffer(name, found, *times))
        self._seen, self._looked_at = seen, began
        for name in over:
            self._throw_away(name)
            yield
        for offer in [offer for offer in self._refused if self._is_over(offer.key, offer.low)]:
            self._refused.remove(offer)
            self._delete_useless(offer)
            yield
        for tp in sorted(self._waiting):
            if tp not in self._waiting:
                continue
            progress = self._context.progress_of[tp]
            offers = by_key.get(progress.key, ())
            self._refuse_misplaced(progress.scan.base, offers)
            while tp in self._waiting and self._context.progress_of[tp] is progress:
                next_offer = next((item for item in offers if continues_scan(progress.scan, item.range)), None)
                if next_offer is None:
                    break
                if progress.expires and next_offer.range.low == progress.scan.base.start:
                    self._waiting.discard(tp)
                    self._handed_over.add(progress.scan)
                    self._lowest_left.append(tp)
                    break
                if not self._accept(tp, next_offer):
                    break
                if progress.scan.base.complete:
                    self._waiting.discard(tp)
                yield

    def _read(self, name: str) -> RangeOffer:
        """Read an offer. Raises the store's errors, and DamagedError if it contradicts its name.

        DamagedError also if it names an object that has to be encrypted and is not.
        """
        offer = decode_offer(self._context.store.get(name), name)
        check_offer(offer, name)
        for item in offer.objects:
            keys_of(self._context.store).refuse_plain(item)
        return offer

    def _throw_away(self, name: str) -> None:
        """Delete an offer that is over, and the objects that it names unless the chain names them."""
        try:
            self._delete_useless(self._read(name))
        except ObjectMissingError:
            return
        except DamagedError as error:
            _RATED.warning("an offer can't be read and is discarded", key=name, error=error)
        self._context.store.delete([name])

    def _delete_useless(self, offer: RangeOffer) -> None:
        """Delete the objects of an offer that is over, which no holder of the chain, even another process, can accept.

        Before it is over, another holder might accept it: this process may have lost the chain without knowing it.
        Whatever an offer says, only objects whose names lie in the offer's own range are deleted: objects that a commit
        under way has to name, or of an offer for another range that was not read yet, have other names. Retention
        deletes the objects that remain.
        """
        topic = self._state.topics.get(offer.key.topic_id)
        if topic is None:
            return
        # Jobs of older releases write the whole topic, however long it is.
        names = "|".join(map(re.escape, {topic.name, layout.name_of_topic(topic.name)}))
        named = re.compile(
            re.escape(f"{self._data}{topic.name}/partition={offer.key.partition}/")
            + rf"(?:{names})\+{offer.key.partition}\+"
            + rf"([0-9]{{20}})\+([0-9]{{20}})\+(?:{layout.NOBODY}-[0-9a-f]{{8}}|[0-9a-f]{{16}})\.avro"
        )
        own = [
            item.key
            for item in offer.objects
            for match in [named.fullmatch(item.key)]
            if match is not None and offer.low <= int(match[1]) <= int(match[2]) < offer.high
        ]
        self._context.store.delete([name for name in own if not is_in_chain(self._state, name)])

    def _is_over(self, key: PartitionKey, low: int) -> bool:
        """Return whether the chain has the range that begins at `low`, whatever the floor of its attempts.

        An offer of an older floor is useless before that, but the floor alone would make it over while offers of the
        same range still wait to be accepted.
        """
        position = self._state.positions.get(key)
        if position is None:
            return False
        base = position.base
        return base.complete or any(begin <= low for begin, _ in base.done)

    def _refuse_misplaced(self, base: Base, listed: Sequence[_ListedOffer]) -> None:
        """Delete offers of offsets outside the scan: the job would count them as read and wait for ever."""
        for item in listed:
            if is_of_scan(base, item.range) and not base.start <= item.range.low < item.range.high:
                _LOG.warning(
                    "an offer outside the wanted ranges is discarded",
                    key=item.name,
                    start=base.start,
                    end=base.end,
                )
                self._context.store.delete([item.name])

    def _accept(self, tp: TopicPartition, listed: _ListedOffer) -> bool:
        try:
            offer = self._read(listed.name)
        except ObjectMissingError:
            return False
        except DamagedError:
            self._throw_away(listed.name)
            return False
        # It was not there at `missing`, so it ended later. When it was there at the first listing, nothing is known.
        began = listed.missing - offer.took_ms / 1000
        read = RangeRead(offer=offer, began=began, ended=listed.seen, elsewhere=True)
        refusal = self._acceptor.accept(tp, read)
        if refusal is None:
            self._moved_at = clock.now()
            return True
        if refusal is RangeRefusal.KNOWN:
            _RATED.warning("an offer of objects that the chain holds already is discarded", key=listed.name)
        else:
            self._refused.append(offer)
        self._context.store.delete([listed.name])
        return False
