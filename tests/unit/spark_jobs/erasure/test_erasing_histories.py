"""Random histories with erasures: every state is as it was, without the keys, whenever a run was killed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from golden.encrypted import KEY_TEXT
from hypothesis import HealthCheck, given, settings
from support.backups.erasing import ERASING, play_erasing
from support.backups.sweeping import KEYS, MERGES, Op

from tandem.backup_avro.record.envelope import is_encrypted
from tandem.sink.encryption.encryption_settings import KeySettings
from tandem.sink.encryption.key_ring import KeyRing
from tandem.sink.write.vanished_keys_check import read_blocks
from tandem.spark_jobs.erasure.erase_object import SearchedKeys

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


@settings(max_examples=150, suppress_health_check=_SLOW)
@given(ERASING)
def test_every_state_is_as_it_was_without_the_keys(ops: list[Op]) -> None:
    """Every moment, every union of generations, every checkpoint; verify finds nothing; no object has the key."""
    play_erasing(ops)


@settings(max_examples=40, suppress_health_check=_SLOW)
@given(ERASING)
def test_so_it_is_with_encrypted_objects(ops: list[Op]) -> None:
    """One copy is encrypted: what is rewritten is, too."""
    store = play_erasing(ops, KeyRing(KeySettings(key_env="K"), environment={"K": KEY_TEXT})).swept.store
    assert all(is_encrypted(data) for key, data in store.objects.items() if key.endswith(".avro"))


_BEGIN: list[Op] = [("burst", 0, ((0, False), (1, False), (2, False))), ("turn",)]
_READ: list[Op] = [("burst", 0, ((0, False), (2, True), (1, False))), ("read", 0, 0, True)]


@pytest.mark.parametrize("kill_at", range(12))
def test_a_killed_run_is_gone_on_with(kill_at: int) -> None:
    """At each put and delete of a run over two generations and a checkpoint; the next run ends what it left."""
    world = play_erasing(
        [*_BEGIN, *_READ, ("ask",), ("reach", 0), ("merge", 0), *_READ, ("turn",), *_READ, ("erase", 2, kill_at, ())]
    )
    killed = world.killed
    world.do(("erase", 2, None, ()))
    world.check()
    assert (world.erasures, world.killed) == (2 - killed, killed)
    assert {number for number, _, _ in world.erased} == {1, 2}


@pytest.mark.parametrize("kill_at", range(16))
def test_objects_that_are_merged_while_they_are_searched_bring_no_older_value_back(
    kill_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The merged object has values whose tombstone lies above it: that goes in the same entry, or later."""
    monkeypatch.setattr("support.backups.sweeping.MERGES", replace(MERGES, most_runs=2))
    world = play_erasing(_BEGIN)
    for gone in (False, False, False, True):
        world.do(("burst", 0, ((0, False), (2, gone), (1, False))))
        world.do(("read", 0, 0, True))
    newest = max(record.offset for record in world.written if record.key == KEYS[2])
    world.do(("erase", 2, kill_at, (("merge", 0),)))
    assert world.killed == 1
    store, state = world.swept.store, world.swept.now(0)
    keys = SearchedKeys(keys=frozenset({KEYS[2]}))
    found = [
        span[2]
        for item, part in state.live_parts()
        for body, count in read_blocks(store, state, item, part)
        for span, hit in keys.records(body, count)
        if hit
    ]
    assert max(found, default=newest) == newest
