"""docs/architecture.md names folders and modules that exist, and the folders stay small and described."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SOURCE_ROOTS = ("avro", "sink", "spark_jobs", "controller")
MOST_MODULES = 12
_NAME = re.compile(r"^ *((?:backup_avro|sink|spark_jobs|controller)(?:\.\w+)+) ", re.MULTILINE)


def _walks() -> list[tuple[str, str]]:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    walks = re.findall(r"<!-- walk: (\w+) -->\n(.*?)<!-- end -->", page, re.DOTALL)
    return [(walk, name) for walk, text in walks for name in _NAME.findall(text)]


def _is_there(name: str) -> bool:
    place = "tandem/" + name.replace(".", "/")
    return any((ROOT / root / f"{place}.py").is_file() or (ROOT / root / place).is_dir() for root in SOURCE_ROOTS)


def _folders() -> list[Path]:
    return sorted({path.parent for root in SOURCE_ROOTS for path in (ROOT / root / "tandem").rglob("*.py")})


def test_the_page_has_three_walks() -> None:
    """A batch, a decision, a restore, each over several folders."""
    walks = [walk for walk, _ in _walks()]
    assert {walk: walks.count(walk) >= 8 for walk in walks} == {"batch": True, "decision": True, "restore": True}


@pytest.mark.parametrize(("walk", "name"), _walks())
def test_a_walk_names_what_is_there(walk: str, name: str) -> None:
    """Each line of a picture begins with a folder or a module."""
    assert _is_there(name), f"{walk}: {name}"


@pytest.mark.parametrize("folder", _folders(), ids=lambda folder: str(folder.relative_to(ROOT)))
def test_a_folder_reads_like_a_table_of_contents(folder: Path) -> None:
    """At most a dozen modules, and a docstring that says what lives there."""
    modules = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
    assert len(modules) <= MOST_MODULES
    assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text("utf-8")))
