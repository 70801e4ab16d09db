"""A right that is missing on one topic is that topic's trouble alone, and what is denied is never taken for deleted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import ConfigEntry, ConfigSource  # type: ignore[attr-defined]  # public, but not marked for re-export
from structlog.testing import capture_logs
from support.backups.chains import CLUSTER, OPENING, PAIR, Chain, complete_generation, guarded, key, position, topic
from support.clusters.admin_futures import answered
from support.pipeline.doubles import MemoryStore, StandInCluster
from support.pipeline.pipelines import T0, Bench, Log, bare_context, through

from tandem.backup_avro.chain.entries import EntryKind, GroupOffset, Topic
from tandem.backup_avro.documents import checkpoint
from tandem.backup_avro.selection.completion import obstacles
from tandem.backup_avro.selection.coverage import GuardedPartitions, clearing, topics_to_mark, uncovered_partitions
from tandem.controller.config import Config
from tandem.controller.watch.checkpoint_keeper import _unprovable
from tandem.controller.watch.guarded_cluster import GuardedCluster, as_guarded
from tandem.sink.commit_draft import CommitDrafter
from tandem.sink.kafka.cluster import admin as cluster_module
from tandem.sink.kafka.cluster.admin import ClusterAdmin
from tandem.sink.kafka.cluster.guarded_topics import DeniedTopic, GuardedTopics
from tandem.sink.kafka.errors.cluster_errors import ClusterAuthenticationError, ClusterDeniedError
from tandem.sink.read.survey import ClusterSurvey
from tandem.sink.store.chain.chain_writer import Identity, claim
from tandem.sink.write.commit import CommitDraft, Committer
from tandem.sink.write.object_buffer import ObjectBuffer

T, U = key(), key("u")
_REFUSED = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)


# --- what the cluster says --------------------------------------------------------------------------------------------


class Client:
    """librdkafka's client in front of topics, of which some may not be described, or their configuration may not."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self.undescribed: set[str] = set()
        self.unconfigured: set[str] = set()
        self.tiered: set[str] = set()

    def poll(self, _: float) -> None:
        """Nothing to tell."""

    def list_topics(self, **_: float) -> Any:
        """A listing leaves out what may not be described."""
        return SimpleNamespace(topics=[name for name in self.names if name not in self.undescribed])

    def describe_topics(self, asked: Any, **_: float) -> dict[str, Future[Any]]:
        """Asked for by name, brokers do not say whether what may not be described is there."""
        return {name: self._answer(name, self.undescribed, self._topic(name)) for name in asked.topic_names}

    def describe_configs(self, resources: Iterable[Any], **_: float) -> dict[Any, Future[Any]]:
        """One answer for each."""

        def entries(name: str) -> dict[str, ConfigEntry]:
            tiered = ConfigEntry(
                "remote.storage.enable", str(name in self.tiered).lower(), source=ConfigSource.DYNAMIC_TOPIC_CONFIG
            )
            return {"cleanup.policy": ConfigEntry("cleanup.policy", "compact"), tiered.name: tiered}

        return {one: self._answer(one.name, self.unconfigured, entries(one.name)) for one in resources}

    def _answer(self, name: str, denied: set[str], found: Any) -> Future[Any]:
        if name in denied:
            return answered(_REFUSED)
        return answered(found if name in self.names else KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))

    def _topic(self, name: str) -> Any:
        part = SimpleNamespace(id=0, leader=SimpleNamespace(id=1), replicas=[1])
        return SimpleNamespace(name=name, topic_id=f"id-of-{name}", partitions=[part], is_internal=False)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    """Topics `orders`, `audit` and `other`."""
    made = Client("orders", "audit", "other")
    monkeypatch.setattr(cluster_module, "open_admin", lambda _: made)
    monkeypatch.setattr("tandem.sink.kafka.cluster.librdkafka_references.release_extra_reference", lambda _: None)
    return made


def guard(client: Client, **topics: Any) -> GuardedCluster:
    """What an instance asks."""
    del client
    config = Config.model_validate(
        {
            "pair": PAIR,
            "instance": "a",
            "instances": ["a", "b"],
            "kafka": {"bootstrap.servers": "k:9092"},
            "store": {"root": "file:///nowhere"},
            "topics": topics or {"include": ["orders", "audit"]},
        }
    )
    return GuardedCluster(ClusterAdmin({"bootstrap.servers": "k:9092"}, timeout_s=2), config)


def names(found: Iterable[Topic]) -> list[str]:
    """What they are called."""
    return [one.name for one in found]


def test_a_topic_that_may_not_be_described_is_named_beside_the_others(client: Client) -> None:
    """It is told once, with the right to give, and once when that is given."""
    cluster = guard(client)
    client.undescribed.add("audit")
    with capture_logs() as logs:
        cluster.guarded()
        found = cluster.guarded()
    assert names(found.topics) == ["orders"]
    assert [(one.name, one.topic) for one in found.denied] == [("audit", None)]
    assert "grant the principal Describe on topic audit" in found.denied[0].why
    assert [(line["topic"], line["log_level"]) for line in logs] == [("audit", "warning")]
    assert "no generation becomes complete" in logs[0]["event"]
    assert cluster.topic_ids(["orders", "audit"]) == {"orders": "id-of-orders"}
    client.undescribed.clear()
    with capture_logs() as logs:
        found = cluster.guarded()
    assert (names(found.topics), found.denied, found.trouble) == (["audit", "orders"], (), None)
    assert [line["event"] for line in logs] == ["a guarded topic is denied no longer"]


def test_a_topic_whose_configuration_is_denied_is_named_beside_the_others(client: Client) -> None:
    """A pattern finds it as soon as it may be described."""
    client.unconfigured.add("audit")
    found = guard(client, patterns=["o.*", "a.*"]).guarded()
    assert names(found.topics) == ["orders", "other"]
    [denied] = found.denied
    assert denied.topic is not None
    assert (denied.name, denied.topic.partitions, denied.topic.config) == ("audit", 1, {})
    assert "grant the principal DescribeConfigs on topic audit" in str(found.trouble)


def test_a_topic_in_tiered_storage_is_not_read(client: Client) -> None:
    """Brokers answer with nothing where remote storage is slow. COMPLETE waits until it is excluded or not tiered."""
    cluster = guard(client)
    assert cluster.topic_ids(["orders", "audit"]) == {"orders": "id-of-orders", "audit": "id-of-audit"}
    client.tiered.add("audit")
    found = cluster.guarded()
    assert names(found.topics) == ["orders"]
    assert [(one.name, one.topic) for one in found.denied] == [("audit", None)]
    assert "topic audit is in tiered storage (remote.storage.enable)" in str(found.trouble)
    assert "topics.exclude" in str(found.trouble)
    assert cluster.topic_ids(["orders", "audit"]) == {"orders": "id-of-orders"}, "nothing more of it is committed"
    client.tiered.add("orders")
    assert [one.name for one in cluster.guarded().denied] == ["audit", "orders"]
    client.tiered.clear()
    assert (names(cluster.guarded().topics), cluster.guarded().denied) == (["audit", "orders"], ())
    assert cluster.topic_ids(["audit"]) == {"audit": "id-of-audit"}


@pytest.mark.parametrize("lack", ["undescribed", "unconfigured", "both"])
def test_if_all_are_denied_it_is_an_error(client: Client, lack: str) -> None:
    """A right is missing as such, and the pair has nothing to do."""
    client.undescribed |= {"audit"} if lack == "both" else {"audit", "orders"} if lack == "undescribed" else set()
    client.unconfigured |= {"audit", "orders"}
    with pytest.raises(ClusterDeniedError, match="audit"):
        guard(client).guarded()


def test_who_needs_all_topics_is_refused(client: Client) -> None:
    """A restore, or a checkpoint, that left one out would be wrong."""
    client.undescribed.add("audit")
    client.unconfigured.add("orders")
    admin = ClusterAdmin({"bootstrap.servers": "k:9092"}, timeout_s=2)
    with pytest.raises(ClusterDeniedError, match="describe topic audit"):
        admin.topics(["audit", "orders"])
    with pytest.raises(ClusterDeniedError, match="config of topic orders"):
        admin.config(["orders"])


def test_only_the_first_few_are_named() -> None:
    """A heartbeat has room for a sentence."""
    denied = tuple(DeniedTopic(name=f"t{n}", why=f"grant t{n}") for n in range(7))
    assert GuardedTopics(topics=(), denied=denied).trouble == (
        "grant t0; grant t1; grant t2; grant t3; grant t4; and 2 more topics"
    )


# --- the rules: neither gone nor covered ------------------------------------------------------------------------------


def found_without(name: str = "u", *, seen: Topic | None = None, rest: tuple[Topic, ...] = (topic(),)) -> GuardedTopics:
    """An answer in which one topic is denied."""
    return GuardedTopics(topics=rest, denied=(DeniedTopic(name=name, why="grant it", topic=seen),))


def denied_u(*generations: Chain, seen: Topic | None = None) -> GuardedPartitions:
    """What the rules know while `u` is denied; `seen` is what may be described of it."""
    return as_guarded(CLUSTER, found_without(seen=seen), [chain.state for chain in generations])


def test_what_is_denied_counts_as_there() -> None:
    """With all partitions that it may have by now."""
    one = complete_generation(1, {T: 10, U: 10})
    seen = denied_u(one)
    assert seen.has(T)
    assert all(seen.has(key("u", n)) for n in (0, 7, 8, 100))
    assert not seen.has(key("v"))
    assert not seen.lacks(key("other id"), "u"), "an id that no chain at hand knows by that name"
    assert seen.lacks(key("v"), "v")
    assert denied_u(complete_generation(1, {T: 10})).topics.keys() == {"t"}
    described = denied_u(one, seen=replace(topic("u", partitions=2), config={}))
    assert [described.has(key("u", n)) for n in (1, 2)] == [True, False]
    assert not described.unseen


@pytest.mark.parametrize("seen", [None, topic("u")])
def test_nothing_is_complete_while_a_topic_is_denied(seen: Topic | None) -> None:
    """However well it is read, and although no chain may know it yet."""
    one, two = complete_generation(1, {T: 10, U: 10}), complete_generation(2, {T: 10, U: 10}, instance="b")
    found = obstacles(two.state, [one.state], denied_u(one, two, seen=seen))
    assert [text for text in found if "is not read yet" not in text] == ["a right on topic u is missing"]
    fresh = Chain().open().commit({T: position(5)})
    assert obstacles(fresh.state, [], denied_u(fresh, seen=seen))[0] == "a right on topic u is missing"


def test_what_is_denied_has_to_be_covered_to_be_sealed_and_cleared() -> None:
    """A generation of a life of the pair that could not read it stands for nothing of it."""
    one, two = complete_generation(1, {T: 10, U: 10}), complete_generation(2, {T: 20}, instance="b")
    seen = denied_u(one, two)
    assert uncovered_partitions(two.state, one.state, seen) == [U]
    assert clearing(one.state, [two.state], seen) is None
    assert clearing(one.state, [two.state], seen, released=[U]) is None, "it may be guarded still: it is to be covered"
    both = complete_generation(2, {T: 20, U: 10}, instance="b")
    covered = clearing(one.state, [both.state], denied_u(one, both))
    assert covered is not None
    assert set(covered.goes) == {T, U}, "that the chains can tell"


def test_a_removed_topic_that_is_guarded_again_and_denied_waits_too() -> None:
    """A release lets go of what is not guarded alone, and nobody knows whether this is the same life of it."""
    one = complete_generation(1, {T: 10, U: 10}).append(EntryKind.SEALED, topics=(topic("u", removed=True),))
    two = complete_generation(2, {T: 20}, instance="b")
    assert clearing(one.state, [two.state], guarded(topic()), released=[U]) is not None
    assert clearing(one.state, [two.state], denied_u(one, two), released=[U]) is None


@pytest.mark.parametrize("removed", [False, True])
def test_a_seal_says_nothing_new_of_what_is_denied(removed: bool) -> None:
    """Neither that it is gone, nor that it is there: what could not be proven then is to be asked later."""
    one = complete_generation(1, {T: 10, U: 10})
    one.commit({T: position(11)}, topics=(topic("u", removed=removed),))
    assert topics_to_mark(one.state, denied_u(one)) == ()
    assert [item.removed for item in topics_to_mark(one.state, guarded(topic()))] == ([] if removed else [True])


def test_no_checkpoint_is_lost_to_a_right() -> None:
    """It waits until its deadline; LOST is for good."""
    asked = checkpoint.CheckpointRequest(
        id="nightly",
        nonce="0" * 32,
        pair=PAIR,
        cluster_id=CLUSTER,
        at=1000,
        deadline=2000,
        keep_until=None,
        by="me",
        reason="",
        topics={"t": "t", "u": "u"},
        cut={T: 10, U: 20},
        witnesses=(1,),
    )
    one = complete_generation(1, {T: 10, U: 10})
    assert checkpoint.judge_cut(asked, one.state, guarded(topic())).standing is checkpoint.CutStanding.LOST
    for known in ([one], []):  # or no chain that can be read knows it
        assert checkpoint.judge_cut(asked, one.state, denied_u(*known)).standing is checkpoint.CutStanding.BEHIND
        assert _unprovable(asked, one.state, denied_u(*known)) == []
    assert _unprovable(asked, one.state, guarded(topic())) == [U]


# --- the pipeline: the others are read on -----------------------------------------------------------------------------


def test_what_could_not_be_confirmed_is_held_back_alone() -> None:
    """The positions of all other topics are committed, without a word on what is at head and not named."""
    store, stop = MemoryStore(), threading.Event()
    who = Identity(pair=PAIR, instance="a", incarnation="a-1", cluster_id=CLUSTER)
    writer = claim(store, who, 1, opening=OPENING, reason="test", stop=stop)
    cluster = StandInCluster(topics={"t": topic(), "u": topic("u")}, undescribed={"u"})
    committer = Committer(writer=writer, store=store, cluster=cluster, stop=stop, name="commit")
    committer.start()
    positions = {T: position(5), U: position(7)}
    committer.submit(
        CommitDraft(positions=positions, head_at=99, topics=(topic(), topic("u")), names={"t": "t", "u": "u"})
    )
    assert committer.finish(5)
    assert committer.error is None
    [done] = committer.outcomes()
    assert done.lost_topics == {"u"}
    assert (done.entry.positions.keys(), done.entry.head_at) == ({T}, None)


def test_a_login_that_is_refused_during_a_commit_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """One broker may refuse it alone. The fetch ends the pipeline if all do."""
    monkeypatch.setattr("tandem.sink.write.commit._RETRY_S", 0.01)
    bench = Bench(log=Log(offsets=[0, 1], end=2))
    pipeline = bench.start()
    bench.until(through(2))
    bench.cluster.error = ClusterAuthenticationError("broker 3 refuses", code="TDM-X001", remedy="renew")
    bench.log.append(2)
    wait(lambda: any("not stored yet: broker 3 refuses" in text for text in pipeline.report().trouble))
    bench.cluster.error = None
    bench.until(through(3))
    assert pipeline.error is None
    pipeline.drain()
    assert pipeline.join(5)


def wait(true: Callable[[], bool], seconds: float = 8.0) -> None:
    """Wait until it is so."""
    pause = threading.Event()
    for _ in range(round(seconds / 0.02)):
        if true():
            return
        pause.wait(0.02)
    raise AssertionError("not so in time")


@pytest.mark.parametrize("lack", ["undescribed", "unconfigured"])
def test_a_new_topic_that_is_denied_holds_up_no_other(lack: str) -> None:
    """It is named with what to grant, not read before its tombstones' life is known, and read when it is."""
    bench = Bench(log=Log(offsets=[0, 1], end=2))
    bench.cluster.topics["u"] = topic("u")
    setattr(bench.cluster, lack, {"u"})
    pipeline = bench.start()
    state = bench.until(through(2))
    assert state.topics.keys() == {"t"}
    assert "a right on u is missing (grant it)" in pipeline.report().trouble
    assert pipeline.report().unread == 1
    bench.log.append(2)
    bench.until(through(3))
    setattr(bench.cluster, lack, set())
    bench.until(lambda state: "u" in state.topics)
    wait(lambda: not any("a right" in text for text in pipeline.report().trouble))
    assert pipeline.error is None
    pipeline.drain()
    assert pipeline.join(5)


def test_a_right_that_is_taken_away_and_given_back() -> None:
    """The topic is not gone: what was read of it in between is held back, and it is read on where the chain ends."""
    bench = Bench(log=Log(offsets=[0, 1], end=2))
    bench.cluster.topics["u"] = topic("u")
    pipeline = bench.start()
    bench.until(through(2))
    bench.cluster.undescribed = {"t"}
    for source in bench.log.sources:
        source.leader[T0] = -1  # nobody tells of it
    bench.log.append(2, 3)
    wait(lambda: any("t-0 (no leader)" in text for text in pipeline.report().trouble))
    state = bench.chain()
    assert (state.positions[T].offset, state.topics["t"].removed) == (2, False)
    assert pipeline.error is None
    wait(lambda: any("a right on t is missing" in text for text in pipeline.report().trouble))
    bench.cluster.undescribed = set()
    for source in bench.log.sources:
        source.leader[T0] = 1
    state = bench.until(through(4))
    assert bench.stored(state) == [0, 1, 2, 3]
    assert not state.taints
    pipeline.drain()
    assert pipeline.join(5)


def test_a_denied_configuration_is_as_it_was_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a start anew too; the topic is read on, with partitions that came since."""
    monkeypatch.setattr("tandem.sink.read.new_partitions._FIRST_REST_S", 0.05)
    bench = Bench(log=Log(offsets=[0, 1], end=2))
    bench.cluster.topics["u"] = topic("u")
    before = bench.start()
    state = bench.until(through(2))
    config = state.topics["t"].config
    before.drain()
    assert before.join(5)
    bench.cluster.topics["t"] = topic(partitions=2)
    bench.cluster.unconfigured = {"t"}
    after = bench.again()
    bench.log.append(2)
    state = bench.until(through(3))
    assert (state.topics["t"].config, state.topics["t"].partitions) == (config, 2)
    assert after.error is None
    bench.cluster.topics["t"] = topic(topic_id="another")
    bench.until(lambda state: state.topics["t"].removed)
    after.drain()
    assert after.join(5)


def test_offsets_of_groups_on_a_denied_topic_are_kept() -> None:
    """Nobody asks for them meanwhile, and a group that has others is not one that gave these up."""
    on_t, on_u = GroupOffset(key=T, offset=5), GroupOffset(key=U, offset=7)
    moved = replace(on_t, offset=6)
    context = bare_context(buffer=cast("ObjectBuffer", SimpleNamespace(cut=lambda *_, **__: ())))
    drafter = CommitDrafter(context, Chain().open().state, max_objects=4, flush_interval_s=60.0)
    told = {"g": (on_t, on_u), "h": (on_u,), "i": (on_t,), "large": (on_u,)}
    drafter.survey(ClusterSurvey(found=GuardedTopics(topics=(topic(), topic("u"))), groups=told))
    drafter.draft()
    assert drafter.survey(ClusterSurvey(found=found_without(), groups={"g": (moved,), "large": ()})) == []
    found = drafter.draft()
    assert found is not None
    assert found.groups == {"g": (moved, on_u), "i": (), "large": ()}
    drafter.survey(ClusterSurvey(found=found_without(), groups=None))
    assert drafter.draft() is None
    drafter.survey(ClusterSurvey(found=GuardedTopics(topics=(topic(), topic("u"))), groups={"g": (moved,)}))
    found = drafter.draft()
    assert found is not None
    assert found.groups == {"g": (moved,), "h": ()}
