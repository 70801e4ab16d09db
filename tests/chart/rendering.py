"""Runs helm, as it was put in place by scripts/chart-tools.sh. The golden renderings need no helm."""

from __future__ import annotations

import copy
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).parents[2]
CHART = REPOSITORY / "helm" / "tandem"
GOLDEN = Path(__file__).parent / "golden"
VERSIONS = ("1.29", "1.33", "1.37")
NAMESPACE = "backup"

Object = dict[str, Any]

#: What is required of all values, and says nothing in most tests.
IMAGE: Object = {"image": {"repository": "tandem"}}


def merged(base: Object, more: Object) -> Object:
    """Return `base` with `more` over it: maps key by key, all else as a whole."""
    out = copy.deepcopy(base)
    for key, value in more.items():
        out[key] = merged(out[key], value) if isinstance(value, dict) and isinstance(out.get(key), dict) else value
    return out


def helm(*words: str, values: Object) -> subprocess.CompletedProcess[str]:
    """Run helm with `values`, over IMAGE."""
    binary = (REPOSITORY / ".venv" / "helm-path").read_text().strip()
    return subprocess.run(
        [binary, *words, "--values", "-"],
        input=yaml.safe_dump(merged(IMAGE, values)),
        capture_output=True,
        text=True,
        check=False,
    )


def template(values: Object, *, version: str = VERSIONS[0], release: str = "acme") -> subprocess.CompletedProcess[str]:
    """Render the chart for a version of Kubernetes."""
    words = ("template", release, str(CHART), "--namespace", NAMESPACE, "--kube-version", f"{version}.0")
    return helm(*words, values=values)


def rendered(values: Object, *, version: str = VERSIONS[0], release: str = "acme") -> str:
    """Return what helm renders. Fails with its message."""
    done = template(values, version=version, release=release)
    assert done.returncode == 0, done.stderr
    return done.stdout


def objects(text: str) -> list[Object]:
    """Return the objects of a rendering."""
    return [document for document in yaml.safe_load_all(text) if document]


def render(values: Object, *, version: str = VERSIONS[0], release: str = "acme") -> list[Object]:
    """Render, and return the objects."""
    return objects(rendered(values, version=version, release=release))


def of_kind(documents: list[Object], kind: str) -> list[Object]:
    """Return the objects of one kind, in their order."""
    return [document for document in documents if document["kind"] == kind]


def one(documents: list[Object], kind: str) -> Object:
    """Return the only object of a kind."""
    (found,) = of_kind(documents, kind)
    return found


def pod_templates(documents: list[Object]) -> Iterator[tuple[str, Object]]:
    """Yield every pod that the objects make, with metadata and spec, and where it comes from: the test's pod, too."""
    for document in documents:
        place = f"{document['kind']}/{document['metadata']['name']}"
        spec = document.get("spec", {})
        match document["kind"]:
            case "Pod":
                yield place, document
            case "StatefulSet" | "Job":
                yield place, spec["template"]
            case "CronJob":
                yield place, spec["jobTemplate"]["spec"]["template"]
            case "SparkApplication" | "ScheduledSparkApplication":
                application = spec["template"] if document["kind"] == "ScheduledSparkApplication" else spec
                for part in ("driver", "executor"):
                    yield f"{place}/{part}", application[part]["template"]
            case _:
                pass


def pods(documents: list[Object]) -> Iterator[tuple[str, Object]]:
    """Yield the spec of every pod that the objects make, and where it comes from."""
    for place, template in pod_templates(documents):
        yield place, template["spec"]


def container(pod: Object) -> Object:
    """Return the only container of a pod."""
    (found,) = pod["containers"]
    return found
