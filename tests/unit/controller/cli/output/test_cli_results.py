"""What a run came to is kept in the store, if it can be."""

from __future__ import annotations

import pytest
from support.backups.build_backup import PAIR
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.documents.outcome import JobKind, JobOutcome
from tandem.controller.cli.output.keep_outcome import keep_outcome
from tandem.sink.store.chain import outcomes
from tandem.sink.store.contract.object_store import StoreTransientError


def drilled(at: int) -> JobOutcome:
    return JobOutcome(
        kind=JobKind.DRILL, pair=PAIR, at=at, by="me", clean=True, what="all", findings=0, records=1, bytes=1
    )


def test_a_result_has_the_store_s_time() -> None:
    """Whoever compares it with what the chains say must not have another clock."""
    store = MemoryStore(clock_ms=5_000_000, step_ms=0)
    keep_outcome(store, drilled)
    (kept,) = outcomes.newest_first(store, PAIR, JobKind.DRILL)
    assert kept.at == 5_000_000


def test_a_store_that_is_away_when_a_run_ends_costs_the_kept_result_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was found is still to be shown; and a run that failed of it fails of its own error."""
    store = MemoryStore()
    monkeypatch.setattr(
        MemoryStore, "now", lambda _: (_ for _ in ()).throw(StoreTransientError("503", code="TDM-X001"))
    )
    keep_outcome(store, drilled)
    assert "the result could not be kept in the store: 503" in capsys.readouterr().err
    assert not store.objects
