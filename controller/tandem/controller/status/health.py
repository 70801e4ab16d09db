"""The health of a pair: a list of rules over one `PairView`, each with problems and their remedies. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from tandem.backup_avro.chain.entries import PartitionKey, iso
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.errors import RefusedError
from tandem.backup_avro.selection import coverage, restorable_state
from tandem.backup_avro.selection import losses as lost_records
from tandem.backup_avro.selection.losses import KeptLoss
from tandem.controller.cli.output.output import duration
from tandem.controller.coordination import agreement, heads
from tandem.controller.coordination.heartbeat import Heartbeat
from tandem.controller.coordination.peer_state import LastHeard
from tandem.controller.decision.pair_rules import rotation_due_at
from tandem.controller.local_state.remembered_heads import ACCEPT_REMEDY
from tandem.controller.status.pair_view import PairView, last_activity_at
from tandem.sink.pipeline_report import Phase
from tandem.sink.process.safe_text import enumerated
from tandem.sink.read.progress.partition_progress import CONFIRM_CEILING_S
from tandem.sink.store.contract import lifecycle_rules

_SHOWN = 3
# A rotation is overdue when it is late by the greater of half an interval and an hour: a build takes as long as reading
# the logs does.
_LATE, _LATE_S = 0.5, 3600.0


class Fault(StrEnum):
    """What can be wrong, for scripts; part of the public interface."""

    CHAIN_DAMAGED = "chain damaged"
    ROLLED_BACK = "rolled back"
    OBJECTS_LOST = "objects lost"
    KEY_MISSING = "key missing"
    KEYS_VANISHED = "keys vanished"
    OBJECTS_EXPIRE = "objects expire"
    WRONG_CLUSTER = "wrong cluster"
    NO_COMPLETE_BACKUP = "no complete backup"
    NO_ACTIVE = "no active"
    ACTIVE_SILENT = "active silent"
    TAINTED = "tainted"
    NOT_COMMITTING = "not committing"
    TURN_OVERDUE = "turn overdue"
    TOPIC_MISSING = "topic missing"
    PARTITION_INCOMPLETE = "partition incomplete"
    INSTANCES_DISAGREE = "instances disagree"
    INSTANCE_SILENT = "instance silent"
    TIME_IN_THE_FUTURE = "time in the future"
    INSTANCE_TROUBLED = "instance troubled"
    TWO_PROCESSES = "two processes"
    COPY_NOT_COVERED = "copy not covered"
    NOT_KNOWN = "not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something that a person should look at: what is wrong where, and what to do."""

    fault: Fault
    message: str
    remedy: str


def chosen(seen: PairView) -> Generation | None:
    """Return the generation that a restore would read; None if there is none."""
    try:
        return restorable_state.choose_generation(seen.generations)
    except RefusedError:
        return None


def problems(seen: PairView) -> tuple[Problem, ...]:
    """Return the problems, worst first; none means that all is well as far as the view shows."""
    rules = (
        _damaged,
        rolled_back,
        _objects_lost,
        _key_missing,
        _keys_vanished,
        _objects_expire,
        _wrong_cluster,
        _no_backup,
        _gaps,
        _active,
        _tainted,
        _not_committing,
        _overdue,
        _missing_topics,
        _incomplete,
        _not_covered,
        _disagreement,
        _instances,
    )
    return tuple(problem for rule in rules for problem in rule(seen))


def first_names(names: Iterable[str], shown: int = _SHOWN) -> str:
    """Return the first `shown` of `names` and the number of the others, as text."""
    return enumerated(list(names), shown)


def kept_note(generation: int, kept: Iterable[str]) -> str:
    """Return the note about what a generation keeps, of which `kept` says each with the reason."""
    return f"generation {generation} keeps {first_names(kept)}"


def held_note(held: Mapping[str, int]) -> str:
    """Return the note about open transactions; `held` are the offsets that they hold back, by partition."""
    names = sorted(held, key=lambda name: (-held[name], name))
    return (
        f"open transactions hold back {sum(held.values())} offsets, which can't be backed up before they end: "
        f"{first_names(f'{name} {held[name]}' for name in names)}"
    )


def paused(seen: PairView) -> str | None:
    """Return a sentence about the pause in force (by whom, until when, why); None if there is none."""
    pause = seen.pause
    if pause is None or pause.until is None:
        return None
    why = f" ({pause.reason})" if pause.reason else ""
    return f"the pair is paused by {pause.by} until {iso(pause.until)}{why}"


def _unless_paused(seen: PairView, remedy: str) -> str:
    """Return a remedy that relies on an instance's own action; during a pause preceded by the command that ends it."""
    pause = paused(seen)
    return remedy if pause is None else f"{pause}: `tandem resume`, or `tandem failover --force`; then {remedy}"


def _damaged(seen: PairView) -> Iterator[Problem]:
    for number, why in sorted(seen.damaged.items()):
        yield Problem(
            fault=Fault.CHAIN_DAMAGED,
            message=f"generation {number} can't be read: {why}",
            remedy="bring the object back from the bucket's versions, then `tandem verify`; or have a new generation "
            "built: restart both instances, or `tandem failover` if another generation is complete",
        )


def rolled_back(seen: PairView) -> Iterator[Problem]:
    """Return a problem for each entry that was published, or that this machine has read, and that the store lacks."""
    for head in seen.lost_heads:
        was = seen.published_under.get(head.generation)
        if was is not None and was != seen.root:
            yield Problem(
                fault=Fault.ROLLED_BACK,
                message=heads.describe_moved_head(head, was, seen.root),
                remedy=heads.MOVED_REMEDY,
            )
            continue
        yield Problem(
            fault=Fault.ROLLED_BACK,
            message=f"entry {head.seq} of generation {head.generation} was published and is not in the store: the "
            "bucket is in an older state, or it is another one",
            remedy="check store.root; bring the newer state back from the bucket's versions or a replica, and find out "
            "who put it back",
        )
    for seen_head in seen.remembered_losses:
        yield Problem(fault=Fault.ROLLED_BACK, message=seen_head.describe_loss(), remedy=ACCEPT_REMEDY)


def _reported(seen: PairView, text_of: Callable[[Heartbeat], str | None]) -> Iterator[str]:
    """Yield a text of the heartbeats of living instances, behind the instance's name, where it is there."""
    for name in seen.instances:
        said = seen.heartbeat_of_living(name)
        text = None if said is None else text_of(said)
        if text is not None:
            yield f"{name}: {text}"


def _objects_lost(seen: PairView) -> Iterator[Problem]:
    for message in _reported(seen, lambda said: said.objects_lost):
        yield Problem(
            fault=Fault.OBJECTS_LOST,
            message=message,
            remedy="bring them back from the bucket's versions; else "
            + _unless_paused(seen, "wait for the next generation, or ask for it with `tandem failover`")
            + "; find the process that changes the bucket, and take that credential away",
        )


def _key_missing(seen: PairView) -> Iterator[Problem]:
    for message in _reported(seen, lambda said: said.keys_missing):
        yield Problem(
            fault=Fault.KEY_MISSING,
            message=message,
            remedy="these objects can't be restored without it: name it in encryption.decrypt_key_files (or the "
            "like) of both instances and restart them; `tandem keys` names the generations. If it is lost, "
            + _unless_paused(seen, "ask for a new generation with `tandem failover`"),
        )


def _keys_vanished(seen: PairView) -> Iterator[Problem]:
    for generation in seen.generations:
        found = [loss for loss in losses_of(seen, generation) if lost_records.is_of_keys(loss.reason)]
        if not found:
            continue
        counted = sum(loss.keys or 0 for loss in found)
        where = first_names(_lost(generation, loss) for loss in found)
        what = f"{counted:,} keys vanished from their topics" if counted else "records vanished from their topics"
        yield Problem(
            fault=Fault.KEYS_VANISHED,
            message=f"{what} without a tombstone: {where}; only generation {generation.number} still has them, and "
            "keeps them",
            remedy="find out what deleted them; `tandem restore vanished TOPIC` brings them back into it, and nothing "
            "else; once nobody needs the copy, `tandem release TOPIC` lets it go",
        )


def _objects_expire(seen: PairView) -> Iterator[Problem]:
    for rule in seen.expiring:
        yield Problem(fault=Fault.OBJECTS_EXPIRE, message=f"{rule}", remedy=lifecycle_rules.REMEDY)


def losses_of(seen: PairView, generation: Generation) -> list[KeptLoss]:
    """Return what a generation alone still has: as its chain records it, or, before any clearing, as its owner says."""
    if not generation.whole:
        return lost_records.kept_losses(generation)
    said = seen.heartbeat_of_living(generation.instance) or Heartbeat()
    return [loss for of, loss in said.vanished if of == generation.number and loss.key in generation.positions]


def _lost(kept: Generation, loss: KeptLoss) -> str:
    count = "" if loss.keys is None else f"{loss.keys:,}; "
    return f"{kept.name_of(loss.key)} ({count}likely cause: {loss.cause.value})"


def _wrong_cluster(seen: PairView) -> Iterator[Problem]:
    if seen.brokers is None:
        return
    here = seen.brokers.guarded.cluster_id
    for there in sorted({g.claim.cluster_id for g in seen.generations} - {here}):
        yield Problem(
            fault=Fault.WRONG_CLUSTER,
            message=f"the backup is of cluster {there}, but the brokers belong to cluster {here}",
            remedy="check kafka.bootstrap.servers, pair and store.root of this configuration",
        )


def _no_backup(seen: PairView) -> Iterator[Problem]:
    if chosen(seen) is not None:
        return
    building = seen.building
    if seen.newest == 0:
        message, remedy = "nothing is stored yet", "start both instances (`tandem run`)"
        if holder := _holder(seen):
            message = (
                f"nothing of this pair is stored, though instance {holder} is Active: it was deleted, or is in another "
                "store.root"
            )
            remedy = (
                f"compare store.root here with that of instance {holder}; if the objects are lost and the bucket still "
                "exists, the instances begin a new generation within two minutes; docs/operations.md says how to begin "
                "under a new root"
            )
    elif building:
        found = building[-1]
        done, total = progress(seen, found)
        message = (
            f"generation {found.number} of {found.instance} is being built: "
            f"{done} of {total} partitions are read through"
        )
        remedy = "wait until it is COMPLETE; nothing can be restored before"
    else:
        message = f"no generation up to {seen.newest} is complete and free of clearing, and none is being built"
        remedy = "start both instances (`tandem run`); their logs say what keeps them from claiming the next one"
        remedy = _unless_paused(seen, remedy)
    yield Problem(fault=Fault.NO_COMPLETE_BACKUP, message=f"there is no complete backup: {message}", remedy=remedy)


def _holder(seen: PairView) -> str | None:
    """Return an instance that is alive and whose heartbeat names a generation that it appends to; None without one."""
    for name in seen.instances:
        said = seen.heartbeat_of_living(name)
        if said is not None and said.generation:
            return name
    return None


def progress(seen: PairView, generation: Generation) -> tuple[int, int]:
    """Return the number of guarded partitions that a generation holds, untainted, from the log's start; and the total.

    For a generation that takes no more records only its own partitions count, not those of later topics.
    """
    over = generation.sealed or generation.clearing is not None or generation.cleared is not None
    keys = list(generation.positions) if over else seen.guarded_of(generation).partitions()
    return sum(generation.read_through(key) and key not in generation.taints for key in keys), len(keys)


def _active(seen: PairView) -> Iterator[Problem]:
    active = seen.active
    if active is None:
        if chosen(seen) is not None:
            yield Problem(
                fault=Fault.NO_ACTIVE,
                message="nobody appends: every complete generation is sealed",
                remedy=_unless_paused(
                    seen, "start both instances (`tandem run`); one of them claims the next generation"
                ),
            )
        return
    if seen.heard is None or seen.alive(active.instance):
        return
    if seen.is_recent(active.at):
        return  # It appends: its missing messages are a smaller problem, which `_instances` names.
    age_s = (seen.at - active.at) / 1000
    dated = f"{duration(age_s)} old" if age_s > 0 else f"dated {duration(-age_s)} in the future"
    yield Problem(
        fault=Fault.ACTIVE_SILENT,
        message=f"{active.instance}, the Active, {silence(seen, active.instance)}; the last entry of generation "
        f"{active.number} is {dated}: new records are not backed up",
        remedy=_unless_paused(seen, _cure(seen, active.instance)),
    )


def silence(seen: PairView, instance: str) -> str:
    """Return how long an instance has not been heard, as the end of a sentence about it."""
    heard = seen.last_heard(instance)
    if heard is None:
        return "was never heard"
    ahead_s = seen.ahead_s(instance)
    if ahead_s is not None:
        return f"is not known to live: its last message is dated {duration(ahead_s)} in the future"
    return f"{'was stopped' if heard.left else 'was last heard'} {duration(seen.since_s(heard.at))} ago"


def _cure(seen: PairView, instance: str) -> str:
    cure = f"look at the process and the log of {instance}, and start it again"
    others = [name for name in seen.instances if name != instance and seen.alive(name)]
    if not others:
        return cure
    return f"{cure}; {others[0]} is alive and takes over by itself"


def doubtful(seen: PairView) -> Generation | None:
    """Return the Active's generation, or the one that a restore would read, if it is tainted and not yet replaced."""
    found = seen.active or chosen(seen)
    if found is None or not found.taints or coverage.successor(found, seen.generations) is not None:
        return None
    return found


def _tainted(seen: PairView) -> Iterator[Problem]:
    found = doubtful(seen)
    if found is None:
        return
    names = first_names(
        f"{found.name_of(key)} from offset {taint.offset}" for key, taint in sorted(found.taints.items())
    )
    reason = next(iter(found.taints.values())).reason
    building = seen.building
    remedy = (
        f"wait for generation {building[-1].number}, which is being built"
        if building
        else _unless_paused(
            seen, "both instances replace it by themselves; if neither begins soon, run `tandem failover`"
        )
    )
    yield Problem(
        fault=Fault.TAINTED,
        message=f"generation {found.number} is tainted, and no newer one is complete: {names} ({reason}). "
        "What came before stays restorable",
        remedy=remedy,
    )


def _not_committing(seen: PairView) -> Iterator[Problem]:
    active = seen.active
    if active is None or (seen.heard is not None and not seen.alive(active.instance)):
        return
    last = last_activity_at(active)
    if last is None or seen.since_s(last) <= seen.policy.quiet_s:
        return
    yield Problem(
        fault=Fault.NOT_COMMITTING,
        message=f"generation {active.number} of {active.instance} has not committed for {duration(seen.since_s(last))}",
        remedy=f"look at the log of {active.instance}: "
        f"it commits or confirms at least every {duration(CONFIRM_CEILING_S)}",
    )


def _overdue(seen: PairView) -> Iterator[Problem]:
    active = seen.active
    if active is None or active.taints:
        return
    interval_s = seen.policy.rotation_interval_s
    late_s = (seen.at - rotation_due_at(active, seen.policy)) / 1000
    if late_s <= max(_LATE * interval_s, _LATE_S):
        return
    newer = [g for g in seen.building if g.number > active.number]
    if newer:
        found = newer[-1]
        done, total = progress(seen, found)
        since = duration(seen.since_s(found.claim.at))
        what = (
            f"generation {found.number} of {found.instance}, {since} old, has read {done} of {total} partitions through"
        )
        remedy = (
            f"the log of {found.instance} says what keeps it from COMPLETE; if it never ends, "
            "`tandem failover --force` has another one built beside it"
        )
    else:
        what = "nobody builds the next one"
        remedy = _unless_paused(seen, "the logs of both instances say why; `tandem failover` asks for it")
    yield Problem(
        fault=Fault.TURN_OVERDUE,
        message=f"the turn after generation {active.number} is {duration(late_s)} late: {what}. "
        "Nothing is lost, but its copy grows with every change",
        remedy=remedy,
    )


def _missing_topics(seen: PairView) -> Iterator[Problem]:
    if seen.brokers is None:
        return
    if seen.brokers.missing:
        yield Problem(
            fault=Fault.TOPIC_MISSING,
            message=f"the cluster has no topic {first_names(seen.brokers.missing)}, which topics.include names",
            remedy="create it, or take it out of the configuration; what was backed up of it is kept",
        )
    elif not seen.brokers.guarded.topics:
        yield Problem(
            fault=Fault.TOPIC_MISSING,
            message="no topic of the cluster matches topics.patterns",
            remedy="check topics.patterns and topics.exclude (`tandem config show`), and the rights of the principal",
        )


def _incomplete(seen: PairView) -> Iterator[Problem]:
    base = chosen(seen)
    if base is None:
        return
    guarded = seen.guarded_of(base)
    lacking = [key for key in guarded.partitions() if not base.usable(key)]
    if lacking:
        names = first_names(_name(seen, base, key) for key in lacking)
        yield Problem(
            fault=Fault.PARTITION_INCOMPLETE,
            message=f"generation {base.number} lacks {names}: not yet read through, so a restore leaves them out",
            remedy="wait until they are read, if they are new; else look at the log of "
            f"{seen.active.instance if seen.active else base.instance}",
        )


def _not_covered(seen: PairView) -> Iterator[Problem]:
    for older in (one for one in seen.generations if one.sealed and one.whole):
        keys = coverage.beyond_the_epoch(older, seen.generations, seen.guarded_of(older))
        if keys:
            names = first_names(
                f"{older.name_of(key)} (read to offset {older.positions[key].offset} in leader epoch "
                f"{older.positions[key].epoch})"
                for key in keys
            )
            yield Problem(
                fault=Fault.COPY_NOT_COVERED,
                message=f"generation {older.number} is sealed, and nothing can cover {names}: the logs have lower "
                "leader epochs now, as when the volumes of brokers were put back to a snapshot. It is kept",
                remedy=f"look at what the logs have lost (`tandem verify --against-generation {older.number}`); the "
                "copy can be covered when the leader epochs are higher again, which each election raises by one",
            )


def _name(seen: PairView, generation: Generation, key: PartitionKey) -> str:
    topic = seen.guarded_of(generation).topics.get(key.topic_id)
    return f"{topic[0]}-{key.partition}" if topic is not None else generation.name_of(key)


def _disagreement(seen: PairView) -> Iterator[Problem]:
    said = {
        name: terms
        for name in seen.instances
        if (heartbeat := seen.heartbeat_of_living(name)) is not None and (terms := heartbeat.terms) is not None
    }
    if len(said) != len(seen.instances):
        return
    (one, terms), (other, others) = said.items()
    found = agreement.dispute(one, terms, other, others)
    if found is not None:
        yield Problem(
            fault=Fault.INSTANCES_DISAGREE,
            message=f"the instances do not agree: {found}",
            remedy=agreement.REMEDY,
        )


def _instances(seen: PairView) -> Iterator[Problem]:
    if seen.heard is None:
        return
    active = seen.active
    for name in seen.instances:
        heard = seen.heard.get(name)
        if heard is None or not seen.alive(name):
            is_active = active is not None and active.instance == name
            told = is_active and active is not None and not seen.is_recent(active.at)
            leaving = heard is not None and heard.left and seen.is_recent(heard.at)
            if seen.ahead_s(name) is not None:
                yield Problem(
                    fault=Fault.TIME_IN_THE_FUTURE,
                    message=f"{name} {silence(seen, name)}",
                    remedy=f"look whether {name} runs and whether its clock, and the store's, are right; if they are, "
                    "the message is forged: find out who writes to the coordination topic (`tandem coordination tail`)",
                )
            elif not told and not leaving:
                yield Problem(
                    fault=Fault.INSTANCE_SILENT,
                    message=f"{name} {silence(seen, name)}"
                    + ("" if is_active else ": there is nobody to take the next turn, or to take over"),
                    remedy=f"look at the process and the log of {name}, and start it again",
                )
        else:
            yield from _troubles(seen, heard)


def _troubles(seen: PairView, heard: LastHeard) -> Iterator[Problem]:
    name = heard.instance
    if heard.twin_at is not None and seen.is_recent(heard.twin_at):
        yield Problem(
            fault=Fault.TWO_PROCESSES,
            message=f"two processes run under the name {name}",
            remedy="stop one of them: only the one that took over last can write",
        )
    for trouble in troubles_of(heard.heartbeat or Heartbeat()):
        yield Problem(
            fault=Fault.INSTANCE_TROUBLED, message=f"{name}: {trouble}", remedy=f"the log of {name} says more"
        )


def troubles_of(said: Heartbeat) -> tuple[str, ...]:
    """Return the troubles that an instance's last heartbeat reports."""
    failed = None
    if said.phase == Phase.FAILED.value:
        failed = "its pipeline has failed and is started again" + ("" if said.error is None else f": {said.error}")
    places = (("store", said.store), ("brokers", said.brokers), ("rolled back", said.rolled_back))
    named = (None if what is None else f"{place}: {what}" for place, what in places)
    return tuple(trouble for trouble in (failed, *named, said.failing, said.trouble) if trouble is not None)


def _gaps(seen: PairView) -> Iterator[Problem]:
    for gap in seen.gaps:
        yield Problem(
            fault=Fault.NOT_KNOWN,
            message=gap.message,
            remedy=f"{gap.remedy or 'try again'}; with --s3-only the brokers are not asked",
        )
