"""The problems of a pair as the page shows them: each is said once, in one list, with the commands against it. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tandem.controller.status.health import Fault, Problem, first_names, held_note, kept_note
from tandem.controller.status.overview import GenerationState, GenerationStatus, Overview, PositionStatus

#: The most problems, and the most actions of a kind, that are shown one by one.
FEW: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingAction:
    """An action that a person has to take, with the command for it. Below a problem that says it, it has no title."""

    title: str
    text: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedProblem:
    """A problem, its place in the list, from 1, and the actions against it."""

    number: int
    problem: Problem
    actions: tuple[PendingAction, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemList:
    """The first problems, and the number of `more` that are not listed.

    `needs` are the actions that belong to none of those listed, `notes` the facts that are said nowhere else.
    """

    listed: tuple[ListedProblem, ...]
    more: int
    needs: tuple[PendingAction, ...]
    notes: tuple[str, ...]

    def number_of(self, text: str) -> int | None:
        """Return the number of the problem whose message has this text; None if no listed one has it."""
        return next((one.number for one in self.listed if _has(one.problem.message, text)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """An action, and the problem that it answers: one of `faults` whose message has one of `names`.

    `message` then takes the place of the problem's. `told`: that message says what the action's title says.
    """

    action: PendingAction
    faults: tuple[Fault, ...] = ()
    names: tuple[str, ...] = ()
    message: str | None = None
    told: bool = True


def problem_list(found: Overview, active: GenerationStatus | None, called: Callable[[str], str] = str) -> ProblemList:
    """Return the problems, actions and notes of an overview; `called` completes a command, as with an option."""
    listed = [ListedProblem(number=n, problem=one) for n, one in enumerate(found.problems[:FEW], 1)]
    needs = []
    for answer in _answers(found, active):
        action = replace(answer.action, command=called(answer.action.command))
        at = next((at for at, one in enumerate(listed) if _answers_to(answer, one.problem)), None)
        if at is None:
            needs.append(action)
            continue
        one = listed[at]
        listed[at] = replace(
            one,
            problem=one.problem if answer.message is None else replace(one.problem, message=answer.message),
            actions=(*one.actions, replace(action, title="") if answer.told else action),
        )
    said = set(_said(found, active))
    return ProblemList(
        listed=tuple(listed),
        more=len(found.problems) - len(listed),
        needs=tuple(needs),
        notes=tuple(note for note in found.notes if note not in said),
    )


def _has(message: str, text: str) -> bool:
    """Return whether a message has a text that does not begin or end in the middle of a name."""
    return re.search(rf"(?<![\w.-]){re.escape(text)}(?![\w-]|\.\w)", message) is not None


def _answers_to(answer: _Answer, problem: Problem) -> bool:
    return problem.fault in answer.faults and any(_has(problem.message, name) for name in answer.names)


def _said(found: Overview, active: GenerationStatus | None) -> Iterator[str]:
    """Yield the notes that say what actions, and the rows of partitions, say more fully."""
    for one in found.generations:
        if one.state is GenerationState.KEPT:
            yield kept_note(one.number, one.kept)
    if active is not None:
        yield held_note({f"{one.topic}-{one.partition}": one.held_back for one in active.positions if one.held_back})


def _answers(found: Overview, active: GenerationStatus | None) -> Iterator[_Answer]:
    newest = max((one.number for one in found.generations if one.completed_at is not None), default=0)
    for one in found.generations:
        if one.tainted and one.state is GenerationState.COMPLETE and one.number == newest:
            yield _tainted(one, [other for other in found.generations if other.number > one.number])
    if active is not None:
        hanging = {name for one in found.instances if one.alive for name in one.held}
        yield from _held_back([one for one in active.positions if f"{one.topic}-{one.partition}" in hanging])
    for one in found.generations:
        yield from _kept(one)


def _tainted(one: GenerationStatus, newer: Sequence[GenerationStatus]) -> _Answer:
    said = f"generation {one.number} is tainted"
    where = f"{first_names(one.tainted)}. What came before stays restorable"
    return _Answer(
        faults=(Fault.TAINTED,),
        names=(said,),
        message=f"{said}, and no newer one is complete: {where}",
        action=PendingAction(
            title=f"Generation {one.number} is tainted",
            text=f"If generation {newer[-1].number} never becomes complete, this asks for another."
            if newer
            else "This asks for it now.",
            command=f"tandem failover {'--force ' if newer else ''}--reason tainted",
        ),
    )


def _held_back(hanging: Sequence[PositionStatus]) -> Iterator[_Answer]:
    held = sorted(hanging, key=lambda one: -one.held_back)
    for one in held[:FEW]:
        name = f"{one.topic}-{one.partition}"
        what = (
            f"{one.held_back:,} offsets from {one.log_end:,} on wait" if one.held_back else "What comes after it waits"
        )
        yield _Answer(
            faults=(Fault.INSTANCE_TROUBLED,),
            names=(f"{name}: an open transaction holds back",),
            action=PendingAction(
                title=f"An open transaction holds back {name}",
                text=f"{what} for its end. Its producer may be gone for good: this finds the transaction, and "
                "`kafka-transactions.sh abort` ends it.",
                command='kafka-transactions.sh --bootstrap-server "$KAFKA_BOOTSTRAP_SERVERS" find-hanging '
                f"--topic {shlex.quote(one.topic)} --partition {one.partition}",
            ),
        )
    if len(held) > FEW:
        yield _rest(f"Open transactions hold back {len(held) - FEW:,} partitions more")


def _kept(generation: GenerationStatus) -> Iterator[_Answer]:
    lives: dict[tuple[str, str], list[PositionStatus]] = {}
    for one in generation.positions:
        if one.kept is not None:
            lives.setdefault((one.topic, one.topic_id), []).append(one)
    for (topic, topic_id), parts in list(lives.items())[:FEW]:
        action = PendingAction(
            title=f"Generation {generation.number} keeps {topic} until it is released",
            text=f"Why: {_why(parts)}. {len(parts)} partition{'s' if len(parts) != 1 else ''}: "
            f"{first_names(str(one.partition) for one in parts)}. The command says first what is lost.",
            command=f"tandem release {shlex.quote(topic)} --topic-id {shlex.quote(topic_id)}",
        )
        names = (topic, *(f"{topic}-{one.partition}" for one in parts))
        yield _Answer(faults=(Fault.KEYS_VANISHED, Fault.TOPIC_MISSING), names=names, action=action, told=False)
    if len(lives) > FEW:
        yield _rest(f"Generation {generation.number} keeps {len(lives) - FEW:,} topics more")


def _why(parts: Sequence[PositionStatus]) -> str:
    """Return why partitions stay; where there are several reasons, of which partitions each is."""
    numbers: dict[str, list[str]] = {}
    for one in parts:
        numbers.setdefault(one.kept or "", []).append(str(one.partition))
    return (
        first_names(numbers)
        if len(numbers) == 1
        else first_names(f"{why} (of {first_names(of)})" for why, of in numbers.items())
    )


def _rest(title: str) -> _Answer:
    return _Answer(
        action=PendingAction(title=title, text="The document has all of them.", command="tandem status -o json")
    )
