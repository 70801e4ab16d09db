"""The diagrams of docs/protocol.md, drawn from the code: `make diagrams` writes them, a test says when they drift.

The roles come from the table of the state machine. A generation's life comes from asking the chain's own rules, which
entry may follow in each state.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from support.backups.chains import OPENING, Chain, key, position, topic
from tandem.backup_avro.chain.entries import Clearing, EntryKind
from tandem.backup_avro.chain.generation import ChainError, Generation
from tandem.controller.decision.role_machine import TABLE, RoleMachine

PAGE = Path(__file__).parents[3] / "docs" / "protocol.md"

_GOING = key()
_STAYING = key("gone")
_ALL = Clearing(goes=(_STAYING, _GOING), stays={})
_SOME = Clearing(goes=(_GOING,), stays={_STAYING: "the cluster no longer has it"})
_READ = {"positions": {_GOING: position(), _STAYING: position()}, "topics": (topic(), topic("gone"))}

_Step = tuple[EntryKind, dict[str, Any]]


def roles() -> str:
    """The roles of an instance and what leads from one to another."""
    lines = ["stateDiagram-v2", f"    [*] --> {_word(RoleMachine().role.value)}"]
    lines += [f"    {_word(source.value)} --> {_word(target.value)}: {trigger}" for trigger, source, target in TABLE]
    return "\n".join(lines)


def life() -> str:
    """The states of a generation and which chain entries lead from one to another."""
    start = _after(())
    paths: dict[tuple[str, bool], tuple[_Step, ...]] = {_told_apart(start): ()}
    arrows: dict[tuple[str, str], list[str]] = {}
    todo = [_told_apart(start)]
    while todo:
        before = todo.pop(0)
        for step in _steps(_after(paths[before])):
            try:
                after = _told_apart(_after((*paths[before], step)))
            except ChainError:
                continue
            names = arrows.setdefault((before[0], after[0]), [])
            if step[0].value not in names:
                names.append(step[0].value)
            if after not in paths:
                paths[after] = (*paths[before], step)
                todo.append(after)
    lines = ["stateDiagram-v2", f"    [*] --> {_state(start)}: claim"]
    lines += [f"    {before} --> {after}: {', '.join(names)}" for (before, after), names in arrows.items()]
    return "\n".join([*lines, "    cleared --> [*]"])


def drawn(page: str) -> str:
    """The page with its diagrams as they have to be."""
    for name, diagram in (("roles", roles()), ("life", life())):
        marked = re.compile(rf"(<!-- diagram: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        page, count = marked.subn(lambda found, body=diagram: f"{found[1]}```mermaid\n{body}\n```\n{found[2]}", page)
        if count != 1:
            raise ValueError(f"{PAGE.name} has {count} places for the diagram {name!r}, not one")
    return page


def _word(value: str) -> str:
    return value.replace("-", "")


def _steps(state: Generation) -> list[_Step]:
    content: dict[EntryKind, list[dict[str, Any]]] = {
        EntryKind.OPEN: [{"opening": OPENING}],
        EntryKind.COMMIT: [_READ],
        EntryKind.CLEARING: [{"clearing": _ALL}, {"clearing": _SOME}],
        EntryKind.CLEARED: [{"clearing": state.clearing}],
        EntryKind.REWRITE: [{}, {"incarnation": "janitor", "fence": True}],
    }
    return [(kind, what) for kind in EntryKind for what in content.get(kind, [{}])]


def _after(path: tuple[_Step, ...]) -> Generation:
    chain = Chain()
    for kind, content in path:
        chain.append(kind, **content)
        if kind is EntryKind.OPEN:  # something has to be there that can go
            chain.append(EntryKind.COMMIT, **_READ)
    return chain.state


def _told_apart(state: Generation) -> tuple[str, bool]:
    return _state(state), state.clearing is not None and bool(state.clearing.stays)


def _state(state: Generation) -> str:
    if state.seq == 0:
        return "claimed"
    if state.gone:
        return "cleared"
    if state.clearing is not None:
        return "clearing"
    if state.cleared is not None:
        return "kept"
    if state.sealed:
        return "sealed"
    return "complete" if state.complete else "building"


if __name__ == "__main__":
    PAGE.write_text(drawn(PAGE.read_text("utf-8")), "utf-8")
