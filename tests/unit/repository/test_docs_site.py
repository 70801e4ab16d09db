"""The site of the documentation: its navigation, the copy that it is built from, and what is found wrong with it.

`make docs` builds it, which takes seconds and packages of its own; `make test-all` calls that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.docs_site import NOTEBOOKS, add_mermaid, notebook_page, pages, problems, reindented, relative_links

ROOT = Path(__file__).parents[3]
GROUPS = ["Start", "Operate", "Restore", "Reference", "Why to trust it"]
#: Reached from a list that is in the navigation.
LISTED = {"docs/decisions": "docs/decisions/README.md", "docs/quality": "docs/quality/README.md"}


def navigation() -> dict[str, list[str]]:
    """Each tab's pages, as mkdocs.yml names them."""
    text = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nmarkdown_extensions:")[0]
    tabs: list[dict[str, Any]] = yaml.safe_load(text)["nav"]
    return {name: [page for item in items for page in item.values()] for tab in tabs for name, items in tab.items()}


def readme_groups() -> dict[str, list[str]]:
    """The links of the README's list of documents, by group."""
    section = (ROOT / "README.md").read_text("utf-8").partition("\n## Documentation\n")[2]
    parts = re.split(r"\*\*([^*]+)\*\*: ", section)[1:]
    return {name: list(relative_links(text)) for name, text in zip(parts[::2], parts[1::2], strict=True)}


def test_each_page_is_in_the_navigation_once() -> None:
    """Or in a list that is; nothing is named that is not there but the list of schemas, which the build makes."""
    named = [page for tab in navigation().values() for page in tab]
    assert len(named) == len(set(named))
    there = {str(page) for page in pages()} | {
        str(notebook.relative_to(ROOT).with_suffix(".md")) for notebook in ROOT.glob(NOTEBOOKS)
    }
    in_lists = {page for page in there if str(Path(page).parent) in LISTED and page not in named}
    assert {*named} - {"docs/schemas/README.md"} == there - in_lists
    for folder, page in LISTED.items():
        assert page in named
        linked = {str(Path(page).parent / name) for name in relative_links((ROOT / page).read_text("utf-8"))}
        assert {one for one in in_lists if one.startswith(folder)} <= linked


def test_the_readme_has_the_same_groups() -> None:
    """Under the same names, and each page of a group is under the tab of that name."""
    tabs, groups = navigation(), readme_groups()
    assert list(tabs) == list(groups) == GROUPS
    for name, linked in groups.items():
        assert len(linked) >= 3
        assert {page for page in linked if page.endswith(".md")} <= {*tabs[name]}


@pytest.mark.parametrize(
    ("host", "parser"),
    [
        (
            "1. One:\n\n   ```sh\n   a\n     b\n   ```\n\n2. Two\n",
            "1. One:\n\n    ```sh\n    a\n      b\n    ```\n\n2. Two\n",
        ),
        ("Text:\n* one\n  more\n* two\n", "Text:\n\n* one\n    more\n* two\n"),
        ("* one\n  * in it\n\n    text\n* two\n", "* one\n    * in it\n\n        text\n* two\n"),
        ("10. ten\n\n    text\n\nEnd\n", "10. ten\n\n    text\n\nEnd\n"),
        ("* one\nlazy\n\nEnd\n", "* one\n    lazy\n\nEnd\n"),
        ("```\n* no list\n1. none\n```\n", "```\n* no list\n1. none\n```\n"),
        ("| `a\\|b` | c |\n| `d` \\| | `x\\|y\\|z` |\n", "| `a|b` | c |\n| `d` \\| | `x|y|z` |\n"),
        ("# A\n\nText\n", "# A\n\nText\n"),
    ],
)
def test_lists_of_the_copy(host: str, parser: str) -> None:
    """Four blanks for each level, a blank line before a list, no backslash before a pipe in code; all else stays."""
    assert reindented(host) == parser


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Path]:
    """Two pages that are in order, and the index of a search."""
    (tmp_path / "search").mkdir()
    (tmp_path / "search" / "search_index.js").write_text("var __index = {}")
    (tmp_path / "style.css").write_text("a { background: url(x.png) }")
    (tmp_path / "index.html").write_text(
        '<link rel="stylesheet" href="style.css"><h2 id="a">A</h2><a href="#a">a</a><a href="b.html#c">c</a>'
        '<a href="https://example.org">out</a>'
    )
    (tmp_path / "b.html").write_text('<h2 id="c">C</h2><a href="index.html">home</a>')
    assert problems(tmp_path, ("/home/someone/",)) == []
    return tmp_path


@pytest.mark.parametrize(
    ("added", "said"),
    [
        ('<a href="c.html">', "b.html links to c.html, which is no file"),
        ('<a href="index.html#b">', "b.html links to index.html#b, which has no such heading"),
        ('<a href="#d">', "b.html links to #d, which has no such heading"),
        ('<a href=".">', "b.html links to ., which is no file"),
        ('<img src="x.png">', "b.html links to x.png, which is no file"),
        ('<script src="//cdn.example.org/x.js">', "b.html loads //cdn.example.org/x.js from elsewhere"),
        ('<link href="https://fonts.example.org/x">', "b.html loads https://fonts.example.org/x from elsewhere"),
        ("in /home/someone/clone", "b.html names /home/someone/"),
    ],
)
def test_what_is_wrong_with_a_page(site: Path, added: str, said: str) -> None:
    """One sentence that names page and link."""
    page = site / "b.html"
    page.write_text(page.read_text() + added)
    assert problems(site, ("/home/someone/",)) == [said]


def test_what_is_wrong_beside_the_pages(site: Path) -> None:
    """A font from elsewhere, and no index."""
    (site / "style.css").write_text("@import url('https://fonts.example.org/x.css');")
    (site / "search" / "search_index.js").unlink()
    assert problems(site) == [
        "style.css loads from elsewhere",
        "there is no index of the search that works without a server",
    ]


def test_only_pages_with_diagrams_load_the_script_that_draws(
    site: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Before the theme's script, from a file of the site; a page without the theme's script is an error."""
    fetched = tmp_path_factory.mktemp("mermaid")
    (fetched / "mermaid.min.js").write_text("")
    (site / "docs").mkdir()
    theme = '<script src="../assets/javascripts/bundle.1.min.js"></script>'
    (site / "assets" / "javascripts").mkdir(parents=True)
    (site / "assets" / "javascripts" / "bundle.1.min.js").write_text("")
    drawn = site / "docs" / "c.html"
    drawn.write_text(f'<pre class="mermaid"><code>a</code></pre>{theme}')
    (site / "docs" / "d.html").write_text(theme)
    add_mermaid(site, fetched)
    assert drawn.read_text().endswith(f'</pre><script src="../assets/mermaid/mermaid.min.js"></script>{theme}')
    assert (site / "docs" / "d.html").read_text() == theme
    assert problems(site) == []


def test_a_notebook_becomes_a_page() -> None:
    """Its title first, then the link to the file; code is a block of Python."""
    page = notebook_page(ROOT / "docs" / "notebook.ipynb")
    assert page.startswith("# A backup in a notebook\n\n[notebook.ipynb](notebook.ipynb) is the file.\n\n")
    assert (
        "\n\n```python\nfrom tandem.spark_jobs.notebook import notebook_session\n\nspark = notebook_session()\n```\n\n"
        in page
    )
