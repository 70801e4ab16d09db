"""What a rewind and an export print for people."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandem.controller.cli.output.output import OutputFormat
from tandem.controller.cli.restore.export import tell_tasks
from tandem.controller.cli.restore.rewind_view import show_rewind_plan
from tandem.spark_jobs.rewind.key_changes import ChangeKind
from tandem.spark_jobs.rewind.rewind_plan import ChangeFigures, PartitionRewind, RewindPlan, SampleKey

HASH = "00112233445566778899aabbccddeeff"


def _plan(sample: SampleKey) -> RewindPlan:
    figures = ChangeFigures(keys=1, first_offset=9, last_offset=9, first_at=None, last_at=None, without_record=0)
    part = PartitionRewind(
        partition=2, moment_end=5, log_start=0, head=10, keys=3, changes={sample.kind: figures}, sample=(sample,)
    )
    return RewindPlan(
        pair="shop",
        topic="orders",
        topic_id="t",
        generation=1,
        seq=4,
        as_of=None,
        checkpoint="cut",
        key_choice=(),
        partitions=(part,),
    )


def test_a_plan_says_what_its_hashes_are(capsys: pytest.CaptureFixture[str]) -> None:
    """Of what, by which function, and how to see the keys; keys that are shown need no such line."""
    sample = SampleKey(
        kind=next(iter(ChangeKind)), partition=2, hash=HASH, old_offset=4, live_offset=9, live_at="2026-01-01T00:00:00Z"
    )
    show_rewind_plan(_plan(sample), OutputFormat.TABLE)
    text = capsys.readouterr().out
    assert "HASH OF THE KEY" in text
    assert "OFFSET THEN  OFFSET NOW" in text
    assert "a hash is BLAKE2b of the key, with 128 bits; --show-keys shows the keys themselves" in text
    show_rewind_plan(_plan(replace(sample, key="customer-7", encoding="utf8")), OutputFormat.TABLE)
    text = capsys.readouterr().out
    assert "customer-7" in text
    assert HASH not in text
    assert "BLAKE2b" not in text


@pytest.mark.parametrize(("choice", "told"), [((), False), (("a newest record by rewind 4be1",), True)])
def test_an_undo_tells_which_keys_it_can_not_find(
    choice: tuple[str, ...], told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tombstone that the rewind wrote is gone after delete.retention.ms, and with it the trace of the rewind."""
    sample = SampleKey(
        kind=next(iter(ChangeKind)), partition=2, hash=HASH, old_offset=4, live_offset=9, live_at="2026-01-01T00:00:00Z"
    )
    plan = _plan(sample)
    [part] = plan.partitions
    plan = replace(plan, key_choice=choice, partitions=(replace(part, left_out=7),))
    show_rewind_plan(plan, OutputFormat.TABLE)
    text = capsys.readouterr().out
    assert "7 more keys differ" in text
    assert ("`tandem rewind orders --checkpoint cut` takes all keys" in text) is told


def test_an_export_tells_tasks_once_they_are_planned(capsys: pytest.CaptureFixture[str]) -> None:
    """Before that there is nothing to count."""
    tell_tasks(0, 0)
    tell_tasks(1, 4)
    assert capsys.readouterr().err == "1 of 4 tasks\n"
