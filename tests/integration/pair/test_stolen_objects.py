"""Somebody deletes the data of one instance, and the other one is about to let go of its own copy."""

from __future__ import annotations

import pytest
from support.clusters.topics import TopicMaker
from support.pairs.instances import PairMaker
from support.pairs.outcomes import UNCLEANED, assert_all_stored, write

from tandem.controller.sandbox.kafka import KafkaServer

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def test_the_older_copy_stays_until_another_one_is_whole(
    kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker
) -> None:
    """It is kept and told of, the robbed generation is tainted by its owner, and what is built next lets it go."""
    topic = make_topic(partitions=2, config=UNCLEANED)
    write(kafka.bootstrap, topic, 100)
    pair = new_pair([topic])
    a = pair.start("a", first="a", recovery={"window": "1d"})
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    b = pair.start("b", first="a")
    pair.activate("b", 2)
    pair.wait("generation 1 is sealed", lambda: (found := pair.generation(1)) is not None and found.sealed)
    mine = [info.key for info in pair.store.list(pair.data_prefix("a", 1))]
    assert mine

    pair.store.delete([info.key for info in pair.store.list(pair.data_prefix("b", 2))])
    a.terminate()
    a = pair.start("a", first="a")
    told = pair.wait("a keeps its copy", lambda: a.said("failed, trying again", action="Clear", generation=1))
    assert "generation 1 is kept, because generation 2, which covers it, has lost objects: " in told[0]["error"]
    pair.wait("b owns up", lambda: b.said("objects of this generation are lost", generation=2))
    pair.wait("generation 3 is complete", lambda: pair.complete(3))
    kinds = pair.kinds(2)
    assert "TAINTED" in kinds[kinds.index("COMPLETE") :]
    pair.wait("generation 1 is cleared", lambda: a.said("cleared", generation=1))
    assert not {info.key for info in pair.store.list(pair.data_prefix("a", 1))}
    (done,) = a.said("cleared", generation=1)
    (complete,) = a.said("complete", generation=3)
    assert list(a.lines()).index(complete) < list(a.lines()).index(done), "not before another one was whole"
    assert pair.status()["restore"]["generation"] == 3
    assert_all_stored(pair, kafka.bootstrap, [topic])
