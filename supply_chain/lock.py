"""The locks in requirements/: `make lock` writes them, and `problems` holds them against pyproject.toml.

Each lock names exact versions and the hashes of all files of each, for all platforms and all Pythons that
pyproject.toml allows. The lock for development is made first; the others agree with it, so that what is tested is what
is shipped.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "requirements"
UV = ROOT / "build" / "release-tools" / "bin" / "uv"
# There is no wheel of PySpark. All else must have wheels: what builds a package is not covered by hashes.
_WITHOUT_WHEELS = "pyspark"
_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")
# Comments name packages, files of the project and groups. A colon and a slash would be an address or a machine's path.
_PLACE = re.compile(r"[a-z]+://|(?<![\w.])/\w", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What of pyproject.toml a lock is made from."""

    dependencies: bool = False
    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    agrees_with: str | None = "dev"  # the lock whose versions are taken where both have a package

    def requirements(self, pyproject: Mapping[str, Any]) -> list[Requirement]:
        """Return the direct dependencies."""
        project = pyproject["project"]
        lists = [project["dependencies"] if self.dependencies else []]
        lists += [project["optional-dependencies"][name] for name in self.extras]
        lists += [pyproject["dependency-groups"][name] for name in self.groups]
        return [Requirement(line) for lines in lists for line in lines]

    def arguments(self) -> list[str]:
        """Return the words that tell uv the same."""
        words = ["pyproject.toml"] if self.dependencies else []
        words += [word for name in self.extras for word in ("--extra", name)]
        words += [word for name in self.groups for word in ("--group", name)]
        if self.agrees_with:
            words += ["--constraints", f"requirements/{self.agrees_with}.lock"]
        return words


# In the order in which they are made.
LOCKS: Mapping[str, Source] = {
    "dev": Source(dependencies=True, extras=("spark", "msk", "dev"), groups=("build", "sbom"), agrees_with=None),
    "runtime": Source(dependencies=True, extras=("spark", "msk", "cloud")),
    "build": Source(groups=("build",)),
    "sbom": Source(groups=("sbom",)),
    "chart": Source(groups=("chart",)),
    "mutation": Source(groups=("mutation",)),
    "screenshots": Source(groups=("screenshots",)),
    "docs": Source(groups=("docs",)),
    # In an environment of its own: what pip-audit needs shall hold nothing else back.
    "release": Source(groups=("release",), agrees_with=None),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Locked:
    """One package of a lock: its version, for which environments, and how many files may be taken."""

    name: str
    version: Version
    requirement: Requirement
    hashes: int

    @property
    def wanted_here(self) -> bool:
        """Whether this Python, on this platform, installs it."""
        return self.requirement.marker is None or self.requirement.marker.evaluate()


def read(name: str, folder: Path = FOLDER) -> list[Locked]:
    """Return what the lock called `name` holds. Raises InvalidRequirement if a line is none."""
    return list(parse((folder / f"{name}.lock").read_text("utf-8")))


def parse(text: str) -> Iterator[Locked]:
    """Yield the packages of a lock's text."""
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    lines = (line for line in lines if not line.startswith("--"))
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if not line.strip():
            continue
        requirement = Requirement(_HASH.sub("", line))
        versions = list(requirement.specifier)
        if [version.operator for version in versions] != ["=="]:
            raise ValueError(f"{requirement.name} has no exact version")
        yield Locked(
            name=canonicalize_name(requirement.name),
            version=Version(versions[0].version),
            requirement=requirement,
            hashes=len(_HASH.findall(line)),
        )


def problems(pyproject: Mapping[str, Any], texts: Mapping[str, str]) -> list[str]:
    """Return what is wrong with the locks of these texts, one sentence each; empty if all is well."""
    locks = {name: list(parse(text)) for name, text in texts.items()}
    found = [f"{name}.lock is missing" for name in LOCKS.keys() - locks.keys()]
    found += [f"{name}.lock has no source in supply_chain/lock.py" for name in locks.keys() - LOCKS.keys()]
    for name in LOCKS.keys() & locks.keys():
        versions: dict[str, list[Version]] = {}
        for locked in locks[name]:
            versions.setdefault(locked.name, []).append(locked.version)
            if not locked.hashes:
                found.append(f"{name}.lock: {locked.name} has no hash")
        for wanted in LOCKS[name].requirements(pyproject):
            there = versions.get(canonicalize_name(wanted.name), [])
            if not there:
                found.append(f"{name}.lock: {wanted.name} of pyproject.toml is not in it")
            found += [
                f"{name}.lock: {wanted.name} is {version}, pyproject.toml wants {wanted.specifier}"
                for version in there
                if not wanted.specifier.contains(version, prereleases=True)
            ]
        other = LOCKS[name].agrees_with
        for locked in locks.get(other or "", []):
            if locked.name in versions and locked.version not in versions[locked.name]:
                found.append(f"{name}.lock has another {locked.name} than {other}.lock")
        if not texts[name].startswith("--only-binary :all:\n"):
            found.append(f"{name}.lock lets pip build packages with what nobody has locked")
        if place := _PLACE.search(texts[name]):
            found.append(f"{name}.lock names a place: {place[0]}")
    return sorted(found)


def write(*, upgrade: bool) -> None:
    """Make all locks anew. What they hold stays as far as pyproject.toml allows it, unless `upgrade`.

    Raises CalledProcessError if uv finds no versions that fit.
    """
    lowest = min(spec.version for spec in Requirement(f"python{_pyproject()['project']['requires-python']}").specifier)
    for name, source in LOCKS.items():
        print(f"==> requirements/{name}.lock", file=sys.stderr, flush=True)
        subprocess.run(
            [
                *(UV, "pip", "compile", "--quiet", "--no-config", "--universal", "--generate-hashes"),
                # One version for all Pythons where there is one: the tests have seen no other.
                *("--fork-strategy", "fewest", "--python-version", lowest),
                *("--only-binary", ":all:", "--no-binary", _WITHOUT_WHEELS),
                *("--custom-compile-command", "make lock", "--output-file", f"requirements/{name}.lock"),
                *(["--upgrade"] if upgrade else []),
                *source.arguments(),
            ],
            cwd=ROOT,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        path = FOLDER / f"{name}.lock"
        # In this order: pip forgets the exception when it reads the rule after it, as uv would write them.
        exception = f"--no-binary {_WITHOUT_WHEELS}\n" if "spark" in source.extras else ""
        path.write_text(f"--only-binary :all:\n{exception}{path.read_text('utf-8')}", "utf-8")


def check() -> list[str]:
    """Return what is wrong with the locks that are there."""
    return problems(_pyproject(), {path.stem: path.read_text("utf-8") for path in FOLDER.glob("*.lock")})


def _pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def main() -> int:
    """Write the locks, or only check them."""
    parser = argparse.ArgumentParser(prog="lock", description=__doc__)
    parser.add_argument("--upgrade", action="store_true", help="the newest versions that pyproject.toml allows")
    parser.add_argument("--check", action="store_true", help="only hold them against pyproject.toml")
    arguments = parser.parse_args()
    if not arguments.check:
        try:
            write(upgrade=arguments.upgrade)
        except subprocess.CalledProcessError:
            print("error: uv could not write that lock; its message is above", file=sys.stderr)
            return 1
    wrong = check()
    for sentence in wrong:
        print(f"error: {sentence}; run make lock", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
