"""`tandem failover`, what needs no brokers: what is said before and while, and how it ends."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from support.backups.build_backup import CLUSTER, PAIR
from support.pairs.sights import listening, message

from tandem.backup_avro.documents.coordination_message import CoordinationEvent
from tandem.backup_avro.errors import TandemError, TimedOutError
from tandem.controller.cli.handover import failover
from tandem.controller.cli.options.consent import one_line
from tandem.controller.history.handover_progress import HandoverPlan, HandoverStanding, HandoverStep, Stage


def plan(**changes: Any) -> HandoverPlan:
    """A plan from a to b."""
    fields: dict[str, Any] = {
        "pair": PAIR,
        "cluster_id": CLUSTER,
        "target": "b",
        "generation": 2,
        "active": "a",
        "former": 1,
        "records": 1_234_567,
        "bytes": 64 << 20,
        "scan_s": 75.0,
        "window_s": 0.0,
        "window_start": 1_700_000_000_000,
        "warnings": (),
    }
    return HandoverPlan(**fields | changes)


def at(stage: Stage, builder: str | None = "b", *steps: str) -> HandoverStanding:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    return HandoverStanding(
        stage=stage, builder=builder, steps=tuple(HandoverStep(step=s, at=moment, seconds=2.0) for s in steps)
    )


def test_what_it_costs_is_said() -> None:
    """Who is Active, who takes over, what is read again and stored twice, how long it took the last time."""
    text = "\n".join(failover._costs(plan(warnings=("mind the gap",))))
    assert "a is Active with generation 1; b shall build generation 2 and take over" in text
    assert "1,234,567 records (64.0 MiB as they are stored)" in text
    assert "64.0 MiB more until the old generation is cleared" in text
    assert "took 1m 15s from its claim to COMPLETE" in text
    assert "stays the backup until the new one is complete and covers it" in text
    assert text.endswith("note         mind the gap")


def test_what_it_costs_in_other_situations() -> None:
    """Nobody Active; beside itself; a recovery window; no scan to compare with."""
    assert "nobody is Active; b shall build" in "\n".join(failover._costs(plan(active=None, former=None)))
    beside = "\n".join(failover._costs(plan(target="a", window_s=60.0, scan_s=None)))
    assert "take over" not in beside
    kept = "when the old one is cleared, 1m after the handover (recovery.window)"
    assert (
        f"from 2023-11-14 22:13:20Z on can be restored now; those before the new generation is complete go {kept}"
        in beside
    )
    assert "go when the old one is cleared, right after the handover" in "\n".join(failover._costs(plan()))
    assert "duration" not in beside


def test_what_a_checkpoint_keeps_does_not_go() -> None:
    """Storage and moments are those of a generation that stays, and nothing says that it is cleared."""
    for window_s in (0.0, 60.0):
        text = "\n".join(failover._costs(plan(kept_for=("checkpoint x",), window_s=window_s)))
        assert "64.0 MiB more as long as generation 1 is kept for checkpoint x" in text
        assert "can be restored now; those of generation 1 stay as long as it is kept" in text
        assert "cleared" not in text


@pytest.mark.parametrize(
    ("stage", "text"),
    [
        (Stage.REQUESTED, "waiting for b to claim generation 2"),
        (Stage.BUILDING, "b builds generation 2: scanning, 500 offsets of the first reading to go, lag 7"),
        (Stage.COMPLETE, "generation 2 is complete; a reads on until that covers its generation 1"),
        (Stage.SEALED, "generation 1 is sealed; a clears it"),
        (Stage.DONE, "done: generation 2 of b is the backup"),
        (Stage.GIVEN_UP, "b has given generation 2 up"),
    ],
)
def test_progress_in_words(stage: Stage, text: str) -> None:
    """One line a stage; while it is built, what the builder's heartbeat says of this generation."""
    beat = message(instance="b", generation=2, lag_records=7, details={"phase": "scanning", "base_remaining": "500"})
    voice = listening(beat).last_heard()["b"]
    assert failover._progress(at(stage), plan(), voice) == text


def test_heartbeats_about_another_generation_are_not_progress() -> None:
    """A builder may still read an older generation: its figures are not those of the new one."""
    voice = listening(message(instance="b", generation=1, lag_records=7)).last_heard()["b"]
    assert failover._progress(at(Stage.BUILDING), plan(), voice) == "b builds generation 2"
    silent = listening(message(CoordinationEvent.CATCHING_UP, instance="b", generation=2)).last_heard()["b"]
    assert failover._progress(at(Stage.BUILDING), plan(), silent) == "b builds generation 2"


def test_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    """DONE is success; a time-out has its exit code and says that it goes on; given up says where to look."""
    failover._conclude(plan(), at(Stage.DONE), 60)
    assert capsys.readouterr().err == ""
    with pytest.raises(TimedOutError, match=r"not done after 1m: b builds generation 2") as late:
        failover._conclude(plan(), at(Stage.BUILDING), 60)
    assert (late.value.exit_code, "stays in force" in str(late.value.remedy)) == (4, True)
    with pytest.raises(TandemError, match="abandoned generation 2; nothing is lost") as given_up:
        failover._conclude(plan(), at(Stage.GIVEN_UP), 60)
    assert "tandem history --generation 2" in str(given_up.value.remedy)


def test_somebody_else_was_first(capsys: pytest.CaptureFixture[str]) -> None:
    """A handover by another builder than asked is a success with a warning."""
    failover._conclude(plan(), at(Stage.DONE, "a"), 60)
    assert "a claimed generation 2 before b did" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "kept"), [("  node\n drain ", "node drain"), ("", "manual failover"), ("x" * 500, "x" * 200)]
)
def test_reasons_are_one_short_line(given: str, kept: str) -> None:
    """A reason goes into messages and chains, and comes back in tables."""
    assert one_line(given, otherwise="manual failover") == kept
