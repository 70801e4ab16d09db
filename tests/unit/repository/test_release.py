"""A tag is the release that it names, or nothing is built."""

from __future__ import annotations

import tomllib

import pytest
import yaml

from supply_chain import release
from supply_chain.lock import ROOT

FILES = {
    "pyproject": '[project]\nversion = "1.2.3"\n',
    "chart": 'version: 1.2.3\nappVersion: "1.2.3"\n',
    "dockerfile": "ARG VERSION=1.2.3\n",
    "changelog": "## Unreleased\n\n## 1.2.3 - 2026-11-28\n",
}


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({}, []),
        ({"pyproject": FILES["pyproject"].replace("3", "4")}, ["pyproject.toml says 1.2.4, the tag v1.2.3"]),
        ({"chart": 'version: 1.2.3\nappVersion: "1.2.0"\n'}, ["appVersion in Chart.yaml says 1.2.0, the tag v1.2.3"]),
        (
            {"chart": "name: x\n"},
            [f"{key} in Chart.yaml says nothing, the tag v1.2.3" for key in ("version", "appVersion")],
        ),
        ({"dockerfile": "FROM x\n"}, ["Dockerfile says nothing, the tag v1.2.3"]),
        ({"changelog": "## Unreleased\n"}, ["CHANGELOG.md has no heading '## 1.2.3 - ' with a date"]),
        ({"changelog": "## 1.2.3\n"}, ["CHANGELOG.md has no heading '## 1.2.3 - ' with a date"]),
        ({"changelog": "## 1x2.3 - 2026-11-28\n"}, ["CHANGELOG.md has no heading '## 1.2.3 - ' with a date"]),
    ],
)
def test_what_a_tag_has_to_name(changed: dict[str, str], says: list[str]) -> None:
    """Version of package, chart, application and image, and a dated heading of the changelog."""
    assert release.problems("v1.2.3", **{**FILES, **changed}) == says


def test_package_and_chart_have_the_same_addresses() -> None:
    """Home, sources, documentation and issues are said twice, and are the same."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]
    chart = yaml.safe_load((ROOT / "helm" / "tandem" / "Chart.yaml").read_text("utf-8"))
    links = {link["name"]: link["url"] for link in yaml.safe_load(chart["annotations"]["artifacthub.io/links"])}
    assert chart["home"] == urls["Homepage"]
    assert chart["sources"] == [urls["Source"]]
    assert links == {name: urls[name] for name in ("Documentation", "Issues")}
    assert chart["icon"].startswith(urls["Homepage"])
    assert chart["maintainers"]


def test_all_typed_packages_say_so() -> None:
    """Each root has a `py.typed`, and it is installed."""
    data = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["package-data"]
    for package in ("backup_avro", "sink", "spark_jobs", "controller"):
        assert "py.typed" in data[f"tandem.{package}"]
        assert list(ROOT.glob(f"*/tandem/{package}/py.typed"))
