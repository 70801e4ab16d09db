"""`tandem verify --repair` asks for a new generation where that helps, and never where it takes the last copy away."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.backups.build_backup import PAIR, Backup, records

from tandem.controller.cli.handover import failover
from tandem.controller.cli.main import run
from tandem.sink.store import open_store
from tandem.spark_jobs.spark import session
from tandem.spark_jobs.verify import compare_keys
from tandem.spark_jobs.verify.compare_keys import CompareResult
from tandem.spark_jobs.verify.compare_plan import KeyFault, LatestRecord, PartitionResult, Suspect, only_in_first

_OLD, _NEW, _TOMBSTONE = LatestRecord(3, False), LatestRecord(5, False), LatestRecord(5, True)


@pytest.mark.parametrize(
    ("one", "lost"),
    [
        (Suspect(KeyFault.GONE, _OLD, None, 1), True),  # expired tombstone or lost record: nobody knows
        (Suspect(KeyFault.GONE, _NEW, _OLD, 1), True),
        (Suspect(KeyFault.DIFFERENT, _OLD, _OLD, 0), True),
        (Suspect(KeyFault.GONE, _OLD, _TOMBSTONE, 0), False),
        (Suspect(KeyFault.MISSING, None, _OLD, 0), False),
        (Suspect(KeyFault.STALE, _OLD, _NEW, 0), False),
        (Suspect(KeyFault.RETURNED, _TOMBSTONE, _OLD, 1), False),
    ],
)
def test_what_only_the_backup_has(one: Suspect, *, lost: bool) -> None:
    """A record that the topic lacks, unless a newer record or a tombstone in the topic explains it."""
    assert only_in_first(one) is lost


@pytest.mark.parametrize(
    ("counts", "lost", "code"),
    [
        ({KeyFault.GONE: 1}, 1, 5),
        ({KeyFault.GONE: 1, KeyFault.MISSING: 7}, 1, 5),
        ({KeyFault.MISSING: 1}, 0, 3),
        ({KeyFault.GONE: 1}, 0, 3),
    ],
)
@pytest.mark.parametrize("repair", [True, False])
def test_a_generation_that_lacks_what_the_backup_has_is_never_asked_for(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    counts: dict[KeyFault, int],
    lost: int,
    code: int,
    repair: bool,
) -> None:
    """It would be COMPLETE, and the only copy that has the record be cleared. The exit code says that it is refused."""
    (tmp_path / "store").mkdir()
    store = open_store((tmp_path / "store").as_uri())
    Backup.completed(store, records("orders", 0, range(5)))
    config = tmp_path / "a.yaml"
    config.write_text(
        f"pair: {PAIR}\ninstance: a\nkafka:\n  bootstrap.servers: nowhere:9092\ntopics:\n  include: [orders]\n"
        f"store:\n  root: {store.url}\n"
    )
    part = PartitionResult(topic="orders", partition=0, start=0, cut=9, counts=counts, lost=lost)
    result = CompareResult(pair=PAIR, root=store.url, against="topic", generation=1, partitions=(part,))
    asked = []

    def ask(*_: object, **__: object) -> SimpleNamespace:
        asked.append(1)
        return SimpleNamespace(request_id="r", generation=2, target="b")

    monkeypatch.setattr(session, "session", lambda *_, **__: nullcontext(None))
    monkeypatch.setattr(compare_keys, "against_topic", lambda *_, **__: result)
    monkeypatch.setattr(failover, "ask_for_a_new_one", ask)
    words = ["--repair", "--yes"] if repair else []
    assert run(["verify", "-c", str(config), "--against-topic", *words]) == (code if repair else 3)
    shown = " ".join(capsys.readouterr().out.split())
    assert len(asked) == (repair and not lost)
    assert ("tandem restore --append --topics TOPIC --key KEY" in shown) is bool(lost)
    assert ("`tandem pause` holds turns back" in shown) is bool(lost)
