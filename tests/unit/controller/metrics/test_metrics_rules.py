"""Alerts, dashboard and runbook speak of what there is: metrics, labels, commands, and each of the others."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import yaml

from tandem.controller.cli.main import run
from tandem.controller.decision.observation import Role
from tandem.controller.metrics.catalogue import COMMON, METRICS

ROOT = Path(__file__).parents[4]
CHART = ROOT / "helm" / "tandem"
LABELS_OF = {name: set(metric.labels) | {"le"} for metric in METRICS.values() for name in metric.sample_names}
# What stands before these in an expression is no metric.
_NAME = re.compile(r"\btandem_[a-z_]+\b")
_SELECTED = re.compile(r"\b(tandem_[a-z_]+)\{([^}]*)\}")
_GROUPED = re.compile(r"\b(?:by|on|without)\s*\(([^)]*)\)")


def rules() -> list[dict[str, Any]]:
    """The alerts, as the chart's file has them."""
    found: list[dict[str, Any]] = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())["rules"]
    return found


def names() -> list[str]:
    """The alerts in their order. One may have several rules, one after the other."""
    return [name for name, _ in groupby(rule["alert"] for rule in rules())]


def settings() -> dict[str, dict[str, Any]]:
    """The values of each."""
    found: dict[str, dict[str, Any]] = yaml.safe_load((CHART / "values.yaml").read_text())["metrics"]["rules"]["alerts"]
    return found


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((CHART / "files" / "dashboard.json").read_text())
    return found


def expressions() -> Iterator[tuple[str, str]]:
    """Every expression, with where it stands."""
    yield from ((rule["alert"], rule["expr"]) for rule in rules())
    for panel in dashboard()["panels"]:
        yield from ((panel["title"], target["expr"]) for target in panel.get("targets", ()))


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_expressions_name_what_is_on_the_page(where: str, expression: str) -> None:
    """Every metric and every label is in the catalogue; states and kinds are those that there are."""
    names = set(_NAME.findall(expression))
    assert names, where
    assert names <= LABELS_OF.keys()
    known = {label for name in names for label in LABELS_OF[name]} | set(COMMON)
    for name, inside in _SELECTED.findall(expression):
        for label, value in re.findall(r'(\w+)\s*=~?\s*"([^"]*)"', inside):
            assert label in LABELS_OF[name] | set(COMMON)
            if label == "state" and name == "tandem_state":
                assert set(value.split("|")) <= {"Starting", *(role.value for role in Role)}
    for labels in _GROUPED.findall(expression):
        assert {label.strip() for label in labels.split(",")} <= known


def test_every_metric_of_a_panel_is_selected_by_the_pair() -> None:
    """Several pairs share a Prometheus."""
    for where, expression in expressions():
        for name in _NAME.findall(expression):
            assert re.search(rf'\b{name}\{{(<selector>|pair="\$pair")', expression), where


def test_rules_and_values_agree() -> None:
    """Every alert has its settings, with a threshold if its expression asks for one, and there are no others."""
    assert names() == list(settings())
    schema = json.loads((CHART / "values.schema.json").read_text())
    named = schema["properties"]["metrics"]["properties"]["rules"]["properties"]["alerts"]["propertyNames"]["enum"]
    assert named == list(settings())
    for rule in rules():
        setting = settings()[rule["alert"]]
        follows = {"thresholdInTurns", "thresholdByCommits"}
        assert ("threshold" in setting or bool(follows & rule.keys())) == (
            "<threshold>" in rule["expr"] + rule.get("for", "")
        )
        assert setting["severity"] in {"critical", "warning"}
        assert setting["enabled"] == ("auto" if "job" in rule else True)
        assert set(rule) - {"job", "for", *follows} == {"alert", "expr", "summary", "description"}
        assert "<pair>" in rule["summary"]


def test_the_runbook_has_every_alert_once_and_no_other() -> None:
    """In the order of the rules; each says what to do."""
    text = (ROOT / "docs" / "alerts.md").read_text()
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    assert [section.splitlines()[0] for section in sections] == names()
    for section in sections:
        assert "\nDo: " in section
        assert re.search(r"^\*.+", section, flags=re.MULTILINE)


def test_the_runbook_has_the_severities_of_the_chart() -> None:
    """In the order of its sections."""
    rows = re.findall(
        r"^\| \[(\w+)\]\(#(\w+)\) \| (\w+) \| (\w+) \|$", (ROOT / "docs" / "alerts.md").read_text(), re.MULTILINE
    )
    assert rows == [
        (name, name.lower(), settings()[name]["severity"], settings()[name]["for"])
        for name in re.findall(r"^## (Tandem\w+)$", (ROOT / "docs" / "alerts.md").read_text(), re.MULTILINE)
    ]


def test_the_runbook_speaks_of_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Its commands and options exist, and so do its metrics, and the alerts that it refers to."""
    text = (ROOT / "docs" / "alerts.md").read_text()
    spans = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", text.replace("```", ""))]
    blocks = re.findall(r"```\n(.*?)```", text, re.DOTALL)
    lines = [line.split("#")[0] for block in blocks for line in block.splitlines()]
    commands = {
        match[1]
        for line in (*spans, *lines)
        if (match := re.search(r"(?:^|-- )tandem ((?:[a-z]+ ?)+.*)$", line)) is not None
    }
    assert len(commands) >= 10
    helped: dict[str, str] = {}
    for command in commands:
        words = command.split()
        name = words[:2] if words[0] in {"coordination", "config"} else words[:1]
        key = " ".join(name)
        if key not in helped:
            assert run([*name, "--help"]) == 0, command
            helped[key] = capsys.readouterr().out
        for option in (word for word in words if word.startswith("--")):
            assert option in helped[key], command
    for name in _NAME.findall(text):
        assert name in LABELS_OF.keys() | METRICS.keys()
    assert set(re.findall(r"\bTandem[A-Z]\w+", text)) == {rule["alert"] for rule in rules()}


def test_the_dashboard_lies_on_a_grid() -> None:
    """Panels don't overlap, ids are unique, and each has something to show."""
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
