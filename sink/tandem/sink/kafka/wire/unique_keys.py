"""Builds maps from a cluster's answers: a duplicate key is an error, and never overwrites the first value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from tandem.sink.kafka.errors.cluster_errors import ClusterAnswerError

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def unique(pairs: Iterable[tuple[_Key, _Value]], what: str, where: str = "") -> dict[_Key, _Value]:
    """Return the pairs as a map. Raises ClusterAnswerError for a duplicate key; `what` names the kind of key."""
    found: dict[_Key, _Value] = {}
    for key, value in pairs:
        if key in found:
            raise ClusterAnswerError(
                f"the Kafka cluster names {what} {key}{where} twice in one answer",
                code="TDM-K049",
                remedy="it is asked again; if this stays, check which cluster answers at kafka.bootstrap.servers",
            )
        found[key] = value
    return found
