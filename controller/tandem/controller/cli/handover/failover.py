"""`tandem failover`: ask an instance to build the next generation and become Active, and follow the handover."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tandem.backup_avro.chain import integers
from tandem.backup_avro.errors import RefusedError, TandemError, TimedOutError, TransientError
from tandem.controller.cli.options.consent import YesOption, consent, one_line
from tandem.controller.cli.options.durations import span
from tandem.controller.cli.options.invocation import ConfigOption, SetOption, load
from tandem.controller.cli.output import output
from tandem.controller.cli.output.output import OutputFormat, OutputOption, Table, duration
from tandem.controller.cli.output.slow_notice import patience

if TYPE_CHECKING:
    from tandem.backup_avro.chain.generation import Generation
    from tandem.backup_avro.documents.coordination_message import CoordinationMessage
    from tandem.controller.config import Config
    from tandem.controller.coordination.peer_state import LastHeard
    from tandem.controller.history.follow_handover import HandoverWatch
    from tandem.controller.history.handover_progress import HandoverPlan, HandoverStanding
    from tandem.controller.status.pair_view import PairView
    from tandem.sink.store import ObjectStore

app = typer.Typer(add_completion=False, rich_markup_mode=None)

SENDER: Final = "cli"
_LOOK_S: Final = 1.0
_TELL_S: Final = 5.0


ToOption = Annotated[
    str | None,
    typer.Option("--to", metavar="INSTANCE", help="Instance that builds it; default: the one that is not Active."),
]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why; kept in the history.")]
ForceOption = Annotated[
    bool,
    typer.Option(
        "--force", help="Ask even if the instance is silent or Active, a build is running, or the pair is paused."
    ),
]
WaitOption = Annotated[
    bool,
    typer.Option(
        "--wait/--no-wait",
        help="Follow the handover until the old generation is cleared; with --no-wait end as soon as it is requested.",
    ),
]
TimeoutOption = Annotated[str, typer.Option("--timeout", metavar="DURATION", help="Longest time to follow it.")]


@app.command(
    epilog="\b\nExamples:\n  tandem failover -c a.yaml\n"
    '  tandem failover --to b --reason "node drain" --yes --timeout 2h -o json'
)
def failover(
    context: typer.Context,
    config: ConfigOption = None,
    overrides: SetOption = None,
    *,
    to: ToOption = None,
    reason: ReasonOption = "manual failover",
    yes: YesOption = False,
    force: ForceOption = False,
    wait: WaitOption = True,
    timeout: TimeoutOption = "30m",
    output_: OutputOption = OutputFormat.TABLE,
) -> None:
    """Ask the other instance to take its turn now, whether the Active is alive or not.

    It reads all topics again into a new generation; an Active that lives goes on until that one is complete and covers
    it, then seals and clears its own. Nothing is lost at any moment, even if an instance fails. The cost is shown
    first. While both instances are alive, `tandem rotate` does the same, and refuses if one of them is not.

    Exit code 5 if it is refused: nothing is complete yet, a generation is being built already, the instance is silent
    or the Active itself, or the pair is paused (all but the first can be overruled with --force). Exit code 4 if
    --timeout was over first; the request stays in force, as it does with Ctrl-C and --no-wait.
    """
    followed_s = span("--timeout", timeout).total_seconds()
    take_turn(
        load(context, config, overrides),
        lambda seen: to if force else refuse_active(seen, to),
        HandoverOptions(
            reason=one_line(reason, otherwise="manual failover"),
            force=force,
            yes=yes,
            wait_s=followed_s if wait else None,
            form=output_,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverOptions:
    """Options of a request for a turn. `wait_s` is the longest time to follow the handover; None: don't follow it."""

    reason: str
    force: bool
    yes: bool
    wait_s: float | None
    form: OutputFormat


def refuse_active(seen: PairView, to: str | None) -> str | None:
    """Return `to`. Raises RefusedError if that is the Active: it has nothing to take over."""
    if seen.active is not None and seen.active.instance == to:
        other = next(name for name in seen.instances if name != to)
        raise RefusedError(
            f"--to {to}: {to} is the Active already, with generation {seen.active.number}",
            code="TDM-H016",
            remedy=f"name {other}, or leave --to out; `tandem reinit {to}` has {to} build its copy anew",
        )
    return to


def take_turn(settings: Config, whom: Callable[[PairView], str | None], options: HandoverOptions) -> None:
    """Request the next generation from an instance: show the costs, ask for consent, send, follow the handover.

    `whom` returns the instance that builds; None means the one that is not Active. Raises RefusedError if the pair's
    state forbids a turn, TransientError if the brokers don't answer, TimedOutError after `wait_s`.
    """
    from tandem.controller.history.handover_progress import plan  # noqa: PLC0415 - Kafka and S3 are slow to import
    from tandem.controller.status.outside_view import store_for_looking  # noqa: PLC0415 - likewise

    store = store_for_looking(settings)
    try:
        seen = _look(settings, store)
        asked = plan(seen, to=whom(seen), force=options.force)
        output.note("\n".join(_costs(asked)))
        if not options.yes:
            consent(_question(asked), yes=options.yes)
            seen = _look(settings, store)
            again = plan(seen, to=whom(seen), force=options.force)
            if (again.generation, again.target) != (asked.generation, asked.target):
                raise RefusedError(
                    "the pair has changed since it was shown: another generation was claimed",
                    code="TDM-H003",
                    remedy="`tandem status` shows how it stands; run the command again if it is still needed",
                )
        _carry_out(settings, store, seen, asked, options)
    finally:
        store.close()


def _look(settings: Config, store: ObjectStore) -> PairView:
    """Return the view of the pair. Raises TransientError if the brokers don't answer: they carry the request."""
    from tandem.controller.local_state.remembered_heads import remembered_heads  # noqa: PLC0415 - Kafka and S3 are slow to import
    from tandem.controller.status.outside_view import view_pair  # noqa: PLC0415 - likewise

    with patience("reading the chains and asking the brokers"):
        seen = view_pair(settings, store, remembered=remembered_heads(settings))
    if seen.heard is None or seen.brokers is None:
        raise TransientError(
            f"nothing was asked: {'; '.join(gap.message for gap in seen.gaps)}",
            code="TDM-H004",
            remedy=f"{seen.gaps[0].remedy or 'check the brokers'}; then ask again. What was backed up is safe in the "
            "store, with or without a handover",
        )
    return seen


def _costs(asked: HandoverPlan) -> Iterator[str]:
    if asked.active is None or asked.former is None:
        yield f"pair {asked.pair}: nobody is Active; {asked.target} shall build generation {asked.generation}"
    else:
        yield (
            f"pair {asked.pair}: {asked.active} is Active with generation {asked.former}; {asked.target} shall build "
            f"generation {asked.generation}" + ("" if asked.beside_itself else " and take over")
        )
    yield (
        f"  reads again  at most about {asked.records:,} records ({output.size(asked.bytes)} as they are stored), from "
        "the brokers"
    )
    after = f", {duration(asked.window_s)} after the handover (recovery.window)" if asked.window_s else ""
    held = f"generation {asked.former} is kept for {', '.join(asked.kept_for)}" if asked.kept_for else ""
    until = f"as long as {held}" if held else f"until the old generation is cleared{after}"
    yield f"  storage      at most about {output.size(asked.bytes)} more {until}"
    if asked.window_start is not None:
        start = output.at(integers.utc_time(asked.window_start))
        goes = (
            f"those of generation {asked.former} stay as long as it is kept"
            if held
            else "those before the new generation is complete go when the old one is cleared"
            + (after or ", right after the handover")
        )
        yield f"  moments      from {start} on can be restored now; {goes}"
    if asked.scan_s is not None:
        yield f"  duration     the newest complete generation took {duration(asked.scan_s)} from its claim to COMPLETE"
    yield "  meanwhile    the present generation stays the backup until the new one is complete and covers it"
    for warning in asked.warnings:
        yield f"  note         {warning}"


def _question(asked: HandoverPlan) -> str:
    return f"Ask {asked.target} to build generation {asked.generation} now?"


def _carry_out(
    settings: Config, store: ObjectStore, seen: PairView, asked: HandoverPlan, options: HandoverOptions
) -> None:
    from tandem.controller.history.follow_handover import HandoverWatch  # noqa: PLC0415 - for the command, not for --help
    from tandem.controller.history.handover_progress import HandoverStanding, Stage  # noqa: PLC0415 - likewise

    message, wait_s = _request(settings, store, asked, options.reason), options.wait_s
    assert seen.brokers is not None
    with HandoverWatch(settings, store, asked, guarded=seen.brokers.guarded, requested_at=message.at) as following:
        offset = following.send(message)
        output.note(f"asked {asked.target}: request {message.request_id}, offset {offset} of the coordination topic")
        stands = HandoverStanding(stage=Stage.REQUESTED, builder=None, steps=())
        if wait_s is not None:
            try:
                stands = _follow(following, asked, stands, wait_s)
            except KeyboardInterrupt:
                output.note("no longer followed; the request stays in force, and `tandem status` shows how it goes")
                raise
        new = following.generation(asked.generation) if stands.stage is Stage.DONE else None
    _show(asked, stands, message, new, waited=wait_s is not None, form=options.form)
    if wait_s is None:
        output.note("`tandem status` shows how it goes")
    else:
        _conclude(asked, stands, wait_s)


def _request(settings: Config, store: ObjectStore, asked: HandoverPlan, reason: str) -> CoordinationMessage:
    from tandem.backup_avro.documents.coordination_message import CoordinationEvent, CoordinationMessage  # noqa: PLC0415 - for the command, not for --help
    from tandem.backup_avro.documents.turn_request import sign_request  # noqa: PLC0415 - likewise
    from tandem.sink.store.chain.chain_writer import now_ms  # noqa: PLC0415 - likewise
    from tandem.sink.store.signed_store import signer_of  # noqa: PLC0415 - likewise

    signer = signer_of(store, "a request for a turn")
    message = CoordinationMessage(
        event=CoordinationEvent.ACTIVATE,
        pair=settings.pair,
        instance=SENDER,
        incarnation=str(uuid.uuid4()),
        cluster_id=asked.cluster_id,
        request_id=uuid.uuid4().hex,
        # Not earlier than the pause that the request overrules: the store's clock has a resolution of one second.
        at=max(now_ms(store), 0 if asked.paused_at is None else asked.paused_at),
        target=asked.target,
        generation=asked.generation,
        reason=reason,
    )
    return message if signer is None else sign_request(message, signer)


def ask_for_a_new_one(settings: Config, store: ObjectStore, *, reason: str, yes: bool) -> CoordinationMessage:
    """Ask the instance that is not Active to build the next generation, after its costs were shown; don't follow it.

    Raises RefusedError and TransientError as `take_turn` does.
    """
    from tandem.controller.history.follow_handover import HandoverWatch  # noqa: PLC0415 - for the command, not for --help
    from tandem.controller.history.handover_progress import plan  # noqa: PLC0415 - likewise

    seen = _look(settings, store)
    asked = plan(seen, to=None, force=False)
    output.note("\n".join(_costs(asked)))
    consent(_question(asked), yes=yes)
    message = _request(settings, store, asked, one_line(reason, otherwise="manual failover"))
    assert seen.brokers is not None
    with HandoverWatch(settings, store, asked, guarded=seen.brokers.guarded, requested_at=message.at) as following:
        following.send(message)
    return message


def _follow(following: HandoverWatch, asked: HandoverPlan, stands: HandoverStanding, wait_s: float) -> HandoverStanding:
    """Return the state of the handover when it is done or given up, or after `wait_s`."""
    from tandem.controller.history.handover_progress import Stage  # noqa: PLC0415 - for the command, not for --help

    began = time.monotonic()
    told, told_at, stage, troubled = "", began, None, False
    while True:
        now = time.monotonic()
        text = _progress(stands, asked, following.last_heard(stands.builder or asked.target))
        if text != told and (stands.stage is not stage or now - told_at >= _TELL_S):
            output.note(f"{duration(round(now - began)):>7}  {text}")
            told, told_at, stage = text, now, stands.stage
        if stands.stage in {Stage.DONE, Stage.GIVEN_UP} or now - began >= wait_s:
            return stands
        following.read_heartbeats(min(_LOOK_S, max(0.0, began + wait_s - now)))
        # One more look at the very end of `wait_s`, so that a handover that ended by then counts as done.
        try:
            stands = following.read_standing()
            troubled = False
        except TransientError as error:
            if not troubled:
                output.warn(f"the store does not answer, going on: {error.args[0]}")
            troubled = True


def _progress(stands: HandoverStanding, asked: HandoverPlan, heard: LastHeard | None) -> str:
    from tandem.controller.history.handover_progress import Stage  # noqa: PLC0415 - for the command, not for --help

    match stands.stage:
        case Stage.REQUESTED:
            return f"waiting for {asked.target} to claim generation {asked.generation}"
        case Stage.BUILDING:
            return f"{stands.builder} builds generation {asked.generation}{_at_work(asked, heard)}"
        case Stage.COMPLETE:
            return (
                f"generation {asked.generation} is complete; {asked.active} reads on until that covers its "
                f"generation {asked.former}"
            )
        case Stage.SEALED:
            return f"generation {asked.former} is sealed; {asked.active} clears it"
        case Stage.DONE:
            return f"done: generation {asked.generation} of {stands.builder} is the backup"
        case Stage.GIVEN_UP:
            return f"{stands.builder} has given generation {asked.generation} up"


def _at_work(asked: HandoverPlan, heard: LastHeard | None) -> str:
    heartbeat = None if heard is None else heard.heartbeat
    if heartbeat is None or heartbeat.generation != asked.generation:
        return ""
    found = [
        heartbeat.phase,
        f"{heartbeat.base_remaining} offsets of the first reading to go" if heartbeat.base_remaining else None,
        None if heartbeat.lag is None else f"lag {heartbeat.lag}",
        heartbeat.trouble,
    ]
    return ": " + ", ".join(filter(None, found))


def _show(
    asked: HandoverPlan,
    stands: HandoverStanding,
    message: CoordinationMessage,
    new: Generation | None,
    *,
    waited: bool,
    form: OutputFormat,
) -> None:
    from tandem.controller.history.handover_progress import Built, Cost, Failover, Stage  # noqa: PLC0415 - for the command, not for --help

    over = stands.stage in {Stage.DONE, Stage.GIVEN_UP}
    body = Failover(
        pair=asked.pair,
        request_id=message.request_id,
        reason=message.reason,
        requested_at=integers.utc_time(message.at),
        from_instance=asked.active,
        from_generation=asked.former,
        to_instance=stands.builder or asked.target,
        to_generation=asked.generation,
        stage=stands.stage,
        timed_out=waited and not over,
        steps=stands.steps,
        seconds=round(sum(step.seconds for step in stands.steps), 3),
        cost=Cost(records=asked.records, bytes=asked.bytes),
        built=None if new is None else Built(records=_records(new), bytes=_bytes(new), objects=len(new.objects)),
    )
    table = Table(
        columns=("step", "at", "took"),
        rows=[
            ("requested", output.at(integers.utc_time(message.at)), None),
            *((step.step, output.at(step.at), duration(step.seconds)) for step in stands.steps),
        ],
        right=frozenset({"took"}),
    )
    came = f"generation {asked.former} of {asked.active}" if asked.former is not None else "nobody"
    line = f"from {came} to generation {asked.generation} of {stands.builder or asked.target}: {stands.stage.value}"
    tables: list[Table | str] = [line, table]
    if new is not None:
        tables.append(
            f"{new.instance} is Active: generation {new.number} holds {_records(new):,} records, "
            f"{output.size(_bytes(new))} in {len(new.objects):,} objects"
        )
    output.show(kind="Failover", body=body, output=form, tables=tables)


def _records(generation: Generation) -> int:
    return sum(part.records for _, part in generation.live_parts())


def _bytes(generation: Generation) -> int:
    return sum(item.bytes for item in generation.objects.values())


def _conclude(asked: HandoverPlan, stands: HandoverStanding, wait_s: float) -> None:
    from tandem.controller.history.handover_progress import Stage  # noqa: PLC0415 - for the command, not for --help

    if stands.builder not in {None, asked.target}:
        output.warn(f"{stands.builder} claimed generation {asked.generation} before {asked.target} did")
    if stands.stage is Stage.GIVEN_UP:
        raise TandemError(
            f"{stands.builder} abandoned generation {asked.generation}; nothing is lost, the backup is unchanged",
            code="TDM-H005",
            remedy=f"`tandem history --generation {asked.generation}` and the log of {stands.builder} say why; "
            "then ask again",
        )
    if stands.stage is not Stage.DONE:
        raise TimedOutError(
            f"not done after {duration(timedelta(seconds=wait_s))}: {_progress(stands, asked, None)}",
            code="TDM-H006",
            remedy="the request stays in force and goes on by itself; `tandem status` shows how it goes",
        )
