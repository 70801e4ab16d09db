"""What consumer groups have committed takes so much of a chain and no more, whoever commits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from tandem.backup_avro.chain import entries
from tandem.backup_avro.chain.entries import PartitionKey, Topic
from tandem.backup_avro.chain.json_codec import canonical, dump_group
from tandem.controller.config import Config
from tandem.controller.watch.guarded_cluster import GuardedCluster
from tandem.sink.kafka.cluster.admin import ClusterAdmin
from tandem.sink.kafka.cluster.consumer_groups import (
    MOST,
    CommittedOffset,
    CommittedOffsets,
    GroupListing,
    GroupOffsetBudget,
    GroupType,
)
from tandem.sink.kafka.cluster.guarded_topics import ANY_GROUP
from tandem.sink.kafka.errors.cluster_errors import ClusterDeniedError, ClusterTransientError, ClusterUnreachableError
from tandem.sink.kafka.events import TopicPartition

TOPIC = Topic(name="t", topic_id="1" * 36, partitions=128, replication_factor=1, config={})
#: What a broker takes at most: 4 KiB, which are six times as many in JSON.
NOTE = "\x01" * 4096


def offsets(partitions: int, metadata: str = "", *, offset: int = 2**63 - 1) -> dict[TopicPartition, CommittedOffset]:
    """A group's offsets in the first partitions."""
    return {
        TopicPartition("t", number): CommittedOffset(offset=offset, leader_epoch=2**31 - 1, metadata=metadata)
        for number in range(partitions)
    }


def in_chain(group: str, found: Mapping[TopicPartition, CommittedOffset]) -> int:
    """The bytes of a group in an entry."""
    items = [
        entries.GroupOffset(
            key=PartitionKey(TOPIC.topic_id, tp.partition),
            offset=item.offset,
            epoch=item.leader_epoch,
            metadata=item.metadata,
        )
        for tp, item in found.items()
    ]
    return len(canonical({group: [dump_group(item) for item in items]})) - 2


@pytest.mark.parametrize(
    "groups",
    [
        {"g": offsets(100)},
        {"g": offsets(3, NOTE)},
        {"g\n" * 50: offsets(1, "\U0001f4a3")},
        {"a": offsets(1), "b": offsets(2, "note"), "c": offsets(3)},
    ],
)
def test_what_is_reckoned_is_enough(groups: dict[str, dict[TopicPartition, CommittedOffset]]) -> None:
    """No group takes more of an entry than its share of the room, nor much less."""
    written = sum(in_chain(group, found) for group, found in groups.items())
    for most, fits in ((2 * written + 200, True), (written - 1, False)):
        room = GroupOffsetBudget(most)
        for group, found in groups.items():
            room.put(group, found)
        assert (room.groups.keys() == groups.keys()) == fits
        assert room.left_out | room.groups.keys() == groups.keys()


def test_the_largest_go_first() -> None:
    """Whoever fills the room loses his own place, whether he came first or last."""
    for order in (1, -1):
        room = GroupOffsetBudget(10_000)
        for number in range(20)[::order]:
            room.put(f"g{number:02}", offsets(number + 1))
        kept = sorted(room.groups)
        assert kept == [f"g{number:02}" for number in range(len(kept))]
        assert 8 < len(kept) < 12
        assert room.left_out == {f"g{number:02}" for number in range(len(kept), 20)}
        assert sum(in_chain(group, found) for group, found in room.groups.items()) <= 10_000


def test_what_a_broker_takes_is_not_too_much_for_an_entry() -> None:
    """A thousand groups with as much metadata as there may be: the others' offsets are kept, and no commit fails."""
    room = GroupOffsetBudget()
    large, honest = offsets(128, NOTE), offsets(128, "0123456789", offset=5)
    for number in range(500):
        room.put(f"hostile-{number}", large)
        room.put(f"honest-{number}", honest)
    assert {group for group in room.groups if group.startswith("honest")} == {f"honest-{n}" for n in range(500)}
    assert sum(in_chain(group, found) for group, found in room.groups.items()) <= MOST
    assert len(room.left_out) > 480


class _Admin:
    """Answers with what it is given."""

    def __init__(self) -> None:
        self.answer = CommittedOffsets(groups={}, failed={})
        self.asked: list[str] = []

    def group_offsets(self, topics: Sequence[str], groups: Iterable[str]) -> CommittedOffsets:
        """Note for which groups it is asked."""
        assert list(topics) == ["t"]
        self.asked = list(groups)
        return self.answer


def test_what_is_left_out_is_told_once_and_not_kept() -> None:
    """A group without room has no offsets any more, one that could not be read has what it had; not all are asked."""
    admin = _Admin()
    config = SimpleNamespace(groups=SimpleNamespace(guards=lambda group: group == "mine"))
    listing = GroupListing(groups=dict.fromkeys(("mine", "other"), GroupType.CLASSIC))
    cluster = GuardedCluster(cast("ClusterAdmin", admin), cast("Config", config), list_groups=lambda: listing)

    def ask() -> tuple[Mapping[str, Any], list[str]]:
        with capture_logs() as logs:
            found = cluster.group_offsets([TOPIC])
        return found.offsets, [line["event"] for line in logs]

    assert ask() == ({}, [])
    assert admin.asked == ["mine"]
    many = frozenset(f"g{number}" for number in range(12))
    admin.answer = CommittedOffsets(
        groups={"a": offsets(1, offset=5)}, failed={"f": ClusterTransientError("moves", code="TDM-X001")}, left_out=many
    )
    with capture_logs() as logs:
        found = cluster.group_offsets([TOPIC])
    assert found.unrecorded == dict.fromkeys(sorted(many), "no room for its offsets")
    assert found.offsets == {
        "a": (entries.GroupOffset(key=PartitionKey(TOPIC.topic_id, 0), offset=5, epoch=2**31 - 1, metadata=""),),
        "f": None,
    } | dict.fromkeys(many, ())
    assert [(line["event"][:38], line.get("count"), len(line.get("groups", ()))) for line in logs] == [
        ("the offsets of some consumer groups ar", 12, 10),
        ("cannot read a consumer group's offsets", None, 0),
    ]
    admin.answer = CommittedOffsets(groups={}, failed={}, left_out=many)
    assert ask() == (dict.fromkeys(many, ()), [])
    admin.answer = CommittedOffsets(groups={}, failed={})
    assert ask() == ({}, ["there is room for the offsets of all consumer groups again"])


def test_groups_without_recorded_positions_are_named() -> None:
    """Share groups, types of later releases and denied groups, each with the reason; no group that is not guarded."""
    admin = _Admin()
    admin.answer = CommittedOffsets(
        groups={},
        failed={
            "d": ClusterDeniedError("no", code="TDM-K052"),
            "moves": ClusterTransientError("moves", code="TDM-K055"),
        },
    )
    groups: dict[str, GroupType | str] = {"c": GroupType.CONSUMER, "d": GroupType.CLASSIC, "moves": GroupType.STREAMS}
    listing = GroupListing(
        groups=groups | {"s": GroupType.SHARE, "x": "Quantum", "not-mine": GroupType.SHARE},
        failed={2: ClusterUnreachableError("down", code="TDM-K051")},
    )
    config = SimpleNamespace(groups=SimpleNamespace(guards=lambda group: group != "not-mine"))
    cluster = GuardedCluster(cast("ClusterAdmin", admin), cast("Config", config), list_groups=lambda: listing)
    found = cluster.group_offsets([TOPIC])
    assert admin.asked == ["c", "d", "moves"]
    assert found.offsets == {"d": None, "moves": None, ANY_GROUP: None}
    assert found.unrecorded == {
        "d": "not allowed: grant Describe on it",
        "s": "share group",
        "x": "group of the unknown type Quantum",
    }


def test_names_of_groups_do_not_fill_an_entry() -> None:
    """Anyone who may join a share group may make ten thousand: some are named, the others counted."""
    listing = GroupListing(groups={f"s{number:05}": GroupType.SHARE for number in range(10_000)})
    config = SimpleNamespace(groups=SimpleNamespace(guards=lambda _: True))
    cluster = GuardedCluster(cast("ClusterAdmin", _Admin()), cast("Config", config), list_groups=lambda: listing)
    found = cluster.group_offsets([TOPIC])
    assert len(found.unrecorded) == 201
    assert found.unrecorded[ANY_GROUP] == "9800 more"
    assert found.offsets == {}
