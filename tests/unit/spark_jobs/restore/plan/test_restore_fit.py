"""Topics that nobody recorded: a target's own settings survive a restore that is killed; partitions are not guessed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from support.backups.old_files import avro, put, rows, sink_key
from support.restores.records import plan_state, task_progress

from tandem.backup_avro.documents.connector_layout import ConnectorReading
from tandem.backup_avro.errors import RefusedError
from tandem.sink.kafka.errors.cluster_errors import UnknownTopicError
from tandem.sink.store import StoreAccess
from tandem.spark_jobs.connector.connector_reader import ConnectorReader
from tandem.spark_jobs.reading.object_reader import StoreAddress
from tandem.spark_jobs.restore.plan import plan_file
from tandem.spark_jobs.restore.plan.options import RestoreOptions, plan_of
from tandem.spark_jobs.restore.plan.plan import LOADING, RestorePlan, TargetTopic, TopicNaming, TopicPlan, shaped
from tandem.spark_jobs.restore.plan.topic_settings import fitted, own_settings
from tandem.spark_jobs.restore.prepare.prepare import PreparedRestore, prepare_restore
from tandem.spark_jobs.restore.progress.task_progress import (
    PlanPhase,
    PlanState,
    RestoreProgress,
    TargetStrand,
    TaskProgress,
    decode_state,
    encode_state,
)
from tandem.spark_jobs.restore.records.record_changes import NOTHING

OWN = {"cleanup.policy": "compact,delete", "retention.ms": "86400000"}


@pytest.fixture
def plan(tmp_path: Path) -> RestorePlan:
    """A plan of a topic with files of three partitions."""
    for number in range(3):
        put(tmp_path, sink_key("orders", number, 0), avro(rows("orders", number, range(3))))
    address = StoreAddress(root=tmp_path.as_uri(), settings=StoreAccess(), connector=ConnectorReading())
    return plan_of(ConnectorReader(address), RestoreOptions(naming=TopicNaming(suffix=".r")))


def target(partitions: int = 3, config: Mapping[str, str] = OWN, topic_id: str = "one") -> dict[str, TargetTopic]:
    """An empty topic on the target."""
    numbers = dict.fromkeys(range(partitions), 0)
    return {
        "orders.r": TargetTopic(
            name="orders.r", topic_id=topic_id, replication_factor=1, config=config, starts=numbers, ends=numbers
        )
    }


def state(configs: Mapping[str, Mapping[str, str]], topic_id: str = "one") -> PlanState:
    """What a restore that did not end has noted."""
    return plan_state(plan="p", run="r", generation=0, basis={}, targets={"orders.r": topic_id}, configs=configs)


def fit(plan: RestorePlan, targets: Mapping[str, TargetTopic], *states: PlanState, **how: object) -> RestorePlan:
    """Fit and shape a plan as a restore does."""
    given = {"config": {}, "partitions": None, "repartitions": False, **how}
    found = fitted(plan, targets, own_settings(plan, targets, states), **given)  # type: ignore[arg-type]  # named
    return shaped(found, NOTHING, targets, count=given["partitions"])  # type: ignore[arg-type]  # a number


def test_new_topics_are_compacted_unless_the_user_says_otherwise(plan: RestorePlan) -> None:
    """`--topic-config` is laid over the default."""
    assert dict(fit(plan, {}).topics[0].source.config) == {"cleanup.policy": "compact"}
    config = fit(plan, {}, config={"cleanup.policy": "delete", "segment.ms": "5"}).topics[0].source.config
    assert dict(config) == {"cleanup.policy": "delete", "segment.ms": "5"}


def test_an_empty_topic_keeps_its_own_settings(plan: RestorePlan) -> None:
    """What the user says is laid over them, and they are noted."""
    assert own_settings(plan, target(), []) == {"orders.r": OWN}
    config = fit(plan, target(), config={"retention.ms": "5"}).topics[0].source.config
    assert dict(config) == {"cleanup.policy": "compact,delete", "retention.ms": "5"}


def test_a_run_that_was_killed_leaves_them_in_its_state(plan: RestorePlan) -> None:
    """By then the topic is configured for loading, which is nobody's own."""
    loading = target(config=LOADING)
    written = state({"orders.r": OWN})
    assert own_settings(plan, loading, [written]) == {"orders.r": OWN}
    assert dict(fit(plan, loading, written).topics[0].source.config) == OWN
    assert decode_state(encode_state(written), "x") == written
    assert b"configs" not in encode_state(state({}))


def test_topics_that_a_run_made_have_none_of_their_own(plan: RestorePlan) -> None:
    """Be it noted or not that it made them; a namesake of another life is not the one of the note."""
    for states in ([state({})], []):
        assert own_settings(plan, target(config=LOADING), states) == {}
    assert own_settings(plan, target(config=OWN), [state({}, topic_id="before")]) == {"orders.r": OWN}


class Cluster:
    """A target cluster, as far as planning looks at it."""

    def __init__(
        self, topics: Mapping[str, TargetTopic], *states: PlanState, tasks: Iterable[TaskProgress] = ()
    ) -> None:
        self.topics = topics
        self.states = states
        self.tasks = tasks

    @property
    def admin(self) -> Cluster:
        return self

    def config(self, names: Iterable[str], *, defaults: Iterable[str]) -> dict[str, dict[str, str]]:
        """No restore has come here yet."""
        raise UnknownTopicError(f"{list(names)}, {list(defaults)}", code="TDM-X001")

    def progress(self, *, settled: bool) -> RestoreProgress:
        """What restores have noted."""
        del settled
        return RestoreProgress(
            plans={item.plan: item for item in self.states}, tasks={item.key: item for item in self.tasks}
        )

    def look(self, names: Iterable[str]) -> dict[str, TargetTopic]:
        """Those of the topics that exist."""
        return {name: self.topics[name] for name in names if name in self.topics}

    def brokers(self) -> int:
        return 1

    def refuse_if_impatient(self) -> None:
        """They let transactions take as long as any restore wants."""

    def would_create(self, plan: TopicPlan, *, replication_factor: int) -> None:
        """It would."""

    def would_take(
        self, plan: TopicPlan, changes: Mapping[str, str | None], *, replication_factor: int
    ) -> dict[str, str]:
        del plan, changes, replication_factor
        return {}


def prepared(root: Path, cluster: Cluster) -> PreparedRestore:
    """Plan a restore of all topics below a root."""
    address = StoreAddress(root=root.as_uri(), settings=StoreAccess(), connector=ConnectorReading())
    options = RestoreOptions(naming=TopicNaming(suffix=".r"))
    return prepare_restore(ConnectorReader(address), cluster, options)  # type: ignore[arg-type]  # it does what planning needs


def test_a_run_that_ended_before_it_made_its_topics_is_begun_anew(tmp_path: Path) -> None:
    """It is resumed only if all of its targets are there; the settings that it noted are kept either way."""
    for topic in ("orders", "users"):
        put(tmp_path, sink_key(topic, 0, 0), avro(rows(topic, 0, range(3))))
    orders = target(1, config=LOADING)
    both = {**orders, "users.r": replace(orders["orders.r"], name="users.r", topic_id="two")}
    noted = replace(state({"orders.r": OWN}), plan=prepared(tmp_path, Cluster({})).plan.hash)

    anew = prepared(tmp_path, Cluster(orders, noted))
    assert (anew.resumes, anew.displaces, anew.configs) == (None, (), {"orders.r": OWN})

    whole = replace(noted, targets={"orders.r": "one", "users.r": "two"})
    resumed = prepared(tmp_path, Cluster(both, whole))
    assert (resumed.resumes, resumed.displaces, resumed.configs) == (whole, (), {"orders.r": OWN})
    configs = {topic.target: dict(topic.source.config) for topic in resumed.plan.topics}
    assert configs == {"orders.r": OWN, "users.r": {"cleanup.policy": "compact"}}


@pytest.mark.parametrize("stands", [PlanPhase.LOADING, PlanPhase.VERIFIED])
def test_what_is_verified_may_have_its_retention(stands: PlanPhase, tmp_path: Path) -> None:
    """The other topic's policy was refused, so the restore did not end: this one's first records may go meanwhile.

    Before that no record may be missing of what an earlier run has written.
    """
    for topic in ("orders", "users"):
        put(tmp_path, sink_key(topic, 0, 0), avro(rows(topic, 0, range(3))))
    orders = target(1)
    both = {**orders, "users.r": replace(orders["orders.r"], name="users.r", topic_id="two")}
    both = {name: replace(item, ends={0: 5}) for name, item in both.items()}
    made = prepared(tmp_path, Cluster({})).plan
    known = {name: item.topic_id for name, item in both.items()}
    noted = replace(state({}), plan=made.hash, state=stands, targets=known)
    tasks = [
        task_progress(
            plan=made.hash,
            topic_id=topic.source.topic_id,
            target=topic.target,
            target_topic_id=known[topic.target],
            next_offsets={0: 3},
            strands={0: TargetStrand(records=3, hash="0" * 64, first=0, last=2)},
        )
        for topic in made.topics
    ]
    cluster = Cluster(both, noted, tasks=tasks)
    assert prepared(tmp_path, cluster).resumes == noted
    both["orders.r"] = replace(both["orders.r"], starts={0: 2})
    if stands is PlanPhase.VERIFIED:
        assert prepared(tmp_path, cluster).resumes == noted
    else:
        with pytest.raises(RefusedError, match=r"orders\.r-0 lost records that an earlier run"):
            prepared(tmp_path, cluster)


def test_recorded_topics_keep_their_partitions_and_take_what_the_user_says(plan: RestorePlan) -> None:
    """Their config was recorded: it counts, key by key, unless somebody says otherwise; the target's does not."""
    assert plan.topics[0].source.config != {}
    recorded = replace(plan, recorded=True)
    assert own_settings(recorded, target(), []) == {}
    assert fitted(recorded, target(5), {}, config={}, partitions=9, repartitions=False) is recorded
    found = fitted(recorded, target(5), {}, config={"retention.ms": "5"}, partitions=9, repartitions=False)
    [topic], [before] = found.topics, recorded.topics
    assert topic.source.config == {**before.source.config, "retention.ms": "5"}
    assert (topic.count, topic.source.partitions, found.hash) == (3, 3, recorded.hash)


def test_the_number_of_partitions(plan: RestorePlan) -> None:
    """The highest that was seen, or more if the target or the user says so; fewer are refused."""
    assert fit(plan, {}).topics[0].count == 3
    for made in (fit(plan, {}, partitions=8), fit(plan, target(8))):
        [topic] = made.topics
        assert (topic.count, topic.source.partitions, topic.repartitioned) == (8, 8, False)
    for how in ({"targets": {}, "partitions": 2}, {"targets": target(2), "partitions": None}):
        with pytest.raises(RefusedError, match=r"files of 3 partitions of orders, but orders\.r has, or is to get, 2"):
            fit(plan, how["targets"], partitions=how["partitions"])  # type: ignore[arg-type]  # see above
    assert fitted(plan, {}, {}, config={}, partitions=2, repartitions=True).topics[0].source.partitions == 3
    assert fit(plan, {}, partitions=8).hash == plan.hash, "a resumed run may know more"


def test_a_plan_in_a_file_keeps_what_the_user_said(plan: RestorePlan) -> None:
    """`--apply` sets the same config."""
    options = RestoreOptions(topic_config={"cleanup.policy": "delete"}, naming=TopicNaming(suffix=".r"))
    assert plan_file.decode(plan_file.encode(plan, options), "x", pair="connector").topic_config == {
        "cleanup.policy": "delete"
    }


def test_a_cluster_where_the_progress_would_expire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused before anything is touched; a dry run has the plan, and the reason."""
    put(tmp_path, sink_key("orders", 0, 0), avro(rows("orders", 0, range(3))))
    cluster = Cluster({})
    monkeypatch.setattr(Cluster, "config", lambda *_, **__: {"_tandem_restore_progress": {"cleanup.policy": "delete"}})
    with pytest.raises(RefusedError, match=r"_tandem_restore_progress on the target has cleanup\.policy=delete"):
        prepared(tmp_path, cluster)
    address = StoreAddress(root=tmp_path.as_uri(), settings=StoreAccess(), connector=ConnectorReading())
    options = RestoreOptions(naming=TopicNaming(suffix=".r"))
    looked = prepare_restore(ConnectorReader(address), cluster, options, only_look=True)  # type: ignore[arg-type]  # as above
    assert (looked.plan.records, type(looked.refused)) == (3, RefusedError)
