"""The limits of CONTRIBUTING.md: each is seen to be broken where it is.

That the code keeps them is a part of `make lint`, which `make check` and `make test` begin with.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from scripts import structure
from scripts.structure import RULES, differences, look, shrunk, written


def tree(root: Path, **files: str) -> Path:
    """Write modules below sink/tandem/sink; `__` in a name stands for a folder."""
    for name, text in files.items():
        path = root / "sink" / "tandem" / "sink" / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return root


def test_a_crowded_folder_and_a_long_module(tmp_path: Path) -> None:
    """Thirteen modules, and 701 lines."""
    tree(
        tmp_path, **{f"read__m{number}": "" for number in range(13)}, write__long="#\n" * 701, write__short="#\n" * 700
    )
    found = look(tmp_path)
    assert found["modules"] == {"tandem.sink.read": 13}
    assert found["lines"] == {"tandem.sink.write.long": 701}


def test_wide_functions(tmp_path: Path) -> None:
    """Options of commands are not counted, and neither is `self`; keyword-only ones are."""
    tree(
        tmp_path,
        a="""
class C:
    def seven(self, a, b, c, *, d, e, f, g): ...
    def six(self, a, b, c, *, d, e, f, **more): ...
@app.command("restore")
def command(a, b, c, d, e, f, g): ...
Option = Annotated[int, typer.Option("--x")]
def options(a: Option, b: Annotated[int, typer.Option("--y")], c, d, e, f, g, h): ...
def outer():
    def inner(a, b, c, d, e, f, g): ...
""",
    )
    assert look(tmp_path)["parameters"] == {"tandem.sink.a.C.seven": 7, "tandem.sink.a.outer.inner": 7}


def test_a_public_class_name_twice(tmp_path: Path) -> None:
    """Private ones may share a name."""
    tree(
        tmp_path,
        read__a="class Run: ...\nclass _Own: ...",
        write__b="class Run: ...\nclass _Own: ...\nclass Other: ...",
    )
    assert look(tmp_path)["class_names"] == {"Run": 2}


def test_a_circle(tmp_path: Path) -> None:
    """Also through a third folder and inside of functions; imports for types are none."""
    tree(
        tmp_path,
        read__a="from tandem.sink.write.b import x",
        write__b="def f():\n    from tandem.sink import store",
        store__init="",
        store__c="import tandem.sink.read.a",
        kafka__d="if TYPE_CHECKING:\n    from tandem.sink.read.a import y",
        read__e="from tandem.sink.kafka import d",
    )
    (tmp_path / "sink/tandem/sink/store/__init__.py").write_text("", "utf-8")
    assert look(tmp_path)["circles"] == {"tandem.sink.read tandem.sink.store tandem.sink.write": 3}


def test_private_names_of_others(tmp_path: Path) -> None:
    """Imported by name, as a module, or taken from a module."""
    tree(
        tmp_path,
        read__a="_hidden = 1",
        read___twin="",
        read__b="from tandem.sink.read.a import _hidden",
        write__c="from tandem.sink.read.a import _hidden",
        write__d="from tandem.sink.read import _twin, a\nx = a._hidden",
    )
    assert look(tmp_path)["private"] == {
        "tandem.sink.write.c tandem.sink.read.a._hidden": 1,
        "tandem.sink.write.d tandem.sink.read._twin": 1,
        "tandem.sink.write.d tandem.sink.read.a._hidden": 1,
    }


def test_tests_out_of_place(tmp_path: Path) -> None:
    """One that imports another, one in a folder that the product has not, two of one name."""
    tree(tmp_path, read__a="")
    for name in ("unit/sink/read/test_a.py", "unit/sink/lost/test_a.py", "unit/judges/test_b.py", "support/x.py"):
        (tmp_path / "tests" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tests" / name).write_text("from test_b import c\nfrom tests.conftest import d\n" * ("/b" in name))
    (tmp_path / "tests/unit/sink/read/test_c.py").write_text("from test_b import c\nfrom tests.conftest import d\n")
    found = look(tmp_path)
    assert found["test_imports"] == {"test_c.py test_b": 1, "test_c.py tests.conftest": 1}
    assert found["test_folders"] == {"tests/unit/sink/lost/test_a.py": 1}
    assert found["test_files"] == {"test_a.py": 2}


def test_clocks_of_the_whole_process(tmp_path: Path) -> None:
    """A function of `time` set for all threads, in three ways; a module's own name for it may be set."""
    (tmp_path / "tests").mkdir()
    calls = ['(a.time, "sleep", x)', '(time, "time", x)', '("time.sleep", x)', '(a, "time", x)', '(a.b, "sleep", x)']
    (tmp_path / "tests/test_a.py").write_text("".join(f"monkeypatch.setattr{call}\n" for call in calls))
    assert look(tmp_path)["test_clocks"] == {"test_a.py": 3}


def test_the_list_can_only_shrink() -> None:
    """A larger violation, a new one and an exception that is larger than needed are told; the last alone is mended."""
    found = {"lines": {"a": 800, "b": 900, "c": 710}}
    excepted = {"lines": {"a": 790, "c": 720, "d": 750}}
    assert [line.partition(":")[0] for line in differences(found, excepted)] == ["a (800)", "b (900)", "c", "d"]
    kept = shrunk(found, excepted)
    assert kept["lines"] == {"a": 790, "c": 710}
    assert [line.partition(":")[0] for line in differences(found, kept)] == ["a (800)", "b (900)"]


def test_a_circle_may_become_smaller() -> None:
    """A part of an excepted circle is excepted; a folder more is not."""
    excepted = {"circles": {"a b c": 5}}
    assert shrunk({"circles": {"a b": 2}}, excepted)["circles"] == {"a b": 2}
    assert shrunk({"circles": {"a b d": 3}}, excepted)["circles"] == {}
    assert differences({"circles": {"a b c": 6}}, excepted) != []
    assert differences({"circles": {"a b": 2}}, {"circles": {"a b": 2}}) == []


def test_the_list_is_written_as_it_is_read() -> None:
    """Every rule has a word that explains it."""
    excepted = tomllib.loads(structure.LIST.read_text("utf-8"))
    assert excepted.keys() <= RULES.keys()
    assert tomllib.loads(written(excepted)) == excepted
