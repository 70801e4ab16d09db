"""What `make kube-test` says where it cannot run, and how its page and the names of its cluster are made."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kube.cluster_access import SCRIPTS
from kube.page import table
from kube.release_steps import documented_script
from kube.steps import Outcome, Stage, Step

STEPS = tuple(Step(name, name.title(), repr) for name in ("install", "restore"))


def test_the_page_keeps_rows_of_steps_that_have_not_run() -> None:
    """In the order of the steps; a step that failed says why."""
    before = table(STEPS, [Outcome(STEPS[1], 12.4, "100 keys"), Outcome(STEPS[0], 3.0, "no warning")])
    assert [line.split(" | ")[:4] for line in before.splitlines()[2:]] == [
        ["| `install`", "Install", "3", "no warning"],
        ["| `restore`", "Restore", "12", "100 keys"],
    ]
    after = table(STEPS, [Outcome(STEPS[1], 1.0, "", "98 keys | not 100")], before)
    assert after.splitlines()[:3] == before.splitlines()[:3]
    assert "**fault**: 98 keys / not 100" in after.splitlines()[3]


def test_values_are_set_by_their_path() -> None:
    """Maps that are not there are made."""
    stage = Stage(cluster=None, values={"defaults": {"flush": "1s"}})  # type: ignore[arg-type]
    stage.change("defaults.restore.enabled", value=True)
    assert stage.values == {"defaults": {"flush": "1s", "restore": {"enabled": True}}}


def test_the_script_of_the_page_is_found() -> None:
    """The step runs what docs/kubernetes.md says, and no copy of it; a dead instance counts as none."""
    script = documented_script()
    assert script.startswith("ns=backup pair=")
    assert 'select(.role == "Active" and .alive)' in script


def test_a_module_is_written_for_the_released_one(tmp_path: Path) -> None:
    """Staging modules are needed and replaced by their releases; all others stay as they are."""
    released = tmp_path / "go.mod"
    released.write_text(
        "module k8s.io/kubernetes\n\nrequire (\n\tk8s.io/api v0.0.0\n\texample.org/x v1.2.3 // indirect\n)\n\n"
        "replace (\n\tk8s.io/api => ./staging/src/k8s.io/api\n)\n"
    )
    words = [sys.executable, SCRIPTS / "kubernetes_module.py", released, "1.34.4"]
    lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    assert {"\tk8s.io/kubernetes v1.34.4", "\tk8s.io/api v0.34.4", "\texample.org/x v1.2.3"} <= set(lines)
    assert "\tk8s.io/api => k8s.io/api v0.34.4" in lines


def test_it_is_refused_without_root() -> None:
    """One line, before anything is installed or built."""
    script = (SCRIPTS / "requirements.sh").read_text(encoding="utf-8")
    nobody = 65534 if os.geteuid() == 0 else None
    done = subprocess.run(["bash"], input=script, capture_output=True, text=True, check=False, cwd="/", user=nobody)
    assert done.returncode == 2
    assert done.stderr == "error: make kube-test: needs root, for namespaces, mounts and cgroups\n"
    assert done.stdout == ""


@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*.sh")), ids=lambda path: path.name)
def test_scripts_can_be_parsed(script: Path) -> None:
    """Bash finds no fault in their syntax."""
    subprocess.run(["bash", "-n", script], check=True)
