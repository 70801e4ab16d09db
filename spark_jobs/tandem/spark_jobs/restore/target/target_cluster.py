"""The cluster that is restored into: reads its topics, log offsets and config, creates topics, and changes config."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # public, but not marked so

from tandem.backup_avro.errors import RefusedError
from tandem.sink.kafka.auth.client_config import Value, for_confluent, servers_of
from tandem.sink.kafka.cluster.admin import ClusterAdmin
from tandem.sink.kafka.cluster.admin_requests import EARLIEST, LATEST
from tandem.sink.kafka.errors.cluster_errors import (
    ClusterDeniedError,
    ClusterRequestError,
    ClusterUnreachableError,
    UnknownTopicError,
)
from tandem.spark_jobs.restore.plan.plan import LOADING, POLICY, RETENTION, TargetTopic, TopicPlan
from tandem.spark_jobs.restore.plan.timestamp_limits import LIMITS, as_known
from tandem.spark_jobs.restore.progress import task_progress as marks
from tandem.spark_jobs.restore.progress.batch_producer import TRANSACTION_TIMEOUT_MS
from tandem.spark_jobs.restore.progress.task_progress import ProgressView, RestoreProgress

_BROKERS_S: Final = 30.0
_TRANSACTION_LIMIT: Final = "transaction.max.timeout.ms"


class TargetCluster:
    """One cluster. Methods raise the errors of `ClusterAdmin`."""

    def __init__(self, props: Mapping[str, Value]) -> None:
        self.props = props
        self.admin = ClusterAdmin(props)
        self._limits: frozenset[str] | None = None

    def brokers(self) -> int:
        """Return the number of brokers, which bounds a topic's replication factor."""
        # ClusterAdmin does not return it.
        try:
            config: dict[str, Any] = for_confluent(self.props)
            found = AdminClient(config).list_topics(timeout=_BROKERS_S)
        except KafkaException as error:
            raise ClusterUnreachableError(
                f"no broker answers at {servers_of(self.props)}: {error}", code="TDM-R085"
            ) from error
        return len(found.brokers)

    def look(self, names: Iterable[str]) -> dict[str, TargetTopic]:
        """Return the existing topics of `names`, with their config and log start and end offsets."""
        infos = self.admin.topics(names)
        if not infos:
            return {}
        configs = self.admin.config(info.name for info in infos)
        places = [(info.name, number) for info in infos for number in info.partitions]
        starts = self.admin.list_offsets(dict.fromkeys(places, EARLIEST), read_committed=False)
        ends = self.admin.list_offsets(dict.fromkeys(places, LATEST), read_committed=False)
        return {
            info.name: TargetTopic(
                name=info.name,
                topic_id=info.topic_id,
                replication_factor=info.replication_factor,
                config=configs[info.name],
                starts={number: starts[info.name, number][0] for number in info.partitions},  # type: ignore[index]  # a TopicPartition equals the plain pair
                ends={number: ends[info.name, number][0] for number in info.partitions},  # type: ignore[index]  # as above
            )
            for info in infos
        }

    def progress(self, *, settled: bool, strict: bool = True) -> RestoreProgress:
        """Return the progress of earlier restores, empty if there was none.

        Plans are always up to date; of tasks, unless `settled`, only records below all open transactions are read.
        Raises DamagedError if a record can't be read; unless `strict`, the record is added to `damaged` instead.
        """
        numbers = marks.partitions(self.admin)
        if not numbers:
            return RestoreProgress()
        with marks.following(self.props, ProgressView.TASKS, partitions=numbers, strict=strict) as tasks:
            plans, rest = self.plans(strict=strict), tasks.catch_up(settled=settled)
            return RestoreProgress(plans=plans.plans, tasks=rest.tasks, damaged=plans.damaged | rest.damaged)

    def plans(self, *, strict: bool = True) -> RestoreProgress:
        """Return the progress of plans alone. The progress topic must exist. Raises DamagedError as `progress`."""
        with marks.following(
            self.props, ProgressView.PLANS, partitions=[marks.PLANS_PARTITION], strict=strict
        ) as reader:
            return reader.catch_up()

    def set_on(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """Return the settings that are set on the topics themselves, without those of their brokers."""
        return self.admin.config(names, defaults=())

    def would_create(self, plan: TopicPlan, *, replication_factor: int) -> None:
        """Validate the creation and the later configuration of a topic; raise the errors of the cluster."""
        self.admin.create_topics([self._new(plan, plan.loading_config(), replication_factor)], only_ask=True)
        # The topic does not exist, but a principal that may not change its config gets that error first.
        with suppress(UnknownTopicError, ClusterRequestError):
            self.admin.alter_config(plan.target, {POLICY: LOADING[POLICY]}, only_ask=True)

    def _new(self, plan: TopicPlan, config: Mapping[str, str | None], replication_factor: int) -> NewTopic:
        """Return the topic to be created, without limits that the cluster does not know."""

        def with_config(some: Mapping[str, str | None]) -> NewTopic:
            return NewTopic(
                plan.target,
                num_partitions=plan.count,
                replication_factor=replication_factor,
                config={key: value for key, value in some.items() if value is not None},
            )

        def knows(limit: str) -> bool:
            try:
                self.admin.create_topics([with_config({**others, limit: LIMITS[limit]})], only_ask=True)
            except ClusterRequestError:
                return False
            return True

        if self._limits is None:
            others = {key: value for key, value in config.items() if key not in LIMITS}
            self._limits = frozenset(filter(knows, LIMITS))
        return with_config(as_known(config, self._limits))

    def alter_config(self, topic: str, changes: Mapping[str, str | None], *, only_ask: bool = False) -> None:
        """Change the config of an existing topic, as `ClusterAdmin` does, without limits unknown to the cluster."""
        self.admin.alter_config(topic, self.as_known(topic, changes), only_ask=only_ask)

    def alter_configs(self, changes: Mapping[str, Mapping[str, str | None]]) -> None:
        """Change the configs of existing topics likewise, by few requests; raise the first error."""
        known = {topic: self.as_known(topic, some) for topic, some in changes.items()}
        for error in self.admin.alter_configs(known).values():
            raise error

    def as_known(self, topic: str, changes: Mapping[str, str | None]) -> dict[str, str | None]:
        """Return the changes to an existing topic, without limits that the cluster does not know."""
        if self._limits is None and LIMITS.keys() & changes.keys():
            self._limits = frozenset(self.admin.config([topic], defaults=LIMITS)[topic]) & LIMITS.keys()
        return as_known(changes, self._limits or ())

    def refuse_if_impatient(self) -> None:
        """Raise as the module's function of this name."""
        refuse_if_impatient(self.admin)

    def would_take(
        self, plan: TopicPlan, changes: Mapping[str, str | None], *, replication_factor: int
    ) -> dict[str, str]:
        """Return the settings that the cluster would refuse for the target, with the reason; nothing is changed.

        `replication_factor` is that of a topic that is to be created, 0 for an existing topic.
        """

        def ask(some: Mapping[str, str | None]) -> str | None:
            try:
                if replication_factor:
                    self.admin.create_topics([self._new(plan, some, replication_factor)], only_ask=True)
                else:
                    self.alter_config(plan.target, some, only_ask=True)
            except ClusterRequestError as error:
                return str(error.args[0])
            return None

        return _blamed(changes, ask)

    def make_ready(
        self, topics: Sequence[TopicPlan], existing: Collection[str], replicas: Callable[[TopicPlan], int]
    ) -> None:
        """Configure the topics for loading: those that are `existing`, and empty, are changed, the others created."""
        self.set_loading_config([topic for topic in topics if topic.target in existing])
        missing = [topic for topic in topics if topic.target not in existing]
        self.admin.create_topics([self._new(topic, topic.loading_config(), replicas(topic)) for topic in missing])

    def set_loading_config(self, topics: Iterable[TopicPlan]) -> None:
        """Set the loading config on topics that exist."""
        self.alter_configs({topic.target: topic.loading_config() for topic in topics})

    def set_configs(self, changes: Mapping[str, Mapping[str, str | None]]) -> dict[str, dict[str, str]]:
        """Set the configs of topics; return for each the keys that the cluster refuses, with the reason.

        Retention is set after the policy, and only if the policy could be set: under the policy `delete`, which topics
        are loaded with, the retention of a compacted topic would delete its records.
        """
        failed = self.admin.alter_configs({topic: self.as_known(topic, some) for topic, some in changes.items()})
        refused: dict[str, dict[str, str]] = {topic: {} for topic in changes}
        for topic, error in failed.items():
            if not isinstance(error, ClusterRequestError):
                raise error
            # One refused key fails all of a topic's.
            some = changes[topic]
            refused[topic] = self._set_one_by_one(topic, {key: some[key] for key in some.keys() - RETENTION})
            retention = {key: some[key] for key in RETENTION & some.keys()}
            if POLICY in refused[topic]:
                why = f"it was left as it is, because {POLICY} could not be set"
                refused[topic] |= dict.fromkeys(sorted(retention), why)
            else:
                refused[topic] |= self._set_one_by_one(topic, retention)
        return refused

    def _set_one_by_one(self, topic: str, changes: Mapping[str, str | None]) -> dict[str, str]:
        """Set each setting alone, and retry the refused ones: some are refused until another one is changed.

        Returns the settings that stay refused, with the reason.
        """
        left = dict(changes)
        while True:
            refused = {}
            for key, value in sorted(left.items()):
                try:
                    self.alter_config(topic, {key: value})
                except ClusterRequestError as error:
                    refused[key] = str(error.args[0])
            if len(refused) in {0, len(left)}:
                return refused
            left = {key: changes[key] for key in refused}


def _blamed(changes: Mapping[str, str | None], ask: Callable[[Mapping[str, str | None]], str | None]) -> dict[str, str]:
    """Return the settings that cause the refusal of all of them together, with the reason.

    `ask` returns why the cluster would refuse some settings, None if it takes them. Returned are the settings that are
    refused alone; or else those without which the others would be taken; or else all of them.
    """
    together = ask(changes)
    if together is None:
        return {}
    alone = {key: why for key, value in sorted(changes.items()) if (why := ask({key: value})) is not None}
    if alone:
        return alone
    spoilers = [key for key in sorted(changes) if ask({k: v for k, v in changes.items() if k != key}) is None]
    return dict.fromkeys(spoilers or sorted(changes), together)


def refuse_if_impatient(admin: ClusterAdmin) -> None:
    """Raise RefusedError if a broker's `transaction.max.timeout.ms` is below the transaction timeout of restores.

    Such a broker refuses every transaction of a restore, and by then the topics are created. Without the right to read
    the brokers' settings nothing is checked.
    """
    try:
        found = admin.broker_setting(_TRANSACTION_LIMIT)
    except (ClusterDeniedError, ClusterRequestError):
        return
    short = {broker: int(value) for broker, value in found.items() if int(value) < TRANSACTION_TIMEOUT_MS}
    if short:
        raise RefusedError(
            f"{_TRANSACTION_LIMIT} is {min(short.values())} on broker {min(short)}: restores write in transactions of "
            f"up to {TRANSACTION_TIMEOUT_MS} ms, which that broker refuses",
            code="TDM-R087",
            remedy=f"set {_TRANSACTION_LIMIT} to at least {TRANSACTION_TIMEOUT_MS} on the brokers of the target",
        )
