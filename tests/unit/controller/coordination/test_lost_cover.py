"""Objects of what covers another copy are lost: how the two instances tell each other, and how people hear of it."""

from __future__ import annotations

import pytest
from support.backups.build_backup import Backup, records
from support.backups.chains import part
from support.pairs.sights import listening, message, sight
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.chain.entries import StoredObject
from tandem.backup_avro.documents.coordination_message import CoordinationEvent, CoordinationMessage
from tandem.controller.coordination.heartbeat import Heartbeat, heartbeat_in, message_fields
from tandem.controller.coordination.peer_state import PeerState
from tandem.controller.status.check import CheckLimits, Severity, check_pair
from tandem.controller.status.health import Fault
from tandem.controller.status.overview import overview
from tandem.sink.store.chain.chain_writer import now_ms
from tandem.sink.write.confirm import CoverLostError, ObjectLoss


def lost(kept: int, generation: int, count: int = 1) -> CoverLostError:
    """What keeps a generation."""
    items = [
        StoredObject(key=f"object-{number}", journal=False, bytes=10, sha256="", parts=(part(0, 1),))
        for number in range(count)
    ]
    return CoverLostError(kept, generation, [ObjectLoss(item, "is missing") for item in items])


def test_the_error_names_what_is_lost_and_what_to_do() -> None:
    """The first object of many; the two generations."""
    error = lost(1, 2, 3)
    assert (error.code, error.kept, error.generation) == ("TDM-B046", 1, 2)
    assert error.args[0].endswith("has lost objects: object-0 is missing, and 2 more")
    assert "holder of generation 2" in (error.remedy or "")
    assert lost(1, 2, 2).args[0].endswith("has lost objects: object-0 is missing, and 1 more")
    assert lost(1, 2).args[0].endswith("has lost objects: object-0 is missing")


def details(*errors: CoverLostError) -> dict[str, str]:
    """What a heartbeat stores while generations, by number, are kept because of these."""
    said = Heartbeat(
        objects_lost="; ".join(sorted(str(error.args[0]) for error in errors)),
        objects_lost_of=frozenset(error.generation for error in errors),
    )
    return dict(message_fields(said)["details"])


def test_a_heartbeat_says_whose_objects_are_lost() -> None:
    """For people in sentences, for the other instance in numbers."""
    assert message_fields(Heartbeat())["details"] == {}
    said = heartbeat_in(message(details=details(lost(3, 4), lost(1, 4), lost(2, 9))))
    assert said.objects_lost_of == {4, 9}
    assert str(said.objects_lost).startswith("generation 1 is kept")


@pytest.mark.parametrize("text", ["", "x", "-1", "2.5", "²", "1" * 100_000])
def test_whoever_can_write_to_the_topic_can_say_anything(text: str) -> None:
    """It is no number of a generation, and nothing breaks."""
    assert heartbeat_in(message(details={"objects_lost_of": text})).objects_lost_of == frozenset()


def test_only_what_the_peers_living_process_says_counts() -> None:
    """Whoever was restarted or left looks again by itself."""
    peers = PeerState(pair="shop", instances=("a", "b"), incarnation="a-1")
    told = details(lost(1, 2))

    def losses() -> frozenset[int]:
        said = peers.current_heartbeat("b")
        return frozenset() if said is None else said.objects_lost_of

    def heard(
        event: CoordinationEvent = CoordinationEvent.PROGRESS, *, live: bool = True, name: str = "b"
    ) -> frozenset[int]:
        said: CoordinationMessage = message(
            event, instance=name, details=told if event is CoordinationEvent.PROGRESS else {}
        )
        peers.note_message(said, heard_mono=1.0 if live else None)
        return losses()

    assert losses() == frozenset()
    assert heard(live=False) == frozenset()
    assert heard(name="a") == frozenset()
    assert heard() == {2}
    peers.note_message(message(instance="b"), heard_mono=2.0)
    assert losses() == frozenset(), "it does not miss them any more"
    heard()
    assert heard(CoordinationEvent.LEAVING) == frozenset()


def test_status_and_check_tell_people() -> None:
    """It can't wait for the morning: who did it may come back for the copy that is left."""
    store = MemoryStore()
    Backup.completed(store, records("t", 0, range(3)))
    at = now_ms(store)
    voices = [message(instance="a", at=at, details=details(lost(1, 2))), message(instance="b", at=at)]
    found = overview(sight(store, listener=listening(*voices)))
    problem = next(one for one in found.problems if one.fault is Fault.OBJECTS_LOST)
    assert problem.message == f"a: {lost(1, 2).args[0]}"
    assert "tandem failover" in problem.remedy
    assert check_pair(found, {}, CheckLimits()).severity is Severity.CRITICAL
