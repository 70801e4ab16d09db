"""The role of an instance: the table of transitions is the only way to change it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem.controller.decision import role_machine
from tandem.controller.decision.observation import Role
from tandem.controller.decision.role_machine import TABLE, RoleMachine

PRODUCT = Path(role_machine.__file__).parents[1]
CHANGES = [(source, target) for source in Role for target in Role if source is not target]


def machine_in(role: Role) -> RoleMachine:
    """A machine that went to `role` by the shortest way of the table, which is the module's at that moment."""
    ways: list[tuple[Role, ...]] = [()]
    for way in ways:
        machine = RoleMachine()
        for step in way:
            machine.move_to(step)
        if machine.role is role:
            return machine
        ways += [(*way, target) for _, source, target in role_machine.TABLE if source is machine.role]
    raise AssertionError(f"no way leads to {role}")


def test_it_begins_as_passive_and_stays_where_it_is() -> None:
    """A move to the present role fires nothing."""
    machine = RoleMachine()
    assert machine.role is Role.PASSIVE
    assert machine.move_to(Role.PASSIVE) is None
    assert machine.role is Role.PASSIVE


@pytest.mark.parametrize(("source", "target"), CHANGES)
def test_the_table_leads_everywhere_it_must(source: Role, target: Role) -> None:
    """From each role to each other one but out of Halted, by one trigger."""
    machine = machine_in(source)
    triggers = [trigger for trigger, *change in TABLE if change == [source, target]]
    if source is Role.HALTED:
        assert triggers == []
        with pytest.raises(ValueError, match="no transition leads from Halted"):
            machine.move_to(target)
        assert machine.role is Role.HALTED
    else:
        assert [machine.move_to(target)] == triggers
        assert machine.role is target


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row[0]} from {row[1]}")
def test_a_change_that_is_taken_out_of_the_table_is_impossible(
    row: tuple[str, Role, Role], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but the table knows of a change: the role stays, and whoever asked for the change is told."""
    _, source, target = row
    monkeypatch.setattr(role_machine, "TABLE", tuple(other for other in TABLE if other != row))
    machine = machine_in(source)
    with pytest.raises(ValueError, match=f"no transition leads from {source.value} to {target.value}"):
        machine.move_to(target)
    assert machine.role is source


def test_there_is_no_way_round_the_table() -> None:
    """The role can be read, not set, and the machine of the library is nobody's model but its own."""
    machine = RoleMachine()
    # Mutation testing adds names of its own, which are not ASCII.
    assert [name for name in dir(machine) if name.isascii() and not name.startswith("_")] == ["move_to", "role"]
    with pytest.raises(AttributeError):
        machine.role = Role.ACTIVE  # type: ignore[misc]  # that it can't be set is the point
    with pytest.raises(AttributeError):
        machine.state = Role.ACTIVE  # type: ignore[attr-defined]  # nor is there anything else to set


def test_the_instance_has_one_machine_and_only_moves_it() -> None:
    """No module of the product but the instance's loop has one, and that one reads the role and asks for moves."""
    users = [
        path for path in PRODUCT.rglob("*.py") if path.stem != "role_machine" and "RoleMachine" in path.read_text()
    ]
    assert [path.relative_to(PRODUCT).as_posix() for path in users] == ["instance/loop.py"]
    used = list(uses_of_machine(ast.parse(users[0].read_text())))
    assert set(used) == {"role", "move_to"}
    assert used.count("move_to") == 1


def uses_of_machine(tree: ast.AST) -> Iterator[str]:
    """What is taken of `self._machine`; "" where it is used or set as a whole, but for the one time it is made."""
    made = "self._machine = RoleMachine()"
    inner = {node.value: node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    plain = {
        target
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and ast.unparse(node) == made
        for target in node.targets
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "_machine" and node not in plain:
            yield inner.get(node, "")
