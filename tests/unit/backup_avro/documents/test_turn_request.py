"""Requests for a turn: signed where that is required, and bound to what they ask for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from structlog.testing import capture_logs
from support.pairs.messages import message as message_of

from tandem.backup_avro.chain.signatures import SignatureError, Signer, Trust
from tandem.backup_avro.documents.coordination_message import CoordinationEvent, CoordinationMessage
from tandem.backup_avro.documents.turn_request import DETAIL, check_request, sign_request
from tandem.controller.coordination.peer_state import PeerState
from tandem.controller.coordination.topic import log_refused

SIGNER = Signer.generate()
STRICT = Trust.of([SIGNER.public], require=True)
LENIENT = Trust.of([SIGNER.public], require=False)
ASKED = message_of(
    event=CoordinationEvent.ACTIVATE,
    instance="cli",
    incarnation="x",
    request_id="r1",
    at=4711,
    target="a",
    generation=3,
    reason="größer",
)


def counts(message: CoordinationMessage, trust: Trust) -> bool:
    """Whether a message is noted by who goes by such a trust."""
    peers = PeerState(pair="shop", instances=("a", "b"), trust=trust)
    peers.note_message(message)
    return bool(peers.last_heard())


def test_a_signed_request_counts() -> None:
    """Whoever reads it has the public key; without signatures nothing is asked of it."""
    signed = sign_request(ASKED, SIGNER)
    check_request(signed, STRICT)
    check_request(signed, LENIENT)
    check_request(ASKED, LENIENT)
    check_request(ASKED, Trust())
    assert counts(signed, STRICT)
    assert replace(signed, details={}) == ASKED


@pytest.mark.parametrize(
    "change",
    [{"at": 4712}, {"generation": 4}, {"target": "b"}, {"pair": "other"}, {"instance": "b"}, {"request_id": "r2"}],
    ids=str,
)
def test_a_signature_is_worth_nothing_for_another_request(change: dict[str, object]) -> None:
    """Else a copy of an old one would have a turn taken again."""
    forged = replace(sign_request(ASKED, SIGNER), **change)  # type: ignore[arg-type]  # fields by name
    for trust in (STRICT, LENIENT):
        with pytest.raises(SignatureError):
            check_request(forged, trust)


@pytest.mark.parametrize("token", [None, "", "1.0.x", 'x",', "1" * 2000, "\0"])
def test_where_signatures_are_required_nothing_else_counts(token: str | None) -> None:
    """Unsigned, signed by a stranger, or with junk in that place."""
    message = ASKED if token is None else replace(ASKED, details={DETAIL: token})
    assert not counts(message, STRICT)
    assert not counts(sign_request(ASKED, Signer.generate()), STRICT)
    assert counts(replace(message, event=CoordinationEvent.PROGRESS), STRICT), "it is no request for a turn"


def test_an_instance_remembers_signed_requests_alone() -> None:
    """A dozen unsigned ones once had a dozen generations built at the same time; now they are a few log lines."""
    peers = PeerState(pair="shop", instances=("a", "b"), incarnation="a-1", trust=STRICT, refused=log_refused)
    with capture_logs() as lines:
        for number in range(500):
            for sender in ("b", f"stranger{number}"):
                peers.note_message(replace(ASKED, instance=sender), heard_mono=1.0)
    assert peers.activations() == ()
    assert peers.last_heard() == {}
    assert 0 < len(lines) <= 5
    peers.note_message(sign_request(ASKED, SIGNER), heard_mono=1.0)
    peers.note_message(sign_request(replace(ASKED, instance="b"), SIGNER), heard_mono=1.0)
    assert [(one.generation, one.by_person) for one in peers.activations()] == [(3, True), (3, False)]
