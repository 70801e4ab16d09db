"""Builds the documentation as a site into build/site, and checks what was built: `make docs`.

mkdocs reads a copy of the pages below build/site-source, which has the folders of the repository: every relative link
stays as it is. In the copy, lists are indented as Python-Markdown, the parser of mkdocs, wants them; it differs there
from CommonMark, which code hosts read. Files that a page links to and that are no pages are copied beside.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

ROOT: Final = Path(__file__).parents[1]
SOURCE: Final = ROOT / "build" / "site-source"
SITE: Final = ROOT / "build" / "site"
#: What is a page of the site.
PAGES: Final = ("*.md", "docs/**/*.md", "bench/*.md", "helm/**/*.md")
#: What becomes one, under the same name with `.md`.
NOTEBOOKS: Final = "docs/*.ipynb"
_START: Final = Path("README.md")
#: The search puts answers before reasons: 1 for all pages that are not named here.
_WEIGHTS: Final = {
    "docs/questions.md": 2,
    "docs/decisions/": 0.1,
    "docs/quality/": 0.2,
    "docs/errors.md": 0.5,
    "CHANGELOG.md": 0.2,
    "bench/": 0.5,
}
#: Files of the site that are in no page.
_BESIDE: Final = ROOT / "scripts" / "site"
_LINK = re.compile(r"(?:\]\(|src(?:set)?=\")([^)\s\"]+)")
_MARKER = re.compile(r"(\s*)([*+-]|\d+[.)])(\s+)(?=\S)")
_FENCE = re.compile(r"\s*(```+|~~~+)")
# Python-Markdown takes a pipe between back quotes for text, without the backslash that code hosts need in a table.
_TABLE_PIPE = re.compile(r"\\\|(?=[^`|]*(?:\\\|[^`|]*)*`)")
_SCHEME = re.compile(r"[a-z][a-z+.-]*:", re.IGNORECASE)
# What a browser loads by itself.
_LOADED: Final = {"script": "src", "img": "src", "source": "srcset", "iframe": "src", "link": "href"}
_ELSEWHERE = re.compile(r"(?:https?:)?//[a-z0-9-]+\.[a-z]", re.IGNORECASE)
# The script that draws diagrams in the browser, as npm has it. The theme would load the newest one from elsewhere.
_MERMAID: Final = "mermaid@11.17.2"
_MERMAID_SHA256: Final = "581ed7d74bd9048d0e3a91363927d72ef22942d7722546b27f7cc29e35390eb8"
_CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tandem" / "site"
_DIAGRAM: Final = '<pre class="mermaid"'
# What the theme puts in its place.
_DRAWN: Final = '<div class="mermaid"'
# The script of the theme, which asks for that one if it is not there.
_THEME = re.compile(r'<script src="[^"]*assets/javascripts/bundle')
# Where the theme would load help for old browsers and diagrams from.
_NETWORK: Final = "https://unpkg.com/"


def pages() -> list[Path]:
    """Return the Markdown files of the site, as paths below the repository."""
    return sorted({path.relative_to(ROOT) for pattern in PAGES for path in ROOT.glob(pattern)})


def relative_links(text: str) -> Iterator[str]:
    """Yield the targets of a page's links and pictures that are files of the repository, without anchors."""
    for link in _LINK.findall(text):
        name = str(link).partition("#")[0]
        if name and not _SCHEME.match(name):
            yield name


def reindented(text: str) -> str:
    """Return Markdown whose lists are indented by four blanks for each level, with a blank line before each list."""
    written: list[str] = []
    columns: list[int] = []  # where the text of each open list item begins
    fence = ""
    for line in text.splitlines():
        blank_before = not written or not written[-1].strip()
        if fence:
            written.append(_moved(line, columns))
            if line.strip().startswith(fence):
                fence = ""
            continue
        if not line.strip():
            written.append("")
            continue
        marker = _MARKER.match(line)
        opened = _FENCE.match(line)
        indent = len(line) - len(line.lstrip())
        in_list = bool(columns)
        if marker or opened or blank_before:
            while columns and indent < columns[-1]:
                columns.pop()
        if opened:
            fence = opened[1]
        if marker and not in_list and not blank_before:
            written.append("")
        written.append(_moved(_TABLE_PIPE.sub("|", line) if line.startswith("|") else line, columns))
        if marker:
            columns.append(marker.end())
    return "\n".join(written) + "\n"


def _moved(line: str, columns: list[int]) -> str:
    """Return a line of the list items whose texts begin at `columns`, four blanks for each."""
    base = columns[-1] if columns else 0
    lead = line[:base]
    rest = line[base:] if not lead.strip() else line.lstrip()
    return ("    " * len(columns) + rest) if line.strip() else ""


def copy_pages() -> None:
    """Write the copy that mkdocs reads."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    shutil.copytree(_BESIDE, SOURCE)
    for page in pages():
        text = (ROOT / page).read_text("utf-8")
        for name in set(relative_links(text)):
            target = (ROOT / page.parent / unquote(name)).resolve()
            if target.is_dir():
                listing = target.relative_to(ROOT) / "README.md"
                _write(listing, _listing(target))
                text = text.replace(f"]({name})", f"]({name.rstrip('/')}/README.md)")
                for file in target.iterdir():
                    _copy(file)
            elif target.suffix == ".ipynb":
                text = text.replace(f"]({name})", f"]({Path(name).with_suffix('.md')})")
            elif target.is_file() and target.suffix != ".md":
                _copy(target)
        _write(page, _front_matter(page) + reindented(text))
    for notebook in ROOT.glob(NOTEBOOKS):
        _copy(notebook)
        page = notebook.relative_to(ROOT).with_suffix(".md")
        _write(page, _front_matter(page) + notebook_page(notebook))


def notebook_page(notebook: Path) -> str:
    """Return the cells of a notebook as a page, below its title a link to the file."""
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    texts = ["".join(cell["source"]) for cell in cells]
    shown = [
        text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```"
        for cell, text in zip(cells, texts, strict=True)
    ]
    title, _, rest = shown[0].partition("\n")
    return "\n\n".join([title, f"[{notebook.name}]({notebook.name}) is the file.", rest, *shown[1:]]) + "\n"


def _front_matter(page: Path) -> str:
    """Return what the theme is told of a page: its weight in the search, and that the start page lists no headings.

    The room of that list is for the drawing.
    """
    boost = next((weight for folder, weight in _WEIGHTS.items() if str(page).startswith(folder)), 1)
    hidden = "hide: [toc]\n" if page == _START else ""
    return f"---\nsearch:\n  boost: {boost}\n{hidden}---\n\n"


def _listing(folder: Path) -> str:
    """Return a page that lists the files of a folder."""
    lines = (f"* [{path.name}]({path.name})" for path in sorted(folder.iterdir()) if path.is_file())
    return f"# {folder.name.capitalize()}\n\n" + "\n".join(lines) + "\n"


def _copy(file: Path) -> None:
    target = SOURCE / file.relative_to(ROOT)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, target)


def _write(path: Path, text: str) -> None:
    target = SOURCE / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, "utf-8")


class BuiltPage(HTMLParser):
    """The links, the anchors, and what a browser loads for one page that was built."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect from one tag."""
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in _LOADED and given.get("rel") != "canonical":
            self.loads.append(given.get(_LOADED[tag], ""))


def problems(site: Path, forbidden: tuple[str, ...] = ()) -> list[str]:
    """Return what is wrong with a site that was built, one sentence each, sorted.

    Links and anchors lead to files and headings, nothing is loaded from elsewhere, the search has an index that needs
    no server, and no file holds one of the `forbidden` words (paths of the machine, hosts of registries).
    """
    found: list[str] = []
    built = {path: BuiltPage(path) for path in sorted(site.rglob("*.html"))}
    for path, page in built.items():
        place = path.relative_to(site)
        found += [f"{place} loads {name} from elsewhere" for name in page.loads if _ELSEWHERE.match(name)]
        # 404.html is shown below any address, so its links begin at the root of a server.
        if place.name == "404.html":
            continue
        for link in (*page.links, *filter(None, page.loads)):
            name, _, anchor = unquote(link).partition("#")
            if _SCHEME.match(name) or name.startswith("//"):
                continue
            target = (path.parent / name.partition("?")[0]).resolve() if name else path
            if target.is_dir() or not target.is_file():
                found.append(f"{place} links to {link}, which is no file")
            elif anchor and target in built and anchor not in built[target].anchors:
                found.append(f"{place} links to {link}, which has no such heading")
    for path in sorted(path for path in site.rglob("*") if path.suffix in {".html", ".css", ".js", ".json", ".xml"}):
        text = path.read_text("utf-8", errors="replace")
        found += [f"{path.relative_to(site)} names {word}" for word in forbidden if word in text]
        if path.suffix == ".css" and re.search(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", text):
            found.append(f"{path.relative_to(site)} loads from elsewhere")
    if not (site / "search" / "search_index.js").is_file():
        found.append("there is no index of the search that works without a server")
    return sorted(set(found))


def places_of_this_machine() -> tuple[str, ...]:
    """Return what no page may name: the folders of the clone and of its user, and hosts that pip fetches from."""
    told = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    hosts = re.findall(r"://(?:[^/@\s']*@)?([^/:\s']+)", told)
    return (
        f"{ROOT}/",
        f"{Path.home()}/",
        *(host for host in hosts if host not in {"pypi.org", "files.pythonhosted.org"}),
    )


def mermaid() -> Path | None:
    """Return the folder with `mermaid.min.js` and its LICENSE, fetched once for a user; None without npm.

    RuntimeError if it is not the file that is expected.
    """
    folder = _CACHE / _MERMAID
    script = folder / "mermaid.min.js"
    if not script.exists():
        if (npm := shutil.which("npm")) is None:
            return None
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run([npm, "pack", "--silent", _MERMAID], cwd=folder, check=True, capture_output=True)  # noqa: S603
        (packed,) = folder.glob("*.tgz")
        with tarfile.open(packed) as archive:
            for name in ("package/LICENSE", "package/dist/mermaid.min.js"):
                member = archive.getmember(name)
                member.name = Path(name).name
                archive.extract(member, folder, filter="data")
        packed.unlink()
    if hashlib.sha256(script.read_bytes()).hexdigest() != _MERMAID_SHA256:
        raise RuntimeError(f"{script} is not the file of {_MERMAID} that is expected: remove it")
    return folder


def pages_with_diagrams(site: Path) -> list[Path]:
    """Return the pages of a site that was built, in which the browser draws diagrams."""
    return sorted(path for path in site.rglob("*.html") if _DIAGRAM in path.read_text("utf-8"))


def add_mermaid(site: Path, folder: Path) -> None:
    """Copy the script that draws to the site; pages that have diagrams load it before the theme's script."""
    target = site / "assets" / "mermaid"
    shutil.copytree(folder, target)
    for page in pages_with_diagrams(site):
        place = Path(os.path.relpath(target, page.parent)) / "mermaid.min.js"
        text = page.read_text("utf-8")
        loaded, times = _THEME.subn(lambda found, at=place: f'<script src="{at}"></script>{found[0]}', text, 1)  # type: ignore[misc]
        if not times:
            raise RuntimeError(f"{page} has no script of the theme")
        page.write_text(loaded, "utf-8")


def undrawn(page: Path, browser: str) -> int:
    """Open a page from the file system in Chromium: how many of its diagrams it shows as text."""
    return page.read_text("utf-8").count(_DIAGRAM) - _opened(browser, page.as_uri()).count(_DRAWN)


def _opened(browser: str, address: str) -> str:
    """Return the page as it is in Chromium when its scripts have run."""
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--dump-dom")
    return subprocess.run([browser, *options, address], capture_output=True, text=True, check=False).stdout  # noqa: S603


def first_hit(site: Path, browser: str, words: str) -> str | None:
    """Open the start page from the file system in Chromium and search: the first page that is found, or None."""
    address = f"{(site / 'index.html').as_uri()}?q={quote(words)}"
    found = re.search(r'<a href="([^"?#]+)[^"]*" class="md-search-result__link"', _opened(browser, address))
    return found[1].removeprefix(f"{site.as_uri()}/") if found else None


def main() -> int:
    """Build the site and say what is wrong with it; exit code 1 if something is."""
    copy_pages()
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "--quiet",
        "build",
        "--strict",
        "--config-file",
        str(ROOT / "mkdocs.yml"),
    ]
    # The theme greets with its plans, mkdocs with its own; both are in decision 137.
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    if subprocess.run(command, cwd=ROOT, env=quiet, check=False).returncode:  # noqa: S603
        return 1
    for script in SITE.rglob("*.js"):
        text = script.read_text("utf-8")
        if _NETWORK in text:
            script.write_text(text.replace(_NETWORK, "absent/"), "utf-8")
    if (drawer := mermaid()) is not None:
        add_mermaid(SITE, drawer)
    wrong = problems(SITE, (*places_of_this_machine(), _NETWORK))
    browser = shutil.which("chromium")
    # A word that a reason has more often than the answer: without the weights, a decision comes first.
    if browser and (hit := first_hit(SITE, browser, "IAM rights")) != "docs/roles.html":
        wrong.append(f"a search for 'IAM rights' in a page that is opened from the file system finds {hit} first")
    if browser and drawer:
        wrong += [
            f"{page.relative_to(SITE)} shows {left} of its diagrams as text"
            for page in pages_with_diagrams(SITE)
            if (left := undrawn(page, browser))
        ]
    for sentence in wrong:
        sys.stderr.write(f"error: {sentence}\n")
    if not wrong:
        tried = "searched and drawn with chromium" if browser else "neither searched nor drawn: there is no chromium"
        tried += "" if drawer else "; diagrams are text: there is no npm"
        sys.stdout.write(f"{len(list(SITE.rglob('*.html')))} pages, {SITE.relative_to(ROOT)}/index.html; {tried}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
