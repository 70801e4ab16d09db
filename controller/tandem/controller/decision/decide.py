"""The decision of one tick: a pure function of the role, one observation and the policy (design, sections 5 and 7).

S3 is the authority: an instance's actions follow from the chains. Messages only make it quicker, or request a turn.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tandem.backup_avro.chain.entries import Claim, Clearing
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.documents.pause import Pause, in_force
from tandem.backup_avro.documents.release import released
from tandem.backup_avro.selection import completion, coverage, losses
from tandem.backup_avro.selection.completion import Shortfall
from tandem.controller.decision import liveness, pair_rules
from tandem.controller.decision.observation import Activation, Observation, PipelineState, Policy, Role

_TURNS_AT_ONCE = 3
"""The number of requested turns within one rotation interval that begin without a wait."""
_A_DAY_S = 86_400.0
_MANY = 32
"""The number of requested turns from which on the wait grows no longer."""


class Reason(StrEnum):
    """The reason for an action or for inaction, as logged and shown."""

    NOTHING_EXISTS = "no generation exists yet"
    ASKED = "asked to take the next turn"
    ASKED_TOO_OFTEN = "asked to take the next turn, too soon after other such turns"
    ACTIVE_SILENT = "the Active has been silent"
    PEER_SILENT = "the peer did not take its turn in time"
    ROTATION_DUE = "the generation is due for rotation"
    TAINTED = "the generation is tainted"
    RESTARTED = "an earlier process of this instance left it"
    READ_THROUGH = "all partitions are read through and every complete generation was reached"
    COVERED = "a newer complete generation covers it"
    HANDOVER = "a newer complete generation exists"
    NO_SUCCESSOR = "no sound newer generation is left, it is read on"
    NOT_COVERED_IN_TIME = "the newer generation did not cover it in time"
    NOT_SEALED_IN_TIME = "it could not be sealed in time"
    SPOILT = "it can't become complete any more"
    UNREADABLE = "its chain can't be read any more"
    SUPERSEDED = "a newer complete generation exists, it is not needed"
    FENCED = "another incarnation of this instance has taken over"
    TWIN_ALIVE = "another process with this instance name was heard a moment ago"
    ONE_AT_A_TIME = "a newer build of this instance takes its place"
    PAUSED = "paused by a person: nobody claims by itself"
    WAITING_FOR_FIRST = "the other instance goes first"
    WAITING_FOR_BROKERS = "no answer of the brokers yet"
    WAITING_FOR_TOPICS = "none of the guarded topics exists"
    RESTING = "builds were spoilt one after the other, the next one waits"
    STEADY = "nothing to do"


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeOver:
    """Append TAKEOVER to a generation that an earlier incarnation of this instance held."""

    generation: int
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimNext:
    """Claim a number and open its chain."""

    generation: int
    reason: Reason
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPipeline:
    """Read and commit for a generation that this incarnation holds."""

    generation: int
    reason: Reason
    resumed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Stop fetching for a generation, and commit the records that were read."""

    generation: int
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Complete:
    """Confirm the stored objects and append COMPLETE. `maybe_cut`: shortfalls that the brokers must explain first."""

    generation: int
    reason: Reason
    maybe_cut: tuple[Shortfall, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """Append SEALED: the generation takes no more records."""

    generation: int
    successor: int
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Clear:
    """Append CLEARING, wait for pins, delete, append CLEARED."""

    generation: int
    clearing: Clearing
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class AskPeer:
    """Publish ACTIVATE: a request to the peer to build `generation`."""

    generation: int
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Halt:
    """Stop all work; the process ends."""

    reason: Reason


Action = TakeOver | ClaimNext | StartPipeline | Drain | Complete | Seal | Clear | AskPeer | Halt


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The role to be in, the actions to start, and the reason why no other action is due."""

    role: Role
    actions: tuple[Action, ...]
    reason: Reason
    detail: str = ""

    @property
    def why(self) -> str:
        """The reason, with its detail if there is one."""
        return f"{self.reason.value}: {self.detail}" if self.detail else self.reason.value


def decide(role: Role, seen: Observation, policy: Policy) -> Decision:
    """Return the role, the actions and the reason for this tick.

    Each tick repeats an action until its effect is seen, so all actions must be idempotent.
    """
    mine = [g for g in seen.generations if g.instance == seen.me and g.seq > 0]
    if role is Role.HALTED or _fenced(mine, seen):
        return Decision(role=Role.HALTED, actions=(Halt(reason=Reason.FENCED),), reason=Reason.FENCED)
    foreign = [g for g in mine if g.holder != seen.incarnation and _has_duty(g, seen)]
    held = [g for g in mine if g.holder == seen.incarnation]
    if foreign:
        if _twin_first(foreign, held, seen, policy):
            return Decision(role=Role.PASSIVE, actions=(), reason=Reason.TWIN_ALIVE)
        takeovers = tuple(TakeOver(generation=g.number, reason=Reason.RESTARTED) for g in foreign)
        return Decision(role=role, actions=_not_under_way(takeovers, seen), reason=Reason.RESTARTED)
    actions: list[Action] = []
    for generation in held:
        actions.extend(_duty(generation, held, seen, policy))
    lost = sorted(number for number in seen.damaged & seen.pipelines.keys() if not seen.pipelines[number].draining)
    actions.extend(Drain(generation=number, reason=Reason.UNREADABLE) for number in lost)
    claims, reason = _turn(held, seen, policy)
    actions.extend(claims)
    detail = str(seen.spoilt) if reason is Reason.RESTING else ""
    return Decision(
        role=_role(held, seen, policy), actions=_not_under_way(tuple(actions), seen), reason=reason, detail=detail
    )


def _fenced(mine: list[Generation], seen: Observation) -> bool:
    """Return whether another process with this instance's name took over a chain that this process reads for.

    A process that was stopped for a while may see the chain before its pipeline meets the other process's entry. A
    takeover back would fence the process at work, which would take the chain over in turn, until both had halted.
    """
    reads = {number for number, pipeline in seen.pipelines.items() if pipeline.drained_mono is None}
    taken = any(g.number in reads for g in mine if g.holder != seen.incarnation)
    return taken or any(pipeline.fenced for pipeline in seen.pipelines.values())


def _has_duty(generation: Generation, seen: Observation) -> bool:
    if generation.gone:
        return False
    if generation.cleared is None or generation.clearing is not None:
        return True
    return _may_go(generation, seen) is not None  # the partitions it kept have been released or covered since


def _may_go(generation: Generation, seen: Observation) -> Clearing | None:
    if seen.guarded is None:
        return None
    return coverage.clearing(generation, seen.generations, seen.guarded, released(seen.releases, generation))


def _not_under_way(actions: tuple[Action, ...], seen: Observation) -> tuple[Action, ...]:
    return tuple(a for a in actions if isinstance(a, Halt) or (type(a).__name__, a.generation) not in seen.tasks)


def _twin_first(foreign: list[Generation], held: list[Generation], seen: Observation, policy: Policy) -> bool:
    """Return whether a twin, another process with this instance's name, goes first in taking over `foreign` chains.

    A twin that holds a chain is at work. If both processes hold one, the process with the newest goes on and fences the
    other by a takeover: two processes that wait for each other would wait for ever. Of processes that hold no foreign
    chain and wait like this one, one must begin: a process that holds any chain, else the one whose incarnation sorts
    lowest, after the time (three heartbeats) in which a process at work is heard.
    """
    twin = seen.twin
    grace = 3 * policy.heartbeat_s
    young = seen.now_mono - seen.started_mono < grace
    if twin.left:
        return False
    if twin.heard_mono is None:
        return twin.known and young
    if seen.now_mono - twin.heard_mono >= grace:
        return False
    heard = [incarnation for incarnation, at in twin.incarnations.items() if seen.now_mono - at < grace]
    if not heard:
        return True
    theirs = max((g.number for g in foreign if g.holder in heard), default=0)
    if theirs:
        return theirs > max((g.number for g in held), default=0)
    return young or (not held and min(heard) < seen.incarnation)


def _role(held: list[Generation], seen: Observation, policy: Policy) -> Role:
    if any(g.complete and not g.sealed for g in held):
        return Role.ACTIVE
    if any(_wanted(g, seen, policy) for g in held):
        return Role.CATCH_UP
    return Role.PASSIVE


def _wanted(generation: Generation, seen: Observation, policy: Policy) -> bool:
    return pair_rules.is_wanted(generation, seen.generations, now=seen.at, policy=policy)


# --- duties: the actions that an own generation needs -----------------------------------------------------------------


def _duty(generation: Generation, held: list[Generation], seen: Observation, policy: Policy) -> list[Action]:
    if generation.gone:
        return []
    if generation.sealed or generation.clearing is not None:
        return _duty_of_sealed(generation, seen, policy)
    if generation.complete:
        return _duty_of_active(generation, seen, policy)
    return _duty_of_open(generation, held, seen, policy)


def _duty_of_open(generation: Generation, held: list[Generation], seen: Observation, policy: Policy) -> list[Action]:
    number = generation.number
    pipeline = seen.pipelines.get(number)
    spoilt = completion.is_spoilt(generation)
    if spoilt or coverage.successor(generation, seen.generations) is not None:
        reason = Reason.SPOILT if spoilt else Reason.SUPERSEDED
        if pipeline is not None and pipeline.drained_mono is None and pipeline.failed_mono is None:
            return [] if pipeline.draining else [Drain(generation=number, reason=reason)]
        goes = Clearing(goes=tuple(sorted(generation.positions)), stays={})
        return [Clear(generation=number, clearing=goes, reason=reason)]
    if any(g.number > number and _wanted(g, seen, policy) for g in held):
        # One build per instance uses memory at a time. The objects of this one stay until the newer one is COMPLETE.
        running = pipeline is not None and pipeline.drained_mono is None and not pipeline.draining
        return [Drain(generation=number, reason=Reason.ONE_AT_A_TIME)] if running else []
    start = _keep_running(number, pipeline, seen, policy)
    if start and any(_takes_memory(g, seen) for g in held if g.number != number):
        return []
    if start or seen.guarded is None:
        return start
    # The brokers are asked before COMPLETE whether a log was truncated, because the chains can't tell.
    earlier = seen.earlier.get(number, completion.NO_EARLIER)
    maybe_cut = tuple(completion.shortfalls(generation, seen.generations, seen.guarded, earlier))
    if completion.obstacles(generation, seen.generations, seen.guarded, maybe_cut, earlier):
        return []
    return [Complete(generation=number, reason=Reason.READ_THROUGH, maybe_cut=maybe_cut)]


def _takes_memory(generation: Generation, seen: Observation) -> bool:
    """Return whether a build still reads, or commits the records that it has read."""
    pipeline = seen.pipelines.get(generation.number)
    ended = pipeline is None or pipeline.drained_mono is not None or pipeline.failed_mono is not None
    return not generation.complete and not ended


def _keep_running(number: int, pipeline: PipelineState | None, seen: Observation, policy: Policy) -> list[Action]:
    if pipeline is None:
        return [StartPipeline(generation=number, reason=Reason.STEADY)]
    if pipeline.failed_mono is not None:
        rested = seen.now_mono - pipeline.failed_mono >= policy.restart_delay_s
        return [StartPipeline(generation=number, reason=Reason.RESTARTED)] if rested else []
    if pipeline.drained_mono is not None:  # the successor that it was drained for was tainted or cleared
        return [StartPipeline(generation=number, reason=Reason.NO_SUCCESSOR)]
    return []


def _duty_of_active(generation: Generation, seen: Observation, policy: Policy) -> list[Action]:
    number = generation.number
    sealing = (Seal.__name__, number)
    if sealing in seen.tasks and sealing not in seen.resting:
        return []  # SEALED states that all records up to it are covered, so reading rests while SEALED is appended
    pipeline = seen.pipelines.get(number)
    successor = coverage.successor(generation, seen.generations)
    if successor is None or seen.guarded is None:
        return _keep_running(number, pipeline, seen, policy)
    covered = not coverage.uncovered_partitions(successor, generation, seen.guarded)
    starting = (StartPipeline.__name__, number) in seen.tasks
    stopped = not starting and (pipeline is None or pipeline.drained_mono is not None)
    if stopped and covered:
        since = seen.started_mono if pipeline is None or pipeline.drained_mono is None else pipeline.drained_mono
        if sealing in seen.resting and seen.now_mono - since >= policy.handover_timeout_s:
            # The successor has lost objects, or can't be listed, or a truncation can't be proven: that may last for
            # days, and the successor's owner may be dead. After another handover timeout this one is drained again.
            return [StartPipeline(generation=number, reason=Reason.NOT_SEALED_IN_TIME, resumed=True)]
        return [Seal(generation=number, successor=successor.number, reason=Reason.COVERED)]
    if pipeline is None:
        return [StartPipeline(generation=number, reason=Reason.STEADY)]
    if pipeline.drained_mono is not None:
        if seen.now_mono - pipeline.drained_mono >= policy.handover_timeout_s:
            return [StartPipeline(generation=number, reason=Reason.NOT_COVERED_IN_TIME, resumed=True)]
        return []
    if pipeline.draining and pipeline.failed_mono is None:
        return []
    rested = not pipeline.resumed or seen.now_mono - pipeline.started_mono >= policy.handover_timeout_s
    if pipeline.failed_mono is None and rested and (covered or liveness.is_owner_alive(successor, seen, policy)):
        return [Drain(generation=number, reason=Reason.HANDOVER)]
    return _keep_running(number, pipeline, seen, policy)


def _duty_of_sealed(generation: Generation, seen: Observation, policy: Policy) -> list[Action]:
    if generation.clearing is not None:
        reason = Reason.COVERED if generation.complete else Reason.SPOILT
        return [Clear(generation=generation.number, clearing=generation.clearing, reason=reason)]
    kept = pair_rules.kept_for_window(seen.generations, now=seen.at, policy=policy)
    if generation.number in seen.held or generation.number in kept:
        return []
    goes = _may_go(generation, seen)
    if goes is None or not (goes.goes or not goes.stays or any(map(losses.is_of_keys, goes.stays.values()))):
        return []
    return [Clear(generation=generation.number, clearing=goes, reason=Reason.COVERED)]


# --- turns: which instance builds the next generation -----------------------------------------------------------------


def _turn(held: list[Generation], seen: Observation, policy: Policy) -> tuple[list[Action], Reason]:
    if seen.guarded is None:
        return [], Reason.WAITING_FOR_TOPICS if seen.topicless else Reason.WAITING_FOR_BROKERS
    building = any(_building(g, seen, policy) for g in seen.generations)
    asked = _request(seen, policy, building=building)
    if asked is not None and _may_be_granted(seen, policy):
        claim = ClaimNext(generation=asked.generation, reason=Reason.ASKED, detail=asked.reason)
        return [claim], Reason.ASKED
    # A request that has to wait does not keep the instance from its own turn.
    claims, reason = _own_turn(held, seen, policy, building=building)
    return claims, Reason.ASKED_TOO_OFTEN if asked is not None and reason is Reason.STEADY else reason


def _request(seen: Observation, policy: Policy, *, building: bool) -> Activation | None:
    """Return the first valid request that this instance builds the next generation; None if there is none.

    Requests of instances count only while no generation is being built; a person may know that a build never ends. A
    request counts for its number alone, so it is granted once. A build that it overtakes is given up when the new
    generation is COMPLETE.
    """
    pause = in_force(seen.pause, seen.at)
    rests = seen.spoilt.must_wait(seen.at)
    for activation in seen.activations:
        if pause is not None and not _requested_after_pause(activation, pause, seen, policy):
            continue
        if rests and not activation.by_person:
            continue
        mine = activation.target == seen.me and activation.generation == seen.newest + 1
        if mine and (activation.by_person or not building):
            return activation
    return None


def _own_turn(
    held: list[Generation], seen: Observation, policy: Policy, *, building: bool
) -> tuple[list[Action], Reason]:
    if building:
        return [], Reason.STEADY
    if in_force(seen.pause, seen.at) is not None:
        return [], Reason.PAUSED
    if seen.spoilt.must_wait(seen.at):
        return [], Reason.RESTING
    number = seen.newest + 1
    active = pair_rules.active_of(seen.generations)
    if active is None:
        return _first_turn(number, seen, policy)
    if active not in held:
        if active.instance != seen.me and not liveness.may_be_alive(active.instance, seen, policy):
            return [ClaimNext(generation=number, reason=Reason.ACTIVE_SILENT)], Reason.ACTIVE_SILENT
        return [], Reason.STEADY
    return _next_turn(active, number, seen, policy)


def _requested_after_pause(activation: Activation, pause: Pause, seen: Observation, policy: Policy) -> bool:
    """Return whether a person requested this turn after the pause began, and so in spite of it.

    A request dated more than `liveness.timeout` ahead is wrong or forged and does not count: it would overrule every
    later pause.
    """
    latest = seen.at + policy.liveness_timeout_s * 1000
    return activation.by_person and pause.at <= activation.at <= latest


def was_requested(claim: Claim) -> bool:
    """Return whether a generation was claimed on the request of a message."""
    return claim.reason.startswith(Reason.ASKED.value)


def _may_be_granted(seen: Observation, policy: Policy) -> bool:
    """Return whether a requested turn may begin now. A rate limit: a writer on the topic can send any number of them.

    The first three requested turns within a rotation interval (at most a day) begin at once. Each further one waits
    after the last, twice as long as the one before, from `liveness.timeout` up to a day. Those since the newest
    COMPLETE generation count whatever their age, so that a build which is overtaken by the next one gets more and more
    time.
    """
    complete = max((g.number for g in seen.generations if g.complete), default=0)
    window_ms = min(policy.rotation_interval_s, _A_DAY_S) * 1000
    counted = [at for number, at in seen.requested.items() if number > complete or abs(seen.at - at) < window_ms]
    if len(counted) < _TURNS_AT_ONCE:
        return True
    rest_s = min(_A_DAY_S, policy.liveness_timeout_s * 2.0 ** min(len(counted) - _TURNS_AT_ONCE, _MANY))
    return abs(seen.at - max(counted)) >= rest_s * 1000


def _first_turn(number: int, seen: Observation, policy: Policy) -> tuple[list[Action], Reason]:
    """Return a claim of the first turn of a pair without an Active, or the reason to wait for the other instance.

    The configured first instance claims. The other one claims if the first is not heard for `liveness.timeout`, or its
    chain stands still for the progress timeout: it may send heartbeats and yet find no topics, or reach no brokers.
    """
    if seen.me == policy.first or liveness.is_unheard(seen, policy) or liveness.is_stalled(seen, policy):
        return [ClaimNext(generation=number, reason=Reason.NOTHING_EXISTS)], Reason.NOTHING_EXISTS
    return [], Reason.WAITING_FOR_FIRST


def _next_turn(active: Generation, number: int, seen: Observation, policy: Policy) -> tuple[list[Action], Reason]:
    if active.taints:
        reason = Reason.TAINTED
    elif seen.at >= pair_rules.rotation_due_at(active, policy):
        reason = Reason.ROTATION_DUE
    else:
        return [], Reason.STEADY
    asked = seen.asked_mono.get(number)
    if asked is not None and seen.now_mono - asked >= policy.peer_timeout_s:
        return [ClaimNext(generation=number, reason=Reason.PEER_SILENT, detail=reason.value)], Reason.PEER_SILENT
    return [AskPeer(generation=number, reason=reason)], reason


def _building(generation: Generation, seen: Observation, policy: Policy) -> bool:
    """Return whether its owner is alive, it can still become COMPLETE, and no newer generation made it needless."""
    return _wanted(generation, seen, policy) and liveness.is_owner_alive(generation, seen, policy)
