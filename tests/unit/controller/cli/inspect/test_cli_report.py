"""`tandem report`: the page as a file from the store alone, and when it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.backups.build_backup import Backup, TopicSpec, records
from support.backups.requests import job_outcome
from support.pages.html_check import checked

from tandem.backup_avro.chain.entries import EntryKind
from tandem.controller.cli.main import run
from tandem.sink.store import ObjectStore, open_store
from tandem.sink.store.chain import outcomes
from tandem.sink.store.chain.chain_writer import now_ms

ORDERS = TopicSpec("orders", partitions=2)


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    """A file store with a turn that is over and one that is not."""
    (tmp_path / "store").mkdir()
    store = open_store((tmp_path / "store").as_uri())
    for number, instance in ((1, "a"), (2, "b")):
        backup = Backup.completed(
            store, records("orders", 0, range(50)), topics=[ORDERS], number=number, instance=instance
        )
        if number == 1:
            backup.seal()
            backup.append(EntryKind.CLEARED, clearing=backup.clearing())
    return store


def test_a_report_is_one_file(
    tmp_path: Path, store: ObjectStore, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Generations, turns that are over too, the last runs; nothing on stdout, where it is on stderr."""
    run_ = job_outcome(at=now_ms(store), by="me", what="all of it", records=1, bytes=1)
    outcomes.put_outcome(store, run_)
    target = tmp_path / "status.html"
    assert run(["report", "-c", config, "--html", str(target)]) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert str(target) in printed.err
    told = checked(target.read_text("utf-8"))
    assert "from the store alone" in told.text
    assert next(text for text in told.texts("li") if text.startswith("generation")).endswith("sealed, cleared")
    assert "generation 2 of b" in told.text
    assert "all of it" in told.text
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == [], "no half of a file is left"


def test_stdout(config: str, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    """`-` prints the page and nothing else."""
    assert run(["report", "-c", config, "--html", "-"]) == 0
    checked(capsysbinary.readouterr().out.decode())


def test_a_file_that_exists_is_kept_unless_forced(
    tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 5 and what to do; with --force it is replaced."""
    target = tmp_path / "status.html"
    target.write_text("precious")
    assert run(["report", "-c", config, "--html", str(target)]) == 5
    assert "--force writes over it" in capsys.readouterr().err
    assert target.read_text() == "precious"
    assert run(["report", "-c", config, "--html", str(target), "--force"]) == 0
    checked(target.read_text("utf-8"))


def test_a_file_that_somebody_makes_meanwhile_is_kept(
    tmp_path: Path, config: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The check before is for a quick answer; what counts is the moment of writing."""
    target = tmp_path / "status.html"
    monkeypatch.setattr("tandem.controller.cli.inspect.report._check", lambda *_, **__: target.write_text("precious"))
    assert run(["report", "-c", config, "--html", str(target)]) == 5
    assert "it exists" in capsys.readouterr().err
    assert target.read_text() == "precious"


@pytest.mark.parametrize(
    ("place", "words"),
    [("nowhere/status.html", "there is no folder"), (".", "it is a folder")],
    ids=["no folder", "a folder"],
)
def test_a_wrong_place_is_named(
    place: str, words: str, config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A usage error before anything is read."""
    assert run(["report", "-c", config, "--html", str(tmp_path / place)]) == 2
    assert words in capsys.readouterr().err


def test_an_empty_store_is_a_page_too(
    config: str, store: ObjectStore, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """It says that there is nothing; the exit code is about the report, not about the pair."""
    store.delete([info.key for info in store.list("")])
    assert run(["report", "-c", config, "--html", "-"]) == 0
    assert "nothing is stored yet" in checked(capsysbinary.readouterr().out.decode()).text
