"""The shell lines of README, docs and the chart's page that do not begin with `tandem`, and what runs each of them.

A line stands for itself here, or a whole block where its lines need each other (here-documents, loops). A block is one
of a shell if its fence says so or names no language.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from support.pages import documented

_FENCED = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
_SHELLS: Final = frozenset({"", "sh", "bash", "shell", "console"})
_TANDEM = re.compile(r"(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?tandem ")
_OPERATIONS: Final = documented.ROOT / "docs" / "operations.md"
_QUICKSTART: Final = documented.ROOT / "docs" / "quickstart.md"

_IN_THE_CLUSTER: Final = "needs a cluster of Kubernetes; `make kube-test` has one, and does the like there"
_MAKE: Final = "a campaign of minutes to hours; "
_ENGINE: Final = (
    "needs an engine for containers; `make image-dry-run` carries out the steps of the Dockerfile without one"
)
_REVISION: Final = '--build-arg REVISION="$(git rev-parse HEAD)"'
_CREATED: Final = '--build-arg CREATED="$(git log -1 --format=%cI)"'
#: Lines that no test runs as they stand, and why.
NOT_RUN: Final[Mapping[str, str]] = {
    "make demo": "installs first; test_demo.py runs `tandem demo`, which is all that the rest of it is",
    "make test": "runs the tests, this one too",
    "make chaos ROUNDS=10": f"{_MAKE}test_chaos.py runs rounds of it",
    "make chaos ROUNDS=10 SEED=4711": f"{_MAKE}test_chaos.py runs rounds of a known seed",
    "make chaos ROUNDS=1 FIRST=7 SEED=4711": f"{_MAKE}test_chaos.py runs rounds of a known seed",
    'eval "$(tandem sandbox up)"': "begins the block of docs/quickstart.md, which test_documented_commands.py runs",
    "aws s3 sync s3://acme-kafka-backup/prod/orders s3://acme-new-backup/prod/orders": (
        "needs the AWS CLI, which the project does not bring; it stands for the tool of whichever store it is"
    ),
    f"docker build --build-arg VERSION=0.2.0 {_REVISION} {_CREATED} --tag registry.example.org/tandem:0.2.0 .": _ENGINE,
    "docker build --build-arg PYTHON_IMAGE=python:3.11-slim-bookworm@sha256:… "
    '--build-arg SOURCE_DATE_EPOCH="$(git log -1 --format=%ct)" --build-arg VERSION=0.2.0 '
    f"{_REVISION} {_CREATED} --tag registry.example.org/tandem:0.2.0 .": _ENGINE,
    "docker build --build-arg PYTHON_IMAGE=python:3.11-slim-bookworm@sha256:… …": _ENGINE,
    "docker buildx imagetools inspect python:3.11-slim-bookworm --format '{{.Manifest.Digest}}'": (
        "needs an engine for containers, and asks the registry of the base image"
    ),
    "helm install tandem . --namespace backup --values my-values.yaml": _IN_THE_CLUSTER,
    "helm -n backup test tandem --logs": _IN_THE_CLUSTER,
    'kubectl -n kafka annotate kafkatopic customers strimzi.io/managed="false" --overwrite': (
        "needs a cluster of Kubernetes with Strimzi's operator, which `make kube-test` does not install"
    ),
}


def pages() -> list[Path]:
    """Everything with shell lines for users: the pages of `documented`, and that of the chart."""
    return [*documented.pages(), documented.ROOT / "helm" / "tandem" / "README.md"]


def blocks(page: Path) -> Iterator[str]:
    """Every block of a shell, without the indent of a list."""
    text = page.read_text("utf-8")
    fenced = list(_FENCED.finditer(text))
    assert 2 * len(fenced) == len(re.findall(r"^ *```", text, re.MULTILINE)), f"{page}: a fence of an unknown form"
    for found in fenced:
        if found[1] in _SHELLS:
            yield textwrap.dedent(found[2])


def lines(block: str) -> Iterator[str]:
    """Every line of a block that does not begin with `tandem`, mended where it is broken, without its comment."""
    for line in block.replace("\\\n", " ").splitlines():
        shown = " ".join(re.sub(r"(^|\s)#\s.*", "", line).split())
        if shown and not _TANDEM.match(shown):
            yield shown


def quickstart() -> str:
    """The block of docs/quickstart.md with a pair of one's own, as it stands there."""
    [block] = [block for block in blocks(_QUICKSTART) if "tandem.yaml" in block]
    return block


def installations() -> list[str]:
    """The blocks of docs/operations.md that install by pip: from an index, and from the locks."""
    return [block for block in blocks(_OPERATIONS) if block.startswith("pip install")]
