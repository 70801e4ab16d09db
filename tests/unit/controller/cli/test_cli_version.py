"""`tandem version`: from the metadata of the installation, without configuration."""

from __future__ import annotations

import importlib.util
import json
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from support.pages import documents

from tandem.controller.cli.main import run
from tandem.controller.cli.run.version import EXTRAS

PROJECT = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text("utf-8"))["project"]


def shown(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    """The document that the command prints."""
    assert run(["version", "-o", "json"]) == 0
    document: dict[str, object] = json.loads(capsys.readouterr().out)
    documents.check(document)
    return document


def test_what_is_installed(capsys: pytest.CaptureFixture[str]) -> None:
    """The version and each direct dependency, as the metadata have them; a checkout has no commit."""
    found = shown(capsys)
    assert found["version"] == metadata.version("tandem-kafka-backup")
    assert found["commit"] is None
    assert found["transcoder"] == "compiled"
    assert isinstance(found["libraries"], dict)
    wanted = [Requirement(line).name for line in PROJECT["dependencies"]]
    assert {name: found["libraries"][name] for name in wanted} == {name: metadata.version(name) for name in wanted}
    assert "pytest" not in found["libraries"]


def test_the_transcoder_is_looked_for(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one of its modules the plain one is used, as `tandem run` would."""
    there = importlib.util.find_spec
    monkeypatch.setattr(
        "tandem.controller.cli.run.version.find_spec", lambda name: None if name.endswith("_bodies") else there(name)
    )
    assert shown(capsys)["transcoder"] == "plain Python"
    assert run(["version"]) == 0
    assert "plain Python, several times slower" in capsys.readouterr().out


def test_each_extra_is_known_by_a_package_of_its_own() -> None:
    """What tells that an extra is installed is in that extra, and in no dependency of a bare installation."""
    optional = {
        extra: {Requirement(line).name for line in lines} for extra, lines in PROJECT["optional-dependencies"].items()
    }
    assert EXTRAS.keys() == optional.keys() - {"dev"}
    bare = {Requirement(line).name for line in PROJECT["dependencies"]}
    assert all(package in optional[extra] - bare for extra, package in EXTRAS.items())
    assert "pyspark" not in bare
