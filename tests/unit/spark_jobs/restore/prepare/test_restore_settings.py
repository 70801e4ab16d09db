"""The settings that targets have in the end: what is refused before anything is touched, and what comes first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from confluent_kafka.admin import NewTopic
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.errors import ConfigError, RefusedError, TandemError
from tandem.sink.kafka.errors.cluster_errors import ClusterDeniedError, ClusterRequestError
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.spark_jobs.restore.plan.options import RestoreOptions, plan_of
from tandem.spark_jobs.restore.plan.plan import LOADING, RestorePlan, TargetTopic, shaped
from tandem.spark_jobs.restore.plan.timestamp_limits import LIMITS, as_known
from tandem.spark_jobs.restore.plan.topic_settings import fitted
from tandem.spark_jobs.restore.prepare import target_settings
from tandem.spark_jobs.restore.records.record_changes import NOTHING
from tandem.spark_jobs.restore.target.target_cluster import TargetCluster

Settings = Mapping[str, str | None]
_OLD = ("message.timestamp.difference.max.ms",)
_LOADED = {key: value for key, value in LOADING.items() if key not in _OLD}
_TODAY = ("message.timestamp.after.max.ms", "message.timestamp.before.max.ms")


@dataclass(slots=True)
class Admin:
    """A cluster that refuses what `objection` objects to. `asked` and `config`: topic -> settings.

    `limits` are the bounds on timestamps that it knows, `patience` what its brokers let a transaction take.
    """

    objection: Callable[[Settings], str | None]
    asked: list[tuple[str, Settings]] = field(default_factory=list)
    config_: dict[str, dict[str, str]] = field(default_factory=dict)
    limits: tuple[str, ...] = _TODAY
    patience: str | None = "900000"
    may_alter: bool = True

    def create_topics(self, topics: Sequence[NewTopic], *, only_ask: bool = False) -> None:
        assert only_ask or not topics
        for topic in topics:
            self._object(topic.topic, topic.config)

    def alter_configs(self, changes: Mapping[str, Settings]) -> dict[str, TandemError]:
        """Change them one after the other."""
        failed: dict[str, TandemError] = {}
        for name, some in changes.items():
            try:
                self.alter_config(name, some)
            except TandemError as error:
                failed[name] = error
        return failed

    def alter_config(self, name: str, changes: Settings, *, only_ask: bool = False) -> None:
        """Change settings as brokers do: all or none, and who may not is told before all else."""
        if not self.may_alter:
            raise ClusterDeniedError(f"not allowed on {name}", code="TDM-X001", remedy="grant AlterConfigs")
        self._object(name, {**self.config_.get(name, {}), **changes})
        if not only_ask:
            now = {**self.config_.get(name, {}), **changes}
            self.config_[name] = {key: value for key, value in now.items() if value is not None}

    def config(self, names: Iterable[str], *, defaults: Iterable[str]) -> dict[str, dict[str, str]]:
        """What was set, and those of `defaults` that it knows."""
        known = dict.fromkeys(set(defaults) & set(self.limits), "7")
        return {name: {**known, **self.config_.get(name, {})} for name in names}

    def broker_setting(self, key: str) -> dict[int, str]:
        """One broker has it."""
        assert key == "transaction.max.timeout.ms"
        if self.patience is None:
            raise ClusterDeniedError("not allowed", code="TDM-X001", remedy="grant DescribeConfigs")
        return {1: "900000", 2: self.patience}

    def _object(self, name: str, settings: Settings) -> None:
        unknown = sorted(settings.keys() & LIMITS.keys() - set(self.limits))
        if unknown:
            raise ClusterRequestError(
                f"Unknown topic config name: {unknown[0]}", code="TDM-X001", remedy="see the broker's log"
            )
        self.asked.append((name, dict(settings)))
        why = self.objection(settings)
        if why is not None:
            raise ClusterRequestError(why, code="TDM-X001", remedy="see the broker's log")


def _target(admin: Admin) -> TargetCluster:
    found = TargetCluster.__new__(TargetCluster)
    found.props = {}
    found.admin = admin  # type: ignore[assignment]  # it does what is needed here
    found._limits = None
    return found


def _policies(settings: Settings) -> str | None:
    policy = settings.get("cleanup.policy")
    if policy not in {None, "compact", "delete"}:
        return f"no policy: {policy}"
    return "unknown: nonsense" if "nonsense" in settings else None


@pytest.fixture
def plan() -> RestorePlan:
    """Of the topic `t`, compacted, with a retention that would matter if it were not."""
    store = MemoryStore()
    config = {"cleanup.policy": "compact", "retention.ms": "1000", "nonsense": "1"}
    Backup.completed(store, records("t", 0, range(5)), topics=[TopicSpec("t", config=config)])
    return plan_of(ChainReader(store, PAIR), RestoreOptions())


_EXISTING = TargetTopic(name="t", topic_id="id-t", replication_factor=1, config={}, starts={0: 0}, ends={0: 0})


def _ask(admin: Admin, plan: RestorePlan, options: RestoreOptions, *, existing: bool) -> target_settings.Refusals:
    targets = {"t": _EXISTING} if existing else {}
    made = fitted(plan, targets, {}, config=options.topic_config, partitions=None, repartitions=False)
    return target_settings.ask(_target(admin), made, options, targets, {} if existing else {"t": 1})


@pytest.mark.parametrize("existing", [False, True])
def test_what_the_user_gave_is_refused_before_anything_is_touched(plan: RestorePlan, existing: bool) -> None:
    """Topic, setting, reason and remedy are named; nothing was changed."""
    admin = Admin(_policies)
    with pytest.raises(ConfigError, match=r"topic t cleanup\.policy=compcat: no policy: compcat") as refused:
        _ask(admin, plan, RestoreOptions(topic_config={"cleanup.policy": "compcat"}), existing=existing)
    assert refused.value.remedy == "mend --topic-config"
    assert admin.config_ == {}
    _ask(
        admin,
        plan,
        RestoreOptions(topic_config={"cleanup.policy": "compcat"}, keep_load_config=True),
        existing=existing,
    )


@pytest.mark.parametrize("existing", [False, True])
def test_what_was_recorded(plan: RestorePlan, existing: bool) -> None:
    """What another make of cluster does not know is left out and named; what decides on records stops the restore."""
    admin = Admin(_policies)
    left_out = _ask(admin, plan, RestoreOptions(), existing=existing)
    assert left_out == {"t": {"nonsense": "unknown: nonsense"}}
    assert target_settings.warnings(left_out) == ["t will not get nonsense as it was recorded: unknown: nonsense"]
    never = Admin(lambda settings: "too short" if settings.get("retention.ms") == "1000" else None)
    with pytest.raises(ConfigError, match=r"retention\.ms=1000: too short \(say with --topic-config.*keep-load-config"):
        _ask(never, plan, RestoreOptions(), existing=existing)
    assert _ask(never, plan, RestoreOptions(topic_config={"retention.ms": "2000"}), existing=existing) == {}


def test_what_is_refused_together(plan: RestorePlan) -> None:
    """Named is what spoils it; where no single setting does, all of them."""
    both = Admin(lambda s: "both" if s.get("cleanup.policy") == "compact" and s.get("retention.ms") else None)
    with pytest.raises(ConfigError, match=r"cleanup\.policy=compact: both; retention\.ms=1000: both"):
        _ask(both, plan, RestoreOptions(), existing=False)
    [topic] = plan.topics
    changes, _ = topic.recorded_changes(1)
    many = Admin(lambda s: "too many" if sum(value is not None for value in s.values()) > 1 else None)
    assert _target(many).would_take(topic, changes, replication_factor=1).keys() == changes.keys()


def test_topics_that_are_added_to(plan: RestorePlan) -> None:
    """What they get meanwhile and what they get back is asked for too."""
    made = shaped(plan, NOTHING, {"t": _EXISTING}, append=True)
    targets = {"t": _EXISTING}
    admin = Admin(lambda _: None, config_={"t": {"retention.ms": "7"}})
    assert target_settings.ask(_target(admin), made, RestoreOptions(append=True), targets, {}) == {}
    assert [settings["retention.ms"] for _, settings in admin.asked] == ["-1", "7"]
    lag = Admin(lambda s: "a policy" if s.get("min.compaction.lag.ms") else None)
    with pytest.raises(ConfigError, match=r"min\.compaction\.lag\.ms=\d+: a policy"):
        target_settings.ask(_target(lag), made, RestoreOptions(append=True), targets, {})


def test_without_its_policy_a_topic_gets_no_retention(plan: RestorePlan) -> None:
    """As it was loaded, with `delete`, the retention of a compacted topic would delete its records."""
    [topic] = plan.topics
    changes, _ = topic.recorded_changes(1)
    admin = Admin(lambda s: "no" if s.get("cleanup.policy") == "compact" else None, config_={"t": dict(_LOADED)})
    refused = _target(admin).set_configs({"t": changes})["t"]
    assert refused == {
        "cleanup.policy": "no",
        "retention.bytes": "it was left as it is, because cleanup.policy could not be set",
        "retention.ms": "it was left as it is, because cleanup.policy could not be set",
    }
    assert {key: admin.config_["t"][key] for key in refused} == {key: LOADING[key] for key in refused}
    assert "segment.ms" not in admin.config_["t"], "all else was set"
    known = Admin(_policies, config_={"t": dict(_LOADED)})
    assert _target(known).set_configs({"t": changes})["t"] == {"nonsense": "unknown: nonsense"}
    assert (known.config_["t"]["cleanup.policy"], known.config_["t"]["retention.ms"]) == ("compact", "1000")


def test_what_to_do_about_it() -> None:
    """Only of what decides on records it is said that none expires."""
    assert target_settings.remedies({}) == []
    [text] = target_settings.remedies({"cleanup.policy": "no", "segment.ms": "no"})
    assert "none expires as long as cleanup.policy could not be set" in text
    [text] = target_settings.remedies({"segment.ms": "no"})
    assert "expires" not in text


@pytest.mark.parametrize("limits", [_OLD, _TODAY, (*_OLD, *_TODAY)], ids=["before 3.6", "4", "3.6 to 3.9"])
@pytest.mark.parametrize("existing", [False, True])
def test_only_the_limits_that_a_cluster_knows_are_set(
    plan: RestorePlan, limits: tuple[str, ...], existing: bool
) -> None:
    """All of those, as the older one counts where both are known; they are dropped afterwards, and nothing is named."""
    admin = Admin(_policies, limits=limits, config_={"t": {}} if existing else {})
    target, [topic] = _target(admin), plan.topics
    if existing:
        target.make_ready([topic], {"t"}, lambda _: 1)
        assert {key for key in admin.config_["t"] if key in LIMITS} == set(limits)
    else:
        target.would_create(topic, replication_factor=1)
        *_, asked = [settings for _, settings in admin.asked if settings.keys() >= {*limits, "segment.ms"}]
        assert LIMITS.keys() & asked.keys() == set(limits)
    assert _ask(admin, plan, RestoreOptions(), existing=existing) == {"t": {"nonsense": "unknown: nonsense"}}
    changes, _ = topic.recorded_changes(1)
    assert target.set_configs({"t": changes})["t"] == {"nonsense": "unknown: nonsense"}
    assert not LIMITS.keys() & admin.config_["t"].keys()


@pytest.mark.parametrize("limits", [_OLD, _TODAY])
def test_topics_of_any_release_are_added_to(plan: RestorePlan, limits: tuple[str, ...]) -> None:
    """What is held off meanwhile, and what they get back, is asked for in words that the cluster knows."""
    made = shaped(plan, NOTHING, {"t": _EXISTING}, append=True)
    admin = Admin(lambda _: None, limits=limits)
    assert target_settings.ask(_target(admin), made, RestoreOptions(append=True), {"t": _EXISTING}, {}) == {}
    assert [LIMITS.keys() & settings.keys() for _, settings in admin.asked] == [set(limits)] * 2


def test_a_limit_that_bounds_something_is_not_lost() -> None:
    """Who recorded it hears that the target does not know it."""
    assert as_known({"message.timestamp.before.max.ms": "7", "segment.ms": "8"}, _OLD) == {
        "message.timestamp.before.max.ms": "7",
        "segment.ms": "8",
    }


def test_brokers_that_end_transactions_too_soon_are_found_before_anything_is_touched() -> None:
    """Where the brokers may be asked; else it is found out as before."""
    with pytest.raises(RefusedError, match=r"transaction\.max\.timeout\.ms is 60000 on broker 2: .* 180000 ms"):
        _target(Admin(_policies, patience="60000")).refuse_if_impatient()
    for patience in ("180000", None):
        _target(Admin(_policies, patience=patience)).refuse_if_impatient()


def test_who_may_not_change_the_config_is_told_before_anything_is_created(plan: RestorePlan) -> None:
    """A topic that is not there is asked about as well: brokers look at rights first."""
    [topic] = plan.topics
    with pytest.raises(ClusterDeniedError, match="not allowed on t"):
        _target(Admin(_policies, may_alter=False)).would_create(topic, replication_factor=1)
