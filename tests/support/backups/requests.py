"""Requests for a cut and outcomes of jobs, as they are stored: a test names the fields that it is about."""

from __future__ import annotations

from typing import Any

from support.backups.chains import CLUSTER, PAIR
from tandem.backup_avro.documents.checkpoint import CheckpointRequest
from tandem.backup_avro.documents.outcome import JobKind, JobOutcome


def cut_request(**how: Any) -> CheckpointRequest:
    """A request that generation 1 witnessed, for good."""
    fields: dict[str, Any] = {
        "id": "nightly",
        "nonce": "0" * 32,
        "pair": PAIR,
        "cluster_id": CLUSTER,
        "at": 0,
        "keep_until": None,
        "by": "me@here",
        "reason": "",
        "topics": {},
        "cut": {},
        "witnesses": (1,),
    }
    return CheckpointRequest(**(fields | how))


def job_outcome(**how: Any) -> JobOutcome:
    """A verification that found nothing."""
    fields: dict[str, Any] = {
        "kind": JobKind.VERIFY,
        "pair": PAIR,
        "by": "me@here",
        "clean": True,
        "what": "all",
        "findings": 0,
        "records": 7,
        "bytes": 9,
    }
    return JobOutcome(**(fields | how))
