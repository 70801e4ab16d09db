"""What `tandem erase` says: what is proven of the copies, what is not over, and where it did not look."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tandem.controller.cli.maintain.erase_view import describe, show
from tandem.controller.cli.output.output import OutputFormat
from tandem.spark_jobs.erasure.erasure_job import ErasureReport, ErasureResult
from tandem.spark_jobs.erasure.erasure_plan import ErasurePlan, GenerationErasure
from tandem.spark_jobs.erasure.former_copies import FormerCopies
from tandem.spark_jobs.erasure.live_keys import FormerValues, LiveKeys

_FORMER = LiveKeys(shadowed=2, former=(FormerValues(partition=3, keys=2, values=5),))


def report(live: LiveKeys | None = None, *, found: int = 0, **more: Any) -> ErasureReport:
    """A report about a topic in one generation of seven objects, `found` of which have records of the keys."""
    generation = GenerationErasure(
        generation=1,
        instance="a",
        searched=7,
        searched_bytes=700,
        records=found,
        tombstones=0,
        objects=found,
        bytes=100 * found,
        checkpoints=(),
        replaced=0,
    )
    plan = ErasurePlan(pair="p", topic="t", at=0, keys=2, found=found, generations=(generation,), left=(), errors={})
    return ErasureReport(
        root="s3://b",
        plan=plan,
        live=live,
        versions=FormerCopies(),
        pending=None if live is None else live.pending("t"),
        **more,
    )


def result(**more: Any) -> ErasureResult:
    """The result of an erasure after which nothing is left in the copies."""
    known = {"clean": True, "remains": 0, "generations": (), "orphans": 0, "uncommitted": 0, "searched": 6}
    return ErasureResult(**(known | more))


def said(capsys: pytest.CaptureFixture[str], shown: ErasureReport) -> str:
    """What stdout has, as one line."""
    show(shown, OutputFormat.TABLE)
    return " ".join(capsys.readouterr().out.split())


def test_a_proof_about_the_copies_does_not_hide_what_the_log_has(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is left in any object, and the next turn reads it again: both are said, once, and with the way on."""
    told = said(capsys, report(_FORMER, result=result(), restored=()))
    assert "proven: 0 records are left in the 6 objects of t" in told
    assert "not over: the live log of t still has 5 former values of 2 of the keys" in told
    assert "partition 3: 5" in told
    assert "give the same command again when it has" in told
    assert told.count("former values") == 1


def test_it_is_over_where_the_log_has_nothing_either(capsys: pytest.CaptureFixture[str]) -> None:
    """No word of another run; without a result, too."""
    for shown in (report(LiveKeys(tombstones=1), result=result(), restored=()), report(LiveKeys(), restored=())):
        told = said(capsys, shown)
        assert "proven: 0 records are left" in told
        assert "not over" not in told


def test_nothing_is_proven_while_something_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    """A plan with records, a result with remains, an object that can't be read."""
    unread = report(LiveKeys(), restored=())
    unread = replace(unread, plan=replace(unread.plan, errors={"one.avro": "it is cut"}))
    for shown in (report(LiveKeys(), found=1), report(LiveKeys(), result=result(clean=False, remains=4)), unread):
        assert "proven" not in said(capsys, shown)
    assert "not over: give the same command again" in said(capsys, unread)


def test_what_is_not_searched_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Topics that were restored keep what they were given; without a look at the brokers none is known."""
    told = said(capsys, report(LiveKeys(), restored=("t.restored", "u.restored")))
    assert "not searched: topics that restores created in this cluster" in told
    assert "t.restored, u.restored" in told
    assert "not searched: the live topic" in said(capsys, report())


def test_the_plan_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Before the question; the report is what came of it."""
    planned = report(_FORMER, found=1, restored=())
    describe(planned, OutputFormat.TABLE, purge=False)
    show(replace(planned, result=result()), OutputFormat.TABLE)
    shown = capsys.readouterr()
    assert shown.out.count("1 records of 1 of 2 keys") == 1
    assert shown.out.lower().count("searched") == 2, "the head of the table, and what is not searched"
    assert "not over with this run" in shown.err
