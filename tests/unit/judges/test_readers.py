"""The judge of applications finds each thing that can be wrong; what cannot be installed is named."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from readers.applications import APPLICATIONS
from readers.environments import InstallationError, PythonPackages
from readers.expected import Moment
from readers.judge import ALL, MORE, TOLD, Row, judge
from readers.page import table
from readers.process import Answer, Outcome

_CLIENT = next(item for item in APPLICATIONS if item.exceptions)
_GROUP = "consumer group goes on"
_COUNT = "count == high - low"


def _outcomes(case: str, change: Mapping[str, Answer | None]) -> dict[str, Outcome]:
    """What a client tells if all is right, but for the steps in `change`."""
    right = {step: Answer(ready_s=1.0, state=_CLIENT.expectation(case, moment)) for step, moment in TOLD.items()}
    told = right | dict(change)
    return {step: Outcome(answers={} if answer is None else {case: answer}) for step, answer in told.items()}


def _row(case: str, change: Mapping[str, Answer | None]) -> Row:
    [row] = judge(_CLIENT, _outcomes(case, change))
    return row


def test_the_judge_passes_what_is_right() -> None:
    row = _row("position >= end", {})
    assert (row.passed, row.ready, row.state_right, row.goes_on_right, row.faults) == (True, True, True, True, ())


@pytest.mark.parametrize(
    ("case", "change", "fault"),
    [
        ("position >= end", {"restore": Answer(ready_s=None, state={})}, "restore: waits for ever"),
        ("position >= end", {"restore": None}, "restore: told nothing"),
        (
            "position >= end",
            {"goes on": Answer(ready_s=1.0, state=_CLIENT.expectation("position >= end", Moment(last=ALL, unread=0)))},
            "goes on: 35 of 35 differ: key-00 is 480, not 560",
        ),
        (_GROUP, {"restore": Answer(ready_s=1.0, state=[486])}, "restore: 1 items, not 0: [486], not []"),
        (
            _GROUP,
            {"goes on": Answer(ready_s=1.0, state=list(range(ALL + 1, MORE)))},
            "goes on: 86 items, not 87: [488, 489, ",
        ),
    ],
)
def test_the_judge_finds_what_is_wrong(case: str, change: dict[str, Any], fault: str) -> None:
    row = _row(case, change)
    assert not row.passed
    [told] = row.faults
    assert told.startswith(fault)
    assert f"[1]: {fault}" in table([row])


def test_what_is_not_promised_fails_on_a_restore_alone() -> None:
    """On the source it has to hold: an application that is never ready judges nothing."""
    never = Answer(ready_s=None, state={})
    assert _row(_COUNT, {"restore": never, "goes on": never}).passed
    assert not _row(_COUNT, {"source": never}).passed


def test_rows_that_did_not_run_stay_in_the_table() -> None:
    """With the notes that they cite, whose numbers may change."""
    never = Answer(ready_s=None, state={})
    excepted = _row(_COUNT, {"restore": never})
    failed = _row("position >= end", {"restore": never})
    before = table([failed, excepted])
    rerun = _row("position >= end", {})
    after = table([rerun], before)
    assert after == table([rerun, excepted])
    assert table([], before) == before
    assert "waits for ever" in before
    assert "waits for ever" not in after


def test_an_application_that_could_not_be_installed_fails_by_name() -> None:
    [row] = judge(_CLIENT, {}, "could not be installed: no such version")
    assert not row.passed
    assert "could not be installed: no such version" in table([row])


def test_an_application_that_told_nothing_at_all_fails() -> None:
    [row] = judge(replace(_CLIENT, setting=""), {step: Outcome(answers={}, fault="crashed") for step in TOLD})
    assert not row.passed


def test_each_application_has_a_lock_and_a_name_of_its_own() -> None:
    names = [item.name for item in APPLICATIONS]
    assert len(set(names)) == len(names)
    for item in APPLICATIONS:
        assert item.environment.versions()[0].isdigit(), item.name


class _Unfit(PythonPackages):
    """An environment whose installer fails so many times."""

    def __init__(self, failures: int) -> None:
        super().__init__("aiokafka", "aiokafka")
        self.failures = failures

    def _make(self) -> None:
        self.failures -= 1
        words = "import sys; sys.exit('no such version')" if self.failures >= 0 else ""
        self._run(sys.executable, "-c", words)


def test_what_cannot_be_installed_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And it is not taken for installed the next time; a registry that is busy once is asked again."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for _ in range(2):
        with pytest.raises(InstallationError, match=r"aiokafka: .* ended with 1: no such version"):
            _Unfit(failures=100).install()
    _Unfit(failures=1).install()
    _Unfit(failures=100).install()  # there already
