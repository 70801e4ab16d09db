"""A pair with encrypted data objects: keys rotated in mid-life, merged, swept, verified and restored."""

from __future__ import annotations

import base64
import os
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.backups.oracle import CLEANED, PARTITIONS, Writer, state_of
from support.backups.witness import consume
from support.pairs.instances import QUICK, Pair, PairMaker, merge

from tandem.backup_avro.chain.entries import EntryKind
from tandem.backup_avro.chain.json_codec import unpack
from tandem.backup_avro.errors import ExitCode
from tandem.backup_avro.record.chunk_cipher import key_id
from tandem.backup_avro.record.envelope import is_encrypted
from tandem.controller.sandbox.kafka import KafkaServer
from tandem.sink.encryption.errors import MissingKeyError
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.spark_jobs.reading.object_reader import StoreAddress
from tandem.spark_jobs.restore.job import RestoreRequest, restore
from tandem.spark_jobs.restore.plan.options import RestoreOptions
from tandem.spark_jobs.restore.plan.plan import TopicNaming
from tandem.spark_jobs.restore.target.target_cluster import TargetCluster
from tandem.spark_jobs.retention.sweep import sweeper
from tandem.spark_jobs.retention.sweep_plan import SweepRules
from tandem.spark_jobs.state.read_options import store_options
from tandem.spark_jobs.verify.verify_objects import VerifyRequest, verify_objects

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from support.clusters.topics import TopicMaker

pytestmark = [pytest.mark.integration, pytest.mark.spark]

CANARY = b"value-"
"""What every value of the writer begins with. Blocks are not compressed here, so that it would be seen."""


def new_key(path: Path) -> str:
    """Write a new key; return its id."""
    key = os.urandom(32)
    path.write_text(base64.b64encode(key).decode() + "\n")
    return key_id(key)


def ids_of(pair: Pair) -> set[str | None]:
    """The keys of the objects that generation 1 has now, None for one that is not encrypted."""
    state = pair.generation(1)
    assert state is not None
    return {item.envelope.key_id if item.envelope else None for item in state.objects.values()}


def merged(pair: Pair) -> set[str]:
    """The keys of what was merged in generation 1."""
    rewrites = [entry for entry in pair.entries(1) if entry.kind is EntryKind.REWRITE]
    return {item.envelope.key_id for entry in rewrites for item in entry.objects if item.envelope}


def test_rotated_merged_swept_and_restored(
    kafka: KafkaServer, make_topic: TopicMaker, new_pair: PairMaker, spark: SparkSession, tmp_path: Path
) -> None:
    """What comes back is what was written; no value is in the store in the clear; without a key all say so."""
    topic = make_topic(partitions=PARTITIONS, config=CLEANED)
    writer = Writer(kafka.bootstrap, topic, random.Random(39))
    first_file, second_file = tmp_path / "first.key", tmp_path / "second.key"
    first, second = new_key(first_file), new_key(second_file)
    sections: dict[str, Any] = {
        "grace": {"rewrite": "0s"},
        "object": {"codec": "null"},
        "encryption": {"key_file": str(first_file)},
    }
    merge(sections, QUICK)
    pair = new_pair([topic], **sections)

    def write(rounds: int) -> None:
        for _ in range(rounds):
            writer.round()
            time.sleep(0.1)
        ends = {(topic, n): 0 for n in range(PARTITIONS)}
        for record in writer.written:
            ends[topic, record.partition] = max(ends[topic, record.partition], record.offset + 1)
        pair.wait("all is committed", lambda: pair.covered(ends))

    writer.round()
    instance = pair.start("a", first="a")
    assert pair.wait("generation 1 is complete", lambda: pair.complete(1))
    write(6)
    assert ids_of(pair) == {first}
    assert instance.said("encrypted", key=first)
    assert instance.terminate() == 0

    # A key is forgotten when it is changed: the pair goes on, and says that nothing of before could be restored.
    pair.settings["encryption"] = {"key_file": str(second_file)}
    instance = pair.start("a", first="a")
    faults = pair.wait("it is said", lambda: [p for p in pair.status()["problems"] if p["fault"] == "key missing"])
    assert f"key {first}, which " in faults[0]["message"]
    assert instance.terminate() == 0

    pair.settings["encryption"] = {"key_file": str(second_file), "decrypt_key_files": [str(first_file)]}
    instance = pair.start("a", first="a")
    pair.wait("all is well", lambda: not [p for p in pair.status()["problems"] if p["fault"] == "key missing"])
    write(6)
    assert second in ids_of(pair)
    for _ in range(20):
        if second in merged(pair):
            break
        write(3)
    assert second in merged(pair)

    before = sum(item.records for item in pair.complete(1).objects.values())  # type: ignore[union-attr]
    address = StoreAddress(root=pair.root, settings=pair.store_settings)
    it = sweeper(spark, address, pair.name, SweepRules(horizon=1_000, min_gain=0.0))
    for _ in range(5):
        assert [outcome.note for outcome in it.carry_out(it.plan(), write=True) if outcome.failed] == []
        after = sum(item.records for item in pair.complete(1).objects.values())  # type: ignore[union-attr]
        if after < before:  # else the instance has merged meanwhile what was planned for
            break
    assert after < before
    assert instance.terminate() == 0
    assert verify_objects(spark, VerifyRequest(address=address, pair=pair.name)).findings == ()

    reader, target = ChainReader(address.open(), pair.name), TargetCluster({"bootstrap.servers": kafka.bootstrap})
    options = RestoreOptions(naming=TopicNaming(suffix=".back"), keep_load_config=True)
    request = RestoreRequest(
        address=address, reader=reader, target=target, options=options, now=lambda: round(time.time() * 1000)
    )
    report = restore(spark, request)
    assert not report.mismatches
    (plan,) = report.plan.topics
    rows = consume(kafka.bootstrap, [f"{topic}.back"]).rows
    assert state_of(rows) == writer.state({item.key.partition: item.end for item in plan.partitions})

    where = {"root": pair.root, "pair": pair.name, **store_options(address.settings)}
    assert spark.read.format("kafka_backup").options(**where).load().count() == len(rows)

    seen = 0
    for info in pair.store.list(f"{pair.name}/"):
        data = pair.store.get(info.key)
        if info.key.endswith(".avro"):
            assert is_encrypted(data)
            seen += 1
        elif "/generations/" in info.key:
            data = unpack(data, info.key)
        assert CANARY not in data, info.key
    assert seen

    pair.settings["encryption"] = {"key_file": str(first_file)}
    refused = pair.tandem("records", "--topic", topic, "--key", "key-1")
    assert refused.returncode == ExitCode.USAGE, refused.stdout + refused.stderr
    assert second in refused.stderr
    assert "`encryption`" in refused.stderr
    with pytest.raises(MissingKeyError, match=second):
        verify_objects(
            spark, VerifyRequest(address=StoreAddress(root=pair.root, settings=pair.store_settings), pair=pair.name)
        )
