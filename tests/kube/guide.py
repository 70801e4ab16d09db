"""What docs/kubernetes.md tells a user to type. The steps run these blocks and commands, and no copy of them."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

PAGE: Final = Path(__file__).parents[2] / "docs" / "kubernetes.md"
_FENCED: Final = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guide:
    """Shell commands and values of the page, as they stand there. `…` in a command stands for a pod."""

    secrets: str
    values: dict[str, Any]
    install: str
    check: str
    status: str
    failover: str
    forced_delete: str
    orphan: str
    rotate: str
    upgrade: str
    on_demand: dict[str, Any]
    restore: str
    restore_log: str
    other_cluster: dict[str, Any]
    spark: dict[str, Any]
    uninstall: str
    delete_check: str


@cache
def guide() -> Guide:
    """Return the page of this source tree."""
    return read_guide(PAGE.read_text(encoding="utf-8"))


def read_guide(page: str) -> Guide:
    """Return what the steps take from a page. Raises AssertionError with the section of a block that is not there."""
    begin, sizing, upgrades, jobs = "Ten minutes", "Sizing", "Upgrades: the Passive first", "Jobs"
    return Guide(
        secrets=_block(page, begin, "sh", "create secret"),
        values=_values(page, begin, "pairs:"),
        install=_command(page, begin, "helm install"),
        check=_command(page, begin, "helm -n backup test"),
        status=_command(page, begin, "kubectl -n backup exec"),
        failover=_command(page, "Values", "kubectl exec … -- tandem failover"),
        forced_delete=_command(page, "Values", "kubectl delete pod …"),
        orphan=_command(page, sizing, "kubectl -n backup delete statefulset"),
        rotate=_command(page, upgrades, "kubectl exec … -- tandem rotate"),
        upgrade=_block(page, upgrades, "sh", "for ordinal in"),
        on_demand=_values(page, jobs, "onDemand:"),
        restore=_command(page, jobs, "kubectl -n backup create job"),
        restore_log=_command(page, jobs, "kubectl -n backup logs"),
        other_cluster=_values(page, jobs, "id: incident-42"),
        spark=_values(page, "The Spark operator", "mode: operator"),
        uninstall=_command(page, "Uninstall", "helm -n backup uninstall"),
        delete_check=_command(page, "Uninstall", "kubectl -n backup delete pod"),
    )


def _section(page: str, title: str) -> str:
    found = re.search(rf"^##+ {re.escape(title)}\n(.*?)(?=^##+ |\Z)", page, re.DOTALL | re.MULTILINE)
    assert found, f"docs/kubernetes.md has no section {title!r}"
    return found[1]


def _block(page: str, title: str, language: str, has: str) -> str:
    found = [text for kind, text in _FENCED.findall(_section(page, title)) if kind == language and has in text]
    assert len(found) == 1, f"docs/kubernetes.md, {title}: {len(found)} blocks of {language} have {has!r}"
    return textwrap.dedent(found[0])


def _values(page: str, title: str, has: str) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load(_block(page, title, "yaml", has))
    return read


def _command(page: str, title: str, start: str) -> str:
    """Return the line of a shell block, or the code in the text, that begins so."""
    section = _section(page, title)
    lines: list[str] = [
        line.strip() for kind, text in _FENCED.findall(section) if kind == "sh" for line in text.splitlines()
    ]
    lines += re.findall(r"`([^`\n]+)`", _FENCED.sub("", section))
    found = {line for line in lines if line.startswith(start)}
    assert len(found) == 1, f"docs/kubernetes.md, {title}: {len(found)} commands begin with {start!r}"
    return found.pop()
