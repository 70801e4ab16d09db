"""Reads the errors of obstore, which are texts, and maps them to errors of the store. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from tandem.backup_avro.errors import TandemError
from tandem.sink.store.contract.object_store import (
    ObjectMissingError,
    StoreDeniedError,
    StoreMissingError,
    StoreRejectedError,
    StoreTransientError,
    StoreUnfitError,
)

_STATUS: Final = re.compile(r"status code: (\d{3})|\(code: (\d{3})\)")
_CODE: Final = re.compile(r"<Code>([A-Za-z]{1,80})</Code>")
_SAID: Final = re.compile(
    r"<Message>([^<\n]{1,300})|Bulk delete request failed for key [^\n]*?: ([^:\n]{1,300}) \(code"
)
# Azurite's answer to a range that begins at a blob's end, which Azure refuses with 416, ends before it begins.
_RANGE: Final = re.compile(r'"bytes (\d+)-(-?\d+)/\d+"')
_DETAILS: Final = "\n\nDebug source:"
# Azure's answers to the single requests of a batch have no code in obstore's errors, only these sentences.
_SENTENCES: Final = {
    "The specified blob does not exist.": "BlobNotFound",
    "The specified container does not exist.": "ContainerNotFound",
}
_MISSING_OBJECT: Final = frozenset({"BlobNotFound", "NoSuchKey"})
_MISSING_BUCKET: Final = frozenset({"ContainerNotFound", "NoSuchBucket", "InvalidBucketName", "ResourceNotFound"})
_BUSY: Final = frozenset({"ContainerBeingDeleted", "InternalError", "OperationTimedOut", "ServerBusy", "SlowDown"})
_CREDENTIALS: Final = (
    "check account_key or credentials_file, or what the environment, the workload identity or the instance provides"
)
_RIGHTS: Final = "give the identity the role's rights: `tandem policy gcs` and `tandem policy azure` print them"
_DENIED: Final = {
    "AccountIsDisabled": "ask the owner of the storage account",
    "AuthenticationFailed": _CREDENTIALS,
    "AuthorizationFailure": f"{_CREDENTIALS}; the account's firewall answers so too",
    "BlobArchived": "the object is in the archive tier: set it to hot, which takes hours, and run this again then",
    "BlobImmutableDueToPolicy": "an immutability policy or a legal hold keeps it: shorten it, or wait",
    "KeyBasedAuthenticationNotPermitted": "the account allows no keys: use a workload or managed identity",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRequest:
    """What an error of obstore says: `status` is 0 and `code` empty where the store gave no (readable) answer.

    `said` is the store's own sentence. `reason` is the kind of failure where no answer came.
    """

    status: int
    code: str
    said: str
    reason: str


def read_error(error: Exception) -> FailedRequest:
    """Return what an error of obstore says."""
    text, _, details = str(error).partition(_DETAILS)
    if "token request" in text:  # its status is that of whoever gives tokens
        return FailedRequest(status=0, code="", said="", reason="no token")
    status, code, said = _STATUS.search(text), _CODE.search(text), _SAID.search(text)
    sentence = (said[1] or said[2]).strip() if said else ""
    return FailedRequest(
        status=int(status[1] or status[2]) if status else 0,
        code=code[1] if code else _SENTENCES.get(sentence, ""),
        said=sentence,
        reason="" if status else _reason(text, details),
    )


def _reason(text: str, details: str) -> str:
    range_ = _RANGE.search(text)
    if range_ is not None and int(range_[2]) < int(range_[1]):
        return "past the end"
    both = text + details
    for word, reason in (
        ("StartTooLarge", "past the end"),
        ("InvalidCertificate", "certificate"),
        ("EmptySegment", "foreign key"),
        ("BadSegment", "foreign key"),
        ("kind: Connect", "no connection"),
        ("dns error", "no connection"),
        ("kind: Timeout", "time-out"),
    ):
        if word in both:
            return reason
    return "unreadable"


def error_of(failed: FailedRequest, *, what: str) -> TandemError:
    """Return the error for a failed request; `what` is its action, key, bucket and endpoint in words.

    A 404 counts as a missing object only if the store itself says so: a gateway whose backend is away answers 404 too.
    """
    if not failed.status:
        return _error_without_answer(failed.reason, what)
    told = ": ".join(part for part in (failed.code, failed.said) if part)
    text = f"{what}: the store answered {failed.status} {told}".rstrip()
    if failed.code in _MISSING_OBJECT:
        return ObjectMissingError(
            text, code="TDM-S104", remedy="check whether it was deleted, and that the URL is right"
        )
    if failed.code in _MISSING_BUCKET:
        return StoreMissingError(
            text, code="TDM-S105", remedy="create the bucket or container, or correct its name and account_name"
        )
    if failed.code in _DENIED or failed.status in {401, 403}:
        return StoreDeniedError(text, code="TDM-S106", remedy=_DENIED.get(failed.code, f"{_CREDENTIALS}; {_RIGHTS}"))
    if failed.code in _BUSY or failed.status in {408, 409, 425, 429} or failed.status >= 500:
        return StoreTransientError(text, code="TDM-S107", remedy="the store is busy or restarting; it is tried again")
    if failed.status == 404:
        return StoreTransientError(
            text, code="TDM-S108", remedy="that is no answer of the store; check endpoint_url, and that it is up"
        )
    return StoreRejectedError(text, code="TDM-S109", remedy="see the store's own log for the request")


def _error_without_answer(reason: str, what: str) -> TandemError:
    match reason:
        case "certificate":
            return StoreDeniedError(
                f"{what}: the server's certificate is not trusted",
                code="TDM-S110",
                remedy="set ca_bundle to the store's CA",
            )
        case "foreign key":
            return StoreUnfitError(
                f"{what}: another writer's object has an empty or relative path segment in its name",
                code="TDM-S111",
                remedy="give Tandem a prefix of its own, or remove that object",
            )
        case "no connection":
            return StoreTransientError(
                f"{what}: no connection",
                code="TDM-S112",
                remedy="check that account_name and endpoint_url are right and the store is up",
            )
        case "no token":
            return StoreTransientError(
                f"{what}: no access token for the store now",
                code="TDM-S113",
                remedy=f"{_CREDENTIALS}; it is asked again",
            )
    return StoreTransientError(
        f"{what}: {reason}",
        code="TDM-S114",
        remedy="the answer is lost, so the outcome is unknown; it is tried again",
    )
