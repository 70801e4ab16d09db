"""What an instance asks about topics: of whichever broker answers, and what becomes of its answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import kafka.errors as kafka_errors
import pytest

from tandem.sink.kafka.cluster.admin import ALWAYS_RECORDED
from tandem.sink.kafka.cluster.hedged_admin import HedgedAdmin
from tandem.sink.kafka.errors.cluster_errors import (
    ClusterAnswerError,
    ClusterAuthenticationError,
    ClusterDeniedError,
    ClusterUnreachableError,
    UnidentifiedTopicError,
    UnknownTopicError,
)
from tandem.sink.kafka.errors.error_codes import ErrorCode
from tandem.sink.kafka.wire import topic_ids

ONE = UUID(int=1)


class Cluster:
    """Answers requests by their type, or with the errors that are left."""

    def __init__(self, admin: HedgedAdmin) -> None:
        self.topics: list[Any] = [described("t", ONE)]
        self.configs: list[Any] = []
        self.later: list[Any] = []
        self.errors: list[Exception] = []
        self.asked: list[Any] = []
        self.busy = self.busiest = 0
        self.cluster_id: str | None = "c-1"
        self.learnt: list[Any] = []
        manager = admin._manager
        manager.reach = self._reach
        manager.ask_any = self._ask_any
        manager.cluster.update_metadata = self.learnt.append
        self._net = admin._net

    async def _reach(self, timeout_s: float) -> None:
        assert timeout_s > 0

    async def _ask_any(self, make: Callable[[], Any]) -> Any:
        request = make()
        self.asked.append(request)
        self.busy += 1
        self.busiest = max(self.busiest, self.busy)
        await self._net.sleep(0.01)
        self.busy -= 1
        if self.errors:
            raise self.errors.pop(0)
        if type(request).__name__.startswith("DescribeConfigs"):
            found, self.configs, self.later = self.configs, self.later or self.configs, []
            return SimpleNamespace(results=found)
        wanted = None if request.topics is None else {topic.name for topic in request.topics}
        found = [topic for topic in self.topics if wanted is None or topic.name in wanted]
        return SimpleNamespace(API_VERSION=12, cluster_id=self.cluster_id, topics=found)


def described(name: str, of: UUID | None, *, code: int = 0, internal: bool = False, replicas: int = 3) -> Any:
    """A topic of two partitions, in metadata."""
    parts = [
        SimpleNamespace(partition_index=n, leader_id=n + 1, leader_epoch=5, replica_nodes=list(range(replicas)))
        for n in range(2)
    ]
    return SimpleNamespace(name=name, topic_id=of, error_code=code, is_internal=internal, partitions=parts)


def configured(name: str, entries: Sequence[tuple[str, str | None, int]], *, code: int = 0) -> Any:
    """A topic's configuration: (key, value, source)."""
    made = [SimpleNamespace(name=key, value=value, config_source=source) for key, value, source in entries]
    return SimpleNamespace(resource_name=name, error_code=code, configs=made)


@pytest.fixture
def admin() -> Iterator[HedgedAdmin]:
    """One that reaches nobody."""
    with HedgedAdmin({"bootstrap.servers": "127.0.0.1:1"}, timeout_s=2) as made:
        yield made


@pytest.fixture
def cluster(admin: HedgedAdmin) -> Cluster:
    """What answers it."""
    return Cluster(admin)


def test_topics_are_described(admin: HedgedAdmin, cluster: Cluster) -> None:
    """One that does not exist is left out, and so are internal ones that a pattern matches."""
    gone = described("gone", topic_ids.ZERO, code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    cluster.topics += [gone, described("t-own", UUID(int=2), internal=True)]
    [found] = admin.topics(["t", "gone"], ["t-.*"])
    assert found.name == "t"
    assert found.topic_id == topic_ids.as_text(ONE)
    assert dict(found.partitions) == {0: (1, 5), 1: (2, 5)}
    assert (found.replication_factor, found.internal) == (3, False)
    assert admin.cluster_id() == "c-1"
    assert all(request.allow_auto_topic_creation is False for request in cluster.asked)
    assert len(cluster.learnt) == len(cluster.asked), "where brokers are is learnt from each answer"


def test_another_cluster_under_the_same_names_is_refused(admin: HedgedAdmin, cluster: Cluster) -> None:
    """As after a disaster: its topics would become a part of the old cluster's generation. No id says nothing."""
    for cluster.cluster_id in (None, "c-1", None, "c-1"):
        assert len(admin.topics(["t"])) == 1
    cluster.cluster_id = "c-2"
    learnt = len(cluster.learnt)
    with pytest.raises(ClusterAnswerError, match="its id is c-2, and was c-1") as raised:
        admin.topics(["t"])
    assert raised.value.code == "TDM-K076"
    assert len(cluster.learnt) == learnt, "where its brokers are is not taken over"
    cluster.cluster_id = "c-1"
    assert len(admin.topics(["t"])) == 1


def test_a_topic_that_may_not_be_described(admin: HedgedAdmin, cluster: Cluster) -> None:
    """Is told apart from the others, or is an error; so is one without an id."""
    cluster.topics.append(described("secret", topic_ids.ZERO, code=ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    denied: dict[str, ClusterDeniedError] = {}
    assert [info.name for info in admin.topics(["t", "secret"], denied=denied)] == ["t"]
    assert "topic secret" in str(denied["secret"])
    assert denied["secret"].remedy
    with pytest.raises(ClusterDeniedError, match="topic secret"):
        admin.topics(["t", "secret"])
    cluster.topics = [described("t", None)]
    with pytest.raises(UnidentifiedTopicError, match="topic t"):
        admin.topics(["t"])


def test_no_answer_about_a_topic_is_no_word_that_it_is_gone(admin: HedgedAdmin, cluster: Cluster) -> None:
    """A broker answers about each topic that it is asked for."""
    cluster.topics = []
    with pytest.raises(ClusterAnswerError, match="nothing about topic t"):
        admin.topics(["t"])


def test_what_is_set_on_the_topic_and_what_counts_is_its_config(admin: HedgedAdmin, cluster: Cluster) -> None:
    """Broker defaults are left out, but for those that a restore depends on; secrets have no value."""
    entries = [("segment.ms", "7", 1), ("retention.ms", "9", 5), ("flush.ms", "1", 5), ("x.password", None, 1)]
    cluster.configs = [configured("t", entries)]
    assert "retention.ms" in ALWAYS_RECORDED
    assert admin.config(["t"]) == {"t": {"retention.ms": "9", "segment.ms": "7"}}
    cluster.configs = [configured("t", [], code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)]
    denied: dict[str, ClusterDeniedError] = {}
    assert admin.config(["t"], denied=denied) == {}
    assert "DescribeConfigs" in str(denied["t"].remedy)
    cluster.configs = []
    with pytest.raises(ClusterAnswerError, match="nothing about topic t"):
        admin.config(["t"])


def test_a_broker_that_has_not_heard_of_a_topic_yet_is_asked_for_its_config_again(
    admin: HedgedAdmin, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one has just described it. After a while it is believed."""
    monkeypatch.setattr("tandem.sink.kafka.cluster.hedged_admin.UNKNOWN_S", 0.3)
    cluster.later = [configured("t", [("segment.ms", "7", 1)])]
    cluster.configs = [configured("t", [], code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    assert admin.config(["t"]) == {"t": {"segment.ms": "7"}}
    cluster.configs = [configured("t", [], code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    with pytest.raises(UnknownTopicError, match="topic t"):
        admin.config(["t"])


def test_a_connection_that_breaks_is_no_end(admin: HedgedAdmin, cluster: Cluster) -> None:
    """It is asked again until the time is over; then the servers are named."""
    cluster.errors = [kafka_errors.KafkaConnectionError("closed"), kafka_errors.NodeNotReadyError(1)]
    assert [info.name for info in admin.topics(["t"])] == ["t"]
    cluster.errors = [kafka_errors.KafkaConnectionError("closed")] * 1000
    began = time.monotonic()
    with pytest.raises(ClusterUnreachableError, match=r"127\.0\.0\.1:1"):
        admin.topics(["t"])
    assert time.monotonic() - began < 4


def test_several_threads_may_ask(admin: HedgedAdmin, cluster: Cluster) -> None:
    """A commit and a survey, for example."""
    found: list[str] = []

    def ask() -> None:
        found.extend(info.name for info in admin.topics(["t"]))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert found == ["t"] * 8
    assert len(cluster.asked) == 8
    assert cluster.busiest == 1, "one question at a time: the loop belongs to one thread"


def test_credentials_that_all_refuse_are_not_waited_for(admin: HedgedAdmin) -> None:
    """Three tries of the one server are enough."""
    manager = admin._manager
    refused = kafka_errors.SaslAuthenticationFailedError("invalid credentials")

    def bootstrap() -> Any:
        for _ in range(3):
            manager._failed("bootstrap-0", refused)
        return SimpleNamespace(is_done=False)

    manager.bootstrap_async = bootstrap
    began = time.monotonic()
    with pytest.raises(ClusterAuthenticationError, match="invalid credentials"):
        admin.topics(["t"])
    assert time.monotonic() - began < 1


def test_one_broker_that_refuses_is_no_refusal_of_all(admin: HedgedAdmin, cluster: Cluster) -> None:
    """An instance ends for good where all refuse, so an old refusal must not be taken for the reason of a timeout."""
    manager = admin._manager
    manager.worst_error = kafka_errors.SaslAuthenticationFailedError("certificate expired")
    cluster.errors = [kafka_errors.RequestTimedOutError("over")] * 1000
    with pytest.raises(ClusterUnreachableError):
        admin.topics(["t"])
    cluster.errors = [kafka_errors.SaslAuthenticationFailedError("certificate expired")] * 1000
    with pytest.raises(ClusterUnreachableError, match="certificate expired"):
        admin.topics(["t"])
