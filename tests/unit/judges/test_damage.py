"""A share of `make damage`: a few hundred ways to spoil a real backup, each seen before it does harm."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from damage import documents
from damage.__main__ import play
from damage.judge import Outcome, judge
from damage.scene import build
from damage.ways import Damage, damage
from support.backups.build_backup import PAIR

from tandem.backup_avro.chain import layout
from tandem.backup_avro.record.container import Codec
from tandem.spark_jobs.reading import object_reader
from tandem.spark_jobs.restore.plan import options
from tandem.spark_jobs.verify import verify_plan


@pytest.mark.parametrize("seed", range(100_001, 100_009))
def test_damage_is_seen(seed: int) -> None:
    """By verify, and by a restore that needs what is damaged, with nothing wrong handed on."""
    counts, troubles = play(seed, 40)
    assert troubles == []
    assert counts.total() == 40
    assert {outcome for _, outcome in counts} >= {Outcome.BOTH, Outcome.VERIFY}


def test_some_kinds_alone() -> None:
    """What `ONLY` names, and nothing else."""
    counts, troubles = play(100_009, 12, only="(entries|claims): bits")
    assert troubles == []
    assert {kind for kind, _ in counts} == {"entries: bits flipped", "claims: bits flipped"}


def test_without_checksums_damage_gets_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge is able to find something: take the look at size and hash away, and it does.

    Where blocks are not compressed, that is: compressions vouch for themselves.
    """
    for module in (object_reader, verify_plan):
        monkeypatch.setattr(module, "check_bytes", lambda *_: None)
    plain = list(Codec).index(Codec.NULL)
    # Names have random parts, so no seed names the same byte twice; most damage hits something else.
    found = (play(plain + turn * len(Codec), 60)[1] for turn in range(8, 28))
    assert any("wrong records" in trouble for troubles in found for trouble in troubles)


def test_the_judge_sees_a_small_document_that_is_read_as_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two offers change places: each is held against its name, and without that one is read as the other."""
    scene = build(tmp_path, 5)
    one, other = tmp_path.glob(f"{PAIR}/*/*/offers/*.json")
    before = {one: one.read_bytes(), other: other.read_bytes()}
    one.write_bytes(before[other])
    other.write_bytes(before[one])
    done = Damage(kind="two offers swapped", before=before, document=True)
    assert judge(scene, done) == (Outcome.REFUSED, "")
    monkeypatch.setattr(documents, "check_offer", lambda *_: None)
    outcome, said = judge(scene, done)
    assert outcome is Outcome.BAD
    assert "is read as RangeOffer(" in said


def test_damage_is_undone(tmp_path: Path) -> None:
    """Every damage is to the sound backup."""
    scene, rng = build(tmp_path, 5), random.Random(5)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for _ in range(50):
        damage(rng, scene).undo()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_chain_without_its_first_entry_is_no_claim_that_nobody_opened(tmp_path: Path) -> None:
    """Such a claim is passed over once a newer generation is complete; entries behind a gap are told of."""
    scene = build(tmp_path, 3)
    path = tmp_path / layout.entry_key(PAIR, 1, 1)
    gone = Damage(kind="entry 1", before={path: path.read_bytes()})
    path.unlink()
    outcome, said = judge(scene, gone)
    assert outcome is Outcome.BOTH
    assert "is missing, but" in said


def test_a_restore_does_not_take_a_gap_for_the_end(tmp_path: Path) -> None:
    """Where bisecting would take the chain for ended, a restore rests on another generation and says so."""
    scene = build(tmp_path, 1)
    (tmp_path / layout.entry_key(PAIR, 2, 3)).unlink()
    plan = options.plan_of(options.ChainReader(scene.store, PAIR), options.RestoreOptions())
    assert plan.generation == 1
    assert "is missing, but" in plan.damaged[2]
