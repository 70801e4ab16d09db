"""The licences of what a running Tandem needs, as docs/licences.md lists them: `make licences`.

Taken from the metadata of installed packages, in SPDX's terms. One that is not on the list of those that go with
Apache-2.0, or that can't be told, ends it with 1.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import distribution
from pathlib import Path

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from supply_chain.lock import ROOT, read

PAGE = ROOT / "docs" / "licences.md"

# Permissive ones: they ask for notices, not for source code.
ALLOWED = frozenset(
    "0BSD Apache-2.0 BSD-2-Clause BSD-3-Clause CC0-1.0 ISC MIT MIT-0 PSF-2.0 Zlib".split()  # noqa: SIM905 - a list to read
)

# What older metadata says in words of its own, in fields or classifiers.
_WORDS = {
    "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "Apache Software License 2.0": "Apache-2.0",
    "ISC License": "ISC",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
}

# Whose metadata says no more than "BSD" or "Dual License": read from the text of the licence beside it.
_READ = {
    "jinja2": "BSD-3-Clause",
    "lz4": "BSD-3-Clause",
    "py4j": "BSD-3-Clause",
    "python-dateutil": "Apache-2.0 OR BSD-3-Clause",
}

_HEAD = """\
# Licences

Tandem itself is under Apache-2.0, see [LICENSE](../LICENSE). These are the Python packages that it needs to run, with
the versions of `requirements/runtime.lock` on Linux. `make licences` writes this page; a test fails if it is out of
date, or if a package has a licence that is not among these: {allowed}.

| package | version | licence (SPDX) |
|---|---|---|
"""

_FOOT = """
What a package carries inside of it keeps licences of its own. PySpark has the jars of Spark; its folder `licenses`, and
the notices beside it, name theirs, and `make sbom` lists the jars. The binaries of confluent-kafka, cryptography,
awscrt, pyarrow, numpy and others link C libraries; their licence files come with the installed packages
(`*.dist-info`). The image adds Debian's packages, with their licences in `/usr/share/doc`.

The broker's jars, SeaweedFS and everything for development are fetched for tests and the demo, and are part of no
release.
"""


class LicenceUnknownError(Exception):
    """A package's licence can't be told, or is not among the allowed ones."""


def licence_of(name: str) -> str:
    """Return the SPDX expression for an installed package. Raises LicenceUnknownError."""
    metadata = distribution(name).metadata
    classifiers = [line for line in metadata.get_all("Classifier") or [] if line.startswith("License ::")]
    return told(name, metadata["License-Expression"] or metadata["License"] or "", classifiers)


def told(name: str, field: str, classifiers: list[str]) -> str:
    """Return the SPDX expression for what a package's metadata says. Raises LicenceUnknownError."""
    words = [_READ[name]] if name in _READ else [field.strip(), *(line.rsplit(" :: ", 1)[-1] for line in classifiers)]
    for word in words:
        try:
            expression = canonicalize_license_expression(_WORDS.get(word, word))
        except InvalidLicenseExpression:
            continue
        refused = set(re.findall(r"[\w.+-]+", expression)) - {"AND", "OR", "WITH"} - ALLOWED
        if refused:
            raise LicenceUnknownError(
                f"{name} is under {expression}: {', '.join(sorted(refused))} is not allowed in supply_chain/licences.py"
            )
        return str(expression)
    raise LicenceUnknownError(f"{name} says no licence that SPDX knows ({words}): read its text, then add it to _READ")


def page() -> str:
    """Return docs/licences.md. Raises LicenceUnknownError, PackageNotFoundError."""
    rows = [
        f"| {locked.name} | {locked.version} | {licence_of(locked.name)} |\n"
        for locked in read("runtime")
        if locked.wanted_here
    ]
    return _HEAD.format(allowed=", ".join(sorted(ALLOWED))) + "".join(rows) + _FOOT


def main(path: Path = PAGE) -> int:
    """Write the page."""
    try:
        path.write_text(page(), "utf-8")
    except LicenceUnknownError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
