"""The demo, as a person runs it."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.pages import documents

from tandem.controller.cli.main import run
from tandem.controller.demo.story import DemoStory
from tandem.controller.sandbox.sandbox import Sandbox


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_demo_ends_with_nothing_missing(tmp_path: Path) -> None:
    """Exit code 0, every key accounted for, and the folder can be used again only if it is a demo's.

    What the environment says of a pair of the user's own does not count.
    """
    tandem = Path(sys.executable).parent / "tandem"
    (tmp_path / "own").mkdir()
    own = {"TANDEM_PAIR": "own", "TANDEM_STORE__ROOT": (tmp_path / "own").as_uri(), "AWS_SESSION_TOKEN": "own"}
    done = subprocess.run(
        [tandem, "demo", "--dir", tmp_path / "demo", "-o", "json"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | own,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    documents.check(figures)
    assert (figures["missing"], figures["extra"], figures["different"]) == (0, 0, 0)
    assert figures["keys"] > 28_000
    assert figures["tombstonesWritten"] > 0
    assert list((tmp_path / "own").iterdir()) == []
    assert not Sandbox(tmp_path / "demo").status().running
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    refused = subprocess.run([tandem, "demo", "--dir", tmp_path / "mine"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "holds something else" in refused.stderr
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "precious"


@pytest.mark.integration
def test_what_the_demo_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """--keep leaves the servers running, also after an error, and prints the command that stops them; data stays."""

    def stumble(_: DemoStory) -> None:
        raise OSError("the story stumbles")

    monkeypatch.setattr(DemoStory, "run", stumble)
    folder = tmp_path / "my demo"
    try:
        assert run(["demo", "--dir", str(folder), "--keep"]) == 1
        [stops] = re.findall("`tandem (sandbox down .*)`", capsys.readouterr().err)
        assert run(["sandbox", "status", "--dir", str(folder)]) == 0
        assert run(shlex.split(stops)) == 0
        assert run(["sandbox", "status", "--dir", str(folder)]) == 3
        assert (folder / "kafka" / "data").is_dir()
    finally:
        Sandbox(folder).down()
