"""What a command outside of the pair has of the cluster: the admin client and the producer of one message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from simulation import runtime
from simulation.board import Board
from simulation.cuts import Cuts, Watch
from simulation.log import Cluster
from simulation.network import Network
from tandem.backup_avro.chain.entries import PartitionKey
from tandem.backup_avro.documents.coordination_message import CoordinationMessage, encode
from tandem.backup_avro.errors import TandemError
from tandem.controller.coordination.topic_reader import NoTopicError
from tandem.sink.kafka.cluster.admin import TopicInfo, UnknownTopicError
from tandem.sink.kafka.errors.cluster_errors import ClusterTransientError, ClusterUnreachableError
from tandem.sink.kafka.events import TopicPartition

CLUSTER_ID = "simulated"


@dataclass(slots=True)
class Desk:
    """Where a command's process sits. `watch` is the cut whose log ends it asked for last."""

    cluster: Cluster
    context: Board
    network: Network
    cuts: Cuts
    watch: Watch | None = None

    def think(self, seconds: float) -> None:
        """Let some of this time pass; mostly none."""
        if self.network.random.random() < 0.4:
            self.network.pause(self.network.random.random() * seconds)


def _here() -> Desk:
    desk = runtime.here().me().process.desk
    assert isinstance(desk, Desk)
    return desk


class Client:
    """Stands for `sink.kafka.cluster.admin.ClusterAdmin`."""

    all_down = False

    def __init__(self, props: Mapping[str, Any], *, timeout_s: float) -> None:
        del props, timeout_s
        self._desk = _here()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""

    def cluster_id(self) -> str:
        """The cluster's id. It may take long: the chains were read before it is asked for, the log ends are later."""
        self._desk.think(8.0)
        self._desk.network.broker_call()
        return CLUSTER_ID

    def topics(self, names: Iterable[str], patterns: Iterable[str]) -> list[TopicInfo]:
        """All topics: the pattern fits them all."""
        del names, patterns
        self._desk.network.broker_call()
        return [
            TopicInfo(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=dict.fromkeys(range(topic.partitions), (1, -1)),
                replication_factor=topic.replication_factor,
                internal=False,
            )
            for _, topic in sorted(self._desk.cluster.topics.items())
        ]

    def list_offsets(
        self,
        at: Mapping[tuple[str, int], str | int],
        *,
        read_committed: bool,
        missing: dict[TopicPartition, TandemError] | None = None,
    ) -> dict[TopicPartition, tuple[int, int]]:
        """The ends of all logs in one moment."""
        self._desk.network.broker_call()
        found = {}
        ends = {}
        for name, number in at:
            partition = self._desk.cluster.present(name, number)
            if partition is None:
                raise UnknownTopicError(f"{name}-{number} does not exist", code="TDM-X001")
            if partition.leaderless:
                error = ClusterTransientError(f"no leader for {name}-{number}", code="TDM-X001", remedy="wait")
                if missing is None:
                    raise error
                missing[TopicPartition(name, number)] = error
                continue
            end = partition.stable if read_committed else partition.end
            found[TopicPartition(name, number)] = (end, partition.epoch)
            ends[PartitionKey(partition.topic_id, number)] = end
        if missing and not found:
            raise missing[min(missing)]
        if read_committed:
            self._desk.watch = self._desk.cuts.begin(ends)
        return found


class Nobody(Client):
    """Stands for `sink.kafka.cluster.hedged_admin.HedgedAdmin`: where the first one was not answered."""

    def cluster_id(self) -> str:
        raise ClusterUnreachableError("no answer", code="TDM-X001", remedy="wait")


def no_messages(admin: Client, topic: str) -> int:
    """Stands for `partition_count` where a command would listen: what instances say is of no matter to it."""
    del admin
    raise NoTopicError(f"nobody listens to {topic}", code="TDM-X001")


def partition_count(admin: Client, topic: str) -> int:
    """Stands for `controller.coordination.topic_reader.partition_count`."""
    del admin, topic
    return 1


def send(
    props: Mapping[str, Any], message: CoordinationMessage, *, topic: str, partitions: int, timeout_s: float
) -> None:
    """Stands for `controller.coordination.topic_reader.send`."""
    del props, topic, partitions, timeout_s
    desk = _here()
    desk.network.broker_call()
    desk.context.add(encode(message))
