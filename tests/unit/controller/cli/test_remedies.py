"""Whoever is told by a command that something can't be done is told what to do next."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import tandem.controller.cli
import tandem.spark_jobs

_SAY_WHAT_TO_DO = {"ConfigError", "RefusedError", "TimedOutError"}


def _without_remedy(package: Path) -> Iterator[str]:
    for file in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _SAY_WHAT_TO_DO:
                given = {keyword.arg for keyword in node.keywords}
                if not given & {"remedy", None}:
                    yield f"{file.name}:{node.lineno}"


def test_what_a_person_can_mend_has_a_remedy() -> None:
    """A wrong line, a refusal, a wait that ran out: in the commands, and in the jobs that they start."""
    for package in (tandem.controller.cli, tandem.spark_jobs):
        assert package.__file__ is not None
        assert list(_without_remedy(Path(package.__file__).parent)) == []
