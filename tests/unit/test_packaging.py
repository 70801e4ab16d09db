"""What setup puts into the wheel: every package, and the files that are read at run time."""

from __future__ import annotations

import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]


@pytest.mark.parametrize("top", ["controller", "sink", "spark_jobs"])
def test_every_package_is_listed(top: str) -> None:
    """A new folder with an __init__ would be missing from the wheel otherwise."""
    found = {".".join(file.parent.relative_to(ROOT).parts) for file in (ROOT / top).rglob("__init__.py")}
    assert found == {name for name in SETTINGS["packages"] if name.split(".")[0] == top}


def test_the_page_has_its_files() -> None:
    """Template, styles and script are package data."""
    patterns = SETTINGS["package-data"]["controller.page"]
    files = {file.name for file in (ROOT / "controller" / "page").iterdir() if file.suffix not in {".py", ""}}
    assert files == {"page.html", "page.css", "page.js"}
    assert all(any(fnmatch(name, pattern) for pattern in patterns) for name in files)
