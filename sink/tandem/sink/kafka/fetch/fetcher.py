"""The raw fetcher: keeps one fetch request per broker in flight and hands out the record batches undecoded."""

from __future__ import annotations

import math
import random
from collections import OrderedDict
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any, Self, TypeVar
from uuid import UUID

import kafka.errors as kafka_errors

from tandem.backup_avro.chain.entries import RecordHash
from tandem.backup_avro.errors import TandemError
from tandem.sink.kafka.auth import client_config
from tandem.sink.kafka.errors.cluster_errors import ClusterAuthenticationError, ClusterUnreachableError
from tandem.sink.kafka.errors.error_codes import ErrorCode, ErrorMeaning
from tandem.sink.kafka.events import FaultKind, LogBounds, LogPlace, TopicPartition
from tandem.sink.kafka.fetch import leaders as leadership
from tandem.sink.kafka.fetch.answer_shares import AnswerSum
from tandem.sink.kafka.fetch.assignment import AssignedPartition, Assignment, Event, LeaderBroker, backoff
from tandem.sink.kafka.fetch.oversize_answers import answer_too_large, next_suspect
from tandem.sink.kafka.fetch.responses import ResponseReader, due_probe, mark_diverged
from tandem.sink.kafka.fetch.slow_brokers import SLOW, SlowBrokers
from tandem.sink.kafka.lookup.log_ends import LogLookups
from tandem.sink.kafka.wire import connections, requests
from tandem.sink.kafka.wire import topic_ids as topic_id
from tandem.sink.kafka.wire.sessions import FetchPlan
from tandem.sink.process import clock

_T = TypeVar("_T")

# Seconds.
_SHORTEST_WAIT = 0.005
_MOST_BACKOFF = 5.0
_BETWEEN_METADATA = 0.1
_VIEW_KEPT = 10.0  # after a topic's last partition was unassigned: a scan reads few at a time, and soon assigns others
_RANGE_CHECK = 5.0


class RawFetcher:
    """Fetches undecoded record batches of assigned partitions, always from their leaders.

    For one thread: all methods, `close` too, are called from the thread that calls `poll`. Network traffic happens
    inside `poll` and the look-ups only; between two calls, one response per broker may pile up in the socket. Poll at
    least every few seconds, or requests time out. Several fetchers in a process are independent of each other.

    Memory: per broker at most one response waits to be handed out, and no other is requested meanwhile. The responses
    of all brokers, for all fetchers that share `answers`, have together about four times `FetchLimits.max_bytes`,
    however many brokers there are, or one record batch each if that is larger. Handed-out bytes belong to the caller.

    A partition whose records were handed out is not requested again before `advance` (or `seek`) gives the next
    offset. Call `advance` as soon as that is known (`batch_bounds.end_of` finds it without decoding) and `poll(0)`
    before long work: the next response then travels during the work.
    """

    def __init__(
        self,
        props: Mapping[str, client_config.Value],
        *,
        read_committed: bool,
        limits: client_config.FetchLimits | None = None,
        answers: AnswerSum | None = None,
    ) -> None:
        """`limits` override those in `props`; the fetchers of a process share `answers`.

        Raises ConfigError; connects with the first `poll` or look-up.
        """
        self._servers = client_config.servers_of(props)
        self._limits = limits or client_config.fetch_limits(props)
        self._read_committed = read_committed
        config = client_config.for_kafka_python(props)
        self._most_received = max(self._limits.receive_bytes, self._limits.max_bytes * 2)
        config["receive_message_max_bytes"] = self._most_received
        self._metadata_max_age = config.get("metadata_max_age_ms", 300_000) / 1000
        self._net, self._manager = connections.open_connections(config, servers=self._servers)
        self._assignment = Assignment(partition_max_bytes=self._limits.partition_max_bytes)
        self._sum = AnswerSum() if answers is None else answers
        self._sum.add(self._assignment.brokers)
        self._answers = ResponseReader(
            self._assignment, read_committed=read_committed, on_out_of_range=self._find_range
        )
        self._lookups = LogLookups(
            self._net,
            self._manager,
            servers=self._servers,
            read_committed=read_committed,
            on_views=lambda views: leadership.apply_topic_views(self._assignment, views, clock.now()),
        )
        self._slowness = SlowBrokers()
        self._unread: OrderedDict[str, float] = OrderedDict()  # topics that are no longer read, and since when
        self._metadata_last = -1e9
        self._metadata_running = False
        self._unknown_topic = False  # assigned since the last request: its leaders are asked for at once
        self._metadata_failures = 0
        self._bootstrap: Any = None
        self._bootstrap_at = 0.0
        self._told_unreachable = False
        self._fatal: TandemError | None = None
        self._bug: Exception | None = None
        self._closed = False

    # What to read

    def assign(
        self,
        tp: tuple[str, int],
        offset: int,
        last_epoch: int = -1,
        *,
        topic_id: UUID | str | None = None,
        led_by: tuple[int, int] | None = None,
    ) -> None:
        """Start to read `tp` at `offset`; `last_epoch` is the leader epoch of the record before it, -1 if not known.

        With `topic_id` another topic of the same name is never read; without it the first id received is used. `led_by`
        is the leader that the reader knows, and its epoch: if another one has led since, a LEADER_MOVED is emitted.
        """
        now = clock.now()
        part = self._assignment.assign(TopicPartition(*tp), offset, last_epoch, _uuid(topic_id))
        if led_by is not None:
            part.known_leader, part.known_epoch = led_by
        self._forget_views(now)
        view = self._kept_view(part)
        if view is not None and not view.error_code:
            leadership.apply_topic_view(self._assignment, part, view, now)
        if part.leader < 0:
            self._assignment.want_metadata(now)
        self._unknown_topic |= view is None

    def unassign(self, tp: tuple[str, int]) -> None:
        """Stop reading `tp` and drop its waiting events. Does nothing if it is not assigned."""
        self._assignment.unassign(TopicPartition(*tp))
        if tp[0] not in self._assignment.by_topic:
            now = clock.now()
            self._forget_views(now)
            self._unread.setdefault(tp[0], now)

    def seek(self, tp: tuple[str, int], offset: int, last_epoch: int = -1) -> None:
        """Read `tp` from `offset` on and drop its waiting events. Ends OUT_OF_RANGE and DIVERGED."""
        self._assignment.seek(self._part(tp), offset, last_epoch)

    def advance(self, tp: tuple[str, int], offset: int, last_epoch: int = -1) -> None:
        """Record that `tp` has been read up to `offset`; `last_epoch` as in `assign`, -1 leaves it unchanged."""
        self._assignment.advance(self._part(tp), offset, last_epoch)

    def pause(self, tp: tuple[str, int]) -> None:
        """Leave `tp` out of requests until `resume`; records not handed out yet are fetched again then."""
        self._assignment.pause(self._part(tp), paused=True)

    def resume(self, tp: tuple[str, int]) -> None:
        """End a `pause`."""
        self._assignment.pause(self._part(tp), paused=False)

    def positions(self) -> dict[TopicPartition, tuple[int, int]]:
        """Return (offset, last epoch) of all assigned partitions."""
        return {tp: (part.offset, part.last_epoch) for tp, part in self._assignment.parts.items()}

    # What came

    def poll(self, timeout_s: float) -> list[Event]:
        """Return the new events, waiting at most `timeout_s` for one; an empty list if there are none.

        Raises ClusterAuthenticationError when all brokers refuse the login or TLS; the fetcher stays usable and tries
        again with the next poll. All other errors, a single broker that refuses included, are reported as FetchFaults
        and retried. Looking up a host name may take longer than `timeout_s`.
        """
        self._check_open()
        deadline = clock.now() + timeout_s
        self._work()
        self._net.poll(timeout_ms=0)
        while True:
            self._work()
            now = clock.now()
            if self._assignment.has_events or self._fatal or self._bug or now >= deadline:
                break
            self._net.poll(timeout_ms=(min(deadline, self._next_timer(now)) - now) * 1000)
        self._raise_bug()
        events = self._assignment.take_events()
        if events:
            self._work()  # the next requests leave before the caller starts to work
            return events
        self._raise_fatal()
        return []

    # Look-ups

    def bounds(
        self, tps: Iterable[tuple[str, int]], *, timeout_s: float = 30.0
    ) -> tuple[dict[TopicPartition, LogBounds], dict[TopicPartition, str]]:
        """Return {partition: its bounds}, and {partition: reason} for those that are denied or have no leader's answer.

        Raises ClusterAuthenticationError if all brokers refuse, and as `end_offsets` when `timeout_s` runs out.
        """
        return self._run(self._lookups.bounds, [TopicPartition(*tp) for tp in tps], timeout_s=timeout_s)

    def known_ends(
        self, tps: Iterable[tuple[str, int]], *, timeout_s: float = 2.0
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return as `end_offsets`, without the partitions that no leader answers for. Raises as `bounds`."""
        missing: dict[TopicPartition, str] = {}
        return self._run(
            lambda asked, deadline: self._lookups.ends(asked, deadline, missing),
            [TopicPartition(*tp) for tp in tps],
            timeout_s=timeout_s,
        )

    def end_offsets(
        self, tps: Iterable[tuple[str, int]], *, timeout_s: float = 10.0
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return {partition: (end offset, epoch)}; the end is the last stable offset under read_committed.

        The epoch is that of the record before the end, whether or not compaction has removed it (`leader_epochs`); -1
        if the cluster gives none. Raises UnknownTopicError, ClusterDeniedError, ClusterAuthenticationError, and
        ClusterUnreachableError or ClusterTransientError when `timeout_s` runs out.
        """
        return self._run(self._lookups.ends, [TopicPartition(*tp) for tp in tps], timeout_s=timeout_s)

    def start_offsets(
        self, tps: Iterable[tuple[str, int]], *, timeout_s: float = 30.0
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return {partition: (log start offset, leader epoch of the first record or -1)}. Raises as `end_offsets`."""
        return self._run(
            self._lookups.offsets, [TopicPartition(*tp) for tp in tps], requests.EARLIEST, timeout_s=timeout_s
        )

    def leaders(
        self, tps: Iterable[tuple[str, int]], *, timeout_s: float = 30.0
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return {partition: (leader id, leader epoch)} as of now. Raises as `end_offsets`."""
        return self._run(self._lookups.leaders, [TopicPartition(*tp) for tp in tps], timeout_s=timeout_s)

    def epoch_ends(
        self, epochs: Mapping[TopicPartition, int], *, timeout_s: float = 30.0
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return {partition: (largest epoch up to the given one that the leader knows now, its end)} (KIP-320).

        Both are -1 if a leader knows no such epoch. Raises as `end_offsets`.
        """
        return self._run(self._lookups.epoch_ends_of, dict(epochs), timeout_s=timeout_s)

    def record_hashes(
        self, places: Mapping[TopicPartition, LogPlace], *, timeout_s: float = 10.0
    ) -> dict[TopicPartition, RecordHash | None]:
        """Return the records that the leaders have at these places, without partitions that no leader answers for.

        The record is the last one below `until` in the first record batch that ends at or above the offset, aborted or
        not; None if that batch has none, or can't be decoded. At a `readable` place all batches are searched for one
        that a reader is given; without one there is no answer while the last stable offset is below `until`. Raises as
        `bounds`.
        """
        missing: dict[TopicPartition, str] = {}
        return self._run(
            lambda asked, deadline: self._lookups.record_hashes(asked, deadline, missing),
            dict(places),
            timeout_s=timeout_s,
        )

    def named_records(self, tps: Iterable[tuple[str, int]], *, timeout_s: float = 2.0) -> dict[TopicPartition, int]:
        """Return the offset of a record that each leader's own index names, -1 if it names none.

        It is the record with the largest timestamp (KIP-734, Kafka 3.0); for a broker that does not support that
        request, the first record of the log. It serves as a second source when fetches return no records. Partitions
        that no leader answers for are left out. Raises as `bounds`.
        """
        return self._run(self._lookups.named_records, [TopicPartition(*tp) for tp in tps], timeout_s=timeout_s)

    def close(self) -> None:
        """Drop all connections. May be called twice."""
        if not self._closed:
            self._closed = True
            self._sum.remove(self._assignment.brokers)
            self._manager.close()
            self._net.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Inside

    def _part(self, tp: tuple[str, int]) -> AssignedPartition:
        try:
            return self._assignment.parts[TopicPartition(*tp)]
        except KeyError:
            raise ValueError(f"{tp} is not assigned") from None

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("the fetcher is closed")

    def _raise_bug(self) -> None:
        bug, self._bug = self._bug, None
        if bug is not None:
            raise bug

    def _raise_fatal(self) -> None:
        fatal, self._fatal = self._fatal, None
        if fatal is not None:
            raise fatal

    def _guarded(self, step: Callable[..., None]) -> Callable[..., None]:
        """Wrap a callback, so that `poll` raises its exception: kafka-python would only log it and go on."""

        def run(*args: Any) -> None:  # noqa: ANN401 - passed through
            if self._closed:
                return
            try:
                step(*args)
            except Exception as error:  # noqa: BLE001 - raised again by poll
                self._bug = error

        return run

    def _spawn(self, work: Callable[..., Coroutine[Any, Any, None]], *args: object) -> None:
        def failed(error: BaseException) -> None:
            if isinstance(error, Exception):
                self._bug = error

        self._manager.call_soon(work, *args).add_errback(self._guarded(failed))

    # Work: starts the requests that are due; nothing here waits

    def _work(self) -> None:
        now = clock.now()
        if not self._bootstrapped(now):
            return
        assignment = self._assignment
        assignment.wake(now)
        for node in self._slowness.newly_slow(now):
            assignment.add_cluster_fault(
                f"broker {node} lets a fetch wait for more than {SLOW:.0f} s: it, or the way to it, is slow", now
            )
        if assignment.by_topic and not self._metadata_running and now >= self._metadata_due:
            self._ask_for_leaders(now)
        for broker in assignment.brokers.values():
            if _may_send(broker) and now >= broker.retry_at:
                self._send(broker, now)
        for node, parts in assignment.to_check().items():
            broker = assignment.broker(node)
            if not broker.validating and now >= broker.retry_at:
                broker.validating = True
                self._spawn(self._validate, broker, parts)

    def _next_timer(self, now: float) -> float:
        timers = [now + 1.0]
        if not self._manager.bootstrapped:
            timers.append(self._bootstrap_at)
        elif self._assignment.by_topic and not self._metadata_running:
            timers.append(self._metadata_due)
        retry = self._assignment.next_retry
        if retry is not None:
            timers.append(retry)
        timers.extend(broker.retry_at for broker in self._assignment.brokers.values() if _may_send(broker))
        return max(min(timers), now + 0.001)

    def _bootstrapped(self, now: float) -> bool:
        if self._manager.bootstrapped:
            self._told_unreachable = False
            return True
        if self._bootstrap is not None and not self._bootstrap.is_done:
            error, self._manager.last_error = self._manager.last_error, None
            if error is not None:
                self._note()
                typed = connections.explain(error, self._servers)
                # If one of the configured servers refuses the login, another one may accept it.
                mendable = not isinstance(typed, ClusterAuthenticationError)
                if mendable and self._fatal is None and not self._told_unreachable:
                    self._told_unreachable = True
                    self._assignment.add_cluster_fault(str(typed), now)
        elif now >= self._bootstrap_at:
            self._bootstrap_at = now + 1.0
            self._bootstrap = self._manager.bootstrap_async()
        return False

    def _note(self) -> None:
        """Record the refusal if by now all brokers refuse the login: only a person can fix that."""
        self._fatal = self._manager.refused_by_all()

    # Leaders

    @property
    def _metadata_due(self) -> float:
        rest = 0.0 if self._unknown_topic else self._metadata_last + _BETWEEN_METADATA
        return max(self._assignment.metadata_at, rest)

    def _kept_view(self, part: AssignedPartition) -> requests.TopicView | None:
        """Return the last metadata of a partition's topic, None if it is older than the partition or the topic."""
        self._unread.pop(part.tp.topic, None)
        view = self._lookups.views.get(part.tp.topic)
        return view if view is None or view.error_code or leadership.describes(part, view) else None

    def _forget_views(self, now: float) -> None:
        """Forget the metadata of topics that are no longer read. A look-up may need it, so not while one runs."""
        while self._unread and now - self._unread[next(iter(self._unread))] > _VIEW_KEPT:
            self._lookups.views.pop(self._unread.popitem(last=False)[0], None)

    def _ask_for_leaders(self, now: float) -> None:
        self._metadata_running = True
        self._unknown_topic = False
        # The answer will not have them, and no metadata is believed for longer than until the next answer.
        self._unread = OrderedDict.fromkeys(self._unread, -math.inf)
        self._assignment.metadata_at = now + self._metadata_max_age
        future = self._manager.call_soon(self._lookups.refresh, list(self._assignment.by_topic))
        future.add_callback(self._guarded(self._leaders_came))
        future.add_errback(self._guarded(self._leaders_failed))

    def _leaders_came(self, _: object) -> None:
        self._metadata_running = False
        self._metadata_last = clock.now()
        self._metadata_failures = 0

    def _leaders_failed(self, error: BaseException) -> None:
        if not isinstance(error, kafka_errors.KafkaError):
            raise error
        now = clock.now()
        self._metadata_running = False
        self._metadata_last = now
        self._metadata_failures += 1
        self._assignment.want_metadata(now + backoff(self._metadata_failures, first=0.1, most=_MOST_BACKOFF))
        self._note()

    # Fetching

    def _send(self, broker: LeaderBroker, now: float) -> None:
        probe = next_suspect(broker)
        if not probe and not broker.probed:
            probe = due_probe(broker, now, most_bytes=self._limits.max_bytes)
        broker.probed = bool(probe)
        longest = self._limits.max_wait_ms / 1000
        wait = longest
        if probe:
            plan = FetchPlan(session_id=0, epoch=-1, send=probe, forget=(), by_id=all(ask.topic_id for _, ask in probe))
            wait = 0.0
        else:
            plan = broker.session.next_request()
            self._answers.note_request(broker, plan)
            if broker.held:
                # The next request of held partitions must not wait behind a long poll of the others.
                wait = min(broker.wait, longest)
                broker.wait = max(broker.wait * 2, _SHORTEST_WAIT)
            due = broker.empty.next_due
            if due is not None:  # nor must the next check whether a log is empty
                wait = min(wait, max(due - now, _SHORTEST_WAIT))
        request = requests.fetch_request(
            plan,
            max_wait_ms=int(wait * 1000),
            max_bytes=self._sum.reserve_bytes(broker, self._assignment.brokers, most=self._limits.max_bytes),
            read_committed=self._read_committed,
        )
        self._slowness.sent(broker.node, now)
        try:
            future = self._manager.send(request, node_id=broker.node)
        except kafka_errors.KafkaError as error:
            self._fetch_failed(broker, error)
            return
        probed = dict(probe) or None

        def came(response: Any) -> None:  # noqa: ANN401 - kafka-python has no types
            received = clock.now()
            self._slowness.ended(broker.node, received)
            try:
                self._answers.process_response(
                    broker, response, requested_at=now, received_at=received, probed=probed, patience_s=wait
                )
            finally:
                broker.in_flight = False  # only now, when its bytes count as `buffered`

        future.add_callback(self._guarded(came))
        future.add_errback(self._guarded(lambda error: self._fetch_failed(broker, error, probed)))

    def _fetch_failed(
        self, broker: LeaderBroker, error: BaseException, probed: Collection[TopicPartition] | None = None
    ) -> None:
        now = clock.now()
        if isinstance(error, kafka_errors.InvalidReceiveError):
            self._frame_too_large(broker, probed or broker.session.sent, now)
            return
        broker.in_flight = False
        self._slowness.ended(broker.node, now)
        broker.session.broken()
        jitter = random.uniform(0.8, 1.2)  # noqa: S311 - no secret
        pause = backoff(broker.failures, most=_MOST_BACKOFF) * jitter
        broker.retry_at = now + max(self._manager.connection_delay(broker.node), pause)
        broker.failures += 1
        self._assignment.report_leader_lost(broker, now)
        self._note()
        if broker.failures > 1 and not broker.told:
            broker.told = True
            why = self._manager.refusal(broker.node) or str(error) or type(error).__name__
            self._assignment.add_cluster_fault(f"broker {broker.node} can't be read from: {why}", now)
        self._assignment.want_metadata(now)

    def _frame_too_large(self, broker: LeaderBroker, asked: Collection[TopicPartition], now: float) -> None:
        broker.in_flight = False
        self._slowness.ended(broker.node, now)
        broker.session.broken()
        broker.retry_at = now + self._manager.connection_delay(broker.node)
        answer_too_large(self._assignment, broker, asked, most=self._most_received, now=now)

    def _find_range(self, part: AssignedPartition) -> None:
        self._spawn(self._report_out_of_range, part, part.serial)

    async def _report_out_of_range(self, part: AssignedPartition, serial: int) -> None:
        start: int | None = None
        end: int | None = None
        deadline = clock.now() + _RANGE_CHECK
        try:
            start = (await self._lookups.offsets([part.tp], requests.EARLIEST, deadline))[part.tp][0]
            end = (await self._lookups.offsets([part.tp], requests.LATEST, deadline))[part.tp][0]
        except TandemError:
            pass  # the fault is reported without them
        inside = start is not None and end is not None and start <= part.offset <= end
        # A broker also answers "out of range" if it does not know the end of the position's epoch: it knows no epochs,
        # as for logs in a message format before 0.11, or only lower ones, after its disks were reset to an older state.
        knows = inside and part.last_epoch >= 0 and await self._knows_epochs(part)
        if part.serial == serial and part.resting and part.tp in self._assignment.parts:
            if knows:
                mark_diverged(self._assignment, part, -1, -1, clock.now())
                return
            where = "" if start is None or end is None else f", which is [{start}, {end})"
            detail = f"broker {part.leader} answers that position {part.offset} of {part} is outside the log{where}"
            if inside and part.last_epoch >= 0:
                detail += ", and knows no leader epochs of it: its message format may be older than 0.11"
            self._assignment.add_fault(part, FaultKind.OUT_OF_RANGE, detail, clock.now(), log_start=start, log_end=end)

    async def _knows_epochs(self, part: AssignedPartition) -> bool:
        """Return whether the leader knows the start of any epoch of the log."""
        try:
            answers = await self._lookups.epoch_ends(part.leader, [(part.tp, part.leader_epoch, 0)])
        except kafka_errors.KafkaError:
            self._note()
            return False
        return any(not code and end >= 0 for _, code, _, end in answers)

    async def _validate(self, broker: LeaderBroker, parts: list[AssignedPartition]) -> None:
        """Check the positions against the leader's log, by the end of the epoch of the last record read (KIP-320)."""
        assignment = self._assignment
        asked = {part.tp: (part.serial, part.offset, part.last_epoch) for part in parts}
        asks = [(part.tp, part.leader_epoch, part.last_epoch) for part in parts]
        try:
            answers = await self._lookups.epoch_ends(broker.node, asks)
        except kafka_errors.KafkaError:
            self._note()
            answers = [(part.tp, ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1) for part in parts]
        finally:
            broker.validating = False
        now = clock.now()
        for tp, code, epoch, end in answers:
            part = assignment.parts.get(tp)
            if part is None or (part.serial, part.offset, part.last_epoch) != asked.get(tp):
                continue
            if ErrorCode.of(code).meaning is ErrorMeaning.DENIED:
                leadership.mark_denied(assignment, part, now)
            elif code:
                assignment.retry(part, now + backoff(part.failures))
                part.failures += 1
                assignment.want_metadata(now)
            elif epoch < 0 or end < 0:
                mark_diverged(assignment, part, -1, -1, now)
            elif epoch < part.last_epoch or end < part.offset:
                mark_diverged(assignment, part, epoch, end, now)
            else:
                assignment.checked(part)

    # Look-ups

    def _run(
        self,
        work: Callable[..., Coroutine[Any, Any, _T]],
        *args: object,
        timeout_s: float,
    ) -> _T:
        """Run a look-up on the event loop, while fetching continues, until it is done or `timeout_s` is over."""
        self._check_open()
        deadline = clock.now() + timeout_s
        future: Any = None
        while True:
            self._work()
            self._raise_bug()
            self._raise_fatal()
            now = clock.now()
            if future is None and self._manager.bootstrapped:
                future = self._manager.call_soon(work, *args, deadline)
            if future is not None and future.is_done:
                if future.exception is not None:
                    raise future.exception
                found: _T = future.value
                return found
            if now >= deadline:
                break
            self._net.poll(timeout_ms=(min(deadline, self._next_timer(now)) - now) * 1000)
        if future is not None:
            raise self._lookups.timed_out()
        error = self._manager.worst_error
        if error is not None:
            raise connections.explain(error, self._servers)
        raise ClusterUnreachableError(
            f"No Kafka broker answered at {self._servers} within {timeout_s:g} s",
            code="TDM-K059",
            remedy="check bootstrap.servers and the network, and that the brokers run",
        )


def _may_send(broker: LeaderBroker) -> bool:
    return not (broker.in_flight or broker.buffered) and len(broker.session) > 0


def _uuid(given: UUID | str | None) -> UUID | None:
    return topic_id.as_uuid(given) if isinstance(given, str) else given
