"""Signatures of requests for a turn: where `signing.require` is set, an ACTIVATE without one is ignored.

Any client that may write to the coordination topic can send an ACTIVATE, and each one that is granted makes an instance
read every topic again. The signature is in the details of the message and covers all fields on which the grant depends.
A copy of a signed request is useless: it names a generation, which is claimed once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tandem.backup_avro.chain.json_codec import canonical
from tandem.backup_avro.chain.signatures import Signer, Trust, unseal
from tandem.backup_avro.documents.coordination_message import CoordinationMessage

#: The name of the signature in the details of an ACTIVATE. Older releases ignore it.
DETAIL: Final = "signature"


def sign_request(message: CoordinationMessage, signer: Signer) -> CoordinationMessage:
    """Return an ACTIVATE with its signature."""
    _, token = unseal(signer.seal(_place(message), _body(message)))
    assert token is not None
    return replace(message, details={**message.details, DETAIL: token.decode()})


def check_request(message: CoordinationMessage, trust: Trust) -> None:
    """Raise SignatureError if an ACTIVATE is not trusted: it is unsigned where that is required, or forged."""
    body, token = _body(message), message.details.get(DETAIL)
    signed = body if token is None else b"".join((b'{"_sig":"', token.encode(errors="replace"), b'",', body[1:]))
    trust.open(_place(message), signed)


def _place(message: CoordinationMessage) -> str:
    return f"{message.pair}/requests/{message.generation}"


def _body(message: CoordinationMessage) -> bytes:
    return canonical(
        {
            "at": message.at,
            "generation": message.generation,
            "instance": message.instance,
            "pair": message.pair,
            "reason": message.reason,
            "request_id": message.request_id,
            "target": message.target,
        }
    )
