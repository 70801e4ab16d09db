"""A pair that signs: it takes turns and is restored as ever, and what others write to its bucket moves nobody."""

from __future__ import annotations

import json
import os
import secrets
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from support.backups.witness import consume
from support.pairs.instances import Instance, Pair, PairMaker
from support.pairs.outcomes import assert_all_stored, messages

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import Entry, EntryKind, Opening
from tandem.backup_avro.chain.heads import Head
from tandem.backup_avro.chain.signatures import Signer
from tandem.controller.config import load
from tandem.controller.sandbox.kafka import KafkaServer
from tandem.controller.status.outside_view import published_heads
from tandem.sink.store import ObjectStore, open_store
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.chain_writer import Identity, claim, now_ms
from tandem.spark_jobs.reading.object_reader import StoreAddress
from tandem.spark_jobs.restore.job import RestoreRequest, restore
from tandem.spark_jobs.restore.plan.options import RestoreOptions
from tandem.spark_jobs.restore.plan.plan import TopicNaming
from tandem.spark_jobs.restore.target.target_cluster import TargetCluster
from tandem.spark_jobs.verify.verify_objects import VerifyRequest, verify_objects

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from support.clusters.topics import TopicMaker

pytestmark = pytest.mark.integration

UNCLEANED = {"segment.ms": "86400000", "max.compaction.lag.ms": "86400000"}


def write(bootstrap: str, topic: str, count: int) -> None:
    """Write records and wait for the broker."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(count):
        producer.produce(topic, key=b"key-%d" % number, value=secrets.token_bytes(8))
    assert producer.flush(30) == 0


class Keys:
    """A private key for each instance, one for jobs, and one of a stranger."""

    def __init__(self, folder: Path) -> None:
        self.signers = {name: Signer.generate() for name in ("a", "b", "job", "stranger")}
        self.files = {name: folder / f"{name}.pem" for name in self.signers}
        for name, signer in self.signers.items():
            self.files[name].write_bytes(signer.pem())

    @property
    def signing(self) -> dict[str, Any]:
        """The section that all have."""
        return {"trusted": [self.signers[name].public for name in ("a", "b", "job")], "require": True}

    def start(self, pair: Pair, name: str) -> Instance:
        """Start an instance with its key."""
        return pair.start(name, signing={"key_file": str(self.files[name])})


@contextmanager
def as_stranger(pair: Pair, keys: Keys) -> Iterator[ObjectStore]:
    """The bucket in the hands of somebody with a key that nobody trusts."""
    store = open_store(pair.root, replace(pair.store_settings, signing_key_file=str(keys.files["stranger"])))
    try:
        yield store
    finally:
        store.close()


@pytest.mark.spark
def test_a_signed_pair_takes_turns_and_is_restored(
    kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker, tmp_path: Path, spark: SparkSession
) -> None:
    """Each signs with a key of its own; only what they have signed counts, and a bucket without its head is refused."""
    keys = Keys(tmp_path)
    topic = make_topic(config=UNCLEANED)
    write(kafka.bootstrap, topic, 100)
    pair = new_pair([topic], signing=keys.signing)
    a, b = keys.start(pair, "a"), keys.start(pair, "b")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    pair.activate("b", 2)
    pair.activate("b", 2, signer=keys.signers["stranger"])
    pair.wait("unsigned requests are told of", lambda: b.said("a request for a turn counts for nothing", generation=2))
    assert [g.number for g in pair.live()] == [1], "they count for nothing"
    pair.activate("b", 2, signer=keys.signers["job"])
    pair.wait("generation 2 is complete", lambda: pair.complete(2))
    pair.wait("generation 1 is cleared", lambda: [g.number for g in pair.live()] == [2])
    assert_all_stored(pair, kafka.bootstrap, [topic])
    head = pair.wait("the head is published", lambda: status_head(pair, 2))
    assert [a.terminate(), b.terminate()] == [0, 0]

    described = json.loads(pair.tandem("describe", "2", "-o", "json").stdout)["generation"]["head"]
    assert head.split(":")[0] == described.split(":")[0] == "2"
    trusted = ",".join(keys.signing["trusted"])
    settings = replace(pair.store_settings, trusted_keys=trusted, require_signatures=True)
    address, target = (
        StoreAddress(root=pair.root, settings=settings),
        TargetCluster({"bootstrap.servers": kafka.bootstrap}),
    )
    reader, options = ChainReader(address.open(), pair.name), RestoreOptions(naming=TopicNaming(suffix=".restored"))
    request = RestoreRequest(
        address=address, reader=reader, target=target, options=options, now=lambda: round(time.time() * 1000)
    )
    report = restore(spark, request)
    assert not report.mismatches
    assert len(consume(kafka.bootstrap, [f"{topic}.restored"]).rows) == 100
    published = published_heads(load(pair.config("a"), environ={}))
    assert published
    found = verify_objects(
        spark, VerifyRequest(address=address, pair=pair.name, heads=[Head.parse("describe", described), *published])
    )
    assert (found.findings, [one.generation for one in found.generations]) == ((), [2])

    # The newest entry goes: what is left is right in itself, and an older state.
    seq = int(described.split(":")[1])
    newest = layout.entry_key(pair.name, 2, seq)
    pair.store.delete([newest])
    done = pair.tandem("restore", "--suffix", ".again", "--expect-head", described)
    assert done.returncode == 3
    assert f"{newest} is not there, but is known to have been written" in done.stderr


def status_head(pair: Pair, generation: int) -> str | None:
    """The head that `status` shows of a generation."""
    return next((one["head"] for one in pair.status()["generations"] if one["number"] == generation), None)


def forge_complete(pair: Pair, store: ObjectStore) -> None:
    """Put a generation 2 of instance b into the bucket that covers all of generation 1 and holds nothing."""
    one = pair.generation(1)
    assert one is not None
    assert one.opening is not None
    identity = Identity(pair=pair.name, instance="b", incarnation="forged", cluster_id=one.claim.cluster_id)
    opening = Opening(isolation_level=one.opening.isolation_level, codec=one.opening.codec, sync=secrets.token_hex(16))
    writer = claim(store, identity, 2, opening=opening, reason="forged", stop=threading.Event())
    at = now_ms(store)
    positions = {key: replace(position, head_at=at, epoch=1 << 20) for key, position in one.positions.items()}
    commit = Entry(
        kind=EntryKind.COMMIT, seq=0, prev_sha256="", incarnation="", at=0, positions=positions,
        topics=tuple(one.topics.values()), head_at=at,
    )  # fmt: skip
    writer.append(commit)
    writer.append(Entry(kind=EntryKind.COMPLETE, seq=0, prev_sha256="", incarnation="", at=0))


@pytest.mark.parametrize("signed", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_forged_complete_of_the_peer_clears_nothing(
    kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker, tmp_path: Path, signed: bool
) -> None:
    """It says that it covers all that the Active has. With signatures it keeps its copy, else it is gone."""
    keys = Keys(tmp_path)
    topic = make_topic(config=UNCLEANED)
    write(kafka.bootstrap, topic, 100)
    pair = new_pair([topic], signing=keys.signing if signed else {})
    a = keys.start(pair, "a") if signed else pair.start("a")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    with as_stranger(pair, keys) as store:
        forge_complete(pair, store)
    if not signed:
        pair.wait("the copy is given away", lambda: (one := pair.generation(1)) is None or one.sealed)
        return
    pair.wait("the forgery is told of", lambda: a.said("can't be read and counts for nothing", generation=2))
    write(kafka.bootstrap, topic, 50)
    log = consume(kafka.bootstrap, [topic])
    one = pair.wait("generation 1 goes on", lambda: covers(pair, log.ends))
    assert not one.sealed
    assert "can't be read" in json.dumps(pair.status()["problems"])
    pair.wait("a is Active", lambda: a.role == "Active")
    assert a.terminate() == 0


def covers(pair: Pair, ends: Any) -> Any:
    """Generation 1, if its positions reach `ends`."""
    one = pair.generation(1)
    assert one is not None
    reached = {(one.topics[key.topic_id].name, key.partition): at.offset for key, at in one.positions.items()}
    return one if all(reached.get(place, -1) >= end for place, end in ends.items()) else None


def test_an_entry_of_a_stranger_costs_the_generation_and_no_records(
    kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker, tmp_path: Path
) -> None:
    """It takes the number that the Active needs: that chain counts for nothing any more, and another one is built."""
    keys = Keys(tmp_path)
    topic = make_topic(config=UNCLEANED)
    write(kafka.bootstrap, topic, 100)
    pair = new_pair([topic], signing=keys.signing)
    a = keys.start(pair, "a")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    one = pair.generation(1)
    assert one is not None
    with as_stranger(pair, keys) as store:
        for seq in range(one.seq + 1, one.seq + 20):  # it appends meanwhile
            store.put_if_absent(layout.entry_key(pair.name, 1, seq), b'{"v":1,"enc":null}')
    pair.wait("it is told of", lambda: a.said("can't be read and counts for nothing", generation=1))
    pair.wait("another one is claimed", lambda: pair.store.head(layout.claim_key(pair.name, 2)) is not None)
    pair.wait("that one is complete", lambda: a.said("complete", generation=2))
    assert a.alive


def test_an_instance_knows_that_its_bucket_was_put_back(
    kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker, tmp_path: Path
) -> None:
    """The head that it has published is not there when it starts again: it says so in log and status, and goes on."""
    keys = Keys(tmp_path)
    topic = make_topic(config=UNCLEANED)
    write(kafka.bootstrap, topic, 100)
    pair = new_pair([topic], signing=keys.signing)
    a = keys.start(pair, "a")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    published = Head.parse("status", pair.wait("a head is there", lambda: status_head(pair, 1)))

    def heard() -> bool:
        return any(one.instance == "a" and (one.chain_seq or 0) >= published.seq for one in messages(pair, kafka))

    pair.wait("it is published", heard)
    assert a.terminate() == 0
    state = pair.generation(1)
    assert state is not None
    gone = [layout.entry_key(pair.name, 1, seq) for seq in range(max(2, published.seq - 1), state.seq + 1)]
    pair.store.delete(gone)
    a = keys.start(pair, "a")
    lines = pair.wait("it says so", lambda: a.said("the bucket is in an older state"))
    assert lines[0]["generation"] == 1
    pair.wait("status shows it", lambda: "rolled back" in json.dumps(pair.status()))
    assert a.alive


@pytest.mark.slow
def test_a_job_reads_for_a_signed_pair(
    kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker, tmp_path: Path
) -> None:
    """It signs what it offers with a key of its own. What somebody offers whose key is not trusted is passed by."""
    keys = Keys(tmp_path)
    topic = make_topic(config=UNCLEANED)
    write(kafka.bootstrap, topic, 3000)
    pair = new_pair([topic], signing=keys.signing, scan={"by": "spark", "patience": "5m"})
    a = pair.start("a", first="a", signing={"key_file": str(keys.files["a"])})
    pair.wait("positions are in the chain", lambda: any(state.positions for state in pair.live()))
    words = ("catch-up", "--wait", "30s", "--range", "1000", "--master", "local[2,4]", "-o", "json")

    def signs(name: str, *, trusts: Sequence[str] = ()) -> None:
        trusted = [*keys.signing["trusted"], *(keys.signers[other].public for other in trusts)]
        pair.settings["signing"] = keys.signing | {"key_file": str(keys.files[name]), "trusted": trusted}

    signs("stranger")
    refused = pair.tandem(*words)
    assert (refused.returncode, "is not among signing.trusted" in refused.stderr) == (2, True), refused.stderr

    signs("stranger", trusts=["stranger"])
    job = pair.begin(*words)
    try:
        (first, *_) = pair.wait("an offer is looked at", lambda: a.said("an offer can't be read and is discarded"))
        assert "which signing.trusted does not hold" in first["error"]
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    assert not any(position.base.done for state in pair.live() for position in state.positions.values())

    signs("job")
    done = pair.tandem(*words)
    assert (done.returncode, json.loads(done.stdout)["records"]) == (0, 3000), done.stderr
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    assert_all_stored(pair, kafka.bootstrap, [topic])
    verified = pair.tandem("verify", "--require-signature", "--master", "local[2,4]")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert not list(pair.store.list(layout.offers_prefix(pair.name, "a", 1)))
