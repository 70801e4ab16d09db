"""What `tandem restore vanished` says when it has written."""

from __future__ import annotations

import pytest

from tandem.controller.cli.output.output import OutputFormat
from tandem.controller.cli.restore import vanished
from tandem.controller.cli.restore.vanished import VanishedKeysDocument, VanishedPartition


def said(capsys: pytest.CaptureFixture[str], *written: int, executed: bool = True) -> str:
    """Return the output for partitions of which each had 400 keys to restore."""
    rows = [
        VanishedPartition(
            topic="orders",
            partition=number,
            kept_in=1,
            missing_in=2,
            vanished=500,
            newer=100,
            restorable=400,
            written=count,
            sample=[],
        )
        for number, count in enumerate(written)
    ]
    document = VanishedKeysDocument(pair="shop", executed=executed, partitions=rows)
    vanished._show(document, OutputFormat.TABLE, wide=False)
    return " ".join(capsys.readouterr().out.split())


def test_all_keys_are_back(capsys: pytest.CaptureFixture[str]) -> None:
    """Then nothing is left to do but the release."""
    assert "the keys are back" in said(capsys, 400, 400)


def test_keys_that_were_left_alone_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """A release would delete the only copy of those whose newer record was aborted."""
    text = said(capsys, 400, 399)
    assert "799 of 800 keys are back; 1 left alone" in text
    assert "Run it again before `tandem release`" in text


def test_a_dry_run_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """And says so, whatever there is to restore."""
    assert "nothing was written" in said(capsys, 0, executed=False)
