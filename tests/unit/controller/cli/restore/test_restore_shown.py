"""What is said when a restore has ended."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from support.backups.build_backup import PAIR, Backup, records
from support.pipeline.doubles import MemoryStore
from support.restores.restore_plans import make_plan

from tandem.controller.cli.output.output import OutputFormat
from tandem.controller.cli.restore.view import show_report
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.spark_jobs.restore.load.load import LoadResult
from tandem.spark_jobs.restore.plan.plan import TopicNaming
from tandem.spark_jobs.restore.progress.task_progress import TargetStrand
from tandem.spark_jobs.restore.records.record_changes import NOTHING, RecordChanges
from tandem.spark_jobs.restore.report import RestoreReport, TopicReport


def _report(shape: RecordChanges, *, written: int, left_out: int) -> RestoreReport:
    store = MemoryStore()
    Backup.completed(store, records("orders", 0, range(40)))
    plan = make_plan(ChainReader(store, PAIR).refresh(), pair=PAIR, naming=TopicNaming())
    done = LoadResult(
        task=0,
        topic="orders",
        topic_id=plan.topics[0].source.topic_id,
        sources=(0,),
        target="orders",
        strands={0: TargetStrand(records=written, hash="00" * 32, first=0, last=written - 1)} if written else {},
        tombstones=0,
        null_keys=0,
        left_out=left_out,
        page=None,
        resumed=0,
        seconds=1.0,
    )
    return RestoreReport(
        id="1f",
        plan=replace(plan, shape=shape),
        topics=(TopicReport(source="orders", target="orders", partitions=(done,), config={}, notes=()),),
        mismatches=(),
        resumed=0,
        load_seconds=1.0,
        check_seconds=1.0,
    )


_ONE = frozenset({b"key-1"})


@pytest.mark.parametrize(
    ("shape", "written", "left_out", "said", "warnings"),
    [
        (NOTHING, 40, 0, "verified 40 records in", []),
        (RecordChanges(excluded=_ONE), 36, 4, "verified 36 records (left out: 4) in", []),
        (
            RecordChanges(excluded=_ONE),
            40,
            0,
            "verified 40 records (left out: 0) in",
            ["none of the 1 excluded keys was met: no record was left out"],
        ),
        (RecordChanges(excluded=_ONE, as_tombstones=True), 40, 0, "verified 40 records (left out: 0) in", []),
        (
            RecordChanges(keys=_ONE),
            0,
            40,
            "verified 0 records (left out: 40) in",
            ["none of the 1 keys was met: no record was restored"],
        ),
        (RecordChanges(keys=_ONE), 4, 36, "verified 4 records (left out: 36) in", []),
    ],
)
def test_what_was_left_out_is_said(
    capsys: pytest.CaptureFixture[str],
    *,
    shape: RecordChanges,
    written: int,
    left_out: int,
    said: str,
    warnings: list[str],
) -> None:
    """By partition and in all, for people and for programs; and keys that met nothing, which may be mistyped."""
    report = _report(shape, written=written, left_out=left_out)
    show_report(report, 2.0, OutputFormat.TABLE)
    table = capsys.readouterr().out
    assert said in table
    assert "LEFT OUT" in table.splitlines()[0]
    assert [line for line in table.splitlines() if "was met" in line] == [f"warning: {text}" for text in warnings]
    show_report(report, 2.0, OutputFormat.JSON)
    document = json.loads(capsys.readouterr().out)
    assert document["leftOut"] == document["topics"][0]["partitions"][0]["leftOut"] == left_out
    assert [text for text in document["warnings"] if "was met" in text] == warnings
