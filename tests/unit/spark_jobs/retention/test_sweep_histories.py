"""Random histories, swept and not swept: what can be restored is the same; and mistakes in the rules are found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from golden.encrypted import KEY_TEXT
from hypothesis import HealthCheck, given, settings
from support.backups.sweeping import HISTORIES, Op, play

from tandem.backup_avro.chain import generation
from tandem.backup_avro.chain.entries import PartitionKey
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.record.envelope import is_encrypted
from tandem.backup_avro.selection.moments import PastState, past_state
from tandem.sink.encryption.encryption_settings import KeySettings
from tandem.sink.encryption.key_ring import KeyRing
from tandem.spark_jobs.retention import sweep, sweep_partition, sweep_plan
from tandem.spark_jobs.retention.sweep_plan import SweepTask

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


@settings(max_examples=200, suppress_health_check=_SLOW)
@given(HISTORIES)
def test_what_can_be_restored_is_the_same(ops: list[Op]) -> None:
    """Every moment in the window, every union of generations, every checkpoint; verify finds nothing.

    So is what a consumer group comes to that goes on after a restore where it was recorded.
    """
    play(ops)


@settings(max_examples=60, suppress_health_check=_SLOW)
@given(HISTORIES)
def test_what_can_be_restored_of_encrypted_objects_is_the_same(ops: list[Op]) -> None:
    """One of the two copies is encrypted, merged and swept; the other one is not."""
    store = play(ops, KeyRing(KeySettings(key_env="K"), environment={"K": KEY_TEXT})).swept.store
    assert all(is_encrypted(data) for key, data in store.objects.items() if key.endswith(".avro"))


def _tombstones_never_wait(_state: object, _key: object, horizon: int, _others: object) -> int:
    """Other generations are not looked at."""
    return horizon


def _from_the_base(state: Generation, key: PartitionKey) -> int:
    """A restore joins what was swept onto other copies: a guard of its own, without which this one is seen."""
    return state.positions[key].base.end


def _one_too_far(past: Generation) -> PastState:
    """The horizon is taken for the last offset below it."""
    found = past_state(past)
    return replace(found, offsets={key: offset + 1 for key, offset in found.offsets.items()})


def _no_cuts(_requests: object) -> Mapping[PartitionKey, int]:
    """Checkpoints that are open are not looked at."""
    return {}


def _tells(_self: Generation, _key: PartitionKey, _offset: int) -> bool:
    """Nobody asks whether a cut lies below the horizon."""
    return True


def _all_chosen(self: Any, task: SweepTask) -> frozenset[str]:
    """Tombstones go whatever stays of older records."""
    self.waiting._older = [frozenset()] * len(self.waiting)
    return _CHOOSE(self, task)


_CHOOSE = sweep_partition.Superseded.choose


def _oldest_first(newest_first: Callable[..., Any]) -> Callable[..., Any]:
    """Each key keeps its oldest record."""
    return lambda *some: iter(list(newest_first(*some))[::-1])


_NOW = ("sweep", 0, 0.0, 1000, False)
_BEGIN: list[Op] = [("burst", 0, ((0, False),)), ("turn",)]
_AGAIN: list[Op] = [("burst", 0, ((0, False), (0, False), (1, False))), ("read", 0, 0)]
_BEHIND: list[Op] = [("turn",), ("burst", 0, ((0, True),)), ("read", 0, 0), ("burst", 0, ((1, False),)), ("read", 0, 0)]
_DIED: list[Op] = [("burst", 0, ((0, True),)), ("read", 0, 0), ("burst", 0, ((1, False),)), ("read", 0, 0)]
_ASKED: list[Op] = [("burst", 0, ((1, False),)), ("ask",), ("burst", 0, ((0, False), (1, False))), ("read", 0, 0)]
_SHARED: list[Op] = [("burst", 0, ((0, False), (1, False), (2, False))), ("read", 0, 0)]
_DELETED: list[Op] = [("burst", 0, ((0, True), (0, True))), ("read", 0, 0), ("sweep", 0, 0.6, 1000, False)]
_EXACTLY: list[Op] = [*_AGAIN, ("burst", 0, ((1, False), (0, False))), ("read", 0, 0), ("sweep", 1, 0.0, 1000, False)]

_MISTAKES: dict[str, tuple[list[Op], list[tuple[object, str, object]]]] = {
    "a tombstone goes though an older value is in another generation": (
        [*_BEGIN, *_BEHIND, _NOW],
        [(sweep_plan, "_settled", _tombstones_never_wait), (Generation, "told_from", _from_the_base)],
    ),
    "the horizon is one too far": ([*_BEGIN, *_EXACTLY], [(sweep, "past_state", _one_too_far)]),
    "an open checkpoint is not looked at": (
        [*_BEGIN, *_ASKED, _NOW, ("reach", 0)],
        [(sweep, "open_cuts", _no_cuts), (Generation, "keeps_state_at", _tells)],
    ),
    "a tombstone goes before what it deletes": (
        [*_BEGIN, *_SHARED, *_DELETED],
        [(sweep_partition.Superseded, "choose", _all_chosen)],
    ),
    "what was taken for orphans is committed after all": (
        [*_BEGIN, *_AGAIN, (*_NOW, (("tidy",),))],
        [(generation, "check_sweep", lambda *_: None)],
    ),
    "a tombstone goes that a recorded group has not read": (
        [*_BEGIN, ("consume", 0, 0), *_DIED, _NOW],
        [(sweep_plan, "_committed", lambda *_: iter(()))],
    ),
    "the oldest record of a key is kept": (
        [*_BEGIN, *_AGAIN, _NOW],
        [(sweep_partition, "_newest_first", _oldest_first(sweep_partition._newest_first))],
    ),
}


@pytest.mark.parametrize("mistake", _MISTAKES)
def test_a_mistake_is_found(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A history that the property holds for, until the mistake is made."""
    ops, wrong = _MISTAKES[mistake]
    play(ops)
    for where, name, function in wrong:
        monkeypatch.setattr(where, name, function)
    with pytest.raises((AssertionError, DamagedError)):
        play(ops)
