"""Reads a page more strictly than browsers: every tag closed, ids and attributes once, headings in order, no sources.

`checked` raises AssertionError with the line of what is wrong, and returns the page's text and elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import pairwise

_VOID = frozenset({"meta", "link", "br", "input"})
_EMPTY_IN_SVG = frozenset({"rect", "line", "polyline"})
_RAW = frozenset({"style", "script"})
_BLOCKS = frozenset(
    {"p", "div", "section", "article", "ul", "dl", "table", "h1", "h2", "h3", "header", "footer", "main"}
)
_INLINE = frozenset({"span", "strong", "code", "a"})
_CHILDREN = {
    "ul": {"li"},
    "tr": {"td", "th"},
    "table": {"caption", "thead", "tbody"},
    "thead": {"tr"},
    "tbody": {"tr"},
}


@dataclass(slots=True, kw_only=True)
class Element:
    """One element: its attributes, and the text of all that is in it."""

    tag: str
    attributes: dict[str, str | None]
    path: tuple[str, ...]
    text: str = ""


@dataclass(slots=True, kw_only=True)
class Page:
    """What was read. `text` leaves out styles and scripts."""

    elements: list[Element] = field(default_factory=list)
    text: str = ""

    def all(self, tag: str) -> list[Element]:
        """The elements of a kind, in order."""
        return [element for element in self.elements if element.tag == tag]

    def texts(self, tag: str) -> list[str]:
        """Their texts, spaces made one."""
        return [" ".join(element.text.split()) for element in self.all(tag)]

    def rows(self) -> Iterator[list[str]]:
        """The cells of each row of each table."""
        row: list[str] = []
        for element in self.elements:
            if element.tag == "tr":
                if row:
                    yield row
                row = []
            elif element.tag in {"td", "th"}:
                row.append(" ".join(element.text.split()))
        if row:
            yield row


class _Strict(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.page = Page()
        self.open: list[Element] = []
        self.ids: set[str] = set()

    def wrong(self, what: str) -> AssertionError:
        return AssertionError(f"line {self.getpos()[0]}: {what}")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        if len(names) != len(set(names)):
            raise self.wrong(f"<{tag}> has an attribute twice")
        element = Element(tag=tag, attributes=dict(attrs), path=tuple(one.tag for one in self.open))
        self._placed(element)
        for name, value in attrs:
            if name.startswith("on") or name == "style":
                raise self.wrong(f"<{tag} {name}>: the page's policy forbids it")
            if name in {"src", "href"} and not (value or "").startswith(("data:", "status", "history", "topics", ".")):
                raise self.wrong(f"<{tag} {name}={value}> leads elsewhere")
        if (name := element.attributes.get("id")) is not None:
            if name in self.ids:
                raise self.wrong(f"the id {name} is there twice")
            self.ids.add(name)
        self.page.elements.append(element)
        if tag not in _VOID:
            self.open.append(element)

    def _placed(self, element: Element) -> None:
        tag, path = element.tag, element.path
        parent = path[-1] if path else ""
        if tag in _BLOCKS and ("p" in path or parent in {"h1", "h2", "h3", "span"}):
            raise self.wrong(f"<{tag}> in {'/'.join(path)}")
        if parent in _CHILDREN and tag not in _CHILDREN[parent]:
            raise self.wrong(f"<{tag}> directly in <{parent}>")
        if tag == "th" and element.attributes.get("scope") not in {"row", "col"}:
            raise self.wrong("<th> without a scope")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _EMPTY_IN_SVG:
            raise self.wrong(f"<{tag}/> closes itself")
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open[-1].tag != tag:
            raise self.wrong(f"</{tag}> closes {'/'.join(one.tag for one in self.open)}")
        if tag not in _INLINE:
            self.handle_data(" ")
        self.open.pop()

    def handle_data(self, data: str) -> None:
        for element in self.open:
            element.text += data
        if not self.open and data.strip():
            raise self.wrong(f"text outside of everything: {data.strip()}")
        if self.open and self.open[-1].tag not in _RAW:
            self.page.text += data


def checked(html: str) -> Page:
    """Return the page if nothing is wrong with it."""
    assert html.startswith("<!doctype html>\n<html lang=")
    reader = _Strict()
    reader.feed(html)
    reader.close()
    assert not reader.open, f"left open: {[one.tag for one in reader.open]}"
    page = reader.page
    titles = [element for element in page.all("title") if "svg" not in element.path]
    assert len(page.all("main")) == len(page.all("h1")) == len(titles) == 1
    levels = [int(element.tag[1]) for element in page.elements if element.tag in {"h1", "h2", "h3"}]
    assert all(after <= before + 1 for before, after in pairwise(levels)), levels
    for element in page.elements:
        target = element.attributes.get("aria-labelledby")
        assert target is None or target in reader.ids, f"nothing has the id {target}"
    page.text = " ".join(page.text.split())
    return page
