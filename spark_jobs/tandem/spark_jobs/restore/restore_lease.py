"""The lease of a run on its plan: beginning a restore, taking over from an earlier run, writing states until the end.

A run writes its state before it changes anything, checks whether another restore has begun meanwhile, and finds out at
each write whether it still holds the lease. If it is refused, it takes back the config that it has set for loading.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

from tandem.backup_avro.errors import RefusedError
from tandem.spark_jobs.restore.abandon import put_back_again
from tandem.spark_jobs.restore.lease import lease_record, other_restores, progress_topic
from tandem.spark_jobs.restore.lease.fencing import fence_all
from tandem.spark_jobs.restore.lease.lease_record import OvertakenError
from tandem.spark_jobs.restore.plan import plan
from tandem.spark_jobs.restore.plan.plan import TargetTopic
from tandem.spark_jobs.restore.prepare import prepare
from tandem.spark_jobs.restore.prepare.prepare import PreparedRestore
from tandem.spark_jobs.restore.progress import task_progress as marks
from tandem.spark_jobs.restore.progress.task_progress import PlanPhase, PlanState
from tandem.spark_jobs.restore.target import append
from tandem.spark_jobs.restore.target.target_cluster import TargetCluster


class RestoreLease:
    """The lease of one run. `before`: see PlanState.

    `said`: whether the progress topic holds an unfinished state of this run, to be resumed or given up.
    """

    def __init__(self, prepared: PreparedRestore, *, target: TargetCluster, now: Callable[[], int]) -> None:
        self._prepared = prepared
        self._plan = prepared.plan
        self._target = target
        self._options = prepared.options
        self._now = now
        resumes = prepared.resumes
        self.run = str(uuid.uuid4())
        self.said = False
        self.spread = 0 if resumes is None else resumes.spread
        # Topics whose partitions are merged; a resumed plan's first run has found out which.
        self.merged = () if resumes is None else resumes.merged
        self.before: Mapping[str, Mapping[str, str]] = {} if resumes is None else resumes.before
        self._last = prepared.found.plans.get(self._plan.hash)

    def begin(self, merged: tuple[str, ...], note: Callable[[str, str], None]) -> dict[str, TargetTopic]:
        """Write the state BEGUN, create or configure the topics, fence other runs, then check that topics are empty.

        Only after the fencing is an empty topic known to stay empty. `note` takes a target's name and a note for the
        report. Returns the targets by name. Raises RefusedError, and the errors of the cluster.
        """
        self.merged = merged
        brokers = self._target.brokers()
        largest = progress_topic.record_bytes(self._plan)
        self.spread = progress_topic.ensure_topic(self._target.admin, brokers=brokers, largest=largest)
        if self._plan.append:
            return self._begin_to_append()
        existing = self._prepared.targets
        was = self._target.set_on(existing) if existing else {}
        self.say(PlanPhase.BEGUN, existing)
        try:
            self._refuse_if_met(existing)
        except RefusedError:
            self._let_go(existing)  # nothing was changed yet
            raise
        try:
            return self._begin_whole(brokers, note)
        except OvertakenError:
            raise  # another run loads into them
        except RefusedError:
            self._target.set_configs({name: plan.own_again(own) for name, own in was.items()})
            raise

    def _begin_whole(self, brokers: int, note: Callable[[str, str], None]) -> dict[str, TargetTopic]:
        replicas = partial(prepare.replicas, options=self._options, brokers=brokers)
        self._target.make_ready(self._plan.topics, self._prepared.targets.keys(), replicas)
        for topic in self._plan.topics:
            wanted = replicas(topic)
            if topic.target not in self._prepared.targets and wanted < topic.source.replication_factor:
                note(
                    topic.target,
                    f"{wanted} replicas instead of {topic.source.replication_factor}"
                    + ("" if self._options.replication_factor else f": the target has {brokers} brokers"),
                )
        targets = self._target.look(topic.target for topic in self._plan.topics)
        self.say(PlanPhase.BEGUN, targets)
        try:
            self._refuse_if_met(targets)
            self._take_the_place_of_others()
            targets = self._target.look(targets)
            for existing in targets.values():
                plan.refuse_unless_empty(existing, self._plan)
        except RefusedError:
            self._let_go(targets)
            raise
        self.say(PlanPhase.LOADING, targets)
        return targets

    def _begin_to_append(self) -> dict[str, TargetTopic]:
        """Record the topics' config, write the state LOADING, fence other runs, and only then change the config."""
        targets = dict(self._prepared.targets)
        self.before = self._target.set_on(targets)
        # A restore that has changed their config since this was planned wrote its state first; then the config that was
        # just read is not the topics' own.
        self._refuse_if_met(targets)
        append.refuse_if_held(self.before)
        self.say(PlanPhase.LOADING, targets)
        try:
            self._refuse_if_met(targets)
            self._take_the_place_of_others()
        except RefusedError:
            self._let_go(targets)
            raise
        self._hold_off(targets)
        return targets

    def take_over(self) -> dict[str, TargetTopic]:
        """Write the state with this run's id, and fence the run before it. Raises RefusedError."""
        state = self._prepared.resumes
        assert state is not None
        targets = dict(self._prepared.targets)
        self.say(state.state, targets)
        self._refuse_if_met(targets)
        self._take_the_place_of_others()
        if state.state is PlanPhase.VERIFIED:
            return targets  # only the config is left to be set
        # The run before this one may have been of an earlier release, which did not raise the record size limit.
        progress_topic.make_room(self._target.admin, progress_topic.record_bytes(self._plan))
        # Their own config is recorded, and perhaps not changed yet.
        self._target.set_loading_config(topic for topic in self._plan.topics if topic.target in self._prepared.configs)
        if self._plan.append:
            self._hold_off(targets)
        # Only after the fencing above are the commits of earlier runs final.
        found = self._target.progress(settled=True)
        prepare.refuse_if_cut(found, self._plan, self._target.look(targets))
        other_restores.refuse_if_mixed(found, self._prepared.displaces, targets)
        return targets

    def _refuse_if_met(self, targets: Mapping[str, TargetTopic]) -> None:
        """Raise RefusedError if, since this was planned, another restore or another run of this plan has begun."""
        ids = {item.topic_id for item in targets.values()}
        if not ids:
            return  # no topic exists yet that another restore could write into
        known = self._prepared.found
        if self._last is not None:
            known = replace(known, plans={**known.plans, self._plan.hash: self._last})
        other_restores.refuse_if_met(known, self._target.plans(), ids)

    def _take_the_place_of_others(self) -> None:
        """Mark the displaced restores ABANDONED, and fence their tasks and those of this plan's earlier runs."""
        for state in self._prepared.displaces:
            lease_record.write_phase(self._target, state, replace(state, state=PlanPhase.ABANDONED, run=self.run))
        known = self._prepared.found.plans
        earlier = [known[self._plan.hash]] if self._plan.hash in known else []
        fence_all(self._target.props, [*earlier, *self._prepared.displaces])

    def _let_go(self, targets: Mapping[str, TargetTopic]) -> None:
        """Write the state ABANDONED: there is nothing of this plan to be resumed."""
        self.say(PlanPhase.ABANDONED, targets)
        self.said = False

    def _hold_off(self, targets: Mapping[str, TargetTopic]) -> None:
        """Suspend compaction and retention of the topics that are appended to."""
        self._target.alter_configs({topic.target: append.config_meanwhile(topic) for topic in self._plan.topics})
        try:
            self.say(PlanPhase.LOADING, targets)
        except OvertakenError:
            # The run that holds the lease now puts the config back when it ends, and checks it once more after that. If
            # it has ended already, only this run can.
            put_back_again(self._target, self.before)
            raise

    def say(self, state: PlanPhase, targets: Mapping[str, TargetTopic]) -> None:
        """Write the phase that the restore has reached. Raises OvertakenError if this run has lost the lease."""
        word = PlanState(
            plan=self._plan.hash,
            run=self.run,
            state=state,
            generation=self._plan.generation,
            basis=dict(self._plan.basis),
            # A topic that is about to be created has a name only; its id is "".
            targets={topic.target: _id_of(targets, topic.target) for topic in self._plan.topics},
            # Where partitions are merged there is a task for each partition of the target.
            sources={topic.source.topic_id: max(topic.source.partitions, topic.count) for topic in self._plan.topics},
            merged=self.merged,
            at=self._now(),
            before=self.before,
            configs=self._prepared.configs,
            spread=self.spread,
        )
        lease_record.write_phase(self._target, self._last, word)
        self._last, self.said = word, state is not PlanPhase.FINISHED

    def stand_by(self) -> None:
        """Raise OvertakenError if this run has lost the lease."""
        lease_record.refuse_if_overtaken(self._target, self._plan.hash, [self._last])

    def spoil(self) -> None:
        """Write the state BEGUN, so that no run resumes from the progress: which records are committed is not known."""
        assert self._last is not None
        word = replace(self._last, state=PlanPhase.BEGUN)
        lease_record.write_phase(self._target, self._last, word)
        self._last = word

    def tidy(self, tasks: Iterable[str]) -> None:
        """Clean up after the end: put back config that a late run has suspended, delete the progress of these tasks.

        `tasks` are keys of the progress topic.
        """
        put_back_again(self._target, self.before)
        assert self._last is not None
        marks.forget_tasks(self._target.props, self._last, tasks)


def _id_of(targets: Mapping[str, TargetTopic], name: str) -> str:
    return targets[name].topic_id if name in targets else ""
