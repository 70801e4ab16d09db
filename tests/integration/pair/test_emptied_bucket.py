"""Somebody empties the bucket under a running pair."""

from __future__ import annotations

import pytest
from support.clusters.topics import TopicMaker
from support.pairs.instances import PairMaker
from support.pairs.outcomes import UNCLEANED, assert_all_stored, write

from tandem.backup_avro.chain import layout
from tandem.controller.sandbox.kafka import KafkaServer
from tandem.sink.store.chain.chain_reader import ChainReader

pytestmark = pytest.mark.integration


def test_a_new_generation_is_built_at_once(kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker) -> None:
    """Both say what happened; soon a complete generation is there, which a reader that starts afresh finds."""
    topic = make_topic(partitions=2, config=UNCLEANED)
    write(kafka.bootstrap, topic, 100)
    pair = new_pair([topic])
    a, b = pair.start("a", first="a"), pair.start("b", first="a")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    pair.wait("b has seen it", lambda: b.said("decision", reason="nothing to do"))

    pair.store.delete([info.key for info in pair.store.list("")])
    write(kafka.bootstrap, topic, 100)
    for instance in (a, b):
        told = pair.wait(f"{instance.name} notices", lambda it=instance: it.said("a generation can't be read"))
        # The longest look back, at every fourth one, comes upon what is missing first.
        words = ("was there and is gone: somebody emptied s3://", "is not there, but is known to have been written")
        assert any(word in told[0]["error"] for word in words), told

    def complete() -> bool:
        return [
            state.number for state in ChainReader(pair.store, pair.name).refresh(tolerant=True) if state.complete
        ] == [2]

    pair.wait("generation 2 is complete", complete)
    pair.wait("roles are settled", lambda: {a.role, b.role} == {"Active", "Passive"})
    status = pair.status()
    assert status["restore"]["generation"] == 2
    write(kafka.bootstrap, topic, 50)
    # What was appended before it was noticed; the status says how to get rid of it.
    left = [problem for problem in status["problems"] if "claim of generation 1 is missing" in problem["message"]]
    assert f"delete {layout.chain_prefix(pair.name, 1)}" in str(left)
    pair.wait("nobody writes to it any more", lambda: a.said("draining", generation=1))
    pair.store.delete([info.key for info in pair.store.list(layout.chain_prefix(pair.name, 1))])
    pair.forget()  # a reader of before the bucket was emptied says so, at its next look back
    assert_all_stored(pair, kafka.bootstrap, [topic])
