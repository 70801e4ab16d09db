"""Look-ups that a fetcher makes on its own connections: topic metadata, log starts and ends, ends of leader epochs."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import kafka.errors as kafka_errors

from tandem.backup_avro.chain.entries import RecordHash
from tandem.backup_avro.errors import TandemError
from tandem.sink.kafka.errors.cluster_errors import ClusterDeniedError, ClusterTransientError, UnknownTopicError
from tandem.sink.kafka.errors.error_codes import PERMANENT, ErrorCode, ErrorMeaning, name_of
from tandem.sink.kafka.events import LogBounds, LogPlace, TopicPartition
from tandem.sink.kafka.lookup.leader_epochs import EpochDescent
from tandem.sink.kafka.lookup.record_lookup import SIZES, RecordLookup
from tandem.sink.kafka.wire import connections, requests
from tandem.sink.process import clock

# Seconds.
_PAUSE = 0.1  # between two tries
_LOOK = 0.01  # between two checks whether brokers have answered
_SILENT = 10.0  # after which the look-up no longer waits for a broker that has not answered
_UNKNOWN_TRIES = 6
_SHORT_TRIES = 4
"""Number of tries after which a look-up with `missing` goes on without the partitions that no broker answers for."""


class LogLookups:
    """Coroutines on kafka-python's event loop; `deadline` is by `sink.process.clock`. For the fetcher's thread only.

    Each coroutine waits until all partitions are answered for, and raises at the deadline. With `missing` it makes only
    a few tries and then puts the partitions without an answer there, with the reason: they are unknown, not empty.
    Partitions of a topic that the principal may not read are put there, too. A broker that refuses the login counts as
    leading no partition, as long as another broker accepts the login.
    """

    def __init__(
        self,
        net: Any,  # noqa: ANN401 - kafka-python has no types
        manager: connections.Connections,
        *,
        servers: str,
        read_committed: bool,
        on_views: Callable[[list[requests.TopicView]], None],
    ) -> None:
        """`on_views` is called with the topics of each metadata response."""
        self._net = net
        self._manager = manager
        self._servers = servers
        self._read_committed = read_committed
        self._problem = ""
        self.views: dict[str, requests.TopicView] = {}
        self._on_views = on_views

    async def refresh(self, topics: Sequence[str]) -> None:
        """Request the metadata of these topics and apply the response. Raises kafka-python's exceptions."""
        response = await self._manager.ask_any(functools.partial(requests.metadata_request, topics))
        views = requests.topic_views(response)
        self._manager.cluster.update_metadata(response)  # where brokers are
        for view in views:
            self.views[view.name] = view
        self._on_views(views)

    async def bounds(
        self, tps: Sequence[TopicPartition], deadline: float
    ) -> tuple[dict[TopicPartition, LogBounds], dict[TopicPartition, str]]:
        """Return the bounds of each partition that could be looked up, and the reason for each of the others."""
        missing: dict[TopicPartition, str] = {}
        ends = await self.ends(tps, deadline, missing)
        starts = await self.offsets(list(ends), requests.EARLIEST, deadline, missing)
        leaders = await self.leaders(list(starts), deadline, missing)
        found = {
            tp: LogBounds(
                start=starts[tp][0], end=ends[tp][0], end_epoch=ends[tp][1], leader=leader, leader_epoch=epoch
            )
            for tp, (leader, epoch) in leaders.items()
        }
        return found, missing

    async def leaders(
        self, tps: Sequence[TopicPartition], deadline: float, missing: dict[TopicPartition, str] | None = None
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return {partition: (leader, epoch)}. Raises UnknownTopicError, ClusterDeniedError, ClusterTransientError."""
        found: dict[TopicPartition, tuple[int, int]] = {}
        why: dict[TopicPartition, str] = {}
        tries = 0
        while left := set(tps) - found.keys():
            if tries:
                if self._goes_on_without(left, tries, why, missing):
                    break
                await self._pause(deadline)
            tries += 1
            if not await self._try_refresh({tp.topic for tp in tps}):
                continue
            # All from one metadata response: a leader found earlier may have moved while waiting for the others.
            found = {}
            for tp in tps:
                leader = self._leader(tp, why, missing, final=tries >= _UNKNOWN_TRIES)
                if leader is not None:
                    found[tp] = leader
        return found

    async def offsets(
        self,
        tps: Sequence[TopicPartition],
        timestamp: int,
        deadline: float,
        missing: dict[TopicPartition, str] | None = None,
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return {partition: (offset, epoch)} at `timestamp` (`requests.LATEST`, `.EARLIEST`). Raises as `leaders`."""
        found: dict[TopicPartition, tuple[int, int]] = {}
        why: dict[TopicPartition, str] = {}
        left = set(tps)
        began = clock.now()
        tries = 0
        while left:
            if tries:
                silent = clock.now() >= began + _SILENT
                if self._goes_on_without(left, _SHORT_TRIES if silent else tries, why, missing):
                    break
                await self._pause(deadline)
            tries += 1
            unknown = {tp.topic for tp in left if tp.topic not in self.views}
            stale = {tp.topic for tp in left} if tries > 1 else unknown
            if stale and not await self._try_refresh(stale):
                continue
            by_node: defaultdict[int, list[tuple[TopicPartition, int]]] = defaultdict(list)
            for tp in left:
                leader = self._leader(tp, why, missing, final=tries >= _UNKNOWN_TRIES)
                if leader is not None:
                    by_node[leader[0]].append((tp, leader[1]))
            patience = deadline if missing is None else min(deadline, began + _SILENT)
            for tp, offset, epoch in await self._listed(by_node, timestamp, why, missing, patience):
                found[tp] = (offset, epoch)
                left.discard(tp)
        return found

    async def ends(
        self, tps: Sequence[TopicPartition], deadline: float, missing: dict[TopicPartition, str] | None = None
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return {partition: (end, epoch of the record before it)}, see `leader_epochs`. Raises as `leaders`."""
        listed = await self.offsets(tps, requests.LATEST, deadline, missing)
        descents = {tp: EpochDescent(offset=offset, leader_epoch=epoch) for tp, (offset, epoch) in listed.items()}
        found = {tp: descent.trivial for tp, descent in descents.items()}
        while left := {tp: descents[tp].question for tp, epoch in found.items() if epoch is None}:
            answers = await self.epoch_ends_of(left, deadline, missing)
            for tp in left:
                if tp in answers:
                    found[tp] = descents[tp].answered(*answers[tp])
                else:
                    del found[tp]
        return {tp: (listed[tp][0], epoch) for tp, epoch in found.items() if epoch is not None}

    async def epoch_ends_of(
        self,
        epochs: Mapping[TopicPartition, int],
        deadline: float,
        missing: dict[TopicPartition, str] | None = None,
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return {partition: (largest epoch up to the given one that the leader knows, its end)} (KIP-320).

        Both are -1 if the leader knows no such epoch. Raises as `leaders`.
        """
        found: dict[TopicPartition, tuple[int, int]] = {}
        why: dict[TopicPartition, str] = {}
        tries = 0
        while len(found) < len(epochs):
            left = [tp for tp in epochs if tp not in found]
            if tries:
                if self._goes_on_without(left, tries, why, missing):
                    break
                await self._pause(deadline)
            tries += 1
            if not await self._try_refresh({tp.topic for tp in left}):
                continue
            by_node: defaultdict[int, list[tuple[TopicPartition, int, int]]] = defaultdict(list)
            for tp in left:
                leader = self._leader(tp, why, missing, final=tries >= _UNKNOWN_TRIES)
                if leader is not None:
                    by_node[leader[0]].append((tp, leader[1], epochs[tp]))
            patience = deadline if missing is None else min(deadline, clock.now() + _SILENT)
            for response in await self._ask_each(by_node, requests.epoch_ends_request, why, patience):
                for tp, code, epoch, end in requests.epoch_ends(response):
                    if not code:
                        found[tp] = (epoch, end)
                    elif ErrorCode.of(code).meaning is ErrorMeaning.DENIED:
                        self._denied(tp, why, missing)
                    else:
                        self._no_answer(tp, name_of(code), why)
        return found

    async def named_records(self, tps: Sequence[TopicPartition], deadline: float) -> dict[TopicPartition, int]:
        """Return the offset of the record that each leader's index names, see `RawFetcher.named_records`."""
        patience = min(deadline, clock.now() + _SILENT)
        found: dict[TopicPartition, int] = {}
        await self._try_refresh({tp.topic for tp in tps})
        for timestamp in (requests.MAX_TIMESTAMP, requests.ANY_TIMESTAMP):
            by_node: defaultdict[int, list[tuple[TopicPartition, int]]] = defaultdict(list)
            for tp in tps:
                leader = self._leader(tp, {}, {}, final=False)
                if leader is not None and tp not in found:
                    by_node[leader[0]].append((tp, leader[1]))
            make = self._list_offsets(timestamp)
            for response in await self._ask_each(by_node, make, {}, patience):
                if timestamp != requests.MAX_TIMESTAMP or requests.knows_max_timestamp(response):
                    found.update(_named(response, last_try=timestamp == requests.ANY_TIMESTAMP))
        return found

    async def record_hashes(
        self,
        places: Mapping[TopicPartition, LogPlace],
        deadline: float,
        missing: dict[TopicPartition, str],
    ) -> dict[TopicPartition, RecordHash | None]:
        """Return the records that the leaders have at these offsets, see `FetchSource.record_hashes`.

        Raises as `leaders`.
        """
        readable = [tp for tp, place in places.items() if place.readable]
        starts = await self.offsets(readable, requests.EARLIEST, deadline, missing)
        asked = RecordLookup(
            {tp: place for tp, place in places.items() if not place.readable or tp in starts},
            starts={tp: start for tp, (start, _) in starts.items()},
            read_committed=self._read_committed,
        )
        why: dict[TopicPartition, str] = {}
        tries = 0
        while left := asked.left:
            if asked.take_progress():
                tries -= 1
                if clock.now() >= deadline:
                    missing.update(dict.fromkeys(left, "its log is not searched through in time"))
                    break
            elif tries:
                if self._goes_on_without(left, tries - len(SIZES), why, missing):
                    break
                await self._pause(deadline)
            tries += 1
            if not await self._try_refresh({tp.topic for tp in left}):
                continue
            by_node: defaultdict[int, list[tuple[TopicPartition, int]]] = defaultdict(list)
            for tp in left:
                leader = self._leader(tp, why, missing, final=False)
                if leader is not None and not asked.is_of(tp, self.views[tp.topic]):
                    self._no_answer(tp, "another topic has its name", why)
                elif leader is not None:
                    by_node[leader[0]].append((tp, leader[1]))
            for node, leaders in by_node.items():
                await self._look_up(asked, node, leaders, why)
        return asked.found

    async def _look_up(
        self,
        asked: RecordLookup,
        node: int,
        leaders: Sequence[tuple[TopicPartition, int]],
        why: dict[TopicPartition, str],
    ) -> None:
        names = {view.topic_id: view.name for view in self.views.values() if view.topic_id is not None}
        try:
            for request in asked.requests(leaders, self.views):
                response = await self._manager.send(request, node_id=node)
                for tp, data in requests.fetch_parts(response, names):
                    problem = asked.process_response(tp, data)
                    if problem is not None:
                        self._no_answer(tp, problem, why)
        except kafka_errors.KafkaError as error:
            self._note(error, node)
            why.update((tp, self._problem) for tp, _ in leaders)

    async def _listed(
        self,
        by_node: dict[int, list[tuple[TopicPartition, int]]],
        timestamp: int,
        why: dict[TopicPartition, str],
        missing: dict[TopicPartition, str] | None,
        patience: float,
    ) -> list[tuple[TopicPartition, int, int]]:
        found = []
        for response in await self._ask_each(by_node, self._list_offsets(timestamp), why, patience):
            for tp, code, offset, epoch in requests.listed_offsets(response):
                if not code and offset >= 0:
                    found.append((tp, offset, epoch))
                elif ErrorCode.of(code).meaning is ErrorMeaning.DENIED:
                    self._denied(tp, why, missing)
                else:
                    self._no_answer(tp, name_of(code), why)
        return found

    def _list_offsets(self, timestamp: int) -> Callable[[Any], Any]:
        return functools.partial(
            requests.list_offsets_request, timestamp=timestamp, read_committed=self._read_committed
        )

    async def _ask_each(
        self,
        by_node: Mapping[int, Sequence[tuple[Any, ...]]],
        make: Callable[[Any], Any],
        why: dict[TopicPartition, str],
        patience: float,
    ) -> list[Any]:
        """Send each broker the request for its items and return the responses that came until `patience`.

        The partitions (the first of an item's values) of brokers without a response get the reason in `why`.
        """
        futures = {}
        responses = []
        problems = dict.fromkeys(by_node, "")
        for node, asks in by_node.items():
            try:
                futures[node] = self._manager.send(make(asks), node_id=node)
            except kafka_errors.KafkaError as error:
                problems[node] = self._note(error, node)
        # All are awaited together, so that a broker that hangs does not discard the answers of the others.
        while clock.now() < patience and not all(future.is_done for future in futures.values()):
            await self._net.sleep(_LOOK)
        for node, future in futures.items():
            if not future.is_done:
                problems[node] = self._problem = f"broker {node} does not answer"
                continue
            try:
                responses.append(await future)
            except kafka_errors.KafkaError as error:
                problems[node] = self._note(error, node)
        why.update((ask[0], problem) for node, problem in problems.items() if problem for ask in by_node[node])
        return responses

    async def epoch_ends(
        self, node: int, asks: Sequence[tuple[TopicPartition, int, int]]
    ) -> list[tuple[TopicPartition, int, int, int]]:
        """Request the ends of epochs from `node`: (partition, error code, epoch, end). Raises as kafka-python does."""
        response = await self._manager.send(requests.epoch_ends_request(asks), node_id=node)
        return list(requests.epoch_ends(response))

    def timed_out(self) -> TandemError:
        """Return the error for a look-up that did not end in time."""
        problem = f": {self._problem}" if self._problem else ""
        return ClusterTransientError(
            f"The Kafka cluster at {self._servers} could not be asked in time{problem}",
            code="TDM-K060",
            remedy="it may work when tried again; if not, look at the brokers' logs",
        )

    async def _try_refresh(self, topics: Iterable[str]) -> bool:
        try:
            await self.refresh(sorted(topics))
        except kafka_errors.KafkaError as error:
            self._note(error)
            return False
        return True

    def _goes_on_without(
        self,
        left: Iterable[TopicPartition],
        tries: int,
        why: Mapping[TopicPartition, str],
        missing: dict[TopicPartition, str] | None,
    ) -> bool:
        """Return whether there were enough tries for `left`; if so, these partitions are put into `missing`."""
        if missing is None or tries < _SHORT_TRIES:
            return False
        missing.update((tp, why.get(tp) or self._problem or "no answer") for tp in left)
        return True

    def _no_answer(self, tp: TopicPartition, reason: str, why: dict[TopicPartition, str]) -> None:
        why[tp] = reason
        self._problem = f"{reason} for {tp.topic}-{tp.partition}"

    def _denied(
        self, tp: TopicPartition, why: dict[TopicPartition, str], missing: dict[TopicPartition, str] | None
    ) -> None:
        error = denied(tp.topic)
        if missing is None:
            raise error
        self._no_answer(tp, str(error), why)

    def _leader(
        self,
        tp: TopicPartition,
        why: dict[TopicPartition, str],
        missing: dict[TopicPartition, str] | None,
        *,
        final: bool,
    ) -> tuple[int, int] | None:
        view = self.views.get(tp.topic)
        if view is None:
            return None
        if ErrorCode.of(view.error_code).meaning is ErrorMeaning.DENIED:
            self._denied(tp, why, missing)
            return None
        unknown = ErrorCode.of(view.error_code).meaning is ErrorMeaning.UNKNOWN_TOPIC
        if unknown or (not view.error_code and tp.partition not in view.partitions):
            if final:
                raise UnknownTopicError(
                    f"Kafka topic {tp.topic} has no partition {tp.partition}"
                    if not unknown
                    else f"Kafka topic {tp.topic} does not exist at {self._servers}",
                    code="TDM-K061",
                    remedy="check the name, or create it",
                )
            self._no_answer(tp, "unknown partition", why)
            return None
        if view.error_code:
            self._no_answer(tp, name_of(view.error_code), why)
            return None
        leader = view.partitions[tp.partition]
        if leader[0] < 0:
            self._no_answer(tp, "no leader", why)
            return None
        return leader

    async def _pause(self, deadline: float) -> None:
        if clock.now() + _PAUSE >= deadline:
            raise self.timed_out()
        await self._net.sleep(_PAUSE)

    def _note(self, error: BaseException, node: int | None = None) -> str:
        """Record the error of `node` (None: of any broker) and return its text. Raises if all refuse the login."""
        refused = self._manager.refused_by_all()
        if refused is not None:
            raise refused from None
        refusal = self._manager.refusal(node)
        self._problem = refusal or str(error) or type(error).__name__
        return self._problem


def _named(response: Any, *, last_try: bool) -> Iterator[tuple[TopicPartition, int]]:  # noqa: ANN401
    for tp, code, offset, _ in requests.listed_offsets(response):
        if not code:
            yield tp, offset
        elif last_try and ErrorCode.of(code).meaning in PERMANENT:
            yield tp, -1


def denied(topic: str) -> ClusterDeniedError:
    """Return the error for a topic that the principal may not read."""
    return ClusterDeniedError(
        f"Not allowed to read Kafka topic {topic}",
        code="TDM-K062",
        remedy="grant READ and DESCRIBE on the topic to the principal",
    )
