"""`tandem verify` as a user runs it: real stores, real Spark, faults planted behind the chain's back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.backups.build_backup import PAIR, Backup, TopicSpec, records

from tandem.backup_avro.chain import layout
from tandem.backup_avro.errors import ConfigError, RefusedError
from tandem.sink.store import ObjectStore, StoreAccess, open_store
from tandem.sink.store.chain import pins
from tandem.spark_jobs.reading.object_reader import StoreAddress
from tandem.spark_jobs.verify.verify_objects import VerifyProgress, VerifyRequest, verify_objects
from tandem.spark_jobs.verify.verify_plan import VerifyFault

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.spark]

ORDERS, USERS = TopicSpec("orders", 2), TopicSpec("users")


def two_generations(store: ObjectStore) -> tuple[Backup, Backup]:
    """A sealed generation of a, and a complete one of b that goes on."""
    first = Backup.claim(store, topics=[ORDERS, USERS])
    first.commit(records("orders", 0, range(50), tombstones=[9]), base_end={("orders", 0): 30})
    first.commit([*records("orders", 1, range(9)), *records("users", 0, range(9))], journal=True)
    first.complete()
    second = Backup.completed(
        store,
        [*records("orders", 0, range(20, 60)), *records("users", 0, range(4, 9))],
        topics=[ORDERS, USERS],
        number=2,
        instance="b",
    )
    first.seal()
    return first, second


def test_a_sound_backup_is_clean(spark: SparkSession, address: StoreAddress) -> None:
    """All generations that are not cleared, with their figures; no pin is left behind."""
    store = address.open()
    first, _ = two_generations(store)
    stray = first.put_object([(("users", 0), records("users", 0, [99]), None)], journal=False)
    told: list[VerifyProgress] = []
    result = verify_objects(spark, VerifyRequest(address=address, pair=PAIR), tell=told.append)
    assert result.clean
    assert [(g.generation, g.state, g.objects, g.records, g.tombstones) for g in result.generations] == [
        (1, "sealed", 3, 68, 1),
        (2, "complete", 2, 45, 0),
    ]
    assert result.generations[0].orphans == (stray.key,)
    assert told[-1] == VerifyProgress(objects=5, of_objects=5, bytes=told[-1].of_bytes, of_bytes=told[-1].of_bytes)
    assert told[-1].bytes == sum(g.bytes for g in result.generations)
    assert pins.list_pins(store, PAIR) == []


def test_every_planted_fault_is_found_at_once(spark: SparkSession, address: StoreAddress) -> None:
    """A missing object, one with other bytes of the same length, a cut one, and a broken chain link in another one."""
    store = address.open()
    first, second = two_generations(store)
    own, journal = next(iter(first.writer.state.objects)), list(first.writer.state.objects)[-1]
    other = next(iter(second.writer.state.objects))
    data = store.get(own)
    store.delete([own, journal])
    store.put_if_absent(own, data[:-1] + bytes([data[-1] ^ 1]))
    data = store.get(other)
    store.delete([other])
    store.put_if_absent(other, data[:-7])
    result = verify_objects(spark, VerifyRequest(address=address, pair=PAIR))
    assert {(f.generation, f.fault, f.where) for f in result.findings} == {
        (1, VerifyFault.CHECKSUM, own),
        (1, VerifyFault.MISSING, journal),
        (2, VerifyFault.CHECKSUM, other),
    }
    store.delete([layout.entry_key(PAIR, 2, 2)])
    result = verify_objects(spark, VerifyRequest(address=address, pair=PAIR))
    assert [f.fault for f in result.findings if f.generation == 2] == [VerifyFault.CHAIN]
    assert {f.fault for f in result.findings if f.generation == 1} == {VerifyFault.CHECKSUM, VerifyFault.MISSING}
    assert pins.list_pins(store, PAIR) == []


def test_what_is_cleared_or_being_cleared_is_not_read(spark: SparkSession, tmp_path: Path) -> None:
    """Its objects may be gone already, and that is no fault."""
    address = StoreAddress(root=tmp_path.as_uri(), settings=StoreAccess())
    store = address.open()
    first, second = two_generations(store)
    going = first.clearing()
    store.delete(list(first.writer.state.objects))
    result = verify_objects(spark, VerifyRequest(address=address, pair=PAIR))
    assert result.clean
    assert [g.generation for g in result.generations] == [second.number]
    assert result.skipped == {1: "it is being cleared"}
    from tandem.backup_avro.chain.entries import EntryKind  # noqa: PLC0415 - beside its only use

    first.append(EntryKind.CLEARED, clearing=going)
    result = verify_objects(spark, VerifyRequest(address=address, pair=PAIR))
    assert (result.clean, result.skipped) == (True, {})
    with pytest.raises(RefusedError, match="generation 1: it is cleared"):
        verify_objects(spark, VerifyRequest(address=address, pair=PAIR, generation=1))
    with pytest.raises(ConfigError, match="no generation 9"):
        verify_objects(spark, VerifyRequest(address=address, pair=PAIR, generation=9))
    with pytest.raises(ConfigError, match="pair other has no generation"):
        verify_objects(spark, VerifyRequest(address=address, pair="other"))


def test_the_command_says_clean_or_names_the_mismatch(tmp_path: Path, tandem: Callable[..., Any]) -> None:
    """Exit code 0 and 3; figures for people and as a document; progress on stderr only."""
    store = open_store((tmp_path / "store").as_uri())
    _, second = two_generations(store)
    code, out, err = tandem("verify")
    assert code == 0
    assert "clean: everything is as the chains say" in out
    assert "5 of 5 objects" in err
    victim = next(iter(second.writer.state.objects))
    store.delete([victim])
    code, out, _ = tandem("verify", "-o", "json", "--generation", "2")
    assert code == 3
    document = json.loads(out)
    assert (document["kind"], document["schemaVersion"], document["clean"]) == ("Verify", 1, False)
    assert [(f["generation"], f["fault"], f["where"]) for f in document["findings"]] == [(2, "missing", victim)]
    assert [g["generation"] for g in document["generations"]] == [2]
    code, out, _ = tandem("verify")
    assert code == 3
    assert "mismatches: 1" in out
    assert victim in out


def test_the_command_on_nothing_is_a_usage_error(tandem: Callable[..., Any]) -> None:
    """A wrong pair or root must not look like a clean backup."""
    code, out, err = tandem("verify")
    assert (code, out) == (2, "")
    assert "has no generation" in err
