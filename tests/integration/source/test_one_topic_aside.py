"""One topic that is not as others: with a name as long as Kafka allows, or refused by the store."""

from __future__ import annotations

import json
import secrets
import time

import pytest
from confluent_kafka import Producer
from support.clusters.topics import TopicMaker
from support.pairs.instances import QUICK, PairMaker
from support.servers.refusing_store import refusing_store

from tandem.controller.sandbox.kafka import KafkaServer
from tandem.controller.sandbox.s3 import S3Server

pytestmark = pytest.mark.integration

REFUSES = """
from tandem.sink.store.s3 import s3_store
from tandem.sink.store.contract.object_store import StoreRejectedError

put = s3_store.S3Store.put_if_absent

def refuse(self, key, body):
    if "/topics/refused-" in key:
        raise StoreRejectedError(f"put {key!r}: the store answered 400 KeyTooLongError", code="TDM-X001")
    return put(self, key, body)

s3_store.S3Store.put_if_absent = refuse
"""


def write(kafka: KafkaServer, topic: str, first: int, count: int) -> None:
    """Write records `first`..., with their numbers as keys."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(first, first + count):
        producer.produce(topic, key=str(number), value=b"v%d" % number)
    assert producer.flush(30) == 0


def test_a_topic_with_the_longest_name_is_backed_up_like_any_other(
    kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker
) -> None:
    """On a store whose names have 255 bytes: built, read, handed over and cleared."""
    plain = make_topic()
    long = make_topic(secrets.token_hex(8) + "-" + "x" * 222 + "-changelog")
    assert len(long) == 249
    for topic in (plain, long):
        write(kafka, topic, 0, 10)
    pair = new_pair([plain, long], **QUICK)
    pair.start("a")
    first = pair.wait("generation 1 is complete", lambda: pair.complete(1))
    assert {part.records for _, part in first.live_parts()} == {10}
    (name,) = {item.key for item, part in first.live_parts() if first.topics[part.key.topic_id].name == long}
    assert f"/topics/{long}/partition=0/{long[:142]}~" in name
    done = pair.tandem("records", "--topic", long, "--key", "7", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert long in done.stdout
    pair.start("b")
    pair.wait("b is heard", lambda: len(pair.status()["instances"]) == 2)
    pair.activate("b", 2)
    pair.wait("generation 2 is complete", lambda: pair.complete(2))
    pair.wait("generation 1 is cleared", lambda: len(pair.live()) == 1)
    assert not [key for key in pair.objects_of("a") if key.endswith(".avro")]
    done = pair.tandem("records", "--topic", long, "--key", "7", "-o", "json")
    assert done.returncode == 0, done.stderr


def test_a_topic_that_the_store_refuses_stops_no_other_one(
    kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker
) -> None:
    """It is named in status; what is written to others is committed as before; the process lives on."""
    plain, refused = make_topic(), make_topic(f"refused-{secrets.token_hex(8)}")
    for topic in (plain, refused):
        write(kafka, topic, 0, 10)
    pair = new_pair([plain, refused], **QUICK)
    instance = pair.start("a", prelude=REFUSES)

    def stored(topic: str) -> int:
        state = pair.generation(1)
        if state is None:
            return 0
        return sum(part.records for _, part in state.live_parts() if state.topics[part.key.topic_id].name == topic)

    pair.wait("the other topic is stored", lambda: stored(plain) == 10)
    for number in range(3):
        write(kafka, plain, 10 + number, 1)
        pair.wait("what came is stored", lambda number=number: stored(plain) >= 11 + number)  # type: ignore[misc]
    assert stored(refused) == 0
    assert not pair.complete(1)
    assert not instance.said("pipeline failed")
    told = pair.wait(
        "status names it",
        lambda: [one["message"] for one in pair.status()["problems"] if "topics are set aside" in one["message"]],
    )
    assert refused in told[0], json.dumps(told)
    assert "KeyTooLongError" in told[0]


@pytest.mark.slow
def test_a_topic_that_the_store_fails_for_stops_no_other_one(
    kafka: KafkaServer, s3: S3Server, make_topic: TopicMaker, new_pair: PairMaker
) -> None:
    """Its objects are answered 500 for ever: others wait half a minute, once; when that is over it is read on."""
    plain, failing = make_topic(), make_topic(f"failing-{secrets.token_hex(8)}")
    for topic in (plain, failing):
        write(kafka, topic, 0, 10)
    pair = new_pair([plain, failing], **QUICK)

    def stored(topic: str) -> int:
        state = pair.generation(1)
        if state is None:
            return 0
        return sum(part.records for _, part in state.live_parts() if state.topics[part.key.topic_id].name == topic)

    with refusing_store(s3.address("s3")) as gate:
        gate.refuse((500, "InternalError"), writes_only=True, part="/topics/failing-")
        began = time.monotonic()
        instance = pair.start("a", store={"endpoint_url": gate.endpoint_url})
        pair.wait("the other topic is stored", lambda: stored(plain) == 10, timeout_s=150)
        waited = [time.monotonic() - began]
        pair.wait(
            "it is named", lambda: any("topics are set aside" in line.get("detail", "") for line in instance.lines())
        )
        for number in range(3):
            write(kafka, plain, 10 + number, 1)
            asked = time.monotonic()
            pair.wait("what came is stored", lambda number=number: stored(plain) >= 11 + number)  # type: ignore[misc]
            waited.append(time.monotonic() - asked)
        assert stored(failing) == 0
        assert not instance.said("pipeline failed")
        gate.refuse(None)
        pair.wait("nothing is missing", lambda: stored(failing) == 10 and pair.complete(1), timeout_s=200)
    print(f"\nwaited {', '.join(f'{one:.1f}' for one in waited)} s")  # noqa: T201
    assert max(waited[1:]) < 15
