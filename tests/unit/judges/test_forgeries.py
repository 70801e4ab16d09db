"""A share of `make forgeries`: who can write to the bucket and has no key is found out, and gets nothing restored."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from damage.__main__ import play_forgeries
from damage.forgeries import build_stage, forge
from damage.judge import Fate

from tandem.backup_avro.chain.signatures import Trust, unseal
from tandem.backup_avro.record.container import Codec
from tandem.sink.store.chain.chain_reader import ChainReader


@pytest.mark.parametrize("seed", [200_001, 200_002])
def test_forgeries_are_seen(seed: int) -> None:
    """By verify, all of them; and a restore hands on no forged record, nor an older state than is known."""
    counts, troubles = play_forgeries(seed, 25)
    assert troubles == []
    assert counts.total() == 25
    assert sum(count for (_, fate), count in counts.items() if fate is Fate.REFUSED) > 10


def test_without_signatures_forgeries_get_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge is able to find something: believe whatever is there, with no head to compare, and it does."""
    monkeypatch.setattr(Trust, "open", lambda _trust, _key, data: unseal(data)[0])
    monkeypatch.setattr(ChainReader, "require", lambda _reader, _head: None)
    plain = list(Codec).index(Codec.NULL)  # compressions vouch for themselves
    _, troubles = play_forgeries(plain + 8 * len(Codec), 60)
    for kind in ("edited", "an entry appended", "stripped", "a foreign key", "another bucket's replayed"):
        assert any(kind in trouble and "verify finds nothing" in trouble for trouble in troubles), kind


def test_without_a_known_head_a_rollback_gets_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the bucket alone nobody can tell an older state from the newest one."""
    monkeypatch.setattr(ChainReader, "require", lambda _reader, _head: None)
    _, troubles = play_forgeries(7, 60)
    assert any("rolled back" in trouble for trouble in troubles)


def test_forgeries_are_undone(tmp_path: Path) -> None:
    """Every forgery is of the sound backup."""
    stage, rng = build_stage(tmp_path, 5), random.Random(5)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for _ in range(50):
        forge(rng, stage).undo()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
