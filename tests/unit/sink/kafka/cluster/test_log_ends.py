"""Where logs end, asked while they grow."""

from __future__ import annotations

from typing import Any, cast

from tandem.backup_avro.errors import TandemError
from tandem.backup_avro.selection.coverage import GuardedPartitions
from tandem.controller.config import Config, load
from tandem.controller.status.outside_view import log_ends
from tandem.controller.status.pair_view import LogEnd
from tandem.sink.kafka.cluster.admin import ClusterAdmin
from tandem.sink.kafka.errors.cluster_errors import ClusterTransientError
from tandem.sink.kafka.events import TopicPartition

LEADERLESS = ClusterTransientError("no leader", code="TDM-X001")
GUARDED = GuardedPartitions(cluster_id="c", topics={"id": ("orders", 2)})


class Growing:
    """A cluster to which five records are written between any two questions; partition 1 is held back at 7."""

    def __init__(self) -> None:
        self.end = 100
        self.leaderless: set[int] = set()
        self.asked: list[bool] = []

    def list_offsets(
        self, wanted: Any, *, read_committed: bool, missing: dict[TopicPartition, TandemError] | None = None
    ) -> dict[TopicPartition, tuple[int, int]]:
        self.asked.append(read_committed)
        self.end += 5
        if missing is not None:
            missing.update({TopicPartition(*place): LEADERLESS for place in wanted if place[1] in self.leaderless})
        return {
            TopicPartition(*place): (7 if read_committed and place[1] == 1 else self.end, 0)
            for place in wanted
            if place[1] not in self.leaderless
        }


def config(isolation_level: str) -> Config:
    values = ["pair=shop", "topics.include=orders", "kafka.bootstrap.servers=x:1", "store.root=file:///x"]
    return load(None, {}, [*values, f"isolation_level={isolation_level}"])


def test_what_is_written_meanwhile_is_not_held_back_by_a_transaction() -> None:
    """Only where the last stable offset stands still is there something between it and the watermark."""
    cluster = Growing()
    ends = log_ends(config("read_committed"), cast(ClusterAdmin, cluster), GUARDED)
    assert ends == {("orders", 0): LogEnd(stable=110, high=110), ("orders", 1): LogEnd(stable=7, high=105)}


def test_without_transactions_one_question_will_do() -> None:
    """Under read_uncommitted both ends are the watermark."""
    cluster = Growing()
    ends = log_ends(config("read_uncommitted"), cast(ClusterAdmin, cluster), GUARDED)
    assert ends == {("orders", n): LogEnd(stable=105, high=105) for n in range(2)}
    assert cluster.asked == [False]


def test_nothing_guarded_asks_nothing() -> None:
    """No topics, no question."""
    cluster = Growing()
    nothing = GuardedPartitions(cluster_id="c", topics={})
    assert log_ends(config("read_committed"), cast(ClusterAdmin, cluster), nothing) == {}
    assert not cluster.asked


def test_who_may_not_see_a_topic_asks_nothing_about_it() -> None:
    """One refusal would be the answer for all of them."""
    seen = GuardedPartitions(cluster_id="c", topics={"id": ("orders", 1), "x": ("audit", 1)}, unseen=frozenset({"x"}))
    assert log_ends(config("read_uncommitted"), cast(ClusterAdmin, Growing()), seen).keys() == {("orders", 0)}


def test_ends_without_a_leader_are_left_out_for_who_can_do_without() -> None:
    """The others are known, and nobody asks a second time about what nobody leads."""
    cluster = Growing()
    cluster.leaderless = {1}
    missing: dict[TopicPartition, TandemError] = {}
    ends = log_ends(config("read_committed"), cast(ClusterAdmin, cluster), GUARDED, missing=missing)
    assert ends == {("orders", 0): LogEnd(stable=110, high=110)}
    assert missing == {TopicPartition("orders", 1): LEADERLESS}
