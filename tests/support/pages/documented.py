"""The `tandem` command lines that README, CHANGELOG and docs show, as somebody would type them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]
REFERENCE: Final = ROOT / "docs" / "cli.md"

_FENCE = re.compile(r"```[a-z]*\n(.*?)```", re.DOTALL)
_INLINE = re.compile(r"`(tandem(?: [^`]+)?)`")
_LINE = re.compile(
    r"(?:^[ \t]*|\$ |\$\(| -- )(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?tandem ((?!-kafka)[^\n)]*)", re.MULTILINE
)


def pages() -> list[Path]:
    """Everything that people read."""
    return [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def shown(page: Path) -> Iterator[str]:
    """What follows `tandem` on every line of every fenced block of a page, as it stands there; no usage lines."""
    for block in _FENCE.findall(page.read_text()):
        for line in lines(block):
            if "…" not in line and not line.endswith("[OPTIONS]"):
                yield line


def lines(text: str) -> list[str]:
    """What follows `tandem` on every line of a shell's."""
    found: list[str] = _LINE.findall(text.replace("\\\n", " "))
    return found


def mentioned(text: str) -> Iterator[str]:
    """Every `tandem …` between back quotes, broken lines mended. Values may be place holders."""
    for line in _INLINE.findall(text):
        yield " ".join(line.split())


def ready(page: Path) -> Iterator[str]:
    """Those in prose that are ready to be typed: they name the configuration file, and hold no place holder."""
    for line in mentioned(_FENCE.sub("", page.read_text())):
        if " -c tandem.yaml" in line and not re.search(r"[{}<>…|\[\]]|\b[A-Z]{4,}\b", line):
            yield line.removeprefix("tandem ")


def words(line: str) -> list[str]:
    """The words of a command line, without comments, redirections and what it is piped into."""
    line = re.split(r"\s(?:\d?>|&|\||2>)", line.split("  #", maxsplit=1)[0].rstrip("\\ &"))[0]
    return shlex.split(line, comments=True)


def commands(page: Path) -> list[str]:
    """Every command line of a page that can be run, each once, in the order of the page's blocks, then its prose."""
    return list(dict.fromkeys(shlex.join(words(line)) for line in (*shown(page), *ready(page))))
