"""Rules as the chart renders them, asked by promtool at times of a history of pages. Needs helm and promtool."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import yaml
from prometheus_client.core import Metric

REPOSITORY = Path(__file__).parents[3]
CHART = REPOSITORY / "helm" / "tandem"
PAIR = "orders"


class Shown(Protocol):
    """What has a page."""

    def families(self) -> list[Metric]:
        """Return the page, parsed."""
        ...


@dataclass(kw_only=True)
class History:
    """Values of every series, one a tick of `tick_s`; None where it was not on the page. `epoch` is time 0 of it all.

    promtool's clock begins at 0, so times of day are shifted by that.
    """

    tick_s: float = 1.0
    epoch: float = 0.0
    ticks: int = 0
    series: dict[str, list[float | None]] = field(default_factory=dict)

    def scrape(self, pages: Iterable[Shown]) -> None:
        """Take what these pages show now; a page that is not among them could not be scraped."""
        for metric in (metric for page in pages for metric in page.families()):
            for sample in metric.samples:
                if sample.name.startswith("tandem_"):
                    labels = ", ".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
                    found = self.series.setdefault(f"{sample.name}{{{labels}}}", [])
                    found += [None] * (self.ticks - len(found))
                    # Time 0 stands for never.
                    is_time = sample.name.endswith("_timestamp_seconds") and sample.value
                    found.append(sample.value - self.epoch if is_time else sample.value)
        self.ticks += 1

    def input(self) -> list[dict[str, str]]:
        """Return the series as promtool reads them. What vanished is marked so, as a scraper does."""
        found = []
        for name, values in sorted(self.series.items()):
            words = []
            for before, value in zip([None, *values], [*values, None], strict=True):
                words.append(_number(value) if value is not None else "_" if before is None else "stale")
            found.append({"series": name, "values": " ".join(words)})
        return found


def _number(value: float) -> str:
    text = f"{value:.3f}".rstrip("0").rstrip(".")
    return {"inf": "Inf", "-inf": "-Inf", "nan": "NaN"}.get(text, text)


@dataclass(frozen=True, kw_only=True)
class Moments:
    """When an alert is not there yet, when it fires, and when it is gone again; ticks' times in seconds."""

    before: float
    fires: float
    after: float


def tool(name: str) -> str:
    """Return the path of helm or promtool, as scripts/chart-tools.sh left it."""
    return (REPOSITORY / ".venv" / f"{name}-path").read_text().strip()


def rendered(values: Mapping[str, Any], **pair: Any) -> list[dict[str, Any]]:
    """Return the chart's objects with these values for `metrics`, and these for the pair."""
    everywhere = {"kafka": {"bootstrap.servers": "kafka:9092"}, "store": {"root": "s3://bucket/prefix"}}
    mine = {"name": PAIR, "config": {"topics": {"include": ["customers"]}}} | pair
    all_values = {"image": {"repository": "tandem"}, "defaults": {"config": everywhere}, "pairs": [mine]}
    done = subprocess.run(
        [tool("helm"), "template", "orders", str(CHART), "--kube-version", "1.31.0", "--values", "-"],
        input=yaml.safe_dump({**all_values, "metrics": dict(values)}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def rules(folder: Path, alerts: Mapping[str, Mapping[str, Any]] | None = None) -> Path:
    """Write the rules, with other settings for some alerts, as a file of Prometheus' own."""
    (found,) = [
        document
        for document in rendered({"rules": {"enabled": True, "alerts": dict(alerts or {})}})
        if document["kind"] == "PrometheusRule"
    ]
    path = folder / "rules.yaml"
    path.write_text(yaml.safe_dump(found["spec"], width=1000))
    return path


def check(path: Path) -> None:
    """Have promtool parse the rules, their expressions and their templates."""
    done = subprocess.run([tool("promtool"), "check", "rules", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def shown(folder: Path, history: History, expressions: Iterable[str], at: float) -> None:
    """Have promtool evaluate expressions over a history. AssertionError if one has nothing to show at `at`."""
    tests = [
        {
            "expr": f"count({expression}) > bool 0",
            "eval_time": f"{round(at * 1000)}ms",
            "exp_samples": [{"labels": "{}", "value": 1}],
        }
        for expression in expressions
    ]
    _evaluate(folder / "test.yaml", history, tests)


def ask(path: Path, history: History, expected: Mapping[str, Moments]) -> None:
    """Have promtool evaluate the rules over a history. AssertionError with its words if an alert is not as expected."""
    tests = []
    for alert, moments in expected.items():
        query = f'count(ALERTS{{alertname="{alert}", alertstate="firing"}}) or vector(0)'
        firing = {moments.before: 0, moments.after: 0, moments.fires: 1}
        tests += [
            {"expr": query, "eval_time": f"{round(at * 1000)}ms", "exp_samples": [{"labels": "{}", "value": value}]}
            for at, value in sorted(firing.items())
        ]
    _evaluate(path.with_name("test.yaml"), history, tests, rule_files=[path.name])


def _evaluate(test: Path, history: History, tests: list[dict[str, Any]], rule_files: Sequence[str] = ()) -> None:
    tick = f"{round(history.tick_s * 1000)}ms"
    document = {
        "rule_files": list(rule_files),
        "evaluation_interval": tick,
        "tests": [{"interval": tick, "input_series": history.input(), "promql_expr_test": tests}],
    }
    test.write_text(yaml.safe_dump(document, width=1_000_000))
    done = subprocess.run(
        [tool("promtool"), "test", "rules", test.name], cwd=test.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
