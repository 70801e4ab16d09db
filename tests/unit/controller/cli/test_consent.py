"""What each command does before it changes something: asks, shows a plan, or neither. One table of all commands."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from support.backups.build_backup import PAIR, Backup, records
from support.backups.requests import cut_request
from support.pages.command_tree import commands
from support.pairs.sights import sight

from tandem.backup_avro.errors import RefusedError
from tandem.controller.cli.handover.failover import refuse_active
from tandem.controller.cli.handover.rotate import refuse_silent
from tandem.controller.cli.main import ALIASES, run
from tandem.sink.store import open_store
from tandem.sink.store.chain import checkpoints
from tandem.sink.store.chain.chain_writer import now_ms

#: Commands that ask, and what for: what can't be taken back, or costs that all topics are read again.
ASKS: Final[Mapping[str, str]] = {
    "rotate": "reads all topics again",
    "failover": "reads all topics again",
    "switchover": "reads all topics again",
    "reinit": "reads all topics again",
    "verify": "--repair reads all topics again",
    "erase": "deletes records in all copies",
    "release": "deletes what is in the backup alone",
    "checkpoint delete": "ends a moment that could be restored",
    "restore": "the recorded retention may delete records at once",
    "restore vanished": "writes into a live topic",
    "restore abandon": "ends a run, and the restore can't be resumed",
    "rewind": "writes into a live topic",
}
#: Commands that show a plan, and change something with --execute alone.
PLANS: Final = {"retention", "restore groups"}
#: Commands that change nothing, or what another command takes back.
NEITHER: Final = {
    *(
        "run",
        "list",
        "status",
        "wait",
        "check",
        "describe",
        "history",
        "keys",
        "report",
        "coordination tail",
        "records",
    ),
    *("pause", "resume", "catch-up", "checkpoint create", "checkpoint list", "checkpoint show", "restore list"),
    *(
        "restore adopt",
        "export",
        "drill",
        "policy s3",
        "policy gcs",
        "policy azure",
        "policy bucket",
    ),
    *("policy kafka", "signing-key generate", "signing-key show", "config validate", "config show"),
    *("config example", "config schema"),
    *("sandbox up", "sandbox down", "sandbox status", "demo", "version"),
}
#: Commands that ask instances for something, and follow it.
FOLLOWS: Final = {"rotate", "failover", "switchover", "reinit", "checkpoint create"}


def options(command: Any) -> dict[str, Any]:
    return {one.name: one for one in command.params if one.param_type_name == "option"}


def test_each_command_asks_or_plans_or_does_neither() -> None:
    """A new command has to be put into the table; -y is there where it asks, and means the same everywhere."""
    found = dict(commands())
    assert set(found) == {*ASKS, *PLANS, *NEITHER}
    for name, command in found.items():
        given = options(command)
        assert ("yes" in given) == (name in ASKS), name
        assert ("execute" in given) == (name in PLANS), name
        if name in ASKS:
            assert (sorted(given["yes"].opts), given["yes"].help) == (["--yes", "-y"], "Don't ask."), name
        assert not [one for one in given.values() if "-y" in one.opts and one.name != "yes"], name


def test_what_is_asked_of_instances_is_followed_unless_no_wait() -> None:
    """The exit code says whether it has happened; one default for all."""
    found = dict(commands())
    assert set(ALIASES) <= FOLLOWS
    for name, command in found.items():
        wait = options(command).get("wait")
        is_switch = wait is not None and wait.secondary_opts == ["--no-wait"]
        assert is_switch == (name in FOLLOWS), name
        assert not is_switch or wait.default is True, name


@pytest.mark.parametrize(("words", "code", "is_there"), [((), 5, True), (("-y",), 0, False)])
def test_a_checkpoint_is_deleted_on_consent_alone(
    *, words: tuple[str, ...], code: int, is_there: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a terminal nobody can be asked; one that does not exist is no question."""
    store = open_store(tmp_path.as_uri())
    at = now_ms(store)
    checkpoints.put_request(store, cut_request(id="cut", at=at, deadline=at + 600_000, reason="test"))
    place = ("--root", tmp_path.as_uri(), "--pair", PAIR)
    assert run(["checkpoint", "delete", "cut", *words, *place]) == code
    assert ("[TDM-C020]" in capsys.readouterr().err) == is_there
    assert (checkpoints.find_checkpoint(store, PAIR, "cut") is not None) == is_there
    assert run(["checkpoint", "delete", "other", *place]) == 0


def test_a_rotation_needs_both_instances(tmp_path: Path) -> None:
    """A silent one is named with what to do instead; before the first backup another refusal says what is missing."""
    store = open_store(tmp_path.as_uri())
    refuse_silent(sight(store, heard_s={"a": 1.0}))
    Backup.begun(store, records("orders", 0, range(10)), number=1, instance="a").complete()
    refuse_silent(sight(store, heard_s={"a": 1.0, "b": 1.0}))
    with pytest.raises(RefusedError, match="a was last heard 2m ago: a rotation needs both") as dead:
        refuse_silent(sight(store, heard_s={"a": 120.0, "b": 1.0}))
    assert (dead.value.code, "tandem failover --to b" in str(dead.value.remedy)) == ("TDM-H014", True)
    with pytest.raises(RefusedError, match="a was never heard") as both:
        refuse_silent(sight(store, heard_s={}))
    assert "start both" in str(both.value.remedy)


def test_the_active_takes_nothing_over(tmp_path: Path) -> None:
    """It is refused with what is meant instead: the other instance, or a copy built anew."""
    store = open_store(tmp_path.as_uri())
    assert refuse_active(sight(store, heard_s={"a": 1.0}), "a") == "a"
    Backup.begun(store, records("orders", 0, range(10)), number=1, instance="a").complete()
    seen = sight(store, heard_s={"a": 1.0, "b": 1.0})
    assert (refuse_active(seen, "b"), refuse_active(seen, None)) == ("b", None)
    with pytest.raises(RefusedError, match="a is the Active already, with generation 1") as refused:
        refuse_active(seen, "a")
    assert (refused.value.code, refused.value.exit_code) == ("TDM-H016", 5)
    assert "name b" in str(refused.value.remedy)
    assert "tandem reinit a" in str(refused.value.remedy)
