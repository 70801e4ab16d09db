"""`tandem erase` on Spark in a bucket with versioning: what stays hidden there is counted, and purged on request."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.clusters.role_clients import client_of
from support.pairs.in_process import tandem
from support.pairs.instances import store_section, store_settings

from tandem.backup_avro.errors import ExitCode
from tandem.controller.sandbox.s3 import S3Server
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.contract.former_versions import versions_of
from tandem.spark_jobs.reading.object_reader import StoreAddress
from tandem.spark_jobs.verify.verify_objects import VerifyRequest, verify_objects

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.spark]

TOPICS = [TopicSpec("orders", 2), TopicSpec("other")]


@pytest.fixture
def versioned(s3: S3Server, tmp_path: Path) -> Iterator[tuple[StoreAddress, Any, str, Path]]:
    """A bucket with versioning, its owner's client, and a configuration; no broker."""
    bucket = f"versions-{uuid4().hex[:8]}"
    client = client_of(s3, s3.key)
    client.create_bucket(Bucket=bucket)
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    root = f"s3://{bucket}/backup"
    kafka = {"bootstrap.servers": "127.0.0.1:1"}
    sections = {"pair": PAIR, "topics": {"include": ["orders"]}, "kafka": kafka, "store": store_section(root, s3)}
    config = tmp_path / "tandem.yaml"
    config.write_text(json.dumps(sections))
    yield StoreAddress(root=root, settings=store_settings(s3)), client, bucket, config
    client.close()


def hidden(client: Any, bucket: str) -> list[tuple[str, str]]:
    """Key and kind of all that a listing of objects does not show."""
    pages = list(client.get_paginator("list_object_versions").paginate(Bucket=bucket))
    return sorted(
        [(one["Key"], "version") for page in pages for one in page.get("Versions", ()) if not one["IsLatest"]]
        + [(one["Key"], "marker") for page in pages for one in page.get("DeleteMarkers", ())]
    )


def test_former_versions_are_counted_and_purged(
    spark: SparkSession, versioned: tuple[StoreAddress, Any, str, Path]
) -> None:
    """Only those of the topic's deleted objects and of journals; then not even the bucket's owner finds them."""
    address, client, bucket, config = versioned
    store = address.open()
    backup = Backup.claim(store, topics=TOPICS)
    for first in (0, 30):
        backup.commit([r for n in (0, 1) for r in records("orders", n, range(first, first + 20), keys=10)])
        backup.commit(records("orders", 0, range(first + 20, first + 22), keys=10), journal=True)
        backup.commit(records("other", 0, range(first, first + 5)))
    backup.complete()
    lost = backup.put_object([(("other", 0), records("other", 0, range(90, 95)), None)], journal=False)
    store.delete([lost.key])

    left = config.with_name("left.txt")
    left.write_bytes(b"\xef\xbb\xbfkey-0\r\nkey-3\r\nkey-0")  # an editor's mark, a key twice
    erase = ("erase", "orders", "--keys-file", str(left), "--skip-live")
    plan, _ = tandem(config, *erase, "--dry-run", "--purge-versions")
    assert (plan["plan"]["keys"], plan["plan"]["found"], plan["plan"]["records"]) == (2, 2, 2 * 2 * 2 * 2 + 2)
    assert (plan["versions"]["versions"], "result" in plan) == (0, False)
    report, _ = tandem(config, *erase, "--yes")
    assert report["result"]["clean"]
    rewritten = len(ChainReader(store, PAIR).load(1).erased)
    assert rewritten == 6
    assert (report["versions"]["versions"], report["versions"].get("error")) == (2 * rewritten, None)
    assert report["versions"]["bytes"] > 0
    found = hidden(client, bucket)
    assert len([name for name, _ in found if "/other/" not in name and ".avro" in name]) == 2 * rewritten
    assert versions_of(store) is not None

    _, told = tandem(config, *erase, "--purge-versions", expected=ExitCode.REFUSED)
    assert "TDM-C020" in told
    assert hidden(client, bucket) == found
    report, told = tandem(config, *erase, "--purge-versions", "--yes")
    assert f"{2 * rewritten} former versions of deleted objects go for good" in told
    assert (report["versions"]["versions"], report["versions"]["deleted"]) == (0, 2 * rewritten)
    names = [name for name, _ in hidden(client, bucket) if ".avro" in name]
    assert {name.partition("/topics/")[2].partition("/")[0] for name in names} == {"other"}
    result = verify_objects(spark, VerifyRequest(address=address, pair=PAIR))
    assert result.clean
    assert result.generations[0].records == 2 * (40 + 2 + 5) - 18
