"""The locks, the audit's verdict, licences, and the list of parts: the rules, without a network."""

from __future__ import annotations

import ast
import json
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from supply_chain import audit, licences, lock, sbom
from supply_chain.jars import Coordinates, JarUnknownError, named

PYPROJECT: dict[str, Any] = {
    "project": {
        "dependencies": ["Alpha>=2"],
        "optional-dependencies": {"spark": [], "msk": [], "cloud": [], "dev": ["beta"]},
    },
    "dependency-groups": {name: [] for source in lock.LOCKS.values() for name in source.groups},
}
HASH = f"    --hash=sha256:{'0' * 64}\n"
ALPHA = f"alpha==2.1 \\\n{HASH}    # via tandem-kafka-backup (pyproject.toml)\n"
BETA = f"beta==1.0 ; sys_platform == 'linux' \\\n{HASH}"
EMPTY = "--only-binary :all:\n"


def texts(**changed: str) -> dict[str, str]:
    """All locks of PYPROJECT, some of them replaced."""
    return (
        dict.fromkeys(lock.LOCKS, EMPTY)
        | {"dev": EMPTY + ALPHA + BETA, "runtime": f"{EMPTY}--no-binary pyspark\n{ALPHA}"}
        | {name: EMPTY + text for name, text in changed.items()}
    )


def test_the_locks_agree_with_pyproject() -> None:
    """Every direct dependency, in a version that pyproject.toml allows, with hashes; no address, no machine's path."""
    assert lock.check() == []


def test_what_is_declared_is_imported_and_what_is_imported_is_declared() -> None:
    """A dependency that nothing imports is dead weight in each installation; one that is not declared may go away."""
    project = tomllib.loads((lock.ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    declared = names(project["dependencies"])
    optional = project["optional-dependencies"]
    extras = names(line for extra in optional.keys() - {"dev"} for line in optional[extra])
    distributions = packages_distributions()
    imported = {
        canonicalize_name(name)
        for top in imports(*(lock.ROOT / folder / "tandem" for folder in ("avro", "sink", "spark_jobs", "controller")))
        for name in distributions[top]
    }
    assert {PART_OF.get(name, name) for name in imported} - extras == declared


#: What comes with a package and is imported under a name of its own.
PART_OF = {
    "botocore": "boto3",
    "numpy": "pyspark",
    "py4j": "pyspark",
    "pyarrow": "pyspark",
    "pydantic-core": "pydantic",
}


def names(requirements: Iterable[str]) -> set[str]:
    """The packages of these requirements."""
    return {canonicalize_name(Requirement(line).name) for line in requirements}


def imports(*folders: Path) -> set[str]:
    """The packages that the modules below these folders import at run time, without Python's own and Tandem's."""
    found: set[str] = set()
    for path in (path for folder in folders for path in folder.rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
        for_types = [node for node in nodes if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
        skipped = {statement for node in for_types for statement in node.body}
        for node in nodes:
            if isinstance(node, ast.Import) and node not in skipped:
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level and node not in skipped:
                found.add(node.module)
    return {name.partition(".")[0] for name in found} - sys.stdlib_module_names - {"tandem"}


def test_each_lock_is_about_something() -> None:
    """A lock that was read as empty would agree with everything."""
    for name, source in lock.LOCKS.items():
        wanted = source.requirements(tomllib.loads((lock.ROOT / "pyproject.toml").read_text("utf-8")))
        assert len(lock.read(name)) >= len(wanted) >= 1
    assert len(lock.read("dev")) > len(lock.read("runtime")) > 40


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"runtime": ""}, "runtime.lock: Alpha of pyproject.toml is not in it"),
        (
            {"dev": ALPHA + BETA, "runtime": ALPHA + "alpha==1.9" + HASH},
            "runtime.lock: Alpha is 1.9, pyproject.toml wants >=2",
        ),
        ({"dev": "alpha==2.1\n" + BETA}, "dev.lock: alpha has no hash"),
        ({"runtime": ALPHA.replace("2.1", "2.2")}, "runtime.lock has another alpha than dev.lock"),
        ({"chart": "--index-url https://mirror.example.org/simple\n"}, "chart.lock names a place: https://"),
        ({"chart": "# via -r /home/somebody/pyproject.toml\n"}, "chart.lock names a place: /h"),
        ({"other": ""}, "other.lock has no source in supply_chain/lock.py"),
    ],
)
def test_what_a_lock_can_have_wrong(changed: dict[str, str], complaint: str) -> None:
    """Each by its name, and nothing else beside it."""
    assert lock.problems(PYPROJECT, texts()) == []
    assert lock.problems(PYPROJECT, texts(**changed)) == [complaint]


def test_a_lock_that_is_missing_or_lets_pip_build() -> None:
    """What pip builds in an environment of its own is built with what nobody has locked."""
    without = {name: text for name, text in texts().items() if name != "sbom"}
    assert lock.problems(PYPROJECT, without) == ["sbom.lock is missing"]
    assert lock.problems(PYPROJECT, texts() | {"dev": ALPHA + BETA}) == [
        "dev.lock lets pip build packages with what nobody has locked"
    ]


def test_a_line_without_an_exact_version() -> None:
    """A range in a lock is none."""
    with pytest.raises(ValueError, match="alpha has no exact version"):
        list(lock.parse("alpha>=2"))


def test_licences_are_listed_and_allowed() -> None:
    """docs/licences.md is what `make licences` writes; a licence that is not allowed would raise."""
    assert licences.PAGE.read_text("utf-8") == licences.page()


@pytest.mark.parametrize(
    ("field", "classifiers", "expression"),
    [
        ("MIT", [], "MIT"),
        ("Apache License 2.0", [], "Apache-2.0"),
        ("apache-2.0 or mit", [], "Apache-2.0 OR MIT"),
        ("", ["License :: OSI Approved :: ISC License (ISCL)"], "ISC"),
        ("the full text of a licence, over\nmany lines", ["License :: OSI Approved :: MIT License"], "MIT"),
    ],
)
def test_how_packages_say_their_licence(field: str, classifiers: list[str], expression: str) -> None:
    """By SPDX's expression, in words, or by classifier."""
    assert licences.told("any", field, classifiers) == expression


def test_licences_that_stop_a_release() -> None:
    """One that is not on the list, also as one choice of two; and one that can't be told."""
    for field, refused in [("GPL-3.0-only", "GPL-3.0-only"), ("MIT OR AGPL-3.0-or-later", "AGPL-3.0-or-later")]:
        with pytest.raises(licences.LicenceUnknownError, match=rf"any is under .*{refused} is not allowed"):
            licences.told("any", field, [])
    with pytest.raises(licences.LicenceUnknownError, match=r"any says no licence that SPDX knows"):
        licences.told("any", "see the file", ["License :: OSI Approved :: BSD License"])


def answered(*dependencies: dict[str, Any]) -> tuple[int, str, str]:
    return 0, json.dumps({"dependencies": dependencies, "fixes": []}), ""


CLEAN = {"name": "alpha", "version": "2.1", "vulns": []}
SKIPPED = {"name": "alpha", "skip_reason": "Dependency not found on PyPI and could not be audited: alpha (2.1)"}
KNOWN = {"id": "PYSEC-1", "aliases": ["CVE-1"], "fix_versions": ["2.2"], "description": "bad"}
HIT = {"name": "beta", "version": "1.0", "vulns": [KNOWN]}


def test_an_audit_without_data_is_not_green() -> None:
    """pip-audit ends with 0 where it has skipped everything; that is told, and fails unless asked otherwise."""
    asked: list[tuple[str, str]] = []

    def run(name: str, service: str) -> tuple[int, str, str]:
        asked.append((name, service))
        return answered(SKIPPED) if service == "pypi" else (1, "", "Traceback\nConnectionError: no such host")

    result = audit.audit(run)
    assert asked == [("build", "pypi"), ("build", "osv")], (
        "where the small lock can't be looked up, nothing else is tried"
    )
    lines, code = audit.report(result, {}, if_possible=False)
    assert code == 3
    assert lines[0].startswith("not audited: all locks: pypi: Dependency not found")
    assert "osv: ConnectionError: no such host" in lines[0]
    assert audit.report(result, {}, if_possible=True) == (lines, 0)


def test_an_audit_with_a_part_missing() -> None:
    """What could be looked up counts, and the rest is named."""

    def run(name: str, service: str) -> tuple[int, str, str]:
        assert service == "pypi"
        return answered(CLEAN, SKIPPED | {"name": "gamma"}) if name == "dev" else answered(CLEAN)

    lines, code = audit.report(audit.audit(run), {}, if_possible=False)
    assert code == 3
    assert lines[0] == "audited: 1 packages, 0 known vulnerabilities that nobody has accepted"
    assert lines[1].startswith("not audited: dev.lock: 1 packages, gamma for one: Dependency not found")


def test_an_audit_that_finds_something() -> None:
    """It fails, also where data could be had for one lock only; an accepted one, by any of its names, does not."""

    def run(name: str, _: str) -> tuple[int, str, str]:
        return (1, "", "no answer") if name == "dev" else answered(CLEAN, HIT)

    result = audit.audit(run)
    lines, code = audit.report(result, {}, if_possible=True)
    assert code == 1
    assert lines[0] == "beta 1.0: PYSEC-1, CVE-1; fixed in 2.2"
    lines, code = audit.report(result, {"CVE-1": "not reachable"}, if_possible=True)
    assert code == 0
    assert lines[0] == "beta 1.0: PYSEC-1, CVE-1; accepted: not reachable"
    assert lines[1].endswith("0 known vulnerabilities that nobody has accepted")


def test_a_complete_audit() -> None:
    """All looked up, nothing known: one line, and 0."""
    lines, code = audit.report(audit.audit(lambda _name, _service: answered(CLEAN)), {}, if_possible=False)
    assert (lines, code) == (["audited: 1 packages, 0 known vulnerabilities that nobody has accepted"], 0)


def test_what_is_accepted_has_a_reason(tmp_path: Path) -> None:
    """An entry without one is refused; the project's own file can be read."""
    audit.accepted()
    path = tmp_path / "accepted.toml"
    path.write_text('[[accepted]]\nid = "CVE-1"\nreason = "not reachable"\n', "utf-8")
    assert audit.accepted(path) == {"CVE-1": "not reachable"}
    path.write_text('[[accepted]]\nid = "CVE-1"\nreason = " "\n', "utf-8")
    with pytest.raises(ValueError, match="needs an id and a reason"):
        audit.accepted(path)


def test_what_jars_are_called() -> None:
    """By the pom.properties that fits the file's name, also with a classifier; others are what it carries."""
    own = Coordinates(group="org.jline", artifact="jline", version="3.29.0")
    inside = Coordinates(group="org.jline", artifact="jline-terminal", version="3.29.0")
    unused = Coordinates(group="org.spark-project.spark", artifact="unused", version="1.0.0")
    jar = named("jline-3.29.0-jdk8", [inside, own, unused, inside], "ff")
    assert (jar.coordinates, jar.shaded) == (own, (inside,))
    assert named("spire_2.13-0.18.0", [], "ff").coordinates == Coordinates(
        group="org.typelevel", artifact="spire_2.13", version="0.18.0"
    )
    with pytest.raises(JarUnknownError, match=r"newcomer-1\.0\.jar does not say its Maven group"):
        named("newcomer-1.0", [], "ff")


DOCUMENT: dict[str, Any] = {
    "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
    "bomFormat": "CycloneDX",
    "specVersion": "1.6",
    "version": 1,
    "components": [
        {
            "type": "library",
            "bom-ref": "Alpha==2.1",
            "name": "Alpha",
            "version": "2.1",
            "externalReferences": [{"type": "distribution", "url": "file:///home/somebody/alpha.whl"}],
        },
        {"type": "library", "bom-ref": "pyspark==4.3.0", "name": "pyspark", "version": "4.3.0"},
        {"type": "library", "bom-ref": "pytest==9.0", "name": "pytest", "version": "9.0"},
    ],
    "dependencies": [
        {"ref": "Alpha==2.1", "dependsOn": ["pytest==9.0"]},
        {"ref": "pyspark==4.3.0"},
        {"ref": "pytest==9.0"},
        {"ref": "root-component", "dependsOn": ["Alpha==2.1", "pytest==9.0"]},
    ],
}


def test_the_list_of_parts() -> None:
    """What the lock names, and the jars with what they carry, below PySpark; nothing else, no file; valid."""
    locked = list(lock.parse("alpha==2.1\npyspark==4.3.0"))
    inside = Coordinates(group="io.netty", artifact="netty-common", version="4.2.13")
    own = Coordinates(group="org.apache.spark", artifact="spark-core_2.13", version="4.3.0")
    jar = named("spark-core_2.13-4.3.0", [own, inside], "0" * 64)
    document = sbom.with_jars(sbom.narrowed(DOCUMENT, locked), [jar])
    text = json.dumps(document)
    sbom.check(text)
    assert "file:" not in text
    assert [one["bom-ref"] for one in document["components"]] == ["Alpha==2.1", "pyspark==4.3.0", jar.file]
    assert document["components"][2]["purl"] == "pkg:maven/org.apache.spark/spark-core_2.13@4.3.0"
    assert [one["name"] for one in document["components"][2]["components"]] == ["netty-common"]
    assert {one["ref"]: one.get("dependsOn") for one in document["dependencies"]} == {
        "Alpha==2.1": None,
        "pyspark==4.3.0": [jar.file],
        "root-component": ["Alpha==2.1"],
        jar.file: None,
    }


def test_a_list_of_parts_that_would_be_wrong() -> None:
    """An environment with another version than the lock's is not described; nor is what is no CycloneDX written."""
    locked = list(lock.parse("alpha==2.2\npyspark==4.3.0\nzeta==1"))
    assert locked[0].version == Version("2.2")
    with pytest.raises(sbom.IncompleteError, match=r"differs from runtime\.lock in alpha, zeta"):
        sbom.narrowed(DOCUMENT, locked)
    with pytest.raises(sbom.IncompleteError, match=r"not valid as CycloneDX 1\.6"):
        sbom.check(json.dumps(DOCUMENT | {"components": [{"name": "no type"}]}))
