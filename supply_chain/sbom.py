"""What a running Tandem consists of, as CycloneDX 1.6 in JSON: Python packages, and PySpark's jars.

`make sbom` writes it into dist/ from the environment for development, the Dockerfile into the image from its own. Both
list what requirements/runtime.lock names, so they are the same but for the platform. Held against CycloneDX's schema.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.utils import canonicalize_name
from packaging.version import Version

from supply_chain.jars import Coordinates, Jar, JarUnknownError, jars_in
from supply_chain.lock import ROOT, Locked, read

_ROOT_REF = "root-component"


class IncompleteError(Exception):
    """The environment does not hold what the lock names, or the result is no CycloneDX."""


def packages(python: Path) -> dict[str, Any]:
    """Return what cyclonedx-py says of the environment of this interpreter. Raises CalledProcessError."""
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible", "--output-format", "JSON"),
            *("--spec-version", "1.6", "--pyproject", ROOT / "pyproject.toml", python),
        ],
        capture_output=True,
        check=True,
    )
    document: dict[str, Any] = json.loads(ended.stdout)
    return document


def narrowed(document: Mapping[str, Any], lock: Iterable[Locked]) -> dict[str, Any]:
    """Return the document with those packages alone that the lock names. Raises IncompleteError if one is missing."""
    wanted = {locked.name: locked.version for locked in lock}
    kept = [one for one in document["components"] if canonicalize_name(one["name"]) in wanted]
    there: dict[str, Version] = {canonicalize_name(one["name"]): Version(one["version"]) for one in kept}
    wrong = sorted(name for name, version in wanted.items() if there.get(name) != version)
    if wrong:
        raise IncompleteError(f"the environment differs from runtime.lock in {', '.join(wrong)}")
    refs = {one["bom-ref"] for one in kept} | {_ROOT_REF}
    return {
        **document,
        "components": [_without_files(one) for one in kept],
        "dependencies": [
            {**one, "dependsOn": depends}
            if (depends := [ref for ref in one.get("dependsOn", []) if ref in refs])
            else {"ref": one["ref"]}
            for one in document["dependencies"]
            if one["ref"] in refs
        ],
    }


def _without_files(component: Mapping[str, Any]) -> dict[str, Any]:
    """Return the component without references to files of the machine that made it."""
    references = [one for one in component.get("externalReferences", []) if not one["url"].startswith("file:")]
    rest = {name: value for name, value in component.items() if name != "externalReferences"}
    return {**rest, "externalReferences": references} if references else rest


def with_jars(document: Mapping[str, Any], jars: Iterable[Jar]) -> dict[str, Any]:
    """Return the document with the jars, which PySpark depends on."""
    parts = [_jar(jar) for jar in jars]
    pyspark = next(one["bom-ref"] for one in document["components"] if one["name"] == "pyspark")
    refs = [part["bom-ref"] for part in parts]
    return {
        **document,
        "components": [*document["components"], *parts],
        "dependencies": [
            *(
                {**one, "dependsOn": [*one.get("dependsOn", []), *refs]} if one["ref"] == pyspark else one
                for one in document["dependencies"]
            ),
            *({"ref": ref} for ref in refs),
        ],
    }


def _jar(jar: Jar) -> dict[str, Any]:
    inside = [_library(one, f"{jar.file}!{one.group}:{one.artifact}:{one.version}") for one in jar.shaded]
    return {
        **_library(jar.coordinates, jar.file),
        "hashes": [{"alg": "SHA-256", "content": jar.sha256}],
        **({"components": inside} if inside else {}),
    }


def _library(coordinates: Coordinates, ref: str) -> dict[str, Any]:
    return {
        "type": "library",
        "bom-ref": ref,
        "group": coordinates.group,
        "name": coordinates.artifact,
        "version": coordinates.version,
        "purl": f"pkg:maven/{coordinates.group}/{coordinates.artifact}@{coordinates.version}",
    }


def check(text: str) -> None:
    """Hold a document against the schema. Raises IncompleteError."""
    if wrong := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        raise IncompleteError(f"not valid as CycloneDX 1.6: {wrong}")


def main() -> int:
    """Write the document."""
    parser = argparse.ArgumentParser(prog="sbom", description=__doc__)
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="of the environment to list")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument(
        "--without-spark", action="store_true", help="list an environment that lacks extras of the lock"
    )
    arguments = parser.parse_args()
    # Asked rather than imported: it may be another environment's.
    where = "import importlib.util as u; print(u.find_spec('pyspark').submodule_search_locations[0])"
    try:
        lock = [locked for locked in read("runtime") if locked.wanted_here]
        document, jars = packages(arguments.python), list[Jar]()
        if arguments.without_spark:
            there = {canonicalize_name(one["name"]) for one in document["components"]}
            lock = [locked for locked in lock if locked.name in there]
            document = narrowed(document, lock)
        else:
            asked = subprocess.run([arguments.python, "-c", where], capture_output=True, text=True, check=True)
            jars += jars_in(Path(asked.stdout.strip()) / "jars")
            document = with_jars(narrowed(document, lock), jars)
        text = json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        check(text)
    except subprocess.CalledProcessError as error:
        said = (error.stderr or b"").decode() if isinstance(error.stderr, bytes) else error.stderr
        print(f"error: {arguments.python} could not be asked: {said}", file=sys.stderr)
        return 1
    except (IncompleteError, JarUnknownError) as error:
        print(f"error: {error}\nwhat to do: run make setup, or build the environment from its lock", file=sys.stderr)
        return 1
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(text, "utf-8")
    shaded = sum(len(jar.shaded) for jar in jars)
    print(f"{arguments.output}: {len(lock)} Python packages, {len(jars)} jars with {shaded} libraries inside")
    return 0


if __name__ == "__main__":
    sys.exit(main())
