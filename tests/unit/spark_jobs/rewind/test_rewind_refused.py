"""Which topics are not rewound: those of which the backup has another topic, other partitions, or not all of them."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from support.backups.build_backup import TopicSpec

from tandem.backup_avro.chain.entries import PartitionKey
from tandem.backup_avro.errors import RefusedError
from tandem.backup_avro.selection.restorable_state import PartitionSelection, Selection
from tandem.sink.kafka.cluster.admin import TopicInfo
from tandem.spark_jobs.rewind.job import whole_topic

LIVE = TopicInfo(name="orders", topic_id="id", partitions={0: (1, 0), 1: (1, 0)}, replication_factor=1, internal=False)


def selection(
    numbers: Iterable[int], *, topic_id: str = "id", count: int = 2, incomplete: tuple[str, ...] = ()
) -> Selection:
    """The partitions that the backup holds as of the moment."""
    topic = TopicSpec("orders", count, topic_id=topic_id).topic()
    parts = [
        PartitionSelection(
            key=PartitionKey(topic_id, number),
            topic=topic,
            slices=(),
            log_start=0,
            sound=9,
            end=9,
            generations=(1,),
        )
        for number in numbers
    ]
    return Selection(generation=1, seq=4, partitions=tuple(parts), incomplete=incomplete)


def test_a_topic_of_which_all_is_held_is_rewound() -> None:
    """Its partitions come in order."""
    assert [piece.key.partition for piece in whole_topic(selection([1, 0]), "orders", LIVE)] == [0, 1]


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (selection([0, 1], topic_id="another"), "TDM-R142"),
        (selection([0], count=1), "TDM-R144"),
        (selection([0, 1, 2], count=3), "TDM-R144"),
        (selection([]), "TDM-R143"),
        (selection([0]), "TDM-R143"),
        (selection([0, 1], incomplete=("orders-0",)), "TDM-R143"),
    ],
)
def test_a_topic_is_refused(found: Selection, code: str) -> None:
    """Each with its own code, and a remedy."""
    with pytest.raises(RefusedError) as caught:
        whole_topic(found, "orders", LIVE)
    assert caught.value.code == code
    assert caught.value.remedy
