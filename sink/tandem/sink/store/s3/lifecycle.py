"""S3's GetBucketLifecycleConfiguration: which rules take objects of a backup away."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from tandem.sink.store.contract.lifecycle_rules import LifecycleRule

_UNREADABLE: Final = ("GLACIER", "ARCHIVE")
"""Objects of these classes have to be restored before they can be read. Glacier Instant Retrieval is none of them."""


def harmful_rules(answer: Mapping[str, Any], root: str) -> Iterator[LifecycleRule]:
    """Yield the enabled rules that delete or archive present objects whose names begin with `root`.

    A rule for tagged objects reaches none: Tandem's have no tags.
    """
    for rule in answer.get("Rules", ()):
        # "Filter" with exactly one condition, or several below "And"; "Prefix" beside it is the older form.
        where = rule.get("Filter", {})
        where = where.get("And", where)
        prefix = str(where.get("Prefix", rule.get("Prefix", "")))
        reached = prefix.startswith(root) or root.startswith(prefix)
        effect = _effect(rule)
        if rule["Status"] == "Enabled" and reached and effect and not ({"Tag", "Tags"} & where.keys()):
            yield LifecycleRule(name=str(rule.get("ID", "")), prefix=prefix, effect=effect)


def _effect(rule: Mapping[str, Any]) -> str | None:
    expires = rule.get("Expiration", {})
    if "Days" in expires or "Date" in expires:
        return f"deletes, {_when(expires)},"
    for move in rule.get("Transitions", ()):
        kind = str(move.get("StorageClass", ""))
        if kind.upper() != "GLACIER_IR" and any(name in kind.upper() for name in _UNREADABLE):
            return f"moves to {kind}, {_when(move)},"
    return None


def _when(action: Mapping[str, Any]) -> str:
    date = action.get("Date")
    if isinstance(date, datetime):
        return f"on {date:%Y-%m-%d}"
    return f"{int(action.get('Days', 0))} days after they were written"
