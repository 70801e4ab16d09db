"""A pair in a bucket whose Object Lock lets nobody, an administrator included, delete a version for a day."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from support.backups.witness import Row, consume, stored
from support.clusters.role_clients import client_of
from support.clusters.topics import TopicMaker
from support.pairs.instances import Pair, store_section
from support.pairs.outcomes import UNCLEANED, assert_all_stored, write

from tandem.controller.sandbox.kafka import KafkaServer
from tandem.controller.sandbox.s3 import S3Server

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.spark]

BUCKET = "locked"


@pytest.fixture
def admin(s3: S3Server) -> Any:
    """Whoever owns the server, and a bucket whose versions are kept for a day from their put on."""
    client = client_of(s3, s3.key)
    client.create_bucket(Bucket=BUCKET, ObjectLockEnabledForBucket=True)
    rule = {"DefaultRetention": {"Mode": "COMPLIANCE", "Days": 1}}
    client.put_object_lock_configuration(
        Bucket=BUCKET, ObjectLockConfiguration={"ObjectLockEnabled": "Enabled", "Rule": rule}
    )
    return client


@pytest.fixture
def pair(kafka: KafkaServer, s3: S3Server, tmp_path: Path) -> Iterator[Pair]:
    """A pair in that bucket, without topics yet."""
    store = store_section(f"s3://{BUCKET}/backup", s3)
    with Pair(tmp_path, bootstrap=kafka.bootstrap, store=store) as pair:
        yield pair


def versions(admin: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return all versions in the bucket, and all markers of deletes."""
    pages = list(admin.get_paginator("list_object_versions").paginate(Bucket=BUCKET))
    return (
        [version for page in pages for version in page.get("Versions", ())],
        [marker for page in pages for marker in page.get("DeleteMarkers", ())],
    )


def test_turns_sweeps_and_an_administrator_who_deletes_all(
    kafka: KafkaServer, make_topic: TopicMaker, pair: Pair, admin: Any
) -> None:
    """Turns, clearing and sweeps work as ever; no version goes, and what was hidden comes back without its markers."""
    topic = make_topic(partitions=2, config=UNCLEANED)
    write(kafka.bootstrap, topic, 200)
    pair.settings["topics"] = {"include": [topic]}
    a, b = pair.start("a", first="a"), pair.start("b", first="a")
    pair.wait("generation 1 is complete", lambda: pair.complete(1))
    for _ in range(4):  # small objects, for the sweep
        write(kafka.bootstrap, topic, 50)
        assert_all_stored(pair, kafka.bootstrap, [topic])
    _take_a_turn(pair, 2)
    for _ in range(4):
        write(kafka.bootstrap, topic, 50)
        assert_all_stored(pair, kafka.bootstrap, [topic])
    assert [instance.terminate() for instance in (a, b)] == [0, 0]

    hidden = len(versions(admin)[1])
    done = pair.tandem("--set", "grace.rewrite=0s", "retention", "--horizon", "0s", "--execute", "-o", "json")
    assert done.returncode == 0, done.stderr
    swept = stored(pair.store, pair.name)
    assert _newest(swept) == _newest(consume(kafka.bootstrap, [topic]).rows)
    assert len(versions(admin)[1]) > hidden
    _assert_verified(pair)

    kept, before = versions(admin)
    assert any("generation=00000001" in marker["Key"] for marker in before)  # cleared: hidden, and not gone
    for version in kept:
        with pytest.raises(ClientError, match="AccessDenied"):
            admin.delete_object(
                Bucket=BUCKET, Key=version["Key"], VersionId=version["VersionId"], BypassGovernanceRetention=True
            )

    for key in {version["Key"] for version in kept if version["IsLatest"]}:
        admin.delete_object(Bucket=BUCKET, Key=key)
    assert not list(pair.store.list(""))
    known = {marker["VersionId"] for marker in before}
    for marker in versions(admin)[1]:
        if marker["VersionId"] not in known:
            admin.delete_object(Bucket=BUCKET, Key=marker["Key"], VersionId=marker["VersionId"])
    assert stored(pair.store, pair.name) == swept
    _assert_verified(pair)


def _take_a_turn(pair: Pair, number: int) -> None:
    done = pair.tandem("failover", "--yes", "--wait", "--timeout", "80s")
    assert done.returncode == 0, done.stderr
    assert pair.complete(number)
    pair.wait("the one before is cleared", lambda: (found := pair.generation(number - 1)) and found.cleared)


def _newest(rows: list[Row]) -> dict[bytes | None, Row]:
    return {row.key: row for row in sorted(rows, key=lambda row: row.offset)}


def _assert_verified(pair: Pair) -> None:
    done = pair.tandem("verify", "-o", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["findings"] == []
