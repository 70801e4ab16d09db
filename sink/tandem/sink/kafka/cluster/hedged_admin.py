"""The admin view of an instance: what any broker can answer does not wait for one that hangs.

librdkafka sends such questions to the broker that it knows as the controller, again and again while that one keeps its
connections open and says nothing. A commit asks for the topics' ids first, so it would wait as long.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import kafka.errors as kafka_errors
from confluent_kafka import KafkaError
from kafka.protocol.admin import DescribeConfigsRequest

from tandem.backup_avro.errors import TandemError
from tandem.sink.kafka.auth import client_config
from tandem.sink.kafka.cluster import admin_errors
from tandem.sink.kafka.cluster.admin import UNKNOWN_S, ClusterAdmin, TopicInfo
from tandem.sink.kafka.errors.cluster_errors import (
    ClusterAnswerError,
    ClusterAuthenticationError,
    ClusterDeniedError,
    ClusterUnreachableError,
    UnknownTopicError,
)
from tandem.sink.kafka.errors.error_codes import ErrorCode
from tandem.sink.kafka.wire import connections, requests, topic_ids
from tandem.sink.kafka.wire.unique_keys import unique

_T = TypeVar("_T")
_PAUSE_S = 0.1
_UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
_OF_TOPIC = 2  # DescribeConfigs: the type of a resource
_SET_ON_TOPIC = 1  # DescribeConfigs: the source of a value


class HedgedAdmin(ClusterAdmin):
    """A ClusterAdmin that asks for topics, their configuration and the cluster's id on connections of its own.

    A broker that does not answer is not waited for alone (`Connections.ask_any`). Thread-safe; one question at a time.
    """

    def __init__(self, props: Mapping[str, client_config.Value], *, timeout_s: float = 30.0) -> None:
        self._net, self._manager = connections.open_for_questions(props)
        self._lock = threading.RLock()
        self._first_id: str | None = None
        super().__init__(props, timeout_s=timeout_s)

    def close(self) -> None:
        """Close all connections."""
        try:
            with self._lock:
                self._manager.close()
                self._net.close()
        finally:
            super().close()

    def _again(self, ask: Callable[[float], _T]) -> _T:
        with self._lock:  # who waits for another one's question has all of the time for its own
            return ask(self._deadline())

    def _cluster_id(self, deadline: float) -> str:
        return str(self._metadata((), deadline).cluster_id)

    def _listed(self, deadline: float) -> list[str]:
        return [topic.name for topic in self._metadata(None, deadline).topics]

    def _metadata(self, names: Sequence[str] | None, deadline: float) -> Any:  # noqa: ANN401 - no types there
        response = self._ask(lambda: requests.metadata_request(names), deadline)
        self._require_same(response.cluster_id)
        self._manager.cluster.update_metadata(response)  # where brokers are
        return response

    def _require_same(self, cluster_id: str | None) -> None:
        """Raise ClusterAnswerError if this is another cluster than before: its topics must not become a part of a copy.

        A cluster that was lost may be replaced by a new one under the same names while instances run.
        """
        if cluster_id and self._first_id not in {None, cluster_id}:
            raise ClusterAnswerError(
                f"the Kafka cluster at {self._servers} is another one than before: its id is {cluster_id}, and was "
                f"{self._first_id}",
                code="TDM-K076",
                remedy="stop this instance; a new cluster needs another pair or store.root (docs/operations.md, The "
                "cluster is lost)",
            )
        self._first_id = self._first_id or cluster_id

    def _described(
        self, names: Sequence[str], deadline: float, denied: dict[str, ClusterDeniedError] | None = None
    ) -> Iterator[TopicInfo]:
        response = self._metadata(names, deadline)
        views = {view.name: view for view in requests.topic_views(response)}
        found = unique(((topic.name, topic) for topic in response.topics), "topic")
        for name in names:
            topic = self._told(found, name)
            try:
                self._check(topic.error_code, "describe", name, denied)
            except UnknownTopicError:
                continue
            if denied is None or name not in denied:
                view = views[name]
                yield TopicInfo(
                    name=name,
                    topic_id="" if view.topic_id is None else topic_ids.as_text(view.topic_id),
                    partitions=MappingProxyType(view.partitions),
                    replication_factor=max((len(part.replica_nodes) for part in topic.partitions), default=0),
                    internal=bool(topic.is_internal),
                )

    def _configs(
        self,
        names: Sequence[str],
        deadline: float,
        defaults: Collection[str],
        denied: dict[str, ClusterDeniedError] | None,
    ) -> Iterator[tuple[str, dict[str, str]]]:
        patient_until = min(deadline, time.monotonic() + UNKNOWN_S)
        while True:
            response = self._ask(lambda: _configs_request(names), deadline)
            found = unique(((topic.resource_name, topic) for topic in response.results), "topic")
            unknown = [name for name in names if self._told(found, name).error_code == _UNKNOWN]
            if not unknown or time.monotonic() >= patient_until:
                break
            time.sleep(_PAUSE_S)  # this broker may not have heard yet of what another one has described
        for name in names:
            topic = found[name]
            self._check(topic.error_code, "describe the config of", name, denied)
            if denied is None or name not in denied:
                yield (
                    name,
                    {
                        entry.name: entry.value
                        for entry in sorted(topic.configs, key=lambda entry: str(entry.name))
                        if entry.value is not None and (entry.name in defaults or entry.config_source == _SET_ON_TOPIC)
                    },
                )

    def _told(self, found: Mapping[str, Any], name: str) -> Any:  # noqa: ANN401 - kafka-python has no types
        if name not in found:
            raise ClusterAnswerError(
                f"the Kafka cluster at {self._servers} answers nothing about topic {name}, which it was asked for",
                code="TDM-K074",
                remedy="it is asked again; if this stays, check which cluster answers at kafka.bootstrap.servers",
            )
        return found[name]

    def _check(self, code: int, operation: str, name: str, denied: dict[str, ClusterDeniedError] | None) -> None:
        """Raise the error of a topic's part of a response; one of a missing right goes to `denied`, if given."""
        if not code:
            return
        error = admin_errors.explain(
            KafkaError(code), operation=operation, resource=f"topic {name}", servers=self._servers
        )
        if not isinstance(error, ClusterDeniedError) or denied is None:
            raise error
        denied[name] = error

    def _ask(self, make: Callable[[], Any], deadline: float) -> Any:  # noqa: ANN401 - kafka-python has no types
        self._admin.poll(0)  # what librdkafka's client reports would pile up
        with self._lock:
            manager = self._manager
            try:
                self._net.run(manager.reach, self._seconds(deadline))
                answer = manager.call_soon(self._answer, make, deadline)
                return self._net.run(manager.wait_for, answer, self._seconds(deadline) * 1000)
            except kafka_errors.KafkaError as error:
                raise self._typed(error) from error

    async def _answer(self, make: Callable[[], Any], deadline: float) -> Any:  # noqa: ANN401 - kafka-python has no types
        while True:
            try:
                return await self._manager.ask_any(make)
            except kafka_errors.KafkaError:
                if self._manager.refused_by_all() is not None or time.monotonic() + _PAUSE_S >= deadline:
                    raise
            await self._net.sleep(_PAUSE_S)

    def _typed(self, error: BaseException) -> TandemError:
        """Return the error of a question. That brokers refuse the login is one only if all of them do."""
        refused = self._manager.refused_by_all()
        if refused is not None:
            return refused
        cause = error if self._manager.bootstrapped else self._manager.worst_error or error
        typed = connections.explain(cause, self._servers)
        if not isinstance(typed, ClusterAuthenticationError):
            return typed
        return ClusterUnreachableError(
            f"No Kafka broker answers at {self._servers}; the last one that was asked: {typed.args[0]}",
            code="TDM-K075",
            remedy=typed.remedy,
        )


def _configs_request(names: Sequence[str]) -> Any:  # noqa: ANN401 - kafka-python has no types
    resource = DescribeConfigsRequest.DescribeConfigsResource
    return DescribeConfigsRequest(
        resources=[resource(resource_type=_OF_TOPIC, resource_name=name, configuration_keys=None) for name in names],
        include_synonyms=False,
        include_documentation=False,
    )
