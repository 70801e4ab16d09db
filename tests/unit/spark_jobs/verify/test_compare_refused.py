"""How comparisons begin: refused where a restore is, else the largest partition first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.clusters.here import Here

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.signatures import SignatureError, Signer, unseal
from tandem.sink.store import StoreAccess, open_store
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.spark_jobs.reading.object_reader import StoreAddress
from tandem.spark_jobs.verify.compare_keys import against_generation, against_topic

NOTHING: Any = None  # neither Spark nor a cluster is asked


def test_a_forged_generation_is_no_reason_to_compare_an_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Falling back silently is what a forger may want."""
    signer = Signer.generate()
    monkeypatch.setenv("KEY", signer.pem().decode())
    settings = StoreAccess(trusted_keys=signer.public, require_signatures=True, signing_key_env="KEY")
    store = open_store(tmp_path.as_uri(), settings)
    for number, instance in ((1, "a"), (2, "b")):
        Backup.completed(store, records("orders", 0, range(10 * number)), number=number, instance=instance)
    entry = tmp_path / layout.entry_key(PAIR, 2, ChainReader(store, PAIR).head(2))
    written = entry.read_bytes()
    entry.unlink()
    entry.write_bytes(unseal(written)[0])
    address = StoreAddress(root=tmp_path.as_uri(), settings=settings)
    with pytest.raises(SignatureError, match="TDM-P076"):
        against_topic(NOTHING, address, PAIR, NOTHING)
    with pytest.raises(SignatureError, match="TDM-P076"):
        against_generation(NOTHING, address, PAIR, [1])


def test_the_largest_partitions_are_compared_first(tmp_path: Path) -> None:
    """The results are in the order of partitions."""
    store = open_store(tmp_path.as_uri())
    sizes = [3, 1, 20, 7]
    items = [one for number, size in enumerate(sizes) for one in records("orders", number, range(size))]
    for number, instance in ((1, "a"), (2, "b")):
        Backup.completed(store, items, topics=[TopicSpec("orders", len(sizes))], number=number, instance=instance)
    here: Any = Here()
    address = StoreAddress(root=tmp_path.as_uri(), settings=StoreAccess())
    found = against_generation(here, address, PAIR, [1, 2])
    assert [one.records for one in found.partitions] == [(size, size) for size in sizes]
    assert [task.key.partition for task in here.given[0]] == [2, 3, 0, 1]
