"""Finds the places in the sources that make errors, with their codes. Reads source files only, as syntax trees."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT = Path(__file__).parents[1]
CODE: Final = re.compile(r"TDM-[A-Z][0-9]{3}")
RETIRED: Final = Path(__file__).with_suffix(".txt")
_BASE: Final = "TandemError"

#: letter -> what its codes are about
AREAS: Final = {
    "A": "records, chain, documents, selection",
    "B": "reading, transcoding and writing a backup",
    "C": "configuration, command line, roles",
    "D": "demo and sandbox",
    "H": "handover and checkpoints on request",
    "I": "instance, coordination, status",
    "K": "Kafka",
    "N": "encryption and keys",
    "P": "Spark sessions, reading stored records, catch-up",
    "R": "restore and export",
    "S": "store",
    "T": "retention, sweep, compaction",
    "V": "verify",
}

_LETTERS: Final = {
    "avro": "A",
    "sink/tandem/sink": "B",
    "sink/tandem/sink/kafka": "K",
    "sink/tandem/sink/store": "S",
    "sink/tandem/sink/encryption": "N",
    "spark_jobs": "P",
    "spark_jobs/tandem/spark_jobs/restore": "R",
    "spark_jobs/tandem/spark_jobs/verify": "V",
    "spark_jobs/tandem/spark_jobs/retention": "T",
    "spark_jobs/tandem/spark_jobs/compaction": "T",
    "controller": "I",
    "controller/tandem/controller/cli": "C",
    "controller/tandem/controller/cli/handover": "H",
    "controller/tandem/controller/cli/restore": "R",
    "controller/tandem/controller/cli/keys": "N",
    "controller/tandem/controller/cli/maintain": "T",
    "controller/tandem/controller/cli/maintain/verify.py": "V",
    "controller/tandem/controller/cli/maintain/verify_files.py": "V",
    "controller/tandem/controller/cli/maintain/catch_up.py": "P",
    "controller/tandem/controller/cli/run/demo.py": "D",
    "controller/tandem/controller/cli/run/sandbox.py": "D",
    "controller/tandem/controller/cli/run/run.py": "I",
    "controller/tandem/controller/config": "C",
    "controller/tandem/controller/roles": "C",
    "controller/tandem/controller/sandbox": "D",
    "controller/tandem/controller/demo": "D",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Construction:
    """A call with a code, or one that makes an error and lacks it. `path` is relative to the repository."""

    path: str
    line: int
    code: str | None
    passed_on: bool
    call: ast.Call

    @property
    def place(self) -> str:
        """File and line."""
        return f"{self.path}:{self.line}"


def area_of(path: str) -> str:
    """Return the letter of the codes of a source file: that of the longest path in the table that holds it."""
    return _LETTERS[max((place for place in _LETTERS if f"{path}/".startswith(f"{place}/")), key=len)]


def retired() -> set[str]:
    """Return the codes that no release makes any longer."""
    return set(CODE.findall(RETIRED.read_text("utf-8"))) if RETIRED.exists() else set()


def constructions(root: Path = ROOT) -> Iterator[Construction]:
    """Yield, in the order of files, each call that makes an error or has a keyword `code` with a literal code."""
    trees = {path: ast.parse(path.read_text("utf-8")) for path in _sources(root)}
    errors = _error_classes(trees.values())
    own = _with_own_code(trees.values(), errors)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            given = next((keyword.value for keyword in node.keywords if keyword.arg == "code"), None)
            code = given.value if isinstance(given, ast.Constant) and isinstance(given.value, str) else None
            makes = _name(node.func) in errors - own
            if makes or (code is not None and CODE.match(code)):
                yield Construction(
                    path=str(path.relative_to(root)),
                    line=node.lineno,
                    code=code,
                    passed_on=code is None and given is not None,
                    call=node,
                )


def _sources(root: Path) -> Iterator[Path]:
    for top in ("avro", "sink", "spark_jobs", "controller"):
        yield from sorted((root / top / "tandem").rglob("*.py"))


def _name(function: ast.expr) -> str:
    match function:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def _classes(trees: Iterable[ast.Module]) -> Iterator[ast.ClassDef]:
    for tree in trees:
        yield from (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def _error_classes(trees: Iterable[ast.Module]) -> set[str]:
    """Return the names of TandemError and its subclasses: class names are unique in the project."""
    bases = {node.name: {_name(base) for base in node.bases} for node in _classes(trees)}
    found = {_BASE}
    while more := {name for name, above in bases.items() if above & found} - found:
        found |= more
    return found


def _with_own_code(trees: Iterable[ast.Module], errors: set[str]) -> set[str]:
    """Return the errors whose constructor takes no code, but gives one to its base class."""
    return {
        node.name
        for node in _classes(trees)
        if node.name in errors
        for part in node.body
        if isinstance(part, ast.FunctionDef)
        and part.name == "__init__"
        and "code" not in {argument.arg for argument in part.args.kwonlyargs}
    }
