"""The conditions of `tandem wait`, on the overview that `tandem status` shows. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from tandem.backup_avro.chain.integers import number_in
from tandem.backup_avro.chain.layout import LAST_GENERATION
from tandem.backup_avro.errors import ConfigError
from tandem.controller.decision.observation import Role
from tandem.controller.status.overview import GenerationState, Overview

FORMS: Final = "complete, steady, generation=N, cleared=N, role=INSTANCE:ROLE"


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitGoal:
    """A condition and its text. `lacks` returns what an overview lacks to fulfil it; None: it holds."""

    text: str
    lacks: Callable[[Overview], str | None]


def is_of_store(text: str) -> bool:
    """Return whether the store alone shows if a condition holds; True for an invalid text, which `parse` refuses."""
    return text.strip().partition("=")[0] not in {"steady", "role"}


def parse(text: str, instances: Collection[str]) -> WaitGoal:
    """Return the condition that `text` states. Raises ConfigError if it is none, or names no instance of the pair."""
    name, _, value = text.strip().partition("=")
    if name in {"complete", "steady"} and not value:
        return WaitGoal(text=name, lacks=_complete if name == "complete" else _steady)
    if name in {"generation", "cleared"} and (number := number_in(value, most=LAST_GENERATION)):
        lacks = _generation if name == "generation" else _cleared
        return WaitGoal(text=f"{name}={number}", lacks=lambda found: lacks(found, number))
    if name == "role":
        return _parse_role(text, value, instances)
    raise ConfigError(f"--for {text!r} is nothing that can be waited for", code="TDM-I048", remedy=f"choose {FORMS}")


def _parse_role(text: str, value: str, instances: Collection[str]) -> WaitGoal:
    instance, _, wanted = value.partition(":")
    role = {role.value.lower(): role for role in Role}.get(wanted.lower())
    if role is None:
        roles = ", ".join(role.value for role in Role)
        raise ConfigError(
            f"--for {text!r} names no role", code="TDM-I049", remedy=f"write role=INSTANCE:ROLE, ROLE one of {roles}"
        )
    if instance not in instances:
        raise ConfigError(
            f"--for {text!r}: the pair has no instance {instance!r}",
            code="TDM-I050",
            remedy=f"choose {' or '.join(instances)}",
        )
    return WaitGoal(text=f"role={instance}:{role.value}", lacks=lambda found: _role(found, instance, role))


def _complete(found: Overview) -> str | None:
    if found.restore is None:
        return next((problem.message for problem in found.problems), "nothing can be restored")
    if found.restore.tainted:
        return f"generation {found.restore.generation} is tainted, and no newer one is complete"
    return None


def _steady(found: Overview) -> str | None:
    for problem in found.problems:
        return problem.message
    for asked in found.requests:
        return f"{asked.target} was asked to build generation {asked.generation}, which is not claimed yet"
    for one in found.generations:
        if not one.settled:
            return f"generation {one.number} waits for {one.waits_for}"
    return None


def _generation(found: Overview, number: int) -> str | None:
    if any(one.number >= number and one.completed_at is not None for one in found.generations):
        return None
    newest = max((one for one in found.generations if one.number >= number), key=lambda one: one.number, default=None)
    if newest is None:
        return f"generation {number} is not claimed yet"
    return f"generation {newest.number} of {newest.instance} waits for {newest.waits_for}"


def _cleared(found: Overview, number: int) -> str | None:
    one = next((one for one in found.generations if one.number == number), None)
    if one is None:
        newest = max((other.number for other in found.generations), default=0)
        return None if number < newest else f"generation {number} is not claimed yet"
    if one.state is GenerationState.KEPT or (one.state is GenerationState.SEALED and one.settled):
        return None
    if one.waits_for is None:
        return f"generation {number} is the newest complete one"
    return f"generation {number} waits for {one.waits_for}"


def _role(found: Overview, name: str, role: Role) -> str | None:
    one = next(one for one in found.instances if one.instance == name)
    if one.alive is None:
        gap = next((problem.message for problem in found.problems), "the brokers were not asked")
        return f"the role of {name} is not known: {gap}"
    if not one.alive:
        return f"{name} is not alive"
    return None if one.role == role.value else f"{name} is {one.role}"
