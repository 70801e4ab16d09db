"""The order of test files for workers side by side: what takes longest first, and what waits beside what computes.

A worker gets whole files. Tests with servers wait most of the time and unit tests compute, so files of both kinds
alternate; the longest begin first, or the last one of them runs alone at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

#: Files that take longest, of both kinds, the longest first.
LONGEST: Sequence[str] = (
    "test_restore",
    "test_commands",
    "test_emptied_answers",
    "test_rewind",
    "test_restore_exact",
    "test_catch_up",
    "test_restore_append",
    "test_restore_moments",
    "test_erase",
    "test_documented_commands",
    "test_source_fetch",
    "test_checkpoints",
    "test_signed_pair",
    "test_logins",
    "test_failures",
    "test_existing_backups",
    "test_restore_ends",
    "test_sandbox",
    "test_missing_rights",
    "test_source_outage",
    "test_retention",
    "test_killed",
    "test_restore_shapes",
    "test_object_store",
    "test_kafka_python_producer",
    "test_model_check",
    "test_simulation",
    "test_damage",
    "test_forgeries",
    "test_hostile_input",
)
_RANK = {name: rank for rank, name in enumerate(LONGEST)}
_Test = TypeVar("_Test")


def spread(files: Iterable[tuple[str, str, _Test]]) -> list[_Test]:
    """Return the tests in that order, from (kind, name of the file without its folder and suffix, test) in any order.

    `kind` is "unit" for what computes. Tests of one file stay together and in their order.
    """
    tests: dict[tuple[str, str], list[_Test]] = {}
    for kind, name, test in files:
        tests.setdefault((kind, name), []).append(test)
    ordered = []
    for computes in (False, True):
        mine = [file for file in tests if (file[0] == "unit") == computes]
        mine.sort(key=lambda file: _RANK.get(file[1], len(LONGEST)))
        ordered += [((place + 0.5) / len(mine), computes, file) for place, file in enumerate(mine)]
    return [test for *_, file in sorted(ordered) for test in tests[file]]
