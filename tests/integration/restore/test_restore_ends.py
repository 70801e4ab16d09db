"""How runs of a restore end: what they say, what they leave, and what stands in their way, on a real broker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from support.clusters.topics import TopicMaker
from support.pairs.in_process import tandem
from support.restores.cases import Case, CrashAt, CrashError, Do, backup_of_one
from support.restores.live_topics import backup_of_two, unfinished

from tandem.backup_avro.errors import ConfigError, ExitCode, RefusedError, TandemError
from tandem.sink.kafka.cluster.admin import ClusterAdmin
from tandem.sink.kafka.errors.cluster_errors import ClusterRequestError, ClusterTransientError
from tandem.spark_jobs.restore import forget_restores
from tandem.spark_jobs.restore.abandon import abandon
from tandem.spark_jobs.restore.lease import other_restores
from tandem.spark_jobs.restore.lease.lease_record import OvertakenError
from tandem.spark_jobs.restore.plan.options import RestoreOptions
from tandem.spark_jobs.restore.plan.plan import RestorePlan, TopicNaming
from tandem.spark_jobs.restore.prepare.prepare import prepare_restore
from tandem.spark_jobs.restore.progress import task_progress as marks
from tandem.spark_jobs.restore.progress.task_progress import LostEndError, PlanPhase

pytestmark = [pytest.mark.integration, pytest.mark.spark]

Change = Mapping[str, str | None]


def refuse(monkeypatch: pytest.MonkeyPatch, key: str, value: str, *, why: str) -> None:
    """Let the cluster refuse this setting, for whichever topic, when it is to be set."""
    alter = ClusterAdmin.alter_configs

    def strict(admin: ClusterAdmin, changes: Mapping[str, Change], *, only_ask: bool = False) -> dict[str, TandemError]:
        refused = {name for name, some in changes.items() if some.get(key) == value and not only_ask}
        taken = {name: some for name, some in changes.items() if name not in refused}
        error = ClusterRequestError(why, code="TDM-X001")
        return alter(admin, taken, only_ask=only_ask) | dict.fromkeys(refused, error)

    monkeypatch.setattr(ClusterAdmin, "alter_configs", strict)


class Heard(Do):
    """Also keeps what is said of a run that did not come to its end: whether its command goes on with it."""

    def __init__(self, phase: str, action: Callable[[], object]) -> None:
        super().__init__(phase, action)
        self.goes_on: list[bool] = []

    def unfinished(self, plan: RestorePlan, *, wrong: bool = False) -> None:
        assert plan.append
        self.goes_on.append(not wrong)


def _raise(error: Exception) -> None:
    raise error


def test_what_waits_for_somebody_is_said_and_nothing_else(case: Case, live: str) -> None:
    """A run that stumbles says what goes on with it; one that was given up says that, whatever made it stumble."""
    backup_of_two(case, live)
    stumbles = Heard("verifying", lambda: _raise(ClusterTransientError("away", code="TDM-X001")))
    with pytest.raises(ClusterTransientError):
        case.restore(RestoreOptions(append=True), stumbles)
    assert stumbles.goes_on == [True]

    def give_up() -> None:
        abandon(case.target, unfinished(case, live).plan)
        raise ClusterTransientError("away", code="TDM-X001")

    given_up = Heard("verifying", give_up)
    with pytest.raises(OvertakenError):
        case.restore(RestoreOptions(append=True), given_up)
    assert given_up.goes_on == []


def test_nobody_goes_on_where_a_transaction_has_lost_its_end(case: Case, live: str) -> None:
    """A part of it may be in the topic for good: to go on would put that there twice."""
    backup_of_two(case, live)
    config = case.target.set_on([live])[live]
    stuck = Heard("verifying", lambda: _raise(LostEndError("stuck", code="TDM-X001")))
    with pytest.raises(LostEndError):
        case.restore(RestoreOptions(append=True), stuck)
    assert stuck.goes_on == [False]
    with pytest.raises(RefusedError, match="did not end") as refused:
        case.restore(RestoreOptions(append=True))
    assert "abandon" in str(refused.value)
    assert "to finish it" not in str(refused.value)
    abandon(case.target, unfinished(case, live).plan)
    assert case.target.set_on([live])[live] == config


def test_a_setting_that_the_cluster_refuses_by_now(
    case: Case, live: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named, with what it was; set to what the cluster takes, it is left so, and the restore is given up."""
    backup_of_two(case, live)
    with pytest.raises(CrashError):
        case.restore(RestoreOptions(append=True), CrashAt("verifying"))
    plan = unfinished(case, live).plan
    refuse(monkeypatch, "retention.ms", "86400000", why="a day is too long")
    config = tmp_path / "a.yaml"
    config.write_text(
        f"pair: shop\nkafka: {{bootstrap.servers: '{case.kafka.bootstrap}'}}\nstore: {{root: '{case.root}'}}\n"
    )
    command = ("restore", "abandon", plan[:16], "--yes")
    tandem(config, *command[:-1], expected=ExitCode.REFUSED)
    assert unfinished(case, live).plan == plan, "nobody could be asked"
    done, _ = tandem(config, *command, expected=ExitCode.UNHEALTHY)
    wanted = {"topic": live, "setting": "retention.ms", "wanted": "86400000", "reason": "a day is too long"}
    assert (done["refused"], done["putBack"]) == ([wanted], [])
    assert unfinished(case, live).plan == plan, "not given up yet"
    case.admin.alter_config(live, {"retention.ms": "7200000"})
    done, _ = tandem(config, *command, "--target-bootstrap-servers", case.kafka.bootstrap)
    assert (done["restore"], done["records"], done["putBack"], done["refused"]) == (plan[:16], 600, [live], [])
    assert case.target.set_on([live])[live]["retention.ms"] == "7200000"
    assert "min.compaction.lag.ms" not in case.target.set_on([live])[live]
    assert [state.state for state in case.states() if live in state.targets] == [PlanPhase.ABANDONED]
    tandem(config, *command, expected=ExitCode.REFUSED)


def test_tidying_up_does_not_make_it_a_failure(case: Case, live: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report comes, and says what went wrong after the end."""
    backup_of_two(case, live)
    monkeypatch.setattr(
        forget_restores, "tidy", lambda *_, **__: _raise(ClusterTransientError("the broker is away", code="TDM-X001"))
    )
    report = case.restore(RestoreOptions(append=True))
    assert report.mismatches == ()
    [topic] = report.topics
    assert any("has ended well" in note and "the broker is away" in note for note in topic.notes)


def test_others_may_have_transactions_open_for_long(case: Case, live: str) -> None:
    """The check of what was appended does not wait for what was written after it."""
    backup_of_two(case, live)
    name = {"bootstrap.servers": case.kafka.bootstrap, "transactional.id": f"{live}-open"}
    producer = Producer({**name, "transaction.timeout.ms": 600_000})
    producer.init_transactions(30)

    def write() -> None:
        producer.begin_transaction()
        for number in (0, 1):
            producer.produce(live, key=b"other", value=b"theirs", partition=number)
        assert producer.flush(30) == 0

    report = case.restore(RestoreOptions(append=True), Do("verifying", write))
    producer.abort_transaction(30)
    assert (report.mismatches, report.records) == ((), 600)
    assert report.check_seconds < 60


def test_who_is_refused_before_he_has_changed_anything_changes_nothing(
    case: Case, make_topic: TopicMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even back: the config is the other one's by then. And nothing of him stands in anybody's way."""
    topic = make_topic(partitions=1)
    backup_of_one(case, topic, count=20)
    changed: list[str] = []

    def change(_: ClusterAdmin, changes: Mapping[str, Change], *, only_ask: bool = False) -> dict[str, TandemError]:
        changed.extend(() if only_ask else changes)
        return {}

    monkeypatch.setattr(ClusterAdmin, "alter_configs", change)

    monkeypatch.setattr(
        other_restores, "refuse_if_met", lambda *_: _raise(RefusedError("began at the same time", code="TDM-X001"))
    )
    with pytest.raises(RefusedError, match="at the same time"):
        case.restore(RestoreOptions())
    assert changed == []
    assert [state.state for state in case.states() if topic in state.targets] == [PlanPhase.ABANDONED]


def test_ended_while_topics_are_made(case: Case, topic_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is known from before the first: the same command goes on, or giving it up names what is left."""
    backup_of_one(case, topic_name, count=20)
    target = f"{topic_name}.restored"
    create = ClusterAdmin.create_topics

    def create_and_die(admin: ClusterAdmin, topics: Sequence[NewTopic], *, only_ask: bool = False) -> None:
        create(admin, topics, only_ask=only_ask)
        if target in [topic.topic for topic in topics] and not only_ask:
            raise CrashError

    monkeypatch.setattr(ClusterAdmin, "create_topics", create_and_die)
    options = RestoreOptions(naming=TopicNaming(suffix=".restored"))
    with pytest.raises(CrashError):
        case.restore(options)
    monkeypatch.undo()
    state = unfinished(case, target)
    assert (state.state, dict(state.targets)) == (PlanPhase.BEGUN, {target: ""})
    with pytest.raises(RefusedError, match="did not end"):
        case.restore(RestoreOptions(naming=TopicNaming(suffix=".restored"), append=True))
    assert abandon(case.target, state.plan).stay == (target,)
    assert case.restore(options).mismatches == ()
    assert marks.TOPIC not in case.target.look([target])


@pytest.mark.parametrize("existing", [False, True])
def test_a_config_that_the_cluster_would_refuse_is_found_first(
    case: Case, topic_name: str, make_topic: TopicMaker, existing: bool
) -> None:
    """Nothing is created or changed, and a dry run says it too."""
    backup_of_one(case, topic_name, count=20)
    target = make_topic(partitions=1) if existing else f"{topic_name}.restored"
    options = RestoreOptions(
        naming=TopicNaming(only=target), topic_config={"cleanup.policy": "compcat", "retention.ms": "1"}
    )
    before, config = case.states(), case.target.set_on([target]) if existing else {}
    with pytest.raises(ConfigError, match=f"topic {target} cleanup.policy=compcat: .*compcat.*mend --topic-config"):
        case.restore(options)
    assert case.states() == before
    assert case.target.set_on([target] if existing else []) == config
    assert case.target.look([target]).keys() == ({target} if existing else set())
    refused = prepare_restore(case.reader, case.target, options, only_look=True).refused
    assert isinstance(refused, ConfigError)


def test_a_policy_that_the_cluster_refuses_in_the_end(
    case: Case, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing expires, the report says what is missing, and the same command goes on with another setting."""
    backup_of_one(case, topic_name, count=20, **{"cleanup.policy": "compact", "retention.ms": "1000"})
    target = f"{topic_name}.restored"
    refuse(monkeypatch, "cleanup.policy", "compact", why="compaction is not for everybody")
    options = RestoreOptions(naming=TopicNaming(only=target))
    report = case.restore(options)
    now = case.target.set_on([target])[target]
    assert (now["cleanup.policy"], now["retention.ms"], now["retention.bytes"]) == ("delete", "-1", "-1")
    [topic] = report.topics
    assert (report.mismatches, report.ended, report.records) == ((), False, 20)
    assert topic.unset.keys() == {"cleanup.policy", "retention.ms", "retention.bytes"}
    assert any("give the command again" in note for note in topic.notes)
    assert (topic.config["cleanup.policy"], topic.config["retention.ms"]) == ("delete", "-1")
    assert unfinished(case, target).state is PlanPhase.VERIFIED
    monkeypatch.undo()
    again = case.restore(replace(options, topic_config={"cleanup.policy": "compact,delete", "retention.ms": "-1"}))
    assert (again.ended, again.resumed) == (True, 20)
    assert case.target.set_on([target])[target]["cleanup.policy"] == "compact,delete"
    [state] = [state for state in case.states() if target in state.targets]
    assert state.state is PlanPhase.FINISHED
