"""The scan lane of an instance whose logs are read by a catch-up job: adds the offered ranges to the generation.

A range that was begun too long before the ranges above it had been read (`sink.read.scan.accept_ranges`) is refused,
and the job reads it again.
The times at which a range began and ended are known by two clocks, of which the longer overlap counts: the store's
clock, and that of this process, which knows since when an offer exists and, from the listing before, when it did not.
Ranges that an earlier process has accepted ended before the chain's last entry.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import structlog

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import Base, PartitionKey
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.documents.range_offer import RangeOffer, check_offer, decode_offer
from tandem.backup_avro.errors import DamagedError
from tandem.sink import clock
from tandem.sink.encryption.key_ring import keys_of
from tandem.sink.kafka.fetch.events import TopicPartition
from tandem.sink.rates import RatedLog
from tandem.sink.read.partition_progress import PartitionProgress
from tandem.sink.read.reader_context import ReaderContext, ScanLane
from tandem.sink.read.scan.accept_ranges import accept_range, complete_empty_scan, most_overlap_s, restart_scan
from tandem.sink.read.scan.plan import ScanPlan
from tandem.sink.store.object_store import ObjectMissingError, StoreTransientError

_LOG = structlog.get_logger()
_RATED = RatedLog(_LOG)
_LOOK_S = 2.0
_LONGEST_REST_S = 600.0
_SKEW_MS = 5_000
"""Most ms by which the times that two processes read from one store may differ."""
_WAITING = "offers"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ended:
    """When the ranges accepted so far had been read: `at` by the store's clock, `mono` by this process's clock."""

    floor: int
    at: int
    mono: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listed:
    """An offer's key and the fields of its name. It was first listed at `seen`, not yet at `missing` (`sink.clock`)."""

    key: str
    seen: float
    missing: float | None
    floor: int
    leader: int
    low: int
    high: int


class SparkScanLane:
    """Accepts offers until all scans are done. After `patience_s` without one the lane `own` reads the rest."""

    def __init__(
        self,
        context: ReaderContext,
        state: Generation,
        *,
        own: Callable[[], ScanLane],
        patience_s: float,
    ) -> None:
        self._context = context
        self._state = state
        self._begun_at = state.at
        self._folder = layout.offers_prefix(state.claim.pair, state.claim.instance, state.number)
        self._data = layout.data_prefix(state.claim.pair, state.claim.instance, state.number) + "topics/"
        self._make_own = own
        self._patience_s = patience_s
        self._waiting: set[TopicPartition] = set()
        self._ended: dict[TopicPartition, _Ended] = {}
        self._since: dict[str, tuple[float, float | None]] = {}
        self._looked_at: float | None = None
        self._refused: list[RangeOffer] = []
        self._begun_mono = self._look_at = self._moved_at = self._idle_since = clock.now()
        self._own: ScanLane | None = None
        self._looking: Iterator[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether a scan is not done yet."""
        return bool(self._waiting) if self._own is None else self._own.busy

    def add(self, tp: TopicPartition) -> None:
        """Wait for the ranges of a partition."""
        if self._own is not None:
            self._own.add(tp)
            return
        self._waiting.add(tp)
        self._end_empty(tp)

    def remove(self, tp: TopicPartition) -> None:
        """Forget a partition."""
        self._waiting.discard(tp)
        self._ended.pop(tp, None)
        if self._own is not None:
            self._own.remove(tp)

    def leader_moved(self, tp: TopicPartition, leader: int, epoch: int) -> None:
        """Restart the scan: replicas are cleaned independently, halves of two don't add up."""
        if self._own is not None:
            self._own.leader_moved(tp, leader, epoch)
            return
        restart_scan(self._context, tp, leader, epoch)

    def step(self, timeout_s: float) -> None:
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
        if self._looking is not None:
            self._go_on(self._looking, until=now + timeout_s)
        if self._own is not None:
            self._own.step(timeout_s)
        elif self._waiting and self._looking is None:
            time.sleep(timeout_s)

    def stop(self) -> None:
        """Cancel the work of the lane `own`, if it was started."""
        if self._own is not None:
            self._own.stop()

    def _go_on(self, looking: Iterator[None], *, until: float) -> None:
        try:
            for _ in looking:
                if clock.now() >= until:
                    return
        except StoreTransientError as error:
            _LOG.warning("cannot look for offers, trying again", error=error)
        self._looking = None
        self._tell(clock.now())

    def _tell(self, now: float) -> None:
        if not self._waiting:
            self._context.trouble.pop(_WAITING, None)
            return
        if now - self._moved_at > self._patience_s:
            self._context.trouble.pop(_WAITING, None)
            _LOG.warning(
                "no catch-up job has offered anything for long, reading the bases myself",
                partitions=len(self._waiting),
                seconds=round(self._patience_s),
            )
            self._own = self._make_own()
            for tp in sorted(self._waiting):
                self._own.add(tp)
            self._waiting.clear()
            return
        self._context.trouble[_WAITING] = (
            f"the bases of {len(self._waiting)} partitions wait for a catch-up job: run `tandem catch-up`"
        )

    def _look(self) -> Iterator[None]:
        """List the offers once, in steps of one offer each. A partition may change or go between two steps."""
        by_key: dict[PartitionKey, list[_Listed]] = {}
        over: list[str] = []
        began = clock.now()
        since: dict[str, tuple[float, float | None]] = {}
        for info in self._context.store.list(self._folder):
            found = layout.offer_of(info.key.removeprefix(self._folder))
            if found is None:
                continue
            topic_id, partition, floor, leader, low, high = found
            key = PartitionKey(topic_id, partition)
            if self._is_over(key, low):
                over.append(info.key)
            else:
                seen, missing = since[info.key] = self._since.get(info.key, (clock.now(), self._looked_at))
                listed = _Listed(
                    key=info.key, seen=seen, missing=missing, floor=floor, leader=leader, low=low, high=high
                )
                by_key.setdefault(key, []).append(listed)
        self._since, self._looked_at = since, began
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
            self._refuse_misplaced(progress.scan.base, by_key.get(progress.key, ()))
            while tp in self._waiting and self._context.progress_of[tp] is progress:
                listed_ = self._next(progress.scan, by_key.get(progress.key, ()))
                if listed_ is None or not self._take(tp, progress, listed_):
                    break
                self._end_empty(tp)
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
            _RATED.warning("an offer can't be read and is thrown away", key=name, error=error)
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
        self._context.store.delete([name for name in own if not self._knows(name)])

    def _knows(self, name: str) -> bool:
        """Return whether the chain names a data object."""
        return name in self._state.objects or name in self._state.replaced

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

    def _next(self, scan: ScanPlan, listed: list[_Listed] | tuple[()]) -> _Listed | None:
        """Return an offer that continues the scan at its lowest done offset."""
        base = scan.base
        high = base.start + scan.remaining
        for item in listed:
            if (
                item.high == high
                and base.start <= item.low < high
                and (item.floor, item.leader) == (base.floor, base.leader)
            ):
                return item
        return None

    def _refuse_misplaced(self, base: Base, listed: list[_Listed] | tuple[()]) -> None:
        """Delete offers of offsets outside the scan: the job would count them as read and wait for ever."""
        for item in listed:
            if (item.floor, item.leader) == (base.floor, base.leader) and not base.start <= item.low < item.high:
                _LOG.warning(
                    "an offer of offsets that nobody asked for is thrown away",
                    key=item.key,
                    start=base.start,
                    end=base.end,
                )
                self._context.store.delete([item.key])

    def _take(self, tp: TopicPartition, progress: PartitionProgress, listed: _Listed) -> bool:
        try:
            offer = self._read(listed.key)
        except ObjectMissingError:
            return False
        except DamagedError:
            self._throw_away(listed.key)
            return False
        if any(self._knows(item.key) for item in offer.objects):
            _RATED.warning("an offer names what is in the chain already and is thrown away", key=listed.key)
            self._context.store.delete([listed.key])
            return False
        base = progress.scan.base
        ended = self._ended_before(tp, base.floor, done=bool(base.done))
        if self._overlap_ms(ended, offer, listed) > most_overlap_s(progress) * 1000 - _SKEW_MS:
            _LOG.warning(
                "a range was read too long before what lies above it, it is to be read again",
                topic=tp.topic,
                partition=tp.partition,
                low=offer.low,
                high=offer.high,
            )
            self._refused.append(offer)
            self._context.store.delete([listed.key])
            return False
        accept_range(self._context, progress, offer)
        self._ended[tp] = _Ended(
            floor=base.floor,
            at=offer.ended_at if ended is None else max(ended.at, offer.ended_at),
            mono=listed.seen if ended is None else max(ended.mono, listed.seen),
        )
        self._moved_at = clock.now()
        return True

    def _ended_before(self, tp: TopicPartition, floor: int, *, done: bool) -> _Ended | None:
        """Return when the last range above had been read, None if there is no range above."""
        known = self._ended.get(tp)
        if known is not None and known.floor == floor:
            return known
        return _Ended(floor=floor, at=self._begun_at, mono=self._begun_mono) if done else None

    def _overlap_ms(self, ended: _Ended | None, offer: RangeOffer, listed: _Listed) -> float:
        """Return the longest possible time in ms from the start of a range to the end of reading the ranges above."""
        if max(offer.started_at, offer.ended_at) > self._context.now() + _SKEW_MS or offer.started_at > offer.ended_at:
            return math.inf  # the store's clock was set back: the overlap is unknown
        if ended is None:
            return -math.inf
        overlap = float(ended.at - offer.started_at)
        if listed.missing is not None:
            overlap = max(overlap, (ended.mono - listed.missing) * 1000 + offer.took_ms)
        return overlap

    def _end_empty(self, tp: TopicPartition) -> None:
        if complete_empty_scan(self._context, tp):
            self._waiting.discard(tp)
            self._ended.pop(tp, None)
