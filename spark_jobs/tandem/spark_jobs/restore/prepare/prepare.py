"""Comparing a plan with the target: decides whether it begins, resumes or is refused, before anything is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from tandem.backup_avro.errors import ConfigError, RefusedError, TandemError
from tandem.sink.kafka.errors.cluster_errors import ClusterDeniedError, ClusterRequestError
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.encrypted_objects import require_keys
from tandem.spark_jobs.connector.connector_reader import ConnectorReader
from tandem.spark_jobs.restore.lease import other_restores, progress_topic
from tandem.spark_jobs.restore.plan import plan as restore_plan
from tandem.spark_jobs.restore.plan import topic_settings
from tandem.spark_jobs.restore.plan.duration import DurationEstimate
from tandem.spark_jobs.restore.plan.offset_mode import BYTES_PER_MILLION, FILLERS_PER_SECOND
from tandem.spark_jobs.restore.plan.options import ExactPlan, RestoreOptions, plan_again, plan_of
from tandem.spark_jobs.restore.plan.plan import RestorePlan, TargetTopic, TopicPlan
from tandem.spark_jobs.restore.plan.plan_document import PlannedTopic, describe_topic
from tandem.spark_jobs.restore.prepare import target_settings
from tandem.spark_jobs.restore.progress import task_progress as marks
from tandem.spark_jobs.restore.progress.task_progress import PlanPhase, PlanState, RestoreProgress
from tandem.spark_jobs.restore.records.record_changes import ShapeDocument
from tandem.spark_jobs.restore.target import append
from tandem.spark_jobs.restore.target.target_cluster import TargetCluster


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRestore:
    """The plan that the `options` choose, compared with the target.

    `found` is the progress of earlier restores. `resumes` is the state of this very plan, if a run of it did not end;
    `displaces` are the states of other unfinished plans into the same topics, which are given up. `present`: records
    that are loaded already. `configs` are the targets' own settings where they are put back at the end. `left_out` are
    recorded settings that the cluster does not take. `refused`: why the restore may not be carried out.
    """

    options: RestoreOptions
    plan: RestorePlan
    targets: Mapping[str, TargetTopic]
    found: RestoreProgress
    resumes: PlanState | None
    displaces: tuple[PlanState, ...]
    present: int
    configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    left_out: target_settings.Refusals = field(default_factory=dict)
    refused: TandemError | None = None

    def warnings(self) -> list[str]:
        """Return the warnings to show to the user before the restore is carried out."""
        found = self.plan.warnings()
        if self.plan.append:
            found += append.warnings(self.plan, self.targets)
        found += target_settings.warnings(self.left_out)
        return found + other_restores.warnings(self.plan, self.displaces)


def prepare_restore(
    reader: ChainReader | ConnectorReader, target: TargetCluster, options: RestoreOptions, *, only_look: bool = False
) -> PreparedRestore:
    """Plan the restore, and compare the plan with the target without changing it.

    If a run of the same restore did not end, its plan is made anew from the chain entries that it rested on, so that it
    is resumed even though the backup has grown. Raises RefusedError if the target holds other records, unless they are
    appended to, ConfigError for settings that the cluster would not take in the end, and its errors for topics that
    are to be created; with `only_look` the plan is returned with that error in `refused` instead.
    """
    # Read before the logs' ends, so that all committed progress lies below them.
    found = target.progress(settled=False)
    seen: dict[frozenset[str], dict[str, TargetTopic]] = {}

    def look(plan: RestorePlan) -> dict[str, TargetTopic]:
        names = frozenset(topic.target for topic in plan.topics)
        if names not in seen:
            seen[names] = target.look(names)
        return seen[names]

    unfinished = other_restores.unfinished(found)

    def finish(plan: RestorePlan) -> RestorePlan:
        targets = look(plan)
        fitted = topic_settings.fitted(
            plan,
            targets,
            topic_settings.own_settings(plan, targets, unfinished),
            config=options.topic_config,
            partitions=options.partitions,
            repartitions=options.shape.partitioner is not None,
        )
        return restore_plan.shaped(
            fitted, options.shape, targets, count=options.partitions, append=options.append, offsets=options.offsets
        )

    plan = _exactly(reader, options, options.exactly, finish) if options.exactly else finish(plan_of(reader, options))
    require_keys(reader.store, (item for topic in plan.topics for item in topic.partitions))
    targets = look(plan)
    names = {topic.target for topic in plan.topics}
    rivals = [state for state in unfinished if names & state.targets.keys()]
    # An appending run records the topics' config in `PlanState.before` instead.
    configs = {} if plan.append else topic_settings.own_settings(plan, targets, unfinished)
    for state in rivals:
        if state.state is PlanPhase.BEGUN or (options.exactly is not None and state.plan != options.exactly.hash):
            continue
        again = plan_again(reader, options, state, finish)
        if again is None:
            continue
        # The backup may have more topics by now than the unfinished run began with: these don't count here.
        there = look(again)
        # A run may have ended after it recorded the targets' own settings and before it created the other topics.
        made = there.keys() == {topic.target for topic in again.topics}
        if made and state.targets == {name: item.topic_id for name, item in there.items()}:
            others = tuple(other for other in rivals if other is not state and there.keys() & other.targets.keys())
            # A verified topic may have its retention already, while another topic waits for its own.
            if state.state is not PlanPhase.VERIFIED:
                refuse_if_cut(found, again, there)
            other_restores.refuse(others, again, there)
            other_restores.refuse_if_mixed(found, others, there)
            resumed = PreparedRestore(
                options=options,
                plan=again,
                targets=there,
                found=found,
                resumes=state,
                displaces=others,
                present=sum(item.records for item in present(found, again, there)),
                configs={name: own for name, own in configs.items() if name in there},
            )
            return _asked(target, resumed, lambda: None, only_look=only_look)
    begun = PreparedRestore(
        options=options,
        plan=plan,
        targets=targets,
        found=found,
        resumes=None,
        displaces=tuple(state for state in rivals if state.plan != plan.hash),
        present=0,
        configs=configs,
    )

    def refuse() -> None:
        _refuse(found, plan, targets, rivals)
        _refuse_to_fill(plan, options.max_fill)

    return _asked(target, begun, refuse, only_look=only_look)


def _asked(
    target: TargetCluster, prepared: PreparedRestore, refuse: Callable[[], None], *, only_look: bool
) -> PreparedRestore:
    """Run `refuse`, then return `prepared` with the settings that the cluster would refuse.

    With `only_look` an error is returned in `refused` instead of raised.
    """
    try:
        refuse()
        return replace(prepared, left_out=_ask(target, prepared))
    except (RefusedError, ConfigError, ClusterRequestError, ClusterDeniedError) as error:
        if not only_look:
            raise
        return replace(prepared, refused=error)


def _ask(target: TargetCluster, prepared: PreparedRestore) -> target_settings.Refusals:
    """Validate with the cluster the creation of missing topics; return the settings that it would refuse."""
    progress_topic.refuse_unless_kept(target.admin)
    plan, targets, resumes = prepared.plan, prepared.targets, prepared.resumes is not None
    if prepared.resumes is None or prepared.resumes.state is not PlanPhase.VERIFIED:  # else all is loaded
        progress_topic.make_room(target.admin, progress_topic.record_bytes(plan), only_ask=True)
        target.refuse_if_impatient()
    if plan.append and resumes:
        return {}  # validated by the first run, and the topics' own config may have been changed since
    missing = [topic for topic in plan.topics if topic.target not in targets]
    brokers = target.brokers() if missing else 0
    wanted = {topic.target: replicas(topic, prepared.options, brokers) for topic in missing}
    for topic in missing:
        target.would_create(topic, replication_factor=wanted[topic.target])
    return target_settings.ask(target, plan, prepared.options, targets, wanted)


def _refuse(
    found: RestoreProgress, plan: RestorePlan, targets: Mapping[str, TargetTopic], rivals: Sequence[PlanState]
) -> None:
    """Raise RefusedError unless the plan may begin with the topics in their present state."""
    if plan.append:
        append.refuse_unless_appendable(plan, targets)
    other_restores.refuse(rivals, plan, targets)
    for existing in () if plan.append else targets.values():
        _refuse_if_finished(found, existing)
        _refuse_if_made_anew(rivals, existing)
        restore_plan.refuse_unless_empty(existing, plan)
    if plan.append and _was_there(found, plan, targets):
        raise RefusedError(
            "this very plan was appended to these topics before, wholly or in part",
            code="TDM-R076",
            remedy="take another state, or restore into other topics",
        )
    if _was_there(found, plan, targets):
        raise RefusedError(
            "this very plan was restored into these topics before, and then their records were deleted",
            code="TDM-R077",
            remedy="delete the topics as well, or restore into others",
        )


def _refuse_to_fill(plan: RestorePlan, most: int) -> None:
    """Raise RefusedError if a partition would get more fillers than the user wants."""
    for topic in plan.topics:
        for item in topic.partitions:
            count = topic.most_fillers(item)
            if count > most:
                raise RefusedError(
                    f"{topic.target}-{item.key.partition} needs {count:,} fillers, so that no record lies below its "
                    f"source offset, which is more than --max-fill, {most:,}",
                    code="TDM-R125",
                    remedy=f"agree with --max-fill {count}, which takes about {count / FILLERS_PER_SECOND:.0f} s and "
                    f"{count / 1e6 * BYTES_PER_MILLION / 1e6:.0f} MB for a while; or restore with --offsets dense",
                )


def replicas(topic: TopicPlan, options: RestoreOptions, brokers: int) -> int:
    """Return the replication factor of a new topic on a cluster of `brokers` brokers."""
    return options.replication_factor or min(topic.source.replication_factor, brokers)


def _exactly(
    reader: ChainReader | ConnectorReader,
    options: RestoreOptions,
    exactly: ExactPlan,
    finish: Callable[[RestorePlan], RestorePlan],
) -> RestorePlan:
    if isinstance(reader, ChainReader):
        reader.refresh(tolerant=True)
    plan = plan_again(reader, options, exactly, finish)
    if plan is None:
        raise RefusedError(
            f"the plan {exactly.hash[:16]} can't be made again from generation {exactly.generation}",
            code="TDM-R078",
            remedy="its chain entries are gone or were swept, or the target has changed; plan again with --plan",
        )
    return plan


def present(found: RestoreProgress, plan: RestorePlan, targets: Mapping[str, TargetTopic]) -> list[marks.TaskProgress]:
    """Return the progress of the plan's tasks into the topics with their current ids."""
    ids = {target.topic_id for target in targets.values()}
    return [item for item in found.of_plan(plan.hash) if item.target_topic_id in ids]


def _was_there(found: RestoreProgress, plan: RestorePlan, targets: Mapping[str, TargetTopic]) -> bool:
    """Return whether the plan has written records into the topics with their current ids.

    The progress of tasks is deleted when a plan is FINISHED; then the plan's state counts.
    """
    state = found.plans.get(plan.hash)
    ids = {target.topic_id for target in targets.values()}
    ended = state is not None and state.state is PlanPhase.FINISHED and state.concerns(ids)
    return (ended and plan.records > 0) or bool(present(found, plan, targets))


def refuse_if_cut(found: RestoreProgress, plan: RestorePlan, targets: Mapping[str, TargetTopic]) -> None:
    """Raise RefusedError if records that an earlier run of the plan wrote are no longer in the logs."""
    for item in present(found, plan, targets):
        target = targets[item.target]
        for number, strand in item.strands.items():
            if target.starts[number] > max(strand.first, 0) or target.ends[number] <= strand.last:
                raise RefusedError(
                    f"{item.target}-{number} lost records that an earlier run of this restore wrote",
                    code="TDM-R079",
                    remedy=f"abandon it with `tandem restore abandon {other_restores.short(plan.hash)}`"
                    if plan.append
                    else "delete the target topic and restore from the start",
                )


def _refuse_if_finished(found: RestoreProgress, target: TargetTopic) -> None:
    for state in found.plans.values():
        if state.state is PlanPhase.FINISHED and state.targets.get(target.name) == target.topic_id and not target.empty:
            origin = f" (from generation {state.generation})" if state.generation else ""
            raise RefusedError(
                f"topic {target.name} on the target was restored before{origin} and is not empty",
                code="TDM-R080",
                remedy="restore into another topic, e.g. with --suffix, or delete it first",
            )


def _refuse_if_made_anew(rivals: Iterable[PlanState], target: TargetTopic) -> None:
    for state in rivals:
        if not target.empty and state.targets.get(target.name) not in {target.topic_id, "", None}:
            raise RefusedError(
                f"topic {target.name} on the target was deleted and made anew since restore "
                f"{other_restores.short(state.plan)} began to load it (its id was {state.targets[target.name]} and is "
                f"{target.topic_id} now), and holds records that are not the restore's",
                code="TDM-R081",
                remedy="find out who writes to it; delete the topic, then give the command again",
            )


def check_consent(plan: RestorePlan, options: RestoreOptions, *, now: int) -> None:
    """Raise RefusedError if the later retention may delete records at once, by age or size, without consent."""
    if options.consent or options.keep_load_config:
        return
    losses = [
        f"{topic.target}, {found.describe(topic.records)}" for topic in plan.topics if (found := topic.expiry(now)).any
    ]
    if losses:
        raise RefusedError(
            f"the retention would delete restored records as soon as it is set ({'; '.join(losses)})",
            code="TDM-R082",
            remedy="confirm with --yes, or keep them with --keep-load-config and set the retention yourself"
            if not plan.append
            else "confirm with --yes, or give the topics a longer retention.ms or larger retention.bytes first",
        )


def refuse_if_clearing(reader: ChainReader | ConnectorReader, plan: RestorePlan) -> None:
    """Raise RefusedError if an object or a generation of the plan is gone or being cleared.

    Called after the pins were put: a generation that was released before may be cleared at any time, and an object that
    was merged into another one may be deleted already.
    """
    if isinstance(reader, ConnectorReader):
        return  # connector files are never cleared, and a missing file is found when it is read
    present = {state.number: state for state in reader.refresh(tolerant=True)}
    pieces = [piece for topic in plan.topics for item in topic.partitions for piece in item.slices]
    for key, number in sorted({piece.item.key: piece.generation for piece in pieces}.items()):
        state = present.get(number)
        if state is not None and key not in state.objects and reader.store.head(key) is None:
            raise RefusedError(
                f"{key} was merged into another object and deleted since this was planned",
                code="TDM-R083",
                remedy=f"plan again; {_let_go(plan)}",
            )
    for item in (item for topic in plan.topics for item in topic.partitions):
        for number in item.generations:
            state = present.get(number)
            if state is None or not state.usable(item.key):
                raise RefusedError(
                    f"generation {number} is being cleared",
                    code="TDM-R084",
                    remedy=f"plan again: a newer generation is complete; {_let_go(plan)}",
                )


def _let_go(plan: RestorePlan) -> str:
    """Return the remedy for a run that was begun, which must be given up or deleted before another plan begins."""
    if plan.append:
        return (
            f"a run that was begun must be given up first: `tandem restore abandon {other_restores.short(plan.hash)}`"
        )
    return "a target that was begun must be deleted first"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlanDocument:
    """`tandem restore --dry-run`. `refused`: why it may not be done, None if it may. `recorded`: by a pair's chains."""

    dry_run: Literal[True] = True
    pair: str
    generation: int
    seq: int
    recorded: bool
    basis: Mapping[int, int]
    hash: str
    at: str | None
    shape: ShapeDocument
    append: bool
    topics: Sequence[PlannedTopic]
    warnings: Sequence[str]
    estimate: DurationEstimate
    resumes: bool
    present: int
    refused: str | None


def describe(prepared: PreparedRestore, *, now: int, took: DurationEstimate) -> RestorePlanDocument:
    """Return a dry run's document; `took` is the estimated duration."""
    plan = prepared.plan
    return RestorePlanDocument(
        pair=plan.pair,
        generation=plan.generation,
        seq=plan.seq,
        recorded=plan.recorded,
        basis=dict(sorted(plan.basis.items())),
        hash=plan.hash,
        at=plan.as_of,
        shape=plan.shape.document(),
        append=plan.append,
        topics=[
            describe_topic(topic, prepared.targets.get(topic.target), now=now, compression=prepared.options.compression)
            for topic in plan.topics
        ],
        warnings=prepared.warnings(),
        estimate=replace(took, seconds=round(took.seconds, 1)),
        resumes=prepared.resumes is not None,
        present=prepared.present,
        refused=None if prepared.refused is None else str(prepared.refused),
    )
