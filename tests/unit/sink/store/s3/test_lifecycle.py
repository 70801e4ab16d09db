"""Which lifecycle rules of a bucket take a backup away."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from support.pipeline.doubles import MemoryStore
from support.servers.tiny_s3 import TinyS3, answers

from tandem.sink.store.contract.lifecycle_rules import lifecycle_rules
from tandem.sink.store.contract.object_store import ObjectStore
from tandem.sink.store.s3.lifecycle import harmful_rules

ROOT = "backups/orders/"
IN_30_DAYS = {"Expiration": {"Days": 30}}


def told(**rule: Any) -> list[str]:
    """What is said of one enabled rule."""
    return list(map(str, harmful_rules({"Rules": [{"ID": "r", "Status": "Enabled"} | rule]}, ROOT)))


@pytest.mark.parametrize(
    "where",
    [
        {},
        {"Prefix": ""},
        {"Prefix": "backups/"},
        {"Prefix": "backups/ord"},
        {"Filter": {}},
        {"Filter": {"Prefix": "backups/orders/a/"}},
        {"Filter": {"ObjectSizeGreaterThan": 1000}},
        {"Filter": {"And": {"Prefix": "backups", "ObjectSizeLessThan": 1000}}},
    ],
)
def test_a_rule_that_reaches_the_backup_is_told(where: dict[str, Any]) -> None:
    """In the older form and the present one, for a part of the objects as well as for all of them."""
    [said] = told(**where, **IN_30_DAYS)
    assert said.startswith("lifecycle rule 'r' deletes, 30 days after they were written, objects ")


@pytest.mark.parametrize(
    "where",
    [
        {"Prefix": "backups/orders-eu/"},
        {"Prefix": "backups/orders2"},
        {"Filter": {"Prefix": "logs/"}},
        {"Filter": {"And": {"Prefix": "logs/", "ObjectSizeLessThan": 1000}}},
        {"Filter": {"Tag": {"Key": "keep", "Value": "no"}}},
        {"Filter": {"And": {"Prefix": "backups/", "Tags": [{"Key": "keep", "Value": "no"}]}}},
        {"Status": "Disabled"},
    ],
)
def test_a_rule_that_does_not_reach_it_is_not(where: dict[str, Any]) -> None:
    """Another pair whose name begins alike, objects with tags, which these are not, and rules that are switched off."""
    assert told(**where, **IN_30_DAYS) == []


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ({"Expiration": {"Days": 1}}, "deletes, 1 days after they were written,"),
        ({"Expiration": {"Date": datetime(2027, 1, 31, tzinfo=UTC)}}, "deletes, on 2027-01-31,"),
        ({"Transitions": [{"Days": 0, "StorageClass": "GLACIER"}]}, "moves to GLACIER, 0 days after"),
        (
            {"Transitions": [{"Days": 9, "StorageClass": "STANDARD_IA"}, {"Days": 90, "StorageClass": "DEEP_ARCHIVE"}]},
            "moves to DEEP_ARCHIVE, 90 days after",
        ),
        ({"Expiration": {"ExpiredObjectDeleteMarker": True}}, None),
        ({"NoncurrentVersionExpiration": {"NoncurrentDays": 1}}, None),
        ({"NoncurrentVersionTransitions": [{"NoncurrentDays": 1, "StorageClass": "GLACIER"}]}, None),
        ({"AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1}}, None),
        ({"Transitions": [{"Days": 1, "StorageClass": name} for name in ("GLACIER_IR", "INTELLIGENT_TIERING")]}, None),
    ],
)
def test_what_a_rule_does_decides(action: dict[str, Any], said: str | None) -> None:
    """Present objects have to stay, where they can be read at once."""
    assert [one for one in told(**action) if said is None or said not in one] == []
    assert len(told(**action)) == (said is not None)


@pytest.mark.parametrize(
    "fault",
    [
        answers(403, "AccessDenied"),
        answers(501, "NotImplemented"),
        answers(405, "MethodNotAllowed"),
        answers(400, "InvalidRequest"),
    ],
)
def test_a_server_that_does_not_say_stops_nobody(server: TinyS3, store: ObjectStore, fault: Any) -> None:
    """The right may be missing, and not every server knows the request."""
    server.faults = [fault]
    assert lifecycle_rules(store, "orders/") is None


def test_no_rules(server: TinyS3, store: ObjectStore) -> None:
    """S3 says so with an error; a folder has none at all."""
    server.faults = [answers(404, "NoSuchLifecycleConfiguration")]
    assert lifecycle_rules(store, "orders/") == ()
    assert lifecycle_rules(MemoryStore(), "orders/") is None
