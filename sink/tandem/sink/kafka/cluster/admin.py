"""The admin view of a cluster through librdkafka: topics, their configuration, offsets of consumer groups."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType, TracebackType
from typing import Any, Self, TypeVar

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
)
from confluent_kafka import TopicPartition as _Partition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its names are public, but not marked for re-export
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tandem.backup_avro.errors import ConfigError, TandemError
from tandem.sink.kafka.auth import client_config
from tandem.sink.kafka.auth.renewed_files import RenewedClient
from tandem.sink.kafka.auth.tokens import Tokens
from tandem.sink.kafka.cluster import admin_errors, librdkafka_references
from tandem.sink.kafka.cluster.admin_requests import (
    PARTITIONS_AT_ONCE,
    by_partitions,
    chunks,
    close_admin,
    config_change,
    is_set_on_topic,
    offset_spec,
    open_admin,
)
from tandem.sink.kafka.cluster.client_reports import DebugLog, LastClientError
from tandem.sink.kafka.cluster.consumer_groups import MOST, CommittedOffset, CommittedOffsets, GroupOffsetBudget
from tandem.sink.kafka.errors.cluster_errors import (
    ClusterAuthenticationError,
    ClusterDeniedError,
    ClusterTransientError,
    ClusterUnreachableError,
    TopicExistsError,
    UnknownTopicError,
)
from tandem.sink.kafka.events import TopicPartition
from tandem.sink.kafka.wire import topic_ids as topic_id
from tandem.sink.kafka.wire.unique_keys import unique

_T = TypeVar("_T")


_TOPICS_AT_ONCE = 200
_GROUPS_AT_ONCE = 16
_LEADERLESS_S = 0.3
#: How long a partition without a leader is waited for by who can do without its offsets.
_LEFT_OUT_S = 1.0
#: How long a new topic may be without leaders, and the first pause of that wait: most have them within milliseconds.
_LED_WITHIN_S = 60.0
_UNLED_S = 0.05
#: How long brokers may say that a topic does not exist until it is believed: one may not have heard of a new topic yet.
UNKNOWN_S = 2.0
_FIRST_TRY_S = 5.0

# Recorded with their effective values even if they are not set on the topic: a restore depends on them.
ALWAYS_RECORDED = frozenset(
    {
        "cleanup.policy",
        "delete.retention.ms",
        "retention.ms",
        "message.timestamp.type",
        "min.compaction.lag.ms",
        "max.message.bytes",
    }
)

# Keeps every setting name that a broker reported alive: confluent-kafka interns the names in each answer. Names that
# are freed and interned again fill CPython's table of interned strings, which is then rebuilt: 2 MB, about every hour.
_SETTINGS: set[str] = set()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """One topic. `partitions`: number -> (leader id, leader epoch), each -1 if not known.

    `topic_id` is Kafka's text form (22 characters of base64). Every topic has one, and no two have the same.
    """

    name: str
    topic_id: str
    partitions: Mapping[int, tuple[int, int]]
    replication_factor: int
    internal: bool


class ClusterAdmin:
    """Reads and changes topics and settings of one cluster. Thread-safe; each call blocks for at most `timeout_s`.

    All methods raise ClusterUnreachableError and ClusterTransientError (try again later), ClusterAuthenticationError,
    ClusterDeniedError (names operation and resource), UnknownTopicError and ClusterRequestError.
    """

    def __init__(self, props: Mapping[str, client_config.Value], *, timeout_s: float = 30.0) -> None:
        self._servers = client_config.servers_of(props)
        self._timeout_s = timeout_s
        self._heard = LastClientError()
        self._introduced = False
        config = client_config.for_confluent(props, error_cb=self._heard.keep_error, logger=DebugLog())
        self._tokens = config.get("oauth_cb")
        try:
            self._clients: RenewedClient[Any] = RenewedClient(props, partial(open_admin, config), close_admin)
        except (KafkaException, ValueError, TypeError) as error:
            raise admin_errors.refused_config(error) from None

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """Close the connections. Short-lived instances have to call this rather than rely on garbage collection.

        The collector may run on any thread, also on the client's own while it reports on a request whose caller has
        stopped waiting. librdkafka ends the whole process when its client is destroyed there.
        """
        self._clients.close()

    @property
    def _admin(self) -> Any:  # noqa: ANN401 - confluent-kafka has no types
        return self._clients.get()

    @property
    def all_down(self) -> bool:
        """Whether no broker has taken a connection since the last answer; a broker that hangs takes them."""
        return self._heard.all_down

    def cluster_id(self) -> str:
        """Return the cluster's id."""
        return self._again(self._cluster_id)

    def _cluster_id(self, deadline: float) -> str:
        return str(self._describe_cluster(deadline).cluster_id)

    def _describe_cluster(self, deadline: float) -> Any:  # noqa: ANN401 - confluent-kafka has no type for it
        return self._call(
            "ask for the id of", "the cluster", lambda: self._admin.describe_cluster(**self._left(deadline)), deadline
        )

    def topics(
        self,
        names: Iterable[str] = (),
        patterns: Iterable[str] = (),
        exclude: Iterable[str] = (),
        *,
        denied: dict[str, ClusterDeniedError] | None = None,
    ) -> list[TopicInfo]:
        """Return the topics that are named or match a pattern and match no exclusion, sorted by name.

        Patterns and exclusions are regular expressions for the whole name; patterns never match internal topics. A
        named topic that does not exist is left out. Raises ConfigError for a bad expression, UnidentifiedTopicError for
        a topic without an id, or with that of another. If `denied` is given, it receives the errors, by name, of the
        topics that may not be described or have no id of their own, and these errors are not raised.
        """
        named = set(names)
        wanted = [_compiled(pattern) for pattern in patterns]
        unwanted = [_compiled(pattern) for pattern in exclude]

        def ask(deadline: float) -> list[TopicInfo]:
            candidates = set(named)
            if wanted:
                candidates |= {name for name in self._listed(deadline) if any(one.fullmatch(name) for one in wanted)}
            names = sorted(name for name in candidates if not any(one.fullmatch(name) for one in unwanted))
            if denied is not None:
                denied.clear()  # may be from an earlier, incomplete answer
            parts = chunks(names, _TOPICS_AT_ONCE)
            found = [info for chunk in parts for info in self._described(chunk, deadline, denied)]
            return self._identified([info for info in found if info.name in named or not info.internal], denied)

        return self._again(ask)

    def _listed(self, deadline: float) -> Collection[str]:
        """Return the names of all topics."""
        listing = self._sync(
            "list the topics of", "the cluster", lambda: self._admin.list_topics(timeout=self._seconds(deadline))
        )
        found: dict[str, object] = listing.topics
        return found

    def _identified(self, found: list[TopicInfo], denied: dict[str, ClusterDeniedError] | None) -> list[TopicInfo]:
        unidentified = topic_id.unidentified({info.name: info.topic_id for info in found}, self._servers)
        if unidentified and denied is None:
            raise unidentified[min(unidentified)]
        if denied is not None:
            denied.update(unidentified)
        return [info for info in found if info.name not in unidentified]

    def _described(
        self, names: Sequence[str], deadline: float, denied: dict[str, ClusterDeniedError] | None = None
    ) -> Iterator[TopicInfo]:
        futures = self._sync(
            "describe",
            f"{len(names)} topics",
            lambda: self._admin.describe_topics(TopicCollection(list(names)), **self._left(deadline)),
        )
        for name in names:
            try:
                topic = self._result("describe", f"topic {name}", futures[name], deadline)
            except UnknownTopicError:
                continue
            except ClusterDeniedError as error:
                if denied is None:
                    raise
                denied[name] = error
                continue
            librdkafka_references.release_extra_reference(topic)
            yield TopicInfo(
                name=name,
                topic_id="" if topic.topic_id is None else topic_id.from_base64(str(topic.topic_id)),
                partitions=MappingProxyType(
                    unique(
                        ((part.id, (-1 if part.leader is None else part.leader.id, -1)) for part in topic.partitions),
                        "partition",
                        f" of topic {name}",
                    )
                ),
                replication_factor=max((len(part.replicas) for part in topic.partitions), default=0),
                internal=bool(topic.is_internal),
            )

    def config(
        self,
        names: Iterable[str],
        *,
        defaults: Collection[str] = ALWAYS_RECORDED,
        denied: dict[str, ClusterDeniedError] | None = None,
    ) -> dict[str, dict[str, str]]:
        """Return {topic: {key: value}}: the keys set on the topic itself, and the effective values of `defaults`.

        Raises UnknownTopicError for a topic that does not exist. If `denied` is given, it receives the errors, by name,
        of the topics whose configuration may not be described, and these errors are not raised.
        """
        parts = list(chunks(sorted(set(names)), _TOPICS_AT_ONCE))

        def ask(deadline: float) -> dict[str, dict[str, str]]:
            if denied is not None:
                denied.clear()  # may be from an earlier, incomplete answer
            found = (item for chunk in parts for item in self._configs(chunk, deadline, defaults, denied))
            return dict(found)

        return self._again(ask)

    def _configs(
        self,
        names: Sequence[str],
        deadline: float,
        defaults: Collection[str],
        denied: dict[str, ClusterDeniedError] | None,
    ) -> Iterator[tuple[str, dict[str, str]]]:
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        futures = self._sync(
            "describe the config of",
            f"{len(names)} topics",
            lambda: self._admin.describe_configs(resources, **self._left(deadline)),
        )
        for resource, future in futures.items():
            try:
                entries = self._result("describe the config of", f"topic {resource.name}", future, deadline)
            except ClusterDeniedError as error:
                if denied is None:
                    raise
                denied[resource.name] = error
                continue
            _SETTINGS.update(entries)
            yield (
                resource.name,
                {
                    key: entry.value
                    for key, entry in sorted(entries.items())
                    if entry.value is not None and (key in defaults or is_set_on_topic(entry))
                },
            )

    def broker_setting(self, key: str) -> dict[int, str]:
        """Return {broker id: value} of a broker setting. Brokers that don't know the setting are left out."""
        deadline = self._deadline()
        cluster = self._call(
            "ask for the brokers of",
            "the cluster",
            lambda: self._admin.describe_cluster(**self._left(deadline)),
            deadline,
        )
        resources = {node.id: ConfigResource(ResourceType.BROKER, str(node.id)) for node in cluster.nodes}
        futures = self._sync(
            "describe the config of",
            "the brokers",
            lambda: self._admin.describe_configs(list(resources.values()), **self._left(deadline)),
        )
        found = {}
        for broker, resource in resources.items():
            entries = self._result("describe the config of", f"broker {broker}", futures[resource], deadline)
            _SETTINGS.update(entries)
            if key in entries and entries[key].value is not None:
                found[broker] = str(entries[key].value)
        return found

    def group_offsets(self, topics: Collection[str], groups: Iterable[str], *, most: int = MOST) -> CommittedOffsets:
        """Return the committed offsets on `topics` of the named groups, of any type that has some, within `most` bytes.

        At most 16 groups are asked for at a time, and only offsets on `topics` are kept of an answer. A group that
        can't be read is reported in the result and does not affect the others. If the offsets of all groups exceed
        `most`, the largest groups are left out first.
        """
        deadline = self._deadline()
        wanted = frozenset(topics)
        failed: dict[str, TandemError] = {}
        room = GroupOffsetBudget(most)
        left = deque(sorted(groups))
        asked: deque[tuple[str, Future[Any]]] = deque()
        while left or asked:
            while left and len(asked) < _GROUPS_AT_ONCE:
                group = left.popleft()
                try:
                    asked.append((group, self._ask_group(group, deadline)))
                except TandemError as error:
                    failed[group] = error
            if not asked:
                continue
            group, future = asked.popleft()
            try:
                answer = self._result("read the offsets of", f"group {group}", future, deadline)
            except TandemError as error:
                failed[group] = error
                continue
            offsets = self._offsets_of(group, answer, wanted, failed)
            if offsets:
                room.put(group, MappingProxyType(offsets))
        return CommittedOffsets(
            groups=MappingProxyType(room.groups),
            failed=MappingProxyType(failed),
            left_out=frozenset(room.left_out),
        )

    def _ask_group(self, group: str, deadline: float) -> Future[Any]:
        futures = self._sync(
            "read the offsets of",
            f"group {group}",
            lambda: self._admin.list_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group)], **self._left(deadline)
            ),
        )
        future: Future[Any] = futures[group]
        return future

    def _offsets_of(
        self,
        group: str,
        answer: Any,  # noqa: ANN401 - confluent-kafka has no type for it
        wanted: frozenset[str],
        failed: dict[str, TandemError],
    ) -> dict[TopicPartition, CommittedOffset]:
        found = {}
        for part in answer.topic_partitions or ():
            if part.topic not in wanted:
                continue
            if part.error is not None:
                failed[group] = self._explain(
                    part.error, "read the offsets of", f"group {group} on {part.topic}-{part.partition}"
                )
            elif part.offset >= 0:
                found[TopicPartition(part.topic, part.partition)] = CommittedOffset(
                    offset=part.offset,
                    leader_epoch=-1 if part.leader_epoch is None else part.leader_epoch,
                    metadata=part.metadata or "",
                )
        return found

    def create_topic(
        self,
        name: str,
        *,
        partitions: int,
        replication_factor: int = -1,
        config: Mapping[str, str] | None = None,
        only_ask: bool = False,
    ) -> None:
        """Create one topic, as `create_topics` does."""
        wanted = NewTopic(
            name, num_partitions=partitions, replication_factor=replication_factor, config=dict(config or {})
        )
        self.create_topics([wanted], only_ask=only_ask)

    def create_topics(self, topics: Sequence[NewTopic], *, only_ask: bool = False) -> None:
        """Create topics, many by one request: alone, each takes a controller 35 ms. Replication factor -1: the default.

        Waits up to a minute for leaders of their partitions. All are asked for; then the error of the first is raised
        that was refused: TopicExistsError, too, because another process may have created it just now. With `only_ask`
        the cluster only validates the requests: nothing is created.
        """
        refused: list[TandemError] = []
        created: dict[str, int] = {}
        for chunk in by_partitions(topics):
            deadline = self._deadline()
            futures = self._sync(
                "create",
                f"topic {chunk[0].topic}" if len(chunk) == 1 else f"{len(chunk)} topics",
                partial(self._admin.create_topics, chunk, validate_only=only_ask, **self._left(deadline)),
            )
            for topic in chunk:
                try:
                    self._result("create", f"topic {topic.topic}", futures[topic.topic], deadline)
                    created[topic.topic] = topic.num_partitions
                except TopicExistsError as error:
                    refused.append(error)
                    created[topic.topic] = 1
                except TandemError as error:
                    refused.append(error)
        unled = None if only_ask else self._wait_for_leaders(created)
        if refused:
            raise refused[0]
        if unled is not None:
            raise ClusterTransientError(
                f"topic {unled[0]} was created, but its partition {unled[1]} has no leader after {_LED_WITHIN_S:.0f} s "
                f"at {self._servers}",
                code="TDM-K073",
                remedy="look whether all brokers are up, and give the same command again",
            )

    def _wait_for_leaders(self, wanted: Mapping[str, int]) -> tuple[str, int] | None:
        """Wait until so many partitions of each topic are described, each with a leader; return one without in the end.

        The controller answers a creation before the brokers have heard of it.
        """
        deadline, pause_s = time.monotonic() + _LED_WITHIN_S, _UNLED_S
        left = {name: frozenset(range(partitions)) for name, partitions in wanted.items()}
        while True:
            with suppress(ClusterTransientError):
                for info in self.topics(left):
                    led = {number for number, (leader, _) in info.partitions.items() if leader >= 0}
                    left[info.name] = (left[info.name] | info.partitions.keys()) - led
            left = {name: without for name, without in left.items() if without}
            if not left or time.monotonic() + pause_s >= deadline:
                return next(((name, min(without)) for name, without in left.items()), None)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 1.0)

    def delete_records(self, topic: str, partition: int, *, below: int) -> None:
        """Delete the records of a partition below an offset, at most its high watermark. Needs the right Delete."""
        deadline = self._deadline()
        place = _Partition(topic, partition, below)
        what = f"records of {topic}-{partition}"
        futures = self._sync("delete", what, lambda: self._admin.delete_records([place], **self._left(deadline)))
        [future] = futures.values()
        self._result("delete", what, future, deadline)

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        deadline = self._deadline()
        futures = self._sync(
            "delete", f"topic {name}", lambda: self._admin.delete_topics([name], **self._left(deadline))
        )
        self._result("delete", f"topic {name}", futures[name], deadline)

    def alter_config(self, name: str, changes: Mapping[str, str | None], *, only_ask: bool = False) -> None:
        """Change the config of one topic, as `alter_configs` does; raise its error."""
        for error in self.alter_configs({name: changes}, only_ask=only_ask).values():
            raise error

    def alter_configs(
        self, changes: Mapping[str, Mapping[str, str | None]], *, only_ask: bool = False
    ) -> dict[str, TandemError]:
        """Set these keys of the configs of topics, many by one request, and remove those with None; others stay.

        Returns the errors of topics whose config was not changed. With `only_ask` the cluster only validates the
        requests: nothing is changed.
        """
        failed: dict[str, TandemError] = {}
        for chunk in chunks([name for name, some in changes.items() if some], _TOPICS_AT_ONCE):
            deadline = self._deadline()
            asked = {name: config_change(name, changes[name]) for name in chunk}
            futures = self._sync(
                "change the config of",
                f"topic {chunk[0]}" if len(chunk) == 1 else f"{len(chunk)} topics",
                partial(
                    self._admin.incremental_alter_configs,
                    list(asked.values()),
                    validate_only=only_ask,
                    **self._left(deadline),
                ),
            )
            for name, resource in asked.items():
                try:
                    self._result("change the config of", f"topic {name}", futures[resource], deadline)
                except TandemError as error:
                    failed[name] = error
        return failed

    def list_offsets(
        self,
        at: Mapping[tuple[str, int], str | int],
        *,
        read_committed: bool,
        missing: dict[TopicPartition, TandemError] | None = None,
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return {partition: (offset, leader epoch or -1)} at LATEST, EARLIEST or a timestamp in ms.

        The latest offset is the last stable one under `read_committed`. An offset of -1: no record is that recent. If
        `missing` is given, it receives the errors of partitions whose leader does not answer, or that have none for
        longer than a second, unless that is so of all; these errors are not raised.
        """
        deadline = self._deadline()
        patient_until = time.monotonic() + _LEFT_OUT_S
        believed: float | None = None
        pause_s = _UNLED_S
        self._introduce(deadline)
        level = IsolationLevel.READ_COMMITTED if read_committed else IsolationLevel.READ_UNCOMMITTED
        found: dict[TopicPartition, tuple[int, int]] = {}
        left = dict(at)
        while left:
            failed: dict[TopicPartition, TandemError] = {}
            unknown = False
            try:
                self._list_offsets(left, level, deadline, found, failed)
            except UnknownTopicError:
                unknown = True  # what else has failed is not known then
                believed = believed or time.monotonic() + UNKNOWN_S
                if time.monotonic() + pause_s >= min(deadline, believed):
                    raise
            left = {tp: when for tp, when in left.items() if tp not in found}
            error = next(iter(failed.values()), None)
            if error is not None and not unknown:
                # For a topic that was just created or has lost its leader, most partitions answer, and the rest soon.
                may_pass = isinstance(error, ClusterTransientError) and time.monotonic() + pause_s < deadline
                if missing is not None and found and (not may_pass or time.monotonic() >= patient_until):
                    missing.update(failed)
                    break
                if not may_pass:
                    raise error
            if left:
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LEADERLESS_S)
        return found

    def _introduce(self, deadline: float) -> None:
        """Make one request, once, so that connections to the brokers replace the bootstrap connection.

        librdkafka 2.16 looks up leaders over any connection that is up. If that is the bootstrap connection, and
        librdkafka drops it because the brokers are known by then, the answer is lost, and requested again only after
        seconds.
        """
        if not self._introduced:
            self._describe_cluster(deadline)
            self._introduced = True

    def _list_offsets(
        self,
        at: Mapping[tuple[str, int], str | int],
        level: IsolationLevel,
        deadline: float,
        found: dict[TopicPartition, tuple[int, int]],
        failed: dict[TopicPartition, TandemError],
    ) -> None:
        for chunk in chunks(sorted(at), PARTITIONS_AT_ONCE):
            asks = {_Partition(topic, number): offset_spec(at[topic, number]) for topic, number in chunk}
            leaderless = False
            futures = self._sync(
                "list offsets of",
                f"{len(chunk)} partitions",
                partial(self._admin.list_offsets, asks, isolation_level=level, **self._left(deadline)),
            )
            for part, future in futures.items():
                tp = TopicPartition(part.topic, part.partition)
                try:
                    info = self._result("list offsets of", f"partition {tp.topic}-{tp.partition}", future, deadline)
                except (ClusterTransientError, ClusterUnreachableError) as error:
                    failed[tp] = error
                    leaderless |= isinstance(error, ClusterTransientError)
                else:
                    found[tp] = (info.offset, -1 if info.leader_epoch is None else info.leader_epoch)
            if leaderless:
                self._must_exist([TopicPartition(topic, number) for topic, number in chunk], deadline)

    def _must_exist(self, tps: Iterable[TopicPartition], deadline: float) -> None:
        """Raise UnknownTopicError for the first partition that does not exist: "no leader" may mean that, too."""
        wanted = sorted(tps)
        there = {
            topic.name: topic.partitions for topic in self._described(sorted({tp.topic for tp in wanted}), deadline)
        }
        for tp in wanted:
            if tp.partition not in there.get(tp.topic, {}):
                raise UnknownTopicError(
                    f"Could not list offsets of partition {tp.topic}-{tp.partition}: it does not exist",
                    code="TDM-K043",
                    remedy="check the name, or create it",
                )

    # Calls

    def _again(self, ask: Callable[[float], _T]) -> _T:
        """Run `ask`, which changes nothing, with a deadline; without an answer, refresh the brokers and run it again.

        The client sends most requests to one broker that it knows as the controller (under KRaft brokers name any of
        them), and waits for that one, however many other brokers could name another. If that broker refuses the login,
        the request is repeated as long as any other broker accepts the login.
        """
        deadline = self._deadline()
        patience_s = _FIRST_TRY_S
        while True:
            try:
                return ask(min(deadline, time.monotonic() + patience_s))
            except ClusterUnreachableError:
                if time.monotonic() + _FIRST_TRY_S / 2 >= deadline:
                    raise
            except ClusterAuthenticationError:
                if time.monotonic() + _FIRST_TRY_S / 2 >= deadline or not self._login_accepted():
                    raise
                patience_s *= 2
                continue
            with suppress(KafkaException):
                self._admin.list_topics(timeout=min(_FIRST_TRY_S, self._seconds(deadline)))
            patience_s *= 2

    def _login_accepted(self) -> bool:
        """Return whether any broker accepts the login now. Also refreshes which broker gets the next request."""
        try:
            self._admin.list_topics(timeout=_FIRST_TRY_S / 2)
        except KafkaException:
            return False
        return True

    def _deadline(self) -> float:
        return time.monotonic() + self._timeout_s

    def _seconds(self, deadline: float) -> float:
        return max(deadline - time.monotonic(), 0.1)

    def _left(self, deadline: float) -> dict[str, float]:
        return {"request_timeout": self._seconds(deadline)}

    def _explain(self, error: KafkaException | KafkaError, operation: str, resource: str) -> TandemError:
        self._admin.poll(0)  # lets the client report why its connections fail
        if isinstance(self._tokens, Tokens) and self._tokens.failure is not None:
            return self._tokens.failure  # librdkafka only knows that there is no token
        return admin_errors.explain(
            admin_errors.error_of(error),
            operation=operation,
            resource=resource,
            servers=self._servers,
            last_seen=self._heard.last,
        )

    def _sync(self, operation: str, resource: str, call: Callable[[], _T]) -> _T:
        self._admin.poll(0)
        try:
            return call()
        except KafkaException as error:
            raise self._explain(error, operation, resource) from None

    def _call(self, operation: str, resource: str, call: Callable[[], Future[_T]], deadline: float) -> _T:
        return self._result(operation, resource, self._sync(operation, resource, call), deadline)

    def _result(self, operation: str, resource: str, future: Future[_T], deadline: float) -> _T:
        try:
            # The client ends the request at the deadline itself; the second more is for its report.
            answer = future.result(timeout=self._seconds(deadline) + 1.0)
        except KafkaException as error:
            raise self._explain(error, operation, resource) from None
        except FutureTimeoutError:
            raise ClusterUnreachableError(
                f"Could not {operation} {resource}: no answer from {self._servers} within {self._timeout_s:g} s",
                code="TDM-K044",
                remedy="check the network and the brokers",
            ) from None
        # The call succeeded, so earlier reports of the client are void. They are not cleared sooner: the client may
        # report a refusal between two calls, and only once in ten seconds, as long as a call and its pause may take.
        self._admin.poll(0)
        self._heard.forget()
        return answer


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"{pattern!r} is no regular expression: {error}", code="TDM-K045") from None
