"""Chaos in short: a pair on a broker and an S3 server of its own, hurt at random, judged after each round."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest
from chaos.campaign import Campaign, Plan

pytestmark = [pytest.mark.integration, pytest.mark.spark]

# Its three rounds: both instances away from the broker, then killed; a second process of one name, the other one
# stopped; the S3 server suspended and both killed.
SEED = 12


def assert_unharmed(plan: Plan, folder: Path) -> None:
    """Carry the plan out; every restore must have been right, and every round must have ended well."""
    lines: list[str] = []
    tally = Campaign(plan, folder, say=lines.append).run()
    story = "\n".join([*lines, str(tally), f"seed {plan.seed}; logs are in {folder}"])
    assert tally.clean, story
    assert tally.rounds == plan.rounds, story
    # What did not happen proves nothing.
    assert tally.faults >= plan.rounds, story
    assert tally.generations > 1, story
    assert tally.guarded_turns > 0, story
    assert tally.aborted > 0, story
    assert tally.restores > plan.rounds, story
    assert tally.spark_restores == 1, story
    assert tally.restored_records > 0, story


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_three_rounds(tmp_path: Path) -> None:
    """Three rounds of a known seed: nothing lost, nothing twice, nothing resurrected."""
    assert_unharmed(Plan(rounds=3, seed=SEED, spark_every=3), tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_rounds(tmp_path: Path) -> None:
    """Ten rounds of a new seed each time; a failure prints it."""
    assert_unharmed(Plan(rounds=10, seed=secrets.randbelow(1_000_000), spark_every=10), tmp_path)
