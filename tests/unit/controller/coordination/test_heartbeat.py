"""Heartbeats as typed fields: what is stored of them, and what is read of what anybody may have written."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from support.pairs.sights import message

from tandem.backup_avro.chain.entries import PartitionKey
from tandem.backup_avro.chain.heads import Head
from tandem.backup_avro.documents.coordination_message import CoordinationEvent, ReaderPosition, decode, encode
from tandem.backup_avro.selection.losses import KeptLoss, LossCause, vanished_reason
from tandem.controller.coordination.agreement import PairTerms
from tandem.controller.coordination.heartbeat import Heartbeat, head_fields, heartbeat_in, message_fields
from tandem.controller.decision.loss_sign_format import LossKind, LossSign

KEY = PartitionKey("topic-id", 2)
WHY = vanished_reason(40, 4, [7], cause=LossCause.POLICY_CHANGED)
FULL = Heartbeat(
    role="Active",
    reason="nothing to do",
    generation=7,
    lag=12,
    phase="reading",
    partitions=3,
    base_remaining=0,
    records=41,
    error="this process: Too many open files",
    trouble="orders-0: no leader",
    positions=(ReaderPosition(topic="orders", partition=0, offset=5),),
    head=Head(generation=7, seq=42, sha256="a" * 64),
    held=("orders-0", "orders-1"),
    transcoder="compiled",
    terms=PairTerms(root="s3://bucket/backup", origin="b" * 64, topics="0123456789abcdef"),
    store="403",
    brokers="no answer",
    rolled_back="an entry is lost",
    objects_lost="generation 1 is kept",
    objects_lost_of=frozenset({2, 10}),
    keys_missing="key 0123456789abcdef is not at hand",
    failing="Seal of generation 1 fails",
    loss_signs=(LossSign(kind=LossKind.POLICY, topic="orders", at=2000, last_good=1000, what="its policy"),),
    vanished=(
        (3, KeptLoss(key=KEY, cause=LossCause.POLICY_CHANGED, reason=WHY, keys=40, missing_in=4)),
        (5, KeptLoss(key=KEY, cause=LossCause.POLICY_CHANGED, reason=WHY, keys=40, missing_in=4)),
    ),
)
#: Older releases read these, and newer ones have to.
STORED = {
    "transcoder": "compiled",
    "root": "s3://bucket/backup",
    "topics_id": "0123456789abcdef",
    "origin": "b" * 64,
    "reason": "nothing to do",
    "phase": "reading",
    "partitions": "3",
    "base_remaining": "0",
    "records": "41",
    "error": "this process: Too many open files",
    "trouble": "orders-0: no leader",
    "held": "orders-0 orders-1",
    "store": "403",
    "head_sha256": "a" * 64,
    "rolled_back": "an entry is lost",
    "brokers": "no answer",
    "objects_lost": "generation 1 is kept",
    "objects_lost_of": "2 10",
    "keys_missing": "key 0123456789abcdef is not at hand",
    "failing": "Seal of generation 1 fails",
    "loss_signs": '[["policy", "orders", 2000, 1000, "its policy"]]',
    "vanished": f"3 topic-id 2 {WHY}\n5 topic-id 2 {WHY}",
}


def test_what_is_stored_of_a_heartbeat_is_what_older_releases_read() -> None:
    """Its own fields where the schema has them, the others as texts under the same names as ever."""
    stored = message_fields(FULL)
    assert stored["details"] == STORED
    names = ("state", "generation", "chain_seq", "lag_records")
    assert [stored[name] for name in names] == ["Active", 7, 42, 12]
    assert message_fields(replace(FULL, terms=PairTerms(root="r", origin=None, topics="t")))["details"].keys() == (
        STORED.keys() - {"origin"}
    )


def test_a_heartbeat_comes_back_as_it_was_sent() -> None:
    """Through the bytes of a message; each field but those that are None is set in the one that is tried."""
    assert all(getattr(FULL, one.name) not in {None, ()} for one in fields(FULL))
    assert heartbeat_in(decode(encode(message(**message_fields(FULL))))) == FULL
    assert heartbeat_in(decode(encode(message(**message_fields(Heartbeat()))))) == Heartbeat()


def test_other_messages_publish_a_head_and_nothing_else() -> None:
    """COMPLETE and its kin."""
    head = Head(generation=7, seq=42, sha256="a" * 64)
    said = heartbeat_in(message(CoordinationEvent.COMPLETE, **head_fields(head)))
    assert said == Heartbeat(generation=7, head=head)


@pytest.mark.parametrize("text", ["", "x", "-1", "2.5", "²", "9" * 19, "1" * 100_000])
def test_what_is_no_number_of_its_range_is_not_there(text: str) -> None:
    """Whoever can write to the topic can say anything, and what shows it would have to live with it."""
    names = ("partitions", "base_remaining", "records", "objects_lost_of")
    assert heartbeat_in(message(details=dict.fromkeys(names, text))) == Heartbeat()


def test_an_empty_text_says_nothing() -> None:
    """As if it were not there."""
    names = ("reason", "phase", "error", "trouble", "store", "rolled_back", "failing", "root", "topics_id", "held")
    assert heartbeat_in(message(details=dict.fromkeys(names, ""))) == Heartbeat()


@pytest.mark.parametrize("number", [0, 10**8])
def test_a_generation_that_can_not_be_is_not_said_to_have_lost_objects(number: int) -> None:
    """Claims are numbered from 1 up to eight digits."""
    assert heartbeat_in(message(details={"objects_lost_of": f"3 {number}"})).objects_lost_of == {3}


@pytest.mark.parametrize(
    "line", ["", "3", "3 topic-id", "3 topic-id x " + WHY, "0 topic-id 2 " + WHY, "3 topic-id 2 why", "3  2 "]
)
def test_what_tells_of_no_vanished_keys_is_not_there(line: str) -> None:
    """One line is left out, the others are heard."""
    assert heartbeat_in(message(details={"vanished": f"{line}\n3 topic-id 2 {WHY}"})).vanished == FULL.vanished[:1]
