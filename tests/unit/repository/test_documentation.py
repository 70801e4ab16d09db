"""Links of the documentation lead to files and headings that exist, and the list of decisions is complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
_FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?:\]\(|src(?:set)?=\")([^)\s\"]+)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_ANCHOR = re.compile(r'<a (?:id|name)="([^"]+)"')


def _pages() -> list[Path]:
    folders = "docs/**/*.md", "bench/*.md", "helm/**/*.md", "*.md"
    return sorted(page for folder in folders for page in ROOT.glob(folder))


def _anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page, and those that it sets itself."""
    text = _FENCE.sub("", page.read_text("utf-8"))
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in _HEADING.findall(text))
    made = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}
    return made | set(_ANCHOR.findall(text))


@pytest.mark.parametrize("page", _pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Each relative link names a file or folder of the repository; its anchor is a heading of that page."""
    for link in _LINK.findall(page.read_text("utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not anchor or anchor in _anchors(target), link


def test_the_list_of_decisions_is_complete() -> None:
    """docs/decisions/README.md has each page once, under its title; numbers are used once."""
    folder = ROOT / "docs" / "decisions"
    pages = sorted(page for page in folder.glob("*.md") if page.name != "README.md")
    listed = re.findall(r"^\* \[(.+)\]\(([^)]+)\)$", (folder / "README.md").read_text("utf-8"), re.MULTILINE)
    titles = [(page.read_text("utf-8").partition("\n")[0].removeprefix("# "), page.name) for page in pages]
    assert sorted(listed, key=lambda line: line[1]) == titles
    assert all(title.startswith(f"{int(name[:4])}. ") for title, name in titles)
    assert len({name[:4] for _, name in titles}) == len(titles)
