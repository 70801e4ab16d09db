"""Facts of a pair that decisions and what people see rest on: each by one rule."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.backups.build_backup import Backup, records
from support.pairs.sights import LIVENESS_S, POLICY
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.chain.generation import Generation
from tandem.controller.decision import pair_rules

LIVENESS_MS = LIVENESS_S * 1000


def read(*complete: bool) -> list[Generation]:
    """Generations with a first commit, numbered from 1, some of them COMPLETE."""
    store = MemoryStore(clock_ms=1_700_000_000_000, step_ms=0)
    found = []
    for number, done in enumerate(complete, start=1):
        backup = Backup.begun(store, records("t", 0, range(3)), number=number)
        if done:
            backup.complete()
        found.append(backup.writer.state)
    return found


@pytest.mark.parametrize("ago_ms", [-LIVENESS_MS + 1, 0, LIVENESS_MS - 1])
def test_what_is_dated_near_now_is_recent(ago_ms: int) -> None:
    """Clocks differ a little, so before and after count alike."""
    assert pair_rules.is_recent(10**12 - ago_ms, now=10**12, policy=POLICY)
    assert pair_rules.is_heard(ago_ms / 1000, left=False, policy=POLICY)
    assert not pair_rules.is_heard(ago_ms / 1000, left=True, policy=POLICY)


@pytest.mark.parametrize("ago_ms", [-LIVENESS_MS, LIVENESS_MS])
def test_what_is_dated_far_from_now_is_not(ago_ms: int) -> None:
    """The store's clock was set back, or a message is forged."""
    assert not pair_rules.is_recent(10**12 - ago_ms, now=10**12, policy=POLICY)
    assert not pair_rules.is_heard(ago_ms / 1000, left=False, policy=POLICY)


def test_a_build_is_wanted_until_it_is_complete_or_needless() -> None:
    """Of a complete and an open one the open one; of an open and a newer complete one none."""
    older, newer = read(True, False)
    now = newer.claim.at
    assert not pair_rules.is_wanted(older, [older, newer], now=now, policy=POLICY)
    assert pair_rules.is_wanted(newer, [older, newer], now=now, policy=POLICY)
    assert pair_rules.is_wanted(newer, [older, newer], now=now + 10 * LIVENESS_MS, policy=POLICY), "it was opened"
    passed, complete = read(False, True)
    assert not pair_rules.is_wanted(passed, [passed, complete], now=now, policy=POLICY)


@pytest.mark.parametrize("ago_ms", [-LIVENESS_MS, -1, 1, LIVENESS_MS])
def test_a_claim_is_wanted_as_long_as_its_process_may_live(ago_ms: int) -> None:
    """Only that process can open it; with a clock that was set back its age is not known, and so it waits no longer."""
    claimed = replace(read(False)[0], seq=0)
    wanted = pair_rules.is_wanted(claimed, [claimed], now=claimed.claim.at + ago_ms, policy=POLICY)
    assert wanted is (abs(ago_ms) < LIVENESS_MS)


def test_the_newest_complete_one_is_the_actives() -> None:
    """As long as it is not sealed; when it is due follows from its claim."""
    assert pair_rules.active_of(read(False)) is None
    one, two = read(True, True)
    assert pair_rules.active_of([two, one]) is two
    assert pair_rules.active_of([one, replace(two, sealed_at=two.claim.at)]) is one
    assert pair_rules.rotation_due_at(two, POLICY) == two.claim.at + 7 * 86_400_000


def test_the_configuration_keeps_sealed_generations() -> None:
    """For the recovery window after they were sealed; without one nothing."""
    one, two = (replace(g, sealed_at=g.claim.at) for g in read(True, True))
    now = one.claim.at + 5000
    assert pair_rules.kept_for_window([one, two], now=now, policy=POLICY) == frozenset()
    assert pair_rules.kept_for_window([one, two], now=now, policy=replace(POLICY, recovery_window_s=6.0)) == {1, 2}
