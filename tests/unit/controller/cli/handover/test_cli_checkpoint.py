"""`tandem checkpoint` and `tandem release`, what needs no brokers: how checkpoints are seen, shown, and how it ends."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.backups.build_backup import CLUSTER, PAIR, Backup, TopicSpec, records
from support.backups.requests import cut_request

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import PartitionKey
from tandem.backup_avro.documents.checkpoint import CheckpointOutcome, CheckpointRequest, CheckpointState
from tandem.backup_avro.errors import ConfigError, ExitCode, RefusedError, TandemError, TimedOutError, TransientError
from tandem.backup_avro.selection.coverage import GuardedPartitions
from tandem.controller.cli.handover import checkpoint
from tandem.controller.cli.main import run
from tandem.controller.cli.maintain import release as release_command
from tandem.controller.cli.options import consent
from tandem.controller.config import Config
from tandem.controller.history.releasable import ReleasableLoss, ReleaseDocument
from tandem.controller.status.checkpoint_view import CheckpointStatus, CheckpointStatusReader, _check_sight, _refuse
from tandem.controller.status.overview import GenerationState
from tandem.controller.watch.checkpoint_keeper import CheckpointKeeper
from tandem.sink.store import ObjectStore, StoreDeniedError, open_store
from tandem.sink.store.chain import checkpoints
from tandem.sink.store.chain.chain_writer import now_ms

ORDERS = TopicSpec("orders")
K = PartitionKey(ORDERS.topic().topic_id, 0)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SEEN = CheckpointStatus(
    id="nightly",
    status=CheckpointState.COMPLETED,
    requested_at=NOON,
    requested_by="me@here",
    reason="a test",
    deadline=NOON,
    settled_at=NOON,
    generation=3,
    seq=12,
    restorable=True,
)


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    (tmp_path / "root").mkdir()
    return open_store((tmp_path / "root").as_uri())


@pytest.fixture
def config(tmp_path: Path, store: ObjectStore, absent_brokers: str) -> Path:
    """A configuration for it; its brokers do not exist."""
    del store
    path = tmp_path / "a.yaml"
    path.write_text(
        json.dumps(
            {
                "pair": PAIR,
                "topics": {"include": ["orders"]},
                "kafka": {"bootstrap.servers": absent_brokers},
                "store": {"root": (tmp_path / "root").as_uri()},
            }
        )
    )
    return path


def completed(store: ObjectStore) -> Backup:
    """A COMPLETE generation of ten records."""
    return Backup.completed(store, records("orders", 0, range(10)))


def asked(store: ObjectStore, end: int = 10, *, name: str = "nightly", lifetime_ms: int = 600_000) -> CheckpointRequest:
    """A request that was put."""
    at = now_ms(store)
    made = cut_request(
        id=name,
        nonce=f"{hash(name) & 0xFFFF:032x}",
        at=at,
        deadline=at + lifetime_ms,
        topics={K.topic_id: "orders"},
        cut={K: end},
    )
    return checkpoints.put_request(store, made).request


def finish(store: ObjectStore, backup: Backup) -> None:
    """Let the owner complete what is open."""
    keeper = CheckpointKeeper(store, pair=PAIR, me="a", same_logs=lambda state, keys: bool(state.number and keys))
    guarded = GuardedPartitions(cluster_id=CLUSTER, topics={K.topic_id: ("orders", 1)})
    keeper.read_checkpoints()
    keeper.prove(backup.writer.state, guarded)
    keeper.finish(backup.writer, guarded)


# --- seeing -----------------------------------------------------------------------------------------------------------


def test_the_four_statuses(store: ObjectStore) -> None:
    """From the store alone: nothing, waiting with what for, completed with where, failed with why."""
    status_reader = CheckpointStatusReader(store, PAIR, by="me@here")
    assert status_reader.read_status("nightly").status is CheckpointState.DOES_NOT_EXIST
    backup = completed(store)
    asked(store, 12)
    waiting = status_reader.read_status("nightly")
    assert (waiting.status, waiting.restorable) == (CheckpointState.ONGOING, False)
    assert waiting.detail == "generation 1: orders-0 is at 10, the cut is at 12"
    asked(store, 10, name="reached")
    finish(store, backup)
    reached = status_reader.read_status("reached")
    assert (reached.status, reached.generation, reached.restorable, reached.why_not) == (
        CheckpointState.COMPLETED,
        1,
        True,
        None,
    )
    assert [(item.topic, item.partition, item.end) for item in reached.partitions] == [("orders", 0, 10)]
    asked(store, 12, name="late", lifetime_ms=0)
    late = status_reader.read_status("late")
    assert late.status is CheckpointState.FAILED
    assert "not reached by" in (late.detail or "")
    assert "orders-0 is at 10" in (late.detail or "")
    found, damaged = status_reader.all()
    assert ([item.id for item in found], damaged) == (["nightly", "reached", "late"], {})


def test_whoever_looks_after_the_deadline_says_so_for_good(store: ObjectStore) -> None:
    """It is written; who may only read sees the same, and leaves it to others."""

    class ReadOnly:
        """The store, to someone who may not write."""

        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        def put_if_absent(self, key: str, _: bytes) -> None:
            raise StoreDeniedError(key, code="TDM-X001")

    request = asked(store, lifetime_ms=0)
    reader = CheckpointStatusReader(ReadOnly(), PAIR, by="reader")  # type: ignore[arg-type]  # all that is needed
    assert reader.read_status("nightly").status is CheckpointState.FAILED
    assert checkpoints.outcome_of(store, request) is None
    CheckpointStatusReader(store, PAIR, by="me@here").read_status("nightly")
    held = checkpoints.outcome_of(store, request)
    assert held is not None
    assert (held.completed, held.by) == (False, "me@here")


def test_a_cleared_generation_restores_nothing(store: ObjectStore) -> None:
    """Completed it stays; that it can't be restored any more is said, with the reason."""
    backup = completed(store)
    asked(store)
    finish(store, backup)
    backup.seal()
    backup.clearing()  # as if the time it was to be kept had ended
    seen = CheckpointStatusReader(store, PAIR, by="x").read_status("nightly")
    assert (seen.status, seen.restorable) == (CheckpointState.COMPLETED, False)
    assert "generation 1, which holds it, is being cleared (orders-0)" in (seen.why_not or "")


# --- commands ---------------------------------------------------------------------------------------------------------


def test_show_and_list_and_delete(store: ObjectStore, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit codes and documents, without any broker."""
    backup = completed(store)
    asked(store)
    finish(store, backup)
    asked(store, 12, name="late", lifetime_ms=0)
    capsys.readouterr()
    assert run(["checkpoint", "show", "nightly", "-c", str(config), "-o", "json"]) == ExitCode.OK
    document = json.loads(capsys.readouterr().out)
    assert (document["kind"], document["status"], document["restorable"]) == ("Checkpoint", "completed", True)
    assert run(["checkpoint", "show", "late", "-c", str(config)]) == ExitCode.UNHEALTHY
    assert "checkpoint late: failed: not reached by" in capsys.readouterr().out
    assert run(["checkpoint", "show", "none", "-c", str(config)]) == ExitCode.ERROR
    assert "checkpoint none: does-not-exist" in capsys.readouterr().out
    assert run(["checkpoint", "show", "../x", "-c", str(config)]) == ExitCode.USAGE
    assert run(["checkpoint", "list", "-c", str(config)]) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["nightly", "completed"], ["late", "failed"]]
    assert run(["checkpoint", "create", "--id", "nightly", "-c", str(config), "-o", "json"]) == ExitCode.OK
    assert "was asked for before, by me@here" in capsys.readouterr().err
    assert run(["checkpoint", "create", "--id", "late", "-c", str(config)]) == ExitCode.TIMED_OUT
    assert "`tandem checkpoint delete late` frees its name" in " ".join(capsys.readouterr().err.split())


def test_one_that_can_not_be_read_is_named(
    store: ObjectStore, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The list goes on without it, and is not healthy."""
    completed(store)
    store.put_if_absent(layout.checkpoint_key(PAIR, "broken"), b"{")
    assert run(["checkpoint", "list", "-c", str(config)]) == ExitCode.UNHEALTHY
    assert "checkpoint broken can't be read" in capsys.readouterr().err


def test_spans_must_make_sense(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A duration, and nothing that would be let go before it could be completed."""
    assert run(["checkpoint", "create", "--timeout", "soon", "-c", str(config)]) == ExitCode.USAGE
    assert run(["checkpoint", "create", "--keep", "5m", "--timeout", "10m", "-c", str(config)]) == ExitCode.USAGE
    assert "[TDM-H001]" in capsys.readouterr().err


def test_how_creating_ends() -> None:
    """Completed and ongoing are no errors; too late is another one than impossible."""
    checkpoint.conclude(SEEN)
    checkpoint.conclude(replace(SEEN, status=CheckpointState.ONGOING, generation=None, settled_at=None))
    late = replace(SEEN, status=CheckpointState.FAILED, generation=None, detail="not reached")
    with pytest.raises(TimedOutError, match="checkpoint nightly failed: not reached"):
        checkpoint.conclude(late)
    with pytest.raises(TandemError, match="failed: the topic is gone") as early:
        checkpoint.conclude(replace(late, deadline=NOON.replace(hour=13), detail="the topic is gone"))
    assert early.value.exit_code is ExitCode.ERROR
    with pytest.raises(TandemError, match="TDM-H002"):
        checkpoint.conclude(CheckpointStatus(id="nightly", status=CheckpointState.DOES_NOT_EXIST))


def test_what_people_are_shown() -> None:
    """Where it is held, until when, and how to restore it; or why that is not possible."""
    (text,) = checkpoint._tables(SEEN)
    assert isinstance(text, str)
    assert "asked for 2026-01-01 12:00:00Z by me@here (a test)" in text
    assert "held by generation 3, entry 12; kept until it is deleted" in text
    assert "`tandem restore --checkpoint nightly` restores it" in text
    (gone,) = checkpoint._tables(replace(SEEN, restorable=False, why_not="it is cleared", kept_until=NOON))
    assert isinstance(gone, str)
    assert "kept until 2026-01-01 12:00:00Z\ncan't be restored: it is cleared" in gone
    (waiting,) = checkpoint._tables(replace(SEEN, status=CheckpointState.ONGOING, generation=None, settled_at=None))
    assert isinstance(waiting, str)
    assert "fails unless it is completed by 2026-01-01 12:00:00Z" in waiting


def test_why_one_is_refused(store: ObjectStore) -> None:
    """Nothing complete, another cluster, a taint, a partition that is not read through: each is said."""
    cut, names = {K: 10}, {K.topic_id: "orders"}
    with pytest.raises(RefusedError, match="TDM-I043"):
        _refuse([], CLUSTER, cut, names)
    backup = completed(store)
    with pytest.raises(RefusedError, match="belong to cluster another"):
        _refuse([backup.writer.state], "another", cut, names)
    other = {PartitionKey("new", n): 0 for n in range(2)}
    with pytest.raises(RefusedError, match="has not read new-0, new-1 through yet"):
        _refuse([backup.writer.state], CLUSTER, other, {"new": "new"})
    backup.taint("orders", 0, 10)
    with pytest.raises(RefusedError, match="generation 1 is tainted"):
        _refuse([backup.writer.state], CLUSTER, cut, names)


def test_a_topic_that_these_credentials_do_not_show_is_no_part_of_a_cut(store: ObjectStore) -> None:
    """A cut without it would look whole and lack it: it is said instead. What is not guarded any more is no matter."""
    state = completed(store).writer.state
    settings = Config.model_validate(
        {
            "pair": PAIR,
            "topics": {"include": ["orders"]},
            "kafka": {"bootstrap.servers": "127.0.0.1:1"},
            "store": {"root": "s3://bucket/prefix"},
        }
    )
    _check_sight(settings, [state], GuardedPartitions(cluster_id=CLUSTER, topics={K.topic_id: ("orders", 1)}))
    _check_sight(settings, [], GuardedPartitions(cluster_id=CLUSTER, topics={}))
    for topics in ({}, {"recreated": ("orders", 1)}):
        with pytest.raises(TransientError, match="generation 1 reads orders, but the brokers do not list it"):
            _check_sight(settings, [state], GuardedPartitions(cluster_id=CLUSTER, topics=topics))
    others = settings.model_copy(update={"topics": settings.topics.model_copy(update={"include": ("users",)})})
    _check_sight(others, [state], GuardedPartitions(cluster_id=CLUSTER, topics={}))


# --- release ----------------------------------------------------------------------------------------------------------


def test_what_a_release_costs_is_said_first(capsys: pytest.CaptureFixture[str]) -> None:
    """By generation: records, bytes, since when, and what it waits for."""
    loss = ReleasableLoss(
        generation=3,
        instance="a",
        state=GenerationState.KEPT,
        partitions=(0, 1),
        records=12_345,
        bytes=3 << 20,
        last_read_at=NOON,
        waits_for="checkpoint nightly",
    )
    found = ReleaseDocument(
        pair=PAIR,
        topic="old",
        topic_id="the-id",
        partitions=None,
        through=3,
        why="it is gone",
        losses=(loss,),
        warnings=(),
    )
    text = "\n".join(release_command._costs(found))
    assert "about to let go of old (topic id the-id) in generations up to 3" in text
    assert "generation 3 of a: 12,345 records, 3.0 MiB in 2 partitions, last read 2026-01-01 12:00:00Z" in text
    assert "goes after checkpoint nightly" in text
    assert "can't be taken back" in text
    assert "partitions 0, 1 of old" in release_command._what(replace(found, partitions=(0, 1)))
    release_command._show(found, release_command.OutputFormat.JSON)
    assert json.loads(capsys.readouterr().out)["losses"][0]["records"] == 12_345


def test_consent_needs_a_terminal_or_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 5: it could lose data."""
    consent.consent("Really?", yes=True)
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    with pytest.raises(RefusedError, match="TDM-C020"):
        consent.consent("Really?", yes=False)


def test_brokers_are_needed_to_release(store: ObjectStore, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without them nobody knows what the cluster no longer has, so nothing is let go."""
    completed(store)
    assert run(["release", "orders", "--yes", "-c", str(config)]) == ExitCode.ERROR
    assert "[TDM-T005]" in capsys.readouterr().err
    assert not list(store.list(f"{PAIR}/releases/"))


def test_ids_are_checked_before_anything_is_asked() -> None:
    """A name that could leave its folder is a usage error."""
    with pytest.raises(ConfigError):
        layout.outcome_key(PAIR, "../x")
    assert CheckpointOutcome(id="a", nonce="b", at=1, by="c").completed is False
