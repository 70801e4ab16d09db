"""The raw fetcher: keeps one fetch request per broker on its way and hands out what comes back, undecoded."""

from __future__ import annotations

import heapq
import logging
import random
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias
from uuid import UUID

import kafka.errors as kafka_errors

from backup_avro.errors import TandemError
from sink.source import client_config, connection, topic_id, wire
from sink.source.errors import ClusterAuthenticationError, ClusterUnreachableError
from sink.source.fetch_session import Ask, FetchSession
from sink.source.fetched import AtHead, FaultKind, Fetched, FetchFault, TopicPartition
from sink.source.offsets import Lookups

Event: TypeAlias = Fetched | AtHead | FetchFault

_log = logging.getLogger(__name__)

# Seconds.
_MISSING_RETRY = 10.0  # a topic that is not there is looked for at this interval
_DENIED_RETRY = 30.0
_CONFIRM_MISSING = 0.4  # "unknown topic" is believed when two looks this far apart say so: brokers lag behind
_SHORTEST_WAIT = 0.005
_BACKOFF_MAX = 5.0


def _backoff(failures: int, *, first: float = 0.05, most: float = 2.0) -> float:
    return min(first * 2.0 ** min(failures, 16), most) * random.uniform(0.8, 1.2)  # noqa: S311 - jitter, no secret


@dataclass(slots=True, kw_only=True)
class _Partition:
    """What the fetcher knows about one assigned partition.

    `serial` changes with each assign and seek: an answer to an older one is void.
    """

    tp: TopicPartition
    offset: int
    last_epoch: int
    serial: int
    topic_id: UUID | None
    paused: bool = False
    held: bool = False  # its data was handed out; waits for advance
    resting: bool = False  # a fault that only a seek ends
    missing: bool = False
    unchecked: bool = False  # the position must be compared with the leader's epochs first (KIP-320)
    retry_at: float = 0.0
    failures: int = 0
    suspect_since: float | None = None
    leader: int = -1
    leader_epoch: int = -1
    end: int = -1
    high_watermark: int = -1
    stuck_since: float | None = None
    placed: int | None = None
    told: set[FaultKind] = field(default_factory=set)

    @property
    def readable(self) -> bool:
        return not (self.paused or self.held or self.resting or self.missing or self.unchecked or self.retry_at)


@dataclass(slots=True, kw_only=True)
class _Broker:
    """One broker that leads assigned partitions: its session and the one request that may be on its way."""

    node: int
    session: FetchSession = field(default_factory=FetchSession)
    in_flight: bool = False
    validating: bool = False
    buffered: bool = False  # records of its last response have not been handed out yet
    held: set[TopicPartition] = field(default_factory=set)
    stuck: dict[TopicPartition, None] = field(default_factory=dict)
    wait: float = 0.0
    retry_at: float = 0.0
    failures: int = 0
    told: bool = False


class RawFetcher:
    """Fetches undecoded record batches of assigned partitions, always from their leaders.

    For one thread: all methods, `close` too, are called from the thread that calls `poll`. Network traffic happens
    inside `poll` and the look-ups only; between two calls, one response per broker may pile up in the socket.
    Several fetchers in a process are independent of each other.

    Memory: per broker at most one response (`FetchLimits.max_bytes`, or one record batch if that is larger) waits to be
    handed out, and none is asked for meanwhile. What was handed out is the caller's.

    A partition whose records were handed out is not asked for again before `advance` (or `seek`) tells how far they
    were used. Call `advance` as soon as the next offset is known (`batches.end_of` finds it without decoding) and
    `poll(0)` before long work: the next response then travels during the work.
    """

    def __init__(
        self,
        props: Mapping[str, client_config.Value],
        *,
        read_committed: bool,
        limits: client_config.FetchLimits | None = None,
    ) -> None:
        self._servers = client_config.servers_of(props)
        self._limits = limits or client_config.fetch_limits(props)
        self._read_committed = read_committed
        config = client_config.for_kafka_python(props)
        config["receive_message_max_bytes"] = max(
            config["receive_message_max_bytes"], self._limits.max_bytes * 2, self._limits.receive_bytes
        )
        self._metadata_max_age = config.get("metadata_max_age_ms", 300_000) / 1000
        self._net, self._manager = connection.open_connections(config)
        self._lookups = Lookups(self._net, self._manager, servers=self._servers, read_committed=read_committed)
        self._lookups.on_views = self._take_views

        self._parts: dict[TopicPartition, _Partition] = {}
        self._by_topic: defaultdict[str, dict[TopicPartition, _Partition]] = defaultdict(dict)
        self._names: dict[UUID, str] = {}
        self._brokers: dict[int, _Broker] = {}
        self._events: list[tuple[TopicPartition | None, int, Event]] = []
        self._retries: list[tuple[float, TopicPartition, int]] = []
        self._unchecked: set[TopicPartition] = set()
        self._serial = 0

        self._metadata_at = 0.0
        self._metadata_last = -1e9
        self._metadata_running = False
        self._metadata_failures = 0
        self._bootstrap_at = 0.0
        self._bootstrap: Any = None
        self._told_unreachable = False
        self._fatal: TandemError | None = None
        self._bug: Exception | None = None
        self._closed = False

    # What to read

    def assign(
        self, tp: tuple[str, int], offset: int, last_epoch: int = -1, *, topic_id: UUID | str | None = None
    ) -> None:
        """Start to read `tp` at `offset`; `last_epoch` is the leader epoch of the record before it, -1 if not known.

        With `topic_id` another topic of the same name is never read; without it the id first seen is taken.
        """
        if tp in self._parts:
            self.unassign(tp)
        key = TopicPartition(*tp)
        self._serial += 1
        part = _Partition(tp=key, offset=offset, last_epoch=last_epoch, serial=self._serial, topic_id=_uuid(topic_id))
        self._parts[key] = part
        self._by_topic[key.topic][key] = part
        if part.topic_id is not None:
            self._names[part.topic_id] = key.topic
        view = self._lookups.views.get(key.topic)
        if view is not None and view.error_code == wire.NO_ERROR:
            self._take_view_of(part, view, time.monotonic())
        if part.leader < 0:
            self._want_metadata()

    def unassign(self, tp: tuple[str, int]) -> None:
        """Stop reading `tp`; what it had waiting is dropped. Nothing happens if it is not assigned."""
        part = self._parts.pop(TopicPartition(*tp), None)
        if part is None:
            return
        part.resting = True
        self._let_go(part)
        self._place(part)
        topic = self._by_topic[part.tp.topic]
        del topic[part.tp]
        if not topic:
            del self._by_topic[part.tp.topic]
            self._lookups.views.pop(part.tp.topic, None)

    def seek(self, tp: tuple[str, int], offset: int, last_epoch: int = -1) -> None:
        """Read `tp` from `offset` on. Ends OUT_OF_RANGE and DIVERGED; what it had waiting is dropped."""
        part = self._part(tp)
        self._serial += 1
        part.serial = self._serial
        part.offset, part.last_epoch = offset, last_epoch
        part.resting = part.unchecked = False
        part.failures, part.retry_at, part.stuck_since = 0, 0.0, None
        part.end = part.high_watermark = -1
        part.told.clear()
        self._let_go(part)
        self._place(part)

    def advance(self, tp: tuple[str, int], offset: int, last_epoch: int = -1) -> None:
        """Tell that `tp` has been read up to `offset`; `last_epoch` as in `assign`, -1 leaves it as it was."""
        part = self._part(tp)
        if offset < part.offset:
            raise ValueError(f"{part.tp} can't advance from {part.offset} back to {offset}; seek does that")
        part.offset = offset
        if last_epoch >= 0:
            part.last_epoch = last_epoch
        self._let_go(part)
        self._place(part)

    def pause(self, tp: tuple[str, int]) -> None:
        """Leave `tp` out of requests until `resume`; data that waits to be handed out is fetched again then."""
        part = self._part(tp)
        if not part.paused:
            part.paused = True
            self._place(part)

    def resume(self, tp: tuple[str, int]) -> None:
        """End a `pause`."""
        part = self._part(tp)
        if part.paused:
            part.paused = False
            self._place(part)

    def positions(self) -> dict[TopicPartition, tuple[int, int]]:
        """Return (offset, last epoch) of all assigned partitions."""
        return {tp: (part.offset, part.last_epoch) for tp, part in self._parts.items()}

    # What came

    def poll(self, timeout_s: float) -> list[Event]:
        """Return what came, waiting at most `timeout_s` for something; an empty list if nothing did.

        Raises ClusterAuthenticationError when the brokers refuse the connection for good reasons; the fetcher stays
        usable and tries again with the next poll. All else is told by FetchFaults and heals by itself.
        """
        self._check_open()
        deadline = time.monotonic() + timeout_s
        self._work()
        self._net.poll(timeout_ms=0)
        while True:
            self._work()
            if self._events or self._fatal is not None or self._bug is not None:
                break
            now = time.monotonic()
            if now >= deadline:
                break
            self._net.poll(timeout_ms=(min(deadline, self._next_timer(now)) - now) * 1000)
        self._raise_what_must_be()
        events = self._take_events()
        if events:
            self._work()  # the next requests leave before the caller starts to work
        return events

    # Look-ups

    def end_offsets(
        self, tps: Iterable[tuple[str, int]], *, timeout_s: float = 30.0
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return {partition: (end offset, leader epoch)}; the end is the last stable offset under read_committed.

        Raises UnknownTopicError, ClusterDeniedError, ClusterAuthenticationError, and ClusterUnreachableError or
        ClusterTransientError when `timeout_s` runs out.
        """
        return self._offsets(tps, wire.LATEST, timeout_s)

    def start_offsets(
        self, tps: Iterable[tuple[str, int]], *, timeout_s: float = 30.0
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return {partition: (log start offset, leader epoch of the first record or -1)}. Raises as `end_offsets`."""
        return self._offsets(tps, wire.EARLIEST, timeout_s)

    def leaders(
        self, tps: Iterable[tuple[str, int]], *, timeout_s: float = 30.0
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return {partition: (leader id, leader epoch)} as of now. Raises as `end_offsets`."""
        wanted = [TopicPartition(*tp) for tp in tps]
        found: dict[TopicPartition, tuple[int, int]] = self._run(
            lambda deadline: self._lookups.leaders(wanted, deadline), timeout_s
        )
        return found

    def close(self) -> None:
        """Drop all connections. May be called twice."""
        if self._closed:
            return
        self._closed = True
        self._manager.close()
        self._net.close()
        self._parts.clear()
        self._by_topic.clear()
        self._events.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Inside

    def _part(self, tp: tuple[str, int]) -> _Partition:
        try:
            return self._parts[TopicPartition(*tp)]
        except KeyError:
            raise ValueError(f"{tp} is not assigned") from None

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("the fetcher is closed")

    def _raise_what_must_be(self) -> None:
        bug, self._bug = self._bug, None
        if bug is not None:
            raise bug
        if self._events:
            return
        fatal, self._fatal = self._fatal, None
        if fatal is not None:
            raise fatal

    def _take_events(self) -> list[Event]:
        taken = []
        for tp, serial, event in self._events:
            if tp is not None:
                part = self._parts.get(tp)
                if part is None or part.serial != serial or (part.paused and isinstance(event, Fetched)):
                    if part is not None:
                        self._let_go(part)
                    continue
            taken.append(event)
        self._events.clear()
        for broker in self._brokers.values():
            broker.buffered = False
        return taken

    def _tell(self, part: _Partition, kind: FaultKind, detail: str, *, once: bool = True, **more: Any) -> None:  # noqa: ANN401 - fields of FetchFault
        if once and kind in part.told:
            return
        part.told.add(kind)
        fault = FetchFault(
            topic=part.tp.topic,
            partition=part.tp.partition,
            kind=kind,
            detail=detail,
            at=time.monotonic(),
            offset=part.offset,
            **more,
        )
        self._events.append((part.tp, part.serial, fault))

    def _tell_all(self, detail: str) -> None:
        fault = FetchFault(topic="", partition=-1, kind=FaultKind.TRANSIENT, detail=detail, at=time.monotonic())
        self._events.append((None, 0, fault))

    def _guarded(self, step: Callable[..., None]) -> Callable[..., None]:
        """Wrap a callback: kafka-python logs what a callback raises and goes on, but a bug must surface in poll."""

        def run(*args: Any) -> None:  # noqa: ANN401 - passed through
            if self._closed:
                return
            try:
                step(*args)
            except Exception as error:  # noqa: BLE001 - raised again by poll
                self._bug = error

        return run

    # Placing partitions into requests

    def _broker(self, node: int) -> _Broker:
        broker = self._brokers.get(node)
        if broker is None:
            broker = self._brokers[node] = _Broker(node=node)
        return broker

    def _place(self, part: _Partition) -> None:
        target = part.leader if part.leader >= 0 and part.readable else None
        if part.placed is not None and part.placed != target:
            self._brokers[part.placed].session.drop(part.tp)
        part.placed = target
        if target is not None:
            self._broker(target).session.want(
                part.tp,
                Ask(
                    partition=part.tp.partition,
                    current_leader_epoch=part.leader_epoch,
                    fetch_offset=part.offset,
                    last_fetched_epoch=part.last_epoch,
                    partition_max_bytes=self._limits.partition_max_bytes,
                    topic_id=part.topic_id,
                    serial=part.serial,
                ),
            )

    def _hold(self, part: _Partition, broker: _Broker) -> None:
        part.held = True
        broker.held.add(part.tp)
        self._place(part)

    def _let_go(self, part: _Partition) -> None:
        if part.held:
            part.held = False
            for broker in self._brokers.values():
                if part.tp in broker.held:
                    broker.held.discard(part.tp)
                    broker.wait = 0.0

    def _retry(self, part: _Partition, after: float) -> None:
        part.retry_at = time.monotonic() + after
        heapq.heappush(self._retries, (part.retry_at, part.tp, part.serial))
        self._place(part)

    # Work: what is due is started; nothing here waits

    def _work(self) -> None:
        now = time.monotonic()
        if not self._bootstrapped(now):
            return
        while self._retries and self._retries[0][0] <= now:
            due, tp, serial = heapq.heappop(self._retries)
            part = self._parts.get(tp)
            if part is not None and part.serial == serial and part.retry_at == due:
                part.retry_at = 0.0
                self._place(part)
        if self._by_topic and now >= self._metadata_at and not self._metadata_running:
            self._start_metadata(now)
        for broker in self._brokers.values():
            if not broker.in_flight and not broker.buffered and now >= broker.retry_at and len(broker.session):
                self._send(broker, now)
        self._start_validations(now)

    def _next_timer(self, now: float) -> float:
        timers = [now + 1.0]
        if not self._manager.bootstrapped:
            timers.append(self._bootstrap_at)
        elif self._by_topic and not self._metadata_running:
            timers.append(self._metadata_at)
        if self._retries:
            timers.append(self._retries[0][0])
        timers.extend(
            broker.retry_at for broker in self._brokers.values() if not broker.in_flight and len(broker.session)
        )
        return max(min(timers), now + 0.001)

    def _bootstrapped(self, now: float) -> bool:
        if self._manager.bootstrapped:
            self._told_unreachable = False
            return True
        running = self._bootstrap
        if running is not None and not running.is_done:
            error = self._manager.last_error
            if error is not None:
                typed = connection.explain(error, self._servers)
                if isinstance(typed, ClusterAuthenticationError):
                    self._manager.last_error = None  # said once per attempt
                    self._fatal = typed
                elif not self._told_unreachable:
                    self._told_unreachable = True
                    self._tell_all(str(typed))
            return False
        if now >= self._bootstrap_at:
            self._bootstrap_at = now + 1.0
            self._manager._auth_failures.clear()  # noqa: SLF001 - kafka-python never tries again by itself
            self._bootstrap = self._manager.bootstrap_async()
        return False

    # Metadata

    def _want_metadata(self, after: float = 0.0) -> None:
        self._metadata_at = min(self._metadata_at, max(time.monotonic() + after, self._metadata_last + 0.1))

    def _start_metadata(self, now: float) -> None:
        self._metadata_running = True
        self._metadata_at = now + self._metadata_max_age
        future = self._manager.call_soon(self._lookups.refresh, list(self._by_topic))
        future.add_callback(self._guarded(self._metadata_came))
        future.add_errback(self._guarded(self._metadata_failed))

    def _metadata_came(self, _: object) -> None:
        self._metadata_running = False
        self._metadata_last = time.monotonic()
        self._metadata_failures = 0

    def _metadata_failed(self, error: BaseException) -> None:
        self._metadata_running = False
        self._metadata_last = time.monotonic()
        self._metadata_failures += 1
        self._metadata_at = self._metadata_last + _backoff(self._metadata_failures, first=0.1, most=_BACKOFF_MAX)
        self._note_connection_error(error)
        if self._metadata_failures % 8 == 0:
            # All brokers we knew may have moved; start from the configured servers again (KIP-899).
            self._bootstrap = self._manager.bootstrap_async()

    def _note_connection_error(self, error: BaseException) -> None:
        typed = connection.explain(error, self._servers)
        if isinstance(typed, ClusterAuthenticationError):
            self._manager._auth_failures.clear()  # noqa: SLF001 - kafka-python never tries again by itself
            self._fatal = typed

    def _take_views(self, views: list[wire.TopicView]) -> None:
        now = time.monotonic()
        for view in views:
            for part in list(self._by_topic.get(view.name, {}).values()):
                self._take_view_of(part, view, now)

    def _take_view_of(self, part: _Partition, view: wire.TopicView, now: float) -> None:
        if view.error_code == wire.TOPIC_AUTHORIZATION_FAILED:
            self._denied(part)
            self._want_metadata(after=_DENIED_RETRY)
            return
        gone = ""
        if view.error_code in (wire.UNKNOWN_TOPIC_OR_PARTITION, wire.UNKNOWN_TOPIC_ID):
            gone = f"topic {part.tp.topic} does not exist"
        elif view.error_code != wire.NO_ERROR:
            self._want_metadata(after=_backoff(part.failures, first=0.1))
            part.failures += 1
            return
        elif part.topic_id is not None and view.topic_id is not None and part.topic_id != view.topic_id:
            gone = f"topic {part.tp.topic} is another one of the same name now"
        elif part.tp.partition not in view.partitions:
            gone = f"topic {part.tp.topic} has no partition {part.tp.partition}"
        if gone:
            self._suspect(part, gone, view.topic_id, now)
            return
        part.suspect_since = None
        if part.topic_id is None and view.topic_id is not None:
            part.topic_id = view.topic_id
            self._names[view.topic_id] = part.tp.topic
        if part.missing:
            part.missing = False
            part.told.discard(FaultKind.UNKNOWN_TOPIC)
        leader, epoch = view.partitions[part.tp.partition]
        if leader < 0:
            self._want_metadata(after=_backoff(part.failures, first=0.1))
            part.failures += 1
        else:
            self._led_by(part, leader, epoch)
        self._place(part)

    def _suspect(self, part: _Partition, detail: str, new_id: UUID | None, now: float) -> None:
        if part.missing:
            self._want_metadata(after=_MISSING_RETRY)
        elif part.suspect_since is None:
            part.suspect_since = now
            self._want_metadata(after=_CONFIRM_MISSING)
        elif now - part.suspect_since < _CONFIRM_MISSING:
            self._want_metadata(after=_CONFIRM_MISSING)
        else:
            part.missing = True
            self._tell(
                part, FaultKind.UNKNOWN_TOPIC, detail, topic_id=None if new_id is None else topic_id.as_text(new_id)
            )
            self._place(part)
            self._want_metadata(after=_MISSING_RETRY)

    def _denied(self, part: _Partition) -> None:
        self._tell(
            part, FaultKind.UNAUTHORIZED, f"not allowed to read topic {part.tp.topic}: it takes READ and DESCRIBE"
        )
        self._retry(part, _DENIED_RETRY)

    def _led_by(self, part: _Partition, leader: int, epoch: int) -> None:
        if 0 <= epoch < part.leader_epoch:
            self._want_metadata(after=1.0)  # an older view of a broker that lags behind
            return
        if leader == part.leader and epoch == part.leader_epoch:
            return
        if part.leader >= 0 and leader != part.leader:
            self._tell(
                part,
                FaultKind.LEADER_MOVED,
                f"leader moved from broker {part.leader} to {leader}",
                once=False,
                old_leader=part.leader,
                new_leader=leader,
                old_epoch=part.leader_epoch,
                new_epoch=epoch,
            )
            part.end = part.high_watermark = -1
        part.leader, part.leader_epoch = leader, epoch

    # Fetching

    def _send(self, broker: _Broker, now: float) -> None:
        session = broker.session
        plan = session.next_request()
        for tp, ask in plan.send:
            part = self._parts[tp]
            if 0 <= part.end <= ask.fetch_offset:
                session.at_head(tp, part.end, in_txn=part.end < part.high_watermark)
        longest = self._limits.max_wait_ms / 1000
        wait = longest
        if broker.held:
            # Their next request must not wait behind a long poll of the others.
            wait = min(broker.wait, longest)
            broker.wait = max(broker.wait * 2, _SHORTEST_WAIT)
        request = wire.fetch_request(
            plan,
            max_wait_ms=int(wait * 1000),
            max_bytes=self._limits.max_bytes,
            read_committed=self._read_committed,
        )
        broker.in_flight = True
        try:
            future = self._manager.send(request, node_id=broker.node)
        except Exception as error:  # noqa: BLE001 - kafka-python raises anything here; all mean "not now"
            self._fetch_failed(broker, error)
            return
        future.add_callback(self._guarded(lambda response: self._fetch_came(broker, response, now)))
        future.add_errback(self._guarded(lambda error: self._fetch_failed(broker, error)))

    def _fetch_failed(self, broker: _Broker, error: BaseException) -> None:
        broker.in_flight = False
        broker.session.broken()
        delay = self._manager.connection_delay(broker.node)
        broker.retry_at = time.monotonic() + max(delay, _backoff(broker.failures, first=0.05, most=_BACKOFF_MAX))
        broker.failures += 1
        self._note_connection_error(error)
        if broker.failures > 1 and not broker.told:
            broker.told = True
            self._tell_all(f"broker {broker.node} can't be read from: {str(error) or type(error).__name__}")
        self._want_metadata()

    def _fetch_came(self, broker: _Broker, response: Any, requested_at: float) -> None:  # noqa: ANN401 - untyped
        received_at = time.monotonic()
        session = broker.session
        broker.in_flight = False
        throttle = (response.throttle_time_ms or 0) / 1000
        broker.retry_at = received_at + throttle if throttle else 0.0
        if response.error_code:
            session.refused(response.error_code)
            _log.debug("broker %d refused the fetch: %s", broker.node, wire.error_name(response.error_code))
            broker.retry_at = max(broker.retry_at, received_at + _backoff(broker.failures))
            broker.failures += 1
            return
        broker.failures = 0
        broker.told = False
        parts = list(wire.fetch_parts(response, self._names))
        answered = {tp for tp, _ in parts}
        size = sum(len(data.records) for _, data in parts if data.records)
        sound = session.accepted(response.session_id, answered)
        asked = session.sent
        for tp, data in parts:
            ask = asked.get(tp)
            part = self._parts.get(tp)
            if ask is None or part is None:
                continue
            if part.serial != ask.serial or part.offset != ask.fetch_offset or not part.readable:
                continue
            if data.error_code:
                session.not_at_head(tp)
                self._part_failed(part, data)
            else:
                complete = size == 0 and not throttle
                self._part_came(part, broker, data, requested_at, received_at, complete=complete)
        if not sound:
            broker.retry_at = max(broker.retry_at, received_at + 0.05)
        elif not throttle:
            at_head = session.proven_at_head(answered, records=size > 0)
            if at_head:
                event = AtHead(
                    leader_id=broker.node, partitions=at_head, requested_at=requested_at, received_at=received_at
                )
                self._events.append((None, 0, event))

    def _part_came(
        self,
        part: _Partition,
        broker: _Broker,
        data: Any,  # noqa: ANN401 - kafka-python has no types
        requested_at: float,
        received_at: float,
        *,
        complete: bool,
    ) -> None:
        """Take one partition without error. `complete`: no limit can have kept records out of this response."""
        diverging = data.diverging_epoch
        if diverging is not None and diverging.end_offset >= 0:
            self._diverged(part, diverging.epoch, diverging.end_offset)
            return
        part.failures = 0
        part.told -= {FaultKind.TRANSIENT, FaultKind.UNAUTHORIZED}
        records = data.records or b""
        high_watermark = data.high_watermark
        stable = data.last_stable_offset if data.last_stable_offset >= 0 else high_watermark
        end = stable if self._read_committed else high_watermark
        redirected = data.preferred_read_replica is not None and data.preferred_read_replica >= 0
        drained = not records and complete and not redirected
        part.end, part.high_watermark = end, high_watermark
        self._events.append(
            (
                part.tp,
                part.serial,
                Fetched(
                    topic=part.tp.topic,
                    partition=part.tp.partition,
                    fetch_offset=part.offset,
                    records=records,
                    high_watermark=high_watermark,
                    last_stable_offset=stable,
                    log_start_offset=data.log_start_offset,
                    end_offset=end,
                    aborted=tuple((txn.producer_id, txn.first_offset) for txn in data.aborted_transactions or ()),
                    leader_id=broker.node,
                    leader_epoch=part.leader_epoch,
                    requested_at=requested_at,
                    received_at=received_at,
                    drained=drained,
                ),
            )
        )
        if records:
            broker.buffered = True
            self._hold(part, broker)
        elif drained or (part.offset >= end and not redirected):
            broker.session.at_head(part.tp, end, in_txn=end < high_watermark)
        else:
            broker.session.not_at_head(part.tp)
        if redirected:
            self._tell(
                part,
                FaultKind.TRANSIENT,
                f"broker {broker.node} sends readers of {part.tp.topic}-{part.tp.partition} to a follower",
            )

    def _part_failed(self, part: _Partition, data: Any) -> None:  # noqa: ANN401 - kafka-python has no types
        code = data.error_code
        name = wire.error_name(code)
        if code == wire.OFFSET_OUT_OF_RANGE:
            part.resting = True
            self._place(part)
            self._start_range_check(part)
            return
        if code == wire.TOPIC_AUTHORIZATION_FAILED:
            self._denied(part)
            return
        hint = data.current_leader
        if hint is not None and hint.leader_epoch > part.leader_epoch and hint.leader_id >= 0:
            self._led_by(part, hint.leader_id, hint.leader_epoch)
        if code in (wire.FENCED_LEADER_EPOCH, wire.UNKNOWN_LEADER_EPOCH) and part.last_epoch >= 0:
            self._check(part)
        if part.failures >= 4:
            where = f"{part.tp.topic}-{part.tp.partition}"
            self._tell(part, FaultKind.TRANSIENT, f"broker {part.leader} answers {name} for {where}")
        self._retry(part, _backoff(part.failures))
        part.failures += 1
        self._want_metadata()

    def _diverged(self, part: _Partition, epoch: int, offset: int) -> None:
        part.resting = True
        part.unchecked = False
        self._place(part)
        where = f"at offset {offset}, epoch {epoch}" if offset >= 0 else "at an unknown offset"
        self._tell(
            part,
            FaultKind.DIVERGED,
            f"the log of {part.tp.topic}-{part.tp.partition} was cut {where}, below the position {part.offset}",
            diverging_epoch=epoch,
            diverging_offset=offset,
        )

    def _start_range_check(self, part: _Partition) -> None:
        serial = part.serial

        async def check() -> None:
            start: int | None = None
            end: int | None = None
            deadline = time.monotonic() + 5.0
            try:
                start = (await self._lookups.offsets([part.tp], wire.EARLIEST, deadline))[part.tp][0]
                end = (await self._lookups.offsets([part.tp], wire.LATEST, deadline))[part.tp][0]
            except TandemError as error:
                _log.debug("no log range of %s: %s", part.tp, error)
            if part.serial == serial and part.resting:
                where = "" if start is None or end is None else f", which is [{start}, {end})"
                detail = f"position {part.offset} of {part.tp.topic}-{part.tp.partition} is outside the log{where}"
                self._tell(part, FaultKind.OUT_OF_RANGE, detail, log_start=start, log_end=end)

        self._spawn(check())

    def _check(self, part: _Partition) -> None:
        part.unchecked = True
        self._unchecked.add(part.tp)
        self._place(part)

    def _start_validations(self, now: float) -> None:
        due: defaultdict[int, list[_Partition]] = defaultdict(list)
        for tp in list(self._unchecked):
            part = self._parts.get(tp)
            if part is None or not part.unchecked:
                self._unchecked.discard(tp)
            elif part.leader >= 0 and not part.retry_at and not part.missing and not part.resting:
                due[part.leader].append(part)
        for node, parts in due.items():
            broker = self._broker(node)
            if not broker.validating and now >= broker.retry_at:
                broker.validating = True
                self._spawn(self._validate(broker, parts))

    async def _validate(self, broker: _Broker, parts: list[_Partition]) -> None:
        """Ask the leader where the epoch of the last record read ends (KIP-320)."""
        asked = {part.tp: (part.serial, part.offset, part.last_epoch) for part in parts}
        asks = [(part.tp, part.leader_epoch, part.last_epoch) for part in parts]
        try:
            answers = await self._lookups.epoch_ends(broker.node, asks)
        except kafka_errors.KafkaError as error:
            self._note_connection_error(error)
            answers = [(part.tp, wire.UNKNOWN_LEADER_EPOCH, -1, -1) for part in parts]
        finally:
            broker.validating = False
        for tp, code, epoch, end in answers:
            part = self._parts.get(tp)
            if part is None or (part.serial, part.offset, part.last_epoch) != asked.get(tp):
                continue
            if code == wire.TOPIC_AUTHORIZATION_FAILED:
                self._denied(part)
            elif code != wire.NO_ERROR:
                self._retry(part, _backoff(part.failures))
                part.failures += 1
                self._want_metadata()
            elif epoch < 0 or end < 0:
                self._diverged(part, -1, -1)
            elif epoch < part.last_epoch or end < part.offset:
                self._diverged(part, epoch, end)
            else:
                part.unchecked = False
                self._place(part)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._manager.call_soon(work).add_errback(self._guarded(self._spawned_failed))

    def _spawned_failed(self, error: BaseException) -> None:
        if isinstance(error, Exception) and not isinstance(error, TandemError):
            self._bug = error

    # Look-ups

    def _offsets(
        self, tps: Iterable[tuple[str, int]], timestamp: int, timeout_s: float
    ) -> dict[TopicPartition, tuple[int, int]]:
        wanted = [TopicPartition(*tp) for tp in tps]
        found: dict[TopicPartition, tuple[int, int]] = self._run(
            lambda deadline: self._lookups.offsets(wanted, timestamp, deadline), timeout_s
        )
        return found

    def _run(self, make: Callable[[float], Coroutine[Any, Any, Any]], timeout_s: float) -> Any:  # noqa: ANN401 - result
        """Run a look-up on the loop, with fetching going on, until it is done or the time is up."""
        self._check_open()
        deadline = time.monotonic() + timeout_s
        future = None
        while True:
            now = time.monotonic()
            self._work()
            if self._fatal is not None:
                fatal, self._fatal = self._fatal, None
                raise fatal
            if future is None and self._manager.bootstrapped:
                future = self._manager.call_soon(make(deadline))
            if future is not None and future.is_done:
                if future.exception is not None:
                    raise future.exception
                return future.value
            if now >= deadline:
                break
            self._net.poll(timeout_ms=(min(deadline, self._next_timer(now)) - now) * 1000)
        error = self._manager.last_error
        if error is not None:
            raise connection.explain(error, self._servers) from None
        if future is not None:
            raise self._lookups.timed_out(timeout_s)
        raise ClusterUnreachableError(
            f"No Kafka broker answered at {self._servers} within {timeout_s:g} s",
            remedy="check bootstrap.servers and the network, and that the brokers run",
        )


def _uuid(given: UUID | str | None) -> UUID | None:
    return topic_id.as_uuid(given) if isinstance(given, str) else given
