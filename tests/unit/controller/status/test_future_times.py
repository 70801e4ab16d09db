"""Messages from the future: no dead instance is hidden by one, and it is named."""

from __future__ import annotations

import pytest
from support.backups.build_backup import Backup, records
from support.pairs.sights import LIVENESS_S, listening, message, sight
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.documents.coordination_message import CoordinationEvent
from tandem.controller.coordination.topic import appended_at
from tandem.controller.status.health import Fault
from tandem.controller.status.overview import Overview, overview
from tandem.sink.store.chain.chain_writer import now_ms

YEAR_S = 365 * 86_400


@pytest.fixture
def store() -> MemoryStore:
    """A complete generation of a, an hour ago."""
    store = MemoryStore(clock_ms=1_700_000_000_000, step_ms=0)
    Backup.completed(store, records("t", 0, range(5)))
    store.clock_ms += 3_600_000
    return store


def looked(store: MemoryStore, ahead_s: float, event: CoordinationEvent = CoordinationEvent.PROGRESS) -> Overview:
    """What is seen when the last word of a is dated so many seconds ahead, and b is well."""
    at = now_ms(store)
    return overview(
        sight(
            store,
            listener=listening(
                message(instance="b", at=at),
                message(event, instance="a", at=at + round(ahead_s * 1000), state="Active"),
            ),
        )
    )


@pytest.mark.parametrize("ahead_s", [LIVENESS_S, YEAR_S, 7_000 * YEAR_S])
@pytest.mark.parametrize("event", [CoordinationEvent.PROGRESS, CoordinationEvent.LEAVING])
def test_a_message_from_the_future_is_no_sign_of_life(
    store: MemoryStore, ahead_s: float, event: CoordinationEvent
) -> None:
    """One such message once had a dead Active shown as alive for a year."""
    found = looked(store, ahead_s, event)
    faults = [problem.fault for problem in found.problems]
    assert Fault.ACTIVE_SILENT in faults
    assert Fault.TIME_IN_THE_FUTURE in faults
    assert Fault.INSTANCE_SILENT not in faults
    assert [one.alive for one in found.instances] == [False, True]
    (named,) = (one for one in found.problems if one.fault is Fault.TIME_IN_THE_FUTURE)
    assert named.message.startswith("a is not known to live: its last message is dated ")
    assert "tandem coordination tail" in named.remedy


def test_clocks_may_differ_a_little(store: MemoryStore) -> None:
    """As far as an instance may be silent."""
    found = looked(store, LIVENESS_S - 1)
    assert [one.alive for one in found.instances] == [True, True]
    assert Fault.TIME_IN_THE_FUTURE not in [problem.fault for problem in found.problems]


def test_two_processes_are_not_seen_for_ever(store: MemoryStore) -> None:
    """A forged message under a's name, dated next year, and then a again."""
    at = now_ms(store)
    heard = listening(
        message(instance="b", at=at),
        message(instance="a", incarnation="1", at=at),
        message(instance="a", incarnation="2", at=at),
        message(instance="a", incarnation="1", at=at + YEAR_S * 1000),
        message(instance="a", incarnation="1", at=at),
    )
    assert Fault.TWO_PROCESSES not in [problem.fault for problem in overview(sight(store, listener=heard)).problems]


def test_the_brokers_time_counts_where_they_say_it() -> None:
    """What was appended an hour ago is an hour old, whatever it says; one that came late is as old as it says."""
    peers = listening()
    peers.note_message(message(instance="a", at=9_000), appended_at=4_000)
    peers.note_message(message(instance="b", at=3_000), appended_at=4_000)
    assert {name: one.at for name, one in peers.last_heard().items()} == {"a": 4_000, "b": 3_000}
    asked = message(CoordinationEvent.ACTIVATE, instance="cli", at=9_000, target="a", generation=2)
    peers.note_message(asked, appended_at=4_000)
    assert [one.at for one in peers.requests()] == [4_000]
    assert [one.at for one in peers.activations()] == [9_000], "it is what was signed, and compared with a pause"


class _Record:
    def __init__(self, kind: int) -> None:
        self._kind = kind

    def timestamp(self) -> tuple[int, int]:
        return self._kind, 4_711


def test_a_senders_time_is_not_the_brokers() -> None:
    """Of the three kinds of timestamps one is the broker's own."""
    assert [appended_at(_Record(kind)) for kind in range(3)] == [None, None, 4_711]  # type: ignore[arg-type]  # enough of one
