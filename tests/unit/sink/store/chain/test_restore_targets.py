"""Topics that restores create: named in the store, left out by instances unless somebody names them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs
from support.backups.build_backup import PAIR
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.json_codec import canonical, pack
from tandem.backup_avro.chain.signatures import Signer
from tandem.backup_avro.documents.restore_targets import decode_targets
from tandem.backup_avro.errors import DamagedError
from tandem.controller.config import Config
from tandem.controller.status.outside_view import ask_cluster
from tandem.controller.watch.guarded_cluster import GuardedCluster
from tandem.sink.store import StoreDeniedError
from tandem.sink.store.chain import restore_targets
from tandem.sink.store.chain.restore_targets import ANY
from tandem.sink.store.contract.object_store import ObjectInfo, PutResult
from tandem.sink.store.contract.store_settings import StoreAccess
from tandem.sink.store.signed_store import SignedStore

PLAN, CLUSTER = "ab" * 32, "cluster-1"


@dataclass
class DatedStore(MemoryStore):
    """Its objects have the times at which they were put."""

    made: dict[str, int] = field(default_factory=dict)

    def put_if_absent(self, key: str, body: bytes | bytearray | memoryview) -> PutResult:
        """Remember the time of a new object."""
        self.clock_ms += 1
        if key not in self.objects:
            self.made[key] = self.clock_ms
        return super().put_if_absent(key, body)

    def list(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        """Yield objects with their times."""
        for info in super().list(prefix, after=after):
            at = self.made.get(info.key, self.clock_ms)
            yield replace(info, modified=datetime.fromtimestamp(at / 1000, tz=UTC))


def announced(*names: str) -> MemoryStore:
    """A store in which a restore has said what it is about to create."""
    store = DatedStore()
    restore_targets.announce_targets(store, PAIR, PLAN, CLUSTER, names)
    return store


def test_what_is_about_to_be_created_is_named_before_and_known_by_its_id_after() -> None:
    """A later topic of that name is another one; other clusters have topics of their own."""
    store = announced("t.restored", "u.restored")
    assert restore_targets.created_topics(store, PAIR, CLUSTER) == {"t.restored": {ANY}, "u.restored": {ANY}}
    restore_targets.identify_targets(store, PAIR, PLAN, CLUSTER, {"t.restored": "id-1", "of nobody": "id-2"})
    assert restore_targets.created_topics(store, PAIR, CLUSTER) == {"t.restored": {"id-1"}, "u.restored": {ANY}}
    store.clock_ms += 1
    restore_targets.identify_targets(store, PAIR, PLAN, CLUSTER, {"t.restored": "id-3", "u.restored": "id-4"})
    assert restore_targets.created_topics(store, PAIR, CLUSTER) == {
        "t.restored": {"id-1", "id-3"},
        "u.restored": {"id-4"},
    }
    assert restore_targets.created_topics(store, PAIR, "cluster-2") == {}
    restore_targets.identify_targets(store, PAIR, "cd" * 32, CLUSTER, {"v": "id-5"})
    restore_targets.announce_targets(store, PAIR, "cd" * 32, CLUSTER, [])
    assert len(store.objects) == 3


def test_an_announcement_without_a_topic_ends() -> None:
    """The restore was refused, or killed, before it created the topic; later an application has one of that name."""
    store = announced("orders.v2")
    admin = Admin(orders="id-1", orders_v2="id-2")
    assert guarded(admin, store, patterns=["orders.*"]) == ["orders"]
    store.clock_ms += 3_600_001
    assert guarded(admin, store, patterns=["orders.*"]) == ["orders", "orders.v2"]


def test_an_announcement_that_is_over_does_not_begin_anew() -> None:
    """Another topic of the same restore is adopted."""
    store = announced("t.restored", "u.restored")
    store.clock_ms += 3_600_001
    restore_targets.adopt_topic(store, PAIR, "t.restored")
    assert restore_targets.created_topics(store, PAIR, CLUSTER) == {}


def test_the_same_plan_is_restored_again() -> None:
    """Its topic was deleted, or is in another cluster: what the new run creates is left out from the beginning."""
    store = announced("orders.restored")
    restore_targets.identify_targets(store, PAIR, PLAN, CLUSTER, {"orders.restored": "id-2"})
    store.clock_ms += 1
    again = Admin(orders="id-1", orders_restored="id-3")
    assert guarded(again, store, patterns=["orders.*"]) == ["orders", "orders.restored"]
    restore_targets.announce_targets(store, PAIR, PLAN, CLUSTER, ["orders.restored"])
    assert guarded(again, store, patterns=["orders.*"]) == ["orders"]
    restore_targets.identify_targets(store, PAIR, PLAN, CLUSTER, {"orders.restored": "id-3"})
    assert guarded(again, store, patterns=["orders.*"]) == ["orders"]
    restore_targets.announce_targets(store, PAIR, PLAN, "cluster-2", ["orders.restored"])
    restore_targets.identify_targets(store, PAIR, PLAN, "cluster-2", {"orders.restored": "id-9"})
    assert restore_targets.created_topics(store, PAIR, "cluster-2") == {"orders.restored": {"id-9"}}


def test_what_can_not_be_read_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic is backed up then, and that is told."""
    store = announced("t.restored")
    store.objects[f"{layout.restore_targets_prefix(PAIR)}x.json"] = b"{}"
    with capture_logs() as logs:
        assert restore_targets.created_topics(store, PAIR, CLUSTER) == {"t.restored": {ANY}}
    assert "what a restore created can't be read" in logs[0]["event"]

    def denied(*_: object, **__: object) -> Any:
        raise StoreDeniedError("no", code="TDM-X001")

    monkeypatch.setattr(store, "list", denied)
    with capture_logs() as logs:
        assert restore_targets.created_topics(store, PAIR, CLUSTER) == {}
    assert "tandem policy s3" in logs[0]["remedy"]
    with pytest.raises(DamagedError, match="here: field topics does not hold topic ids"):
        decode_targets(
            pack(canonical({"v": 1, "pair": "p", "plan": "x", "cluster_id": "c", "topics": {"t": 1}})), "here"
        )


def test_a_note_that_nobody_signed_counts_for_nothing_where_signatures_are_required(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A forged one would keep a topic of an application out of the backup."""
    signer = Signer.generate()
    monkeypatch.setenv("SIGNING_KEY", signer.pem().decode())
    inner = announced("orders")
    strict = StoreAccess(trusted_keys=signer.public, require_signatures=True)
    store = SignedStore(inner, strict)
    with capture_logs() as logs:
        assert restore_targets.created_topics(store, PAIR, CLUSTER) == {}
    assert "is not signed, and signing.require is set" in str(logs[0]["error"])
    restore_targets.identify_targets(store, PAIR, PLAN, CLUSTER, {"orders": "id-1"})
    assert len(inner.objects) == 1
    told = restore_targets.announce_targets(store, PAIR, "cd" * 32, CLUSTER, ["t.restored"])
    assert list(told) == ["t.restored"]
    assert "backs this topic up if topics.patterns match it" in told["t.restored"]
    assert "would not be signed, and signing.require is set" in told["t.restored"]
    signing = SignedStore(inner, replace(strict, signing_key_env="SIGNING_KEY"))
    assert restore_targets.announce_targets(signing, PAIR, "cd" * 32, CLUSTER, ["t.restored"]) == {}
    restore_targets.identify_targets(signing, PAIR, "cd" * 32, CLUSTER, {"t.restored": "id-2"})
    with capture_logs():
        assert restore_targets.created_topics(store, PAIR, CLUSTER) == {"t.restored": {"id-2"}}


def test_a_topic_is_adopted() -> None:
    """All notes of it go, the others' stay."""
    store = announced("t.restored", "u.restored")
    restore_targets.identify_targets(store, PAIR, PLAN, CLUSTER, {"t.restored": "id-1", "u.restored": "id-2"})
    restore_targets.announce_targets(store, PAIR, "cd" * 32, CLUSTER, ["t.restored"])
    store.objects[f"{layout.restore_targets_prefix(PAIR)}x.json"] = b"{}"
    with capture_logs():
        removed = restore_targets.adopt_topic(store, PAIR, "t.restored")
        assert sorted(removed) == [
            (PLAN[:16], CLUSTER, ANY),
            (PLAN[:16], CLUSTER, "id-1"),
            (("cd" * 32)[:16], CLUSTER, ANY),
        ]
        assert restore_targets.created_topics(store, PAIR, CLUSTER) == {"u.restored": {"id-2"}}
        assert restore_targets.adopt_topic(store, PAIR, "t.restored") == []
        assert restore_targets.adopt_topic(store, "another", "u.restored") == []
    assert len(store.objects) == 3
    restore_targets.identify_targets(store, PAIR, PLAN, CLUSTER, {"t.restored": "id-1"})
    assert len(store.objects) == 3, "a run of the same restore notes nothing again"


class Admin:
    """A cluster with these topics, by id."""

    def __init__(self, **ids: str) -> None:
        self.ids = ids

    def cluster_id(self) -> str:
        return CLUSTER

    def topics(self, *_: object, **__: object) -> Sequence[Any]:
        return [
            SimpleNamespace(
                name=name.replace("_", "."), topic_id=topic_id, partitions={0: (1, 0)}, replication_factor=1
            )
            for name, topic_id in self.ids.items()
        ]

    def config(self, names: Sequence[str], **_: object) -> Mapping[str, dict[str, str]]:
        """Return nothing that is set."""
        return {name: {} for name in names}


def config(**topics: Sequence[str]) -> Config:
    return Config.model_validate(
        {
            "pair": PAIR,
            "instance": "a",
            "instances": ["a", "b"],
            "kafka": {"bootstrap.servers": "k:9092"},
            "store": {"root": "file:///nowhere"},
            "topics": topics,
        }
    )


def guarded(admin: Admin, store: MemoryStore, **topics: Sequence[str]) -> list[str]:
    """Return what an instance guards; `tandem status` has the same."""
    made = config(**topics)
    cluster = GuardedCluster(
        cast("Any", admin), made, lambda: restore_targets.created_topics(store, PAIR, admin.cluster_id())
    )
    found = cluster.guarded()
    names = [topic.name for topic in found.topics]
    seen = ask_cluster(made, cast("Any", admin), admin.cluster_id(), store)
    assert sorted(name for name, _ in seen.guarded.topics.values()) == names
    assert found.restored == seen.restored
    assert set(seen.restored) == {info.name for info in admin.topics()} - set(names)
    return names


def test_what_a_restore_created_is_not_guarded_by_a_pattern() -> None:
    """Before it has an id, and after; but under another id, or if it is named, it is."""
    store = announced("orders.restored")
    admin = Admin(orders="id-1", orders_restored="id-2")
    assert guarded(admin, store, patterns=["orders.*"]) == ["orders"]
    restore_targets.identify_targets(store, PAIR, PLAN, CLUSTER, {"orders.restored": "id-2"})
    assert guarded(admin, store, patterns=["orders.*"]) == ["orders"]
    assert guarded(admin, store, patterns=["orders.*"], include=["orders.restored"]) == ["orders", "orders.restored"]
    again = Admin(orders="id-1", orders_restored="id-3")
    assert guarded(again, store, patterns=["orders.*"]) == ["orders", "orders.restored"]


def test_each_topic_is_judged_once() -> None:
    """The store is asked when a topic comes, not at each survey; what is guarded stays so, what is left out is told."""
    store, asked = announced("orders.restored"), []

    def created() -> Mapping[str, frozenset[str]]:
        asked.append(1)
        return restore_targets.created_topics(store, PAIR, CLUSTER)

    admin = Admin(orders="id-1")
    cluster = GuardedCluster(cast("Any", admin), config(patterns=["orders.*"]), created)
    for _ in range(3):
        assert [topic.name for topic in cluster.guarded().topics] == ["orders"]
    assert len(asked) == 1
    admin.ids["orders_restored"] = "id-2"
    restore_targets.announce_targets(store, PAIR, "cd" * 32, CLUSTER, ["orders"])
    with capture_logs() as logs:
        for _ in range(3):
            assert [topic.name for topic in cluster.guarded().topics] == ["orders"]
    assert len(asked) == 2
    assert [(line["event"], line["topic"]) for line in logs] == [
        ("a topic that a restore created is not backed up", "orders.restored")
    ]


def test_an_adopted_topic_is_guarded_after_a_while() -> None:
    """The store is asked about what is left out, once in so many surveys; what is still noted is told once."""
    store, admin = announced("orders.restored", "orders.other"), Admin(orders_restored="id-1", orders_other="id-2")
    cluster = GuardedCluster(
        cast("Any", admin),
        config(patterns=["orders.*"]),
        lambda: restore_targets.created_topics(store, PAIR, CLUSTER),
    )
    with capture_logs() as logs:
        assert cluster.guarded().restored == ("orders.other", "orders.restored")
        restore_targets.adopt_topic(store, PAIR, "orders.restored")
        asked = 1
        while not cluster.guarded().topics:
            asked += 1
            assert asked < 100
    assert 5 < asked < 40
    assert cluster.guarded().restored == ("orders.other",)
    assert [(line["log_level"], line["topic"]) for line in logs] == [
        ("warning", "orders.restored"),
        ("warning", "orders.other"),
        ("info", "orders.restored"),
    ]
