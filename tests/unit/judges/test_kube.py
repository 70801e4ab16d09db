"""What `make kube-test` says where it cannot run, and how its page and the names of its cluster are made."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from kube.__main__ import STEPS as ALL
from kube.cluster_access import SCRIPTS
from kube.guide import PAGE, guide, read_guide
from kube.page import table
from kube.scene import BUCKET, USER, values
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


def test_steps_find_what_they_type_on_the_page() -> None:
    """They run what docs/kubernetes.md says, and no copy of it; in its script a dead instance counts as none."""
    assert guide().upgrade.startswith("ns=backup pair=")
    assert 'select(.role == "Active" and .alive)' in guide().upgrade
    assert guide().failover == "kubectl exec … -- tandem failover --yes"
    assert guide().secrets.count("\n") == 3


@pytest.mark.parametrize(
    "gone",
    [
        "create secret",
        "helm install tandem helm/tandem",
        "helm -n backup test tandem --logs  ",
        "pairs:\n     - name: orders",
        "`kubectl exec … -- tandem failover --yes`",
        "`kubectl delete pod … --force --grace-period=0`",
        "kubectl -n backup delete statefulset",
        "`kubectl exec … -- tandem rotate --yes`",
        "for ordinal in",
        "onDemand: true\n    args",
        "kubectl -n backup create job",
        "kubectl -n backup logs --follow",
        "id: incident-42",
        "mode: operator\n    version",
        "`helm -n backup uninstall tandem`",
        "`kubectl -n backup delete pod -l app.kubernetes.io/component=check`",
        "## Sizing\n",
    ],
)
def test_a_page_without_what_a_step_types_is_refused(gone: str) -> None:
    """Each block and command is missed, with the section that lacks it."""
    page = PAGE.read_text(encoding="utf-8")
    assert gone in page
    with pytest.raises(AssertionError, match=r"docs/kubernetes\.md"):
        read_guide(page.replace(gone, "nothing"))


def test_the_values_of_the_page_fit_the_servers_of_the_cluster() -> None:
    """Bucket, user and the images that cluster/image.sh builds have the names of the page."""
    made = values()
    kafka, store = (made["defaults"]["config"][each] for each in ("kafka", "store"))
    version = tomllib.loads((PAGE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    image = made["image"]
    assert (store["root"], kafka["sasl.username"]) == (f"s3://{BUCKET}/prod", USER)
    assert (image["tag"], image["instanceTag"]) == (version, f"{version}-instance")
    script = (SCRIPTS / "image.sh").read_text(encoding="utf-8")
    assert f"tandem={image['repository']}:$version\n" in script
    assert 'build "$tandem-instance"' in script


def test_each_step_has_a_name_of_its_own() -> None:
    """As ONLY= takes it, and as the page's rows are found."""
    names = [step.name for step in ALL]
    assert len(set(names)) == len(names)
    assert not [name for name in names if not re.fullmatch(r"[a-z-]+", name)]


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
