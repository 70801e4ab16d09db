"""What setup puts into the wheel: every package, and the files that are read at run time."""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
SETTINGS = PROJECT["tool"]["setuptools"]


@pytest.mark.parametrize("root", ["avro", "controller", "sink", "spark_jobs"])
def test_every_folder_is_a_package(root: str) -> None:
    """A folder without an __init__ would be installed without a word of what lives in it."""
    for file in (ROOT / root / "tandem").rglob("*.py"):
        assert (file.parent / "__init__.py").is_file(), file


def test_the_page_has_its_files() -> None:
    """Templates, styles and script are package data."""
    patterns = SETTINGS["package-data"]["tandem.controller.http.page"]
    files = {
        file.name
        for file in (ROOT / "controller/tandem/controller/http/page").iterdir()
        if file.suffix not in {".py", ""}
    }
    assert files == {"base.html", "macros.html", "page.html", "topics.html", "page.css", "page.js"}
    assert all(any(fnmatch(name, pattern) for pattern in patterns) for name in files)


def test_one_version() -> None:
    """Package, chart, application of the chart, and the image say the same."""
    chart = yaml.safe_load((ROOT / "helm" / "tandem" / "Chart.yaml").read_text("utf-8"))
    image = re.search(r"^ARG VERSION=(.+)$", (ROOT / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    assert image is not None
    assert {chart["version"], chart["appVersion"], image[1]} == {PROJECT["project"]["version"]}


def test_the_steps_of_a_release_exist() -> None:
    """Each `make` that docs/releasing.md names is a target, each module that it runs is there."""
    page = (ROOT / "docs" / "releasing.md").read_text("utf-8")
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    named = set(re.findall(r"make ([a-z-]+)", page))
    assert {"lock", "licences", "audit", "wheel", "sbom"} <= named <= targets
    modules = re.findall(r"python -m ([\w.]+)", page)
    assert modules
    assert all(
        list(ROOT.glob(f"*/{module.replace('.', '/')}.py")) for module in modules if module.startswith("tandem.")
    )
    assert all(
        (ROOT / f"{module.replace('.', '/')}.py").is_file() for module in modules if not module.startswith("tandem.")
    )


def test_the_base_is_pinned() -> None:
    """A tag is another image tomorrow: every stage is from the one that the digest names."""
    text = (ROOT / "Dockerfile").read_text("utf-8")
    assert re.search(r"^ARG PYTHON_IMAGE=python:3\.11-[a-z-]+@sha256:[0-9a-f]{64}$", text, re.MULTILINE)
    stages = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert set(stages) == {"${PYTHON_IMAGE}"}


def test_the_image_installs_nothing_that_is_not_locked() -> None:
    """Every `pip install` of the Dockerfile checks hashes, or takes what another stage has checked."""
    text = (ROOT / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
    calls = re.findall(r"pip (?:install|wheel) [^&\n]*", text)
    assert len(calls) == 4
    assert all("--require-hashes" in call or "--no-index" in call for call in calls)
    assert all("--no-deps" in call for call in calls if "--require-hashes" in call), "nothing is left to be resolved"
    assert all("--no-build-isolation" in call for call in calls if "runtime.lock" in call)
    assert "-m build --no-isolation" in text
