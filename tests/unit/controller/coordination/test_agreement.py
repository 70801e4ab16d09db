"""Whether two instances store in one place and guard the same topics, by what each says in its heartbeats."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.pairs.sights import listening, message, sight
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.documents.coordination_message import CoordinationEvent, CoordinationMessage
from tandem.backup_avro.errors import DamagedError
from tandem.controller.coordination.agreement import PairTerms, dispute, topics_id
from tandem.controller.coordination.heartbeat import Heartbeat, heartbeat_in, message_fields
from tandem.controller.coordination.peer_state import PeerState
from tandem.controller.status.check import CheckLimits, Severity, check_pair
from tandem.controller.status.health import Fault
from tandem.controller.status.overview import overview
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.chain_writer import now_ms

HERE = PairTerms(root="s3://one/backup", origin="11", topics="t")
APART = "a stores under s3://one/backup, b under s3://two/backup: each backs up for itself"


def between(one: PairTerms, other: PairTerms) -> str:
    """What a and b differ in; the same from both sides."""
    found = dispute("a", one, "b", other)
    assert bool(found) == bool(dispute("b", other, "a", one))
    return found or ""


def test_one_place_under_two_names() -> None:
    """The same first claim is found there, so it is the same place: an alias, a mount."""
    assert between(HERE, replace(HERE, root="s3://alias/backup")) == ""


@pytest.mark.parametrize("origin", ["22", None])
def test_two_places(origin: str | None) -> None:
    """Another history, or none where the other one has some."""
    assert between(HERE, replace(HERE, root="s3://two/backup", origin=origin)).startswith(APART)


def test_one_name_on_two_servers() -> None:
    """Two endpoints have a bucket of the same name each."""
    assert "both store under s3://one/backup, but on two servers" in between(HERE, replace(HERE, origin="22"))


def test_too_early_to_tell() -> None:
    """Before the first claim is seen by both; and one that sees it a moment later is in the same place."""
    nothing = replace(HERE, origin=None)
    assert between(nothing, replace(nothing, root="s3://two/backup")) == ""
    assert between(HERE, nothing) == ""


def test_other_topics() -> None:
    """Told beside the rest."""
    assert between(HERE, replace(HERE, topics="u")).startswith("a and b guard different topics")
    both = between(HERE, PairTerms(root="s3://two/backup", origin=None, topics="u"))
    assert both.startswith(APART)
    assert "guard different topics" in both


def test_the_order_in_the_file_is_no_difference() -> None:
    """Nor is a name that is there twice; a name among the patterns is."""
    assert topics_id(["a", "b"], ["x"], []) == topics_id(["b", "a", "a"], ["x"], [])
    assert len({topics_id(["a"], [], []), topics_id([], ["a"], []), topics_id([], [], ["a"])}) == 3


@pytest.mark.parametrize("origin", ["11", None])
def test_what_is_said_is_understood(origin: str | None) -> None:
    """Both ways; an older release says nothing."""
    terms = replace(HERE, origin=origin)
    assert heartbeat_in(message(details=details(terms))).terms == terms
    assert heartbeat_in(message(details={"root": HERE.root})).terms is None
    assert heartbeat_in(message()).terms is None


def details(terms: PairTerms) -> dict[str, str]:
    """What a heartbeat with these terms stores."""
    return dict(message_fields(Heartbeat(terms=terms))["details"])


def test_only_what_the_peer_says_now_counts() -> None:
    """Its last words before this process began may have been corrected since; one that left says nothing any more."""
    peers = PeerState(pair=PAIR, instances=("a", "b"), incarnation="a-1")

    def terms() -> PairTerms | None:
        heartbeat = peers.current_heartbeat("b")
        return None if heartbeat is None else heartbeat.terms

    def said(
        event: CoordinationEvent = CoordinationEvent.PROGRESS, *, live: bool = True, **details: str
    ) -> CoordinationMessage:
        return take(message(event, instance="b", incarnation="b-1", details=details), live=live)

    def take(one: CoordinationMessage, *, live: bool) -> CoordinationMessage:
        peers.note_message(one, heard_mono=1.0 if live else None)
        return one

    assert terms() is None
    said(live=False, **details(HERE))
    assert terms() is None
    said(**details(HERE))
    assert terms() == HERE
    said(CoordinationEvent.PASSIVATE)
    assert terms() == HERE
    take(message(instance="b", incarnation="b-2"), live=True)
    assert terms() is None
    said(**details(HERE))
    said(CoordinationEvent.LEAVING)
    assert terms() is None


def test_the_first_claim_names_a_place() -> None:
    """None before it is there; afterwards the same for every reader, and another one in another place."""
    store, other = MemoryStore(), MemoryStore()
    reader = ChainReader(store, PAIR)
    assert reader.origin() is None
    for place in (store, other):
        Backup.claim(place, topics=[TopicSpec("orders")])
    found = {ChainReader(store, PAIR).origin(), reader.origin(), reader.origin()}
    assert len(found) == 1
    assert found != {ChainReader(other, PAIR).origin()}


def test_a_first_claim_that_cannot_be_read_tells_nothing() -> None:
    """It must not end who looks: other generations may be sound."""

    class Unsigned(MemoryStore):
        def get(self, key: str, **_: object) -> bytes:
            raise DamagedError(f"{key} is not signed", code="TDM-X001")

    assert ChainReader(Unsigned(), PAIR).origin() is None


def test_status_and_check_tell() -> None:
    """As long as both are heard: which is where, and what to do; a WARNING, because all is backed up twice."""
    store = MemoryStore()
    Backup.completed(store, records("orders", 0, range(3)))
    at = now_ms(store)

    def saying(terms: PairTerms | None, ago_s: int = 0) -> CoordinationMessage:
        told = {} if terms is None else details(terms)
        return message(instance="b", at=at - ago_s * 1000, details=told)

    a = message(instance="a", at=at, details=details(HERE))
    elsewhere = replace(HERE, root="s3://two/backup", origin=None)
    found = overview(sight(store, listener=listening(a, saying(elsewhere))))
    [problem] = found.problems
    assert problem.fault is Fault.INSTANCES_DISAGREE
    assert problem.message.startswith(f"the instances do not agree: {APART}")
    assert "compare store.root, store.endpoint_url and topics" in problem.remedy
    report = check_pair(found, {}, CheckLimits())
    assert [finding.severity for finding in report.findings] == [Severity.WARNING]
    for b in (saying(HERE), saying(None)):
        assert overview(sight(store, listener=listening(a, b))).healthy
    silent = overview(sight(store, listener=listening(a, saying(elsewhere, ago_s=3600))))
    assert [one.fault for one in silent.problems] == [Fault.INSTANCE_SILENT]
