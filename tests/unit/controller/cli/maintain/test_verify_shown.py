"""What `tandem verify` prints of a backup with mismatches."""

from __future__ import annotations

from datetime import UTC, datetime

from tandem.controller.cli.maintain.verify_view import verified_tables
from tandem.controller.cli.output.output import Table
from tandem.sink.store.chain.intact_state import IntactState
from tandem.spark_jobs.verify.verify_plan import VerifyFault, VerifyFinding, VerifyResult


def test_the_newest_whole_moment_is_named_with_its_command() -> None:
    """The last lines: of each generation that has one."""
    finding = VerifyFinding(generation=7, fault=VerifyFault.CHAIN, where="generation 7", message="entry 9 is missing")
    result = VerifyResult(
        pair="shop",
        root="s3://replica/prod",
        generations=(),
        findings=(finding,),
        intact=(IntactState(generation=7, entry=8, at=datetime(2026, 12, 1, 16, 10, 47, tzinfo=UTC)),),
    )
    lines = [line for line in verified_tables(result, 1.0) if not isinstance(line, Table)]
    assert lines[-1].startswith("generation 7 needs nothing of that up to 2026-12-01 16:10:47Z: ")
    assert lines[-1].endswith("`tandem restore --generation 7 --commit 8`")
