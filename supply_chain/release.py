"""All files of a release, from its tag: `make release TAG=v0.2.0`. Publishes nothing.

Checks that the tagged commit calls itself by that version everywhere, builds wheels, source distribution and chart
twice, compares, checks the metadata, and writes one file of sums. docs/releasing.md says what comes before and after.
"""

from __future__ import annotations

import argparse
import io
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

from supply_chain import wheel
from supply_chain.lock import ROOT

_CHART = "helm/tandem"
_HELM = ROOT / ".venv" / "helm-path"
_RESERVED = re.compile(r"https?://[\w.-]*\.example\b")


def text_at(tag: str, path: str) -> str:
    """Return a file of the tagged commit. Raises CalledProcessError if it is not there."""
    shown = subprocess.run(["git", "show", f"{tag}:{path}"], cwd=ROOT, capture_output=True, check=True)
    return shown.stdout.decode("utf-8")


def problems(tag: str, *, pyproject: str, chart: str, dockerfile: str, changelog: str) -> list[str]:
    """Return why the files of a commit are not the release that `tag` names, a sentence each; empty if they are."""
    version = tag.removeprefix("v")
    said = {
        "pyproject.toml": tomllib.loads(pyproject)["project"]["version"],
        "version in Chart.yaml": _first(r'^version: "?([^"\s]+)', chart),
        "appVersion in Chart.yaml": _first(r'^appVersion: "?([^"\s]+)', chart),
        "Dockerfile": _first(r"^ARG VERSION=(\S+)", dockerfile),
    }
    found = [f"{place} says {it or 'nothing'}, the tag {tag}" for place, it in said.items() if it != version]
    if not re.search(rf"^## {re.escape(version)} - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE):
        found.append(f"CHANGELOG.md has no heading '## {version} - ' with a date")
    return found


def _first(pattern: str, text: str) -> str | None:
    match = re.search(pattern, text, re.MULTILINE)
    return match[1] if match else None


def chart_of(sources: bytes, folder: Path, *, at_s: int) -> Path:
    """Package the chart of these sources, a tar archive, below `folder`. Raises CalledProcessError."""
    with tarfile.open(fileobj=io.BytesIO(sources)) as archive:
        archive.extractall(folder / "tree", filter="data")
    helm = _HELM.read_text("utf-8").strip()
    tree, output = folder / "tree" / _CHART, folder / "chart"
    subprocess.run([helm, "package", tree, "--destination", output], capture_output=True, check=True)
    (packaged,) = (folder / "chart").glob("*.tgz")
    wheel.same_archive(packaged, at_s=at_s)
    return packaged


def chart(output: Path, *, commit: str) -> Path:
    """Package a commit's chart twice, and put it into `output`. Raises UnlikeError, CalledProcessError."""
    sources, at_s = wheel.committed(commit), wheel.committed_at(commit)
    with tempfile.TemporaryDirectory() as work:
        first, second = (chart_of(sources, Path(work) / name, at_s=at_s) for name in ("one", "another-one"))
        if unlike := wheel.differences(first, second):
            raise wheel.UnlikeError(f"two packages of the chart differ in {', '.join(unlike)}")
        output.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(first, output))


def main() -> int:
    """Build a release, and say what has come out."""
    parser = argparse.ArgumentParser(prog="release", description=__doc__)
    parser.add_argument("tag")
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    arguments = parser.parse_args()
    tag: str = arguments.tag
    try:
        pyproject = text_at(tag, "pyproject.toml")
        wrong = problems(
            tag,
            pyproject=pyproject,
            chart=text_at(tag, f"{_CHART}/Chart.yaml"),
            dockerfile=text_at(tag, "Dockerfile"),
            changelog=text_at(tag, "CHANGELOG.md"),
        )
        for sentence in wrong:
            print(f"error: {sentence}", file=sys.stderr)
        if wrong:
            return 1
        made = [*wheel.release(arguments.output, commit=tag), chart(arguments.output, commit=tag)]
        distributions = [path for path in made if path.suffix != ".tgz"]
        subprocess.run([wheel.TOOLS / "twine", "check", "--strict", *distributions], capture_output=True, check=True)
    except wheel.UnlikeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(wheel.last_words(error), file=sys.stderr)
        return 1
    print(wheel.write_sums(made))
    if _RESERVED.search(pyproject):
        print(
            "note: the project's addresses in pyproject.toml and Chart.yaml are still reserved names", file=sys.stderr
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
