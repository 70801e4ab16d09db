"""Known vulnerabilities in what requirements/ locks, by pip-audit: `make audit`.

Asks PyPI, then OSV if PyPI has no such data. Exit code 0: everything was looked up, and nothing is known. 1: something
is known. 3: it was not audited, or not all of it, because the data could not be had; `--if-possible` makes that a 0,
with the same words.
pip-audit itself ends well where it could look nothing up, so what counts is its list of what it has skipped.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supply_chain.lock import FOLDER, LOCKS, ROOT

PIP_AUDIT = ROOT / "build" / "release-tools" / "bin" / "pip-audit"
ACCEPTED = FOLDER / "accepted-vulnerabilities.toml"
_SERVICES = ("pypi", "osv")
# Small, and asked first: where it can't be looked up, nothing can.
_PROBE = "build"
_LIMIT_S = 300

# Runs pip-audit for a lock and a service; returns its exit code, what it printed, and what it complained about.
Run = Callable[[str, str], tuple[int, str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Vulnerability:
    """One known vulnerability of a locked package."""

    package: str
    version: str
    id: str
    aliases: frozenset[str]
    fixed_in: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one service said of one lock."""

    looked_up: frozenset[str]
    skipped: Mapping[str, str]
    found: tuple[Vulnerability, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What became of all locks."""

    looked_up: frozenset[str] = frozenset()
    found: frozenset[Vulnerability] = frozenset()
    # Lock → why it, or a part of it, was not looked up.
    not_audited: Mapping[str, str]


def parse(text: str) -> Answer:
    """Return what pip-audit printed as JSON. Raises ValueError if it is none."""
    dependencies: list[dict[str, Any]] = json.loads(text)["dependencies"]
    return Answer(
        looked_up=frozenset(one["name"] for one in dependencies if "skip_reason" not in one),
        skipped={one["name"]: one["skip_reason"] for one in dependencies if "skip_reason" in one},
        found=tuple(
            Vulnerability(
                package=one["name"],
                version=one["version"],
                id=known["id"],
                aliases=frozenset(known.get("aliases", [])),
                fixed_in=tuple(known.get("fix_versions", [])),
            )
            for one in dependencies
            for known in one.get("vulns", [])
        ),
    )


def audit(run: Run, names: Iterable[str] = LOCKS) -> Audit:
    """Look all locks up."""
    names = list(names)
    looked_up: set[str] = set()
    found: set[Vulnerability] = set()
    missing: dict[str, str] = {}
    service, why = _service(run)
    if service is None:
        return Audit(not_audited=dict.fromkeys(names, why))
    for name in names:
        answer = _ask(run, name, service)
        if isinstance(answer, str):
            missing[name] = answer
            continue
        looked_up |= answer.looked_up
        found |= set(answer.found)
        if answer.skipped:
            package, reason = next(iter(answer.skipped.items()))
            missing[name] = f"{len(answer.skipped)} packages, {package} for one: {reason}"
    return Audit(looked_up=frozenset(looked_up), found=frozenset(found), not_audited=missing)


def _service(run: Run) -> tuple[str | None, str]:
    """Return a service that has the data, or None and why there is none."""
    reasons = []
    for service in _SERVICES:
        answer = _ask(run, _PROBE, service)
        if isinstance(answer, str):
            reasons.append(f"{service}: {answer}")
        elif answer.looked_up:
            return service, ""
        else:
            reasons.append(f"{service}: {next(iter(answer.skipped.values()), 'it looked nothing up')}")
    return None, "; ".join(reasons)


def _ask(run: Run, name: str, service: str) -> Answer | str:
    """Return the answer, or why there is none."""
    code, printed, complaint = run(name, service)
    try:
        return parse(printed)
    except (ValueError, KeyError, TypeError):
        return next(iter(complaint.strip().splitlines()[-1:]), f"pip-audit ended with {code} and said nothing")[:300]


def accepted(path: Path = ACCEPTED) -> Mapping[str, str]:
    """Return the vulnerabilities that somebody has accepted: id → reason. Raises ValueError if one has no reason."""
    reasons: dict[str, str] = {}
    for entry in tomllib.loads(path.read_text("utf-8")).get("accepted", []):
        if not str(entry.get("reason", "")).strip() or "id" not in entry:
            raise ValueError(f"{path.name}: each entry needs an id and a reason")
        reasons[entry["id"]] = entry["reason"]
    return reasons


def report(result: Audit, reasons: Mapping[str, str], *, if_possible: bool) -> tuple[list[str], int]:
    """Return what to print, and the exit code."""
    lines = []
    open_ones = 0
    for one in sorted(result.found, key=lambda one: (one.package, one.id)):
        reason = next((reasons[name] for name in (one.id, *sorted(one.aliases)) if name in reasons), None)
        open_ones += reason is None
        names = ", ".join([one.id, *sorted(one.aliases - {one.id})])
        remedy = f"fixed in {', '.join(one.fixed_in)}" if one.fixed_in else "no version has a fix"
        lines.append(f"{one.package} {one.version}: {names}; {f'accepted: {reason}' if reason else remedy}")
    if result.looked_up:
        lines.append(
            f"audited: {len(result.looked_up)} packages, {open_ones} known vulnerabilities that nobody has accepted"
        )
    if len(set(result.not_audited.values())) == 1 and len(result.not_audited) > 1:
        lines.append(f"not audited: all locks: {next(iter(result.not_audited.values()))}")
    else:
        lines += [f"not audited: {name}.lock: {why}" for name, why in sorted(result.not_audited.items())]
    if open_ones:
        lines.append(
            "what to do: make lock UPGRADE=1, or accept it with a reason in requirements/accepted-vulnerabilities.toml"
        )
        return lines, 1
    if result.not_audited:
        lines.append("what to do: run make audit where PyPI's or OSV's data can be reached, before a release")
        return lines, 0 if if_possible else 3
    return lines, 0


def run_pip_audit(name: str, service: str) -> tuple[int, str, str]:
    """Run pip-audit on a lock, without resolving or installing anything."""
    command: Sequence[str | Path] = (
        *(PIP_AUDIT, "--requirement", FOLDER / f"{name}.lock", "--require-hashes", "--disable-pip"),
        *("--vulnerability-service", service, "--format", "json", "--progress-spinner", "off"),
    )
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return 1, "", f"no answer within {_LIMIT_S} s"
    return ended.returncode, ended.stdout, ended.stderr


def main() -> int:
    """Look up, and say what was found."""
    parser = argparse.ArgumentParser(prog="audit", description=__doc__)
    parser.add_argument("--if-possible", action="store_true", help="end with 0 where the data can't be had")
    arguments = parser.parse_args()
    lines, code = report(audit(run_pip_audit), accepted(), if_possible=arguments.if_possible)
    print("\n".join(lines))
    return code


if __name__ == "__main__":
    sys.exit(main())
