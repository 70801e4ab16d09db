"""The jars of an environment's PySpark: what each is called in Maven's terms, and what is packed into it."""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_POM = re.compile(r"META-INF/maven/[^/]+/[^/]+/pom\.properties")
_STEM = re.compile(r"(?P<artifact>.+?)-(?P<version>\d.*)")

# Of jars that do not say it themselves: artifact, without Scala's version, and the group that has it in Maven Central.
_GROUPS = {
    "RoaringBitmap": "org.roaringbitmap",
    "algebra": "org.typelevel",
    "arpack_combined_all": "net.sourceforge.f2j",
    "breeze": "org.scalanlp",
    "breeze-macros": "org.scalanlp",
    "cats-kernel": "org.typelevel",
    "chill": "com.twitter",
    "chill-java": "com.twitter",
    "derby": "org.apache.derby",
    "derbyshared": "org.apache.derby",
    "derbytools": "org.apache.derby",
    "hadoop-client-runtime": "org.apache.hadoop",
    "ivy": "org.apache.ivy",
    "jackson-module-scala": "com.fasterxml.jackson.module",
    "jdo-api": "javax.jdo",
    "json4s-ast": "org.json4s",
    "json4s-core": "org.json4s",
    "json4s-jackson": "org.json4s",
    "json4s-jackson-core": "org.json4s",
    "json4s-scalap": "org.json4s",
    "jsr305": "com.google.code.findbugs",
    "jta": "javax.transaction",
    "libfb303": "org.apache.thrift",
    "libthrift": "org.apache.thrift",
    "objenesis": "org.objenesis",
    "oro": "oro",
    "rocksdbjni": "org.rocksdb",
    "scala-compiler": "org.scala-lang",
    "scala-library": "org.scala-lang",
    "scala-parallel-collections": "org.scala-lang.modules",
    "scala-parser-combinators": "org.scala-lang.modules",
    "scala-reflect": "org.scala-lang",
    "scala-xml": "org.scala-lang.modules",
    "snappy-java": "org.xerial.snappy",
    "spire": "org.typelevel",
    "spire-macros": "org.typelevel",
    "spire-platform": "org.typelevel",
    "spire-util": "org.typelevel",
    "stax-api": "stax",
    "tink": "com.google.crypto.tink",
    "transaction-api": "javax.transaction",
    "xz": "org.tukaani",
    "zstd-jni": "com.github.luben",
}


class JarUnknownError(Exception):
    """A jar says no Maven group, and nobody has written it down."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Coordinates:
    """Where Maven Central has something."""

    group: str
    artifact: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Jar:
    """One jar: what it is, what it carries inside of it (shaded), and its hash in hexadecimal digits."""

    file: str
    coordinates: Coordinates
    shaded: tuple[Coordinates, ...]
    sha256: str


def jars_in(folder: Path) -> Iterator[Jar]:
    """Yield the jars of a folder, by name. Raises JarUnknownError, OSError, BadZipFile."""
    for path in sorted(folder.glob("*.jar")):
        with zipfile.ZipFile(path) as archive:
            poms = [
                _coordinates(archive.read(name).decode("utf-8", "replace"))
                for name in archive.namelist()
                if _POM.fullmatch(name)
            ]
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        yield named(path.stem, [pom for pom in poms if pom], digest)


def named(stem: str, poms: list[Coordinates], sha256: str) -> Jar:
    """Return the jar of this file name, without .jar, which has these pom.properties in it. Raises JarUnknownError."""
    exact = [pom for pom in poms if stem == f"{pom.artifact}-{pom.version}"]
    # With a classifier, such as jline-3.29.0-jdk8.
    close = [pom for pom in poms if stem.startswith(f"{pom.artifact}-{pom.version}")]
    own = next(iter(exact or close), None) or _guessed(stem)
    # Spark's own jars carry an empty one called unused, which keeps Maven's shading going.
    shaded = tuple(sorted({pom for pom in poms if pom != own and pom.artifact != "unused"}))
    return Jar(file=f"{stem}.jar", coordinates=own, shaded=shaded, sha256=sha256)


def _guessed(stem: str) -> Coordinates:
    found = _STEM.fullmatch(stem)
    group = _GROUPS.get(re.sub(r"_2\.\d+$", "", found["artifact"])) if found else None
    if found is None or group is None:
        raise JarUnknownError(
            f"{stem}.jar does not say its Maven group: look it up, and add it to supply_chain/jars.py"
        )
    return Coordinates(group=group, artifact=found["artifact"], version=found["version"])


def _coordinates(text: str) -> Coordinates | None:
    """Return what a pom.properties says, or None where the build has left its variables in it."""
    pairs = (line.partition("=") for line in text.splitlines() if not line.startswith("#"))
    fields = {name.strip(): value.strip() for name, _, value in pairs}
    try:
        found = Coordinates(group=fields["groupId"], artifact=fields["artifactId"], version=fields["version"])
    except KeyError:
        return None
    return found if "${" not in f"{found}" else None
