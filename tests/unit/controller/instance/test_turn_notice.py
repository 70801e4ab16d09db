"""What an instance logs when it begins a turn: from when on moments are restorable now, and how long they stay."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs
from support.backups.build_backup import Backup, records
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.chain.entries import iso
from tandem.controller.instance.execute import Executor


@pytest.mark.parametrize("complete", [True, False])
def test_a_turn_says_before_its_claim_what_it_ends(*, complete: bool) -> None:
    """The first turn of a pair ends nothing, so nothing is said; the claim is made either way."""
    backup = Backup.begun(MemoryStore(), records("t", 0, range(3)))
    if complete:
        backup.complete()
    claimed: list[tuple[int, str, int]] = []
    stand_in: Any = SimpleNamespace(
        _copies=lambda: [backup.writer.state],
        _window_s=86_400.0,
        tasks=SimpleNamespace(claim=lambda number, why, _: claimed.append((number, why, len(lines)))),
    )
    with capture_logs() as lines:
        Executor._claim(stand_in, 2, "due")
    assert claimed == [(2, "due", int(complete))], "it is logged first"
    if complete:
        started = backup.writer.state.completed_at
        assert started is not None
        assert lines[0]["restorable_from"] == iso(started)
        assert (lines[0]["generation"], lines[0]["kept_after_seal_s"]) == (2, 86_400.0)
