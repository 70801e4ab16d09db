"""`tandem wait` and `tandem status --watch`: conditions, time-outs, Ctrl-C, and stores that come and go."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.pairs.sights import listening, message, sight

from tandem.backup_avro.chain.entries import EntryKind
from tandem.backup_avro.documents.coordination_message import CoordinationEvent
from tandem.backup_avro.errors import ConfigError, PermanentError, TransientError
from tandem.controller.cli.main import run
from tandem.controller.cli.output.repeat import looks
from tandem.controller.status.overview import Overview, overview
from tandem.controller.status.wait_conditions import parse
from tandem.sink.store import ObjectStore
from tandem.sink.store.chain import pins
from tandem.sink.store.chain.chain_writer import now_ms

ROOT = Path(__file__).parents[5]
ORDERS = TopicSpec("orders", partitions=2)
_MAIN = "from tandem.controller.cli.main import main; main()"
BOTH = {"a": 1.0, "b": 2.0}


def begun(store: ObjectStore, number: int = 1, instance: str = "a") -> Backup:
    """A generation that is being built."""
    return Backup.begun(store, records("orders", 0, range(10)), topics=[ORDERS], number=number, instance=instance)


def completed(store: ObjectStore, number: int = 1, instance: str = "a") -> Backup:
    """A generation that is COMPLETE."""
    backup = begun(store, number, instance)
    backup.complete()
    return backup


def lacks(goal: str, found: Overview) -> str | None:
    """What is missing of a goal."""
    return parse(goal, ("a", "b")).lacks(found)


def test_complete(store: ObjectStore) -> None:
    """Not before a generation is complete, and not while the newest is tainted."""
    assert "nothing is stored yet" in str(lacks("complete", overview(sight(store))))
    backup = begun(store)
    assert "is being built" in str(lacks("complete", overview(sight(store))))
    backup.complete()
    assert lacks("complete", overview(sight(store))) is None
    backup.taint("orders", 0, 10)
    assert "tainted" in str(lacks("complete", overview(sight(store))))


def test_steady_from_the_request_to_the_last_object(store: ObjectStore) -> None:
    """Each step of a handover is unsteady and says what it waits for; the end is steady."""
    old = completed(store)
    assert lacks("steady", overview(sight(store, heard_s=BOTH))) is None
    at = now_ms(store)
    asked = listening(
        message(instance="a", at=at, state="Active"),
        message(instance="b", at=at, state="Passive"),
        message(CoordinationEvent.ACTIVATE, instance="cli", at=at, target="b", generation=2, reason="drill"),
    )
    found = overview(sight(store, listener=asked))
    assert lacks("steady", found) == "b was asked to build generation 2, which is not claimed yet"
    assert [(one.by, one.target, one.generation) for one in found.requests] == [("cli", "b", 2)]
    new = begun(store, 2, "b")
    assert "generation 2 waits for" in str(lacks("steady", overview(sight(store, heard_s=BOTH))))
    new.complete()
    assert "generation 1 waits for a to seal it" in str(lacks("steady", overview(sight(store, heard_s=BOTH))))
    old.seal()
    assert lacks("steady", overview(sight(store, heard_s=BOTH))) == "generation 1 waits for a to clear it"
    assert lacks("steady", overview(sight(store, heard_s=BOTH, window_s=60.0))) is None
    assert "was last heard" in str(lacks("steady", overview(sight(store, heard_s={"a": 1, "b": 900}))))


def test_what_a_checkpoint_keeps_is_steady(store: ObjectStore) -> None:
    """A sealed generation that is pinned for good waits for nothing that comes by itself."""
    completed(store).seal()
    completed(store, 2, "b")
    pins.put_pin(
        store, PAIR, generation=1, owner="checkpoint x", until=pins.FOR_EVER, pin_id=f"{pins.LASTING}{'0' * 16}"
    )
    assert lacks("steady", overview(sight(store, heard_s=BOTH))) is None
    assert lacks("cleared=1", overview(sight(store))) is None


def test_generations_by_number(store: ObjectStore) -> None:
    """COMPLETE of N or of a newer one; cleared when nothing but its chain is left, or when the rest stays."""
    assert lacks("generation=1", overview(sight(store))) == "generation 1 is not claimed yet"
    assert lacks("cleared=1", overview(sight(store))) == "generation 1 is not claimed yet"
    old = begun(store)
    assert "generation 1 of a waits for" in str(lacks("generation=1", overview(sight(store))))
    old.complete()
    assert lacks("generation=1", overview(sight(store))) is None
    assert lacks("cleared=1", overview(sight(store))) == "generation 1 is the newest complete one"
    completed(store, 2, "b")
    old.seal()
    assert lacks("generation=2", overview(sight(store))) is None
    assert lacks("cleared=1", overview(sight(store))) == "generation 1 waits for a to clear it"
    clearing = old.clearing()
    old.append(EntryKind.CLEARED, clearing=clearing)
    assert lacks("cleared=1", overview(sight(store))) is None


def test_roles(store: ObjectStore) -> None:
    """By the last heartbeat of who is alive; brokers that do not answer are not taken for a role."""
    completed(store)
    found = overview(sight(store, heard_s={"a": 1}))
    assert lacks("role=a:passive", found) is None
    assert lacks("role=a:Active", found) == "a is Passive"
    assert lacks("role=b:Passive", found) == "b is not alive"
    assert "is not known: the brokers were not asked" in str(lacks("role=a:Active", overview(sight(store))))


@pytest.mark.parametrize(
    ("goal", "says"),
    [
        ("ready", "choose complete, steady"),
        ("complete=1", "choose complete"),
        ("generation=last", "choose complete"),
        ("generation=0", "choose complete"),
        ("role=a", "ROLE one of Passive"),
        ("role=c:Active", "choose a or b"),
        ("", "choose complete"),
    ],
)
def test_conditions_that_are_none(goal: str, says: str) -> None:
    """Each is refused with what there is."""
    with pytest.raises(ConfigError) as caught:
        parse(goal, ("a", "b"))
    assert says in str(caught.value)


def test_it_ends_as_soon_as_it_holds(store: ObjectStore, config: str, capsys: pytest.CaptureFixture[str]) -> None:
    """At once if it holds already; later, if it becomes so meanwhile. The document says how long it took."""
    backup = begun(store)
    threading.Timer(0.5, backup.complete).start()
    assert (
        run(["wait", "-c", config, "--for", "complete", "--for", "generation=1", "--timeout", "60s", "-o", "json"]) == 0
    )
    told = json.loads(capsys.readouterr().out)
    assert (told["kind"], told["met"]) == ("Wait", True)
    assert [one["condition"] for one in told["conditions"]] == ["complete", "generation=1"]
    assert run(["wait", "-c", config, "--for", "complete"]) == 0
    assert capsys.readouterr().out.startswith(f"pair {PAIR}: complete, after ")


def test_a_time_out_ends_with_4_and_what_is_missing(
    store: ObjectStore, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing but the document on stdout; the error names the condition."""
    begun(store)
    assert run(["wait", "-c", config, "--for", "complete", "--timeout", "10ms"]) == 4
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "error: not complete after 10ms: there is no complete backup" in printed.err
    assert run(["wait", "-c", config, "--for", "complete", "--timeout", "10ms", "-o", "json"]) == 4
    assert json.loads(capsys.readouterr().out)["conditions"][0]["met"] is False


def test_a_store_that_stops_to_answer_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    """Told once for each time it is away; what will not pass is raised."""
    answers: Iterator[int | Exception] = iter(
        [
            1,
            TransientError("no answer", code="TDM-X001"),
            TransientError("no answer", code="TDM-X001"),
            2,
            TransientError("again", code="TDM-X001"),
            3,
            ValueError("bug"),
        ]
    )

    def look() -> int:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    seen: list[int] = []
    with pytest.raises(ValueError, match="bug"):
        seen.extend(looks(look, every_s=0.001))
    assert seen == [1, 2, 3]
    assert capsys.readouterr().err.splitlines() == [
        "warning: no answer, going on: no answer",
        "warning: no answer, going on: again",
    ]


def test_the_first_look_must_succeed_and_the_last_is_at_the_end() -> None:
    """A store that never answered is an error; what came true in the last moment counts."""

    def refuse() -> int:
        raise PermanentError("403", code="TDM-X001")

    with pytest.raises(PermanentError):
        next(looks(refuse, every_s=1))
    assert len(list(looks(lambda: 1, every_s=60, for_s=0.01))) == 2


def watch(config: str, *arguments: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
    """Start `tandem status -w` in a process of its own."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TANDEM_")}
    return subprocess.Popen(
        [sys.executable, "-c", _MAIN, "status", "-c", config, "--s3-only", *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env={**environ, "TERM": "xterm"},
    )


def test_watching_through_a_pipe_prints_one_document_after_the_other(store: ObjectStore, config: str) -> None:
    """A line each, no escapes, with what has changed meanwhile; Ctrl-C ends with 0 and without a word."""
    backup = begun(store)
    process = watch(config, "-w", "0.1", "-o", "json")
    assert process.stdout is not None
    first = json.loads(process.stdout.readline())
    backup.complete()
    deadline = time.monotonic() + 30
    while not (now := json.loads(process.stdout.readline()))["healthy"]:
        assert time.monotonic() < deadline
    assert (first["kind"], first["healthy"], now["generations"][0]["state"]) == ("Status", False, "COMPLETE")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, b"")


def test_watching_on_a_terminal_draws_anew(store: ObjectStore, config: str) -> None:
    """Each picture begins on an empty screen."""
    completed(store)
    ours, theirs = pty.openpty()
    try:
        process = watch(config, "-w", "0.1", stdout=theirs)
        os.close(theirs)
        text = b""
        deadline = time.monotonic() + 30
        while text.count(b"\x1b[2J") < 3:
            assert time.monotonic() < deadline, text
            if select.select([ours], [], [], 0.2)[0]:
                text += os.read(ours, 65536)
        assert text.startswith(b"\x1b[H\x1b[2J")
        assert b"HEALTHY" in text
        process.send_signal(signal.SIGINT)
        while process.poll() is None:  # what it still writes must not block it
            if select.select([ours], [], [], 0.2)[0]:
                try:
                    os.read(ours, 65536)
                except OSError:
                    break
        assert process.wait(timeout=30) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""
        process.stderr.close()
    finally:
        os.close(ours)


def test_how_often_needs_the_watch(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A number alone is a mistake, with the way to write it; so is one that is no time."""
    assert run(["status", "-c", config, "5"]) == 2
    assert "write `tandem status -w 5`" in capsys.readouterr().err
    assert run(["status", "-c", config, "-w", "0"]) == 2
