"""A drill's scratch topics: their names, and that they go however it ends."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from tandem.backup_avro.documents.outcome import JobScope
from tandem.backup_avro.errors import TransientError
from tandem.controller.cli.restore.drill import _scope, _what
from tandem.controller.config.rules import is_reserved
from tandem.sink.kafka.errors.cluster_errors import ClusterRequestError
from tandem.spark_jobs.restore.drill import SUFFIX, _deleting, drill_options
from tandem.spark_jobs.restore.plan.options import RestoreOptions
from tandem.spark_jobs.restore.report import RestoreListener


class Cluster:
    """Topics; as a target and as its admin."""

    def __init__(self, *topics: str, broken: str = "", silent: bool = False) -> None:
        self.there = set(topics)
        self.broken = broken
        self.silent = silent
        self.admin = self

    def topics(self, names: list[str]) -> list[Any]:
        """Those of the names that exist."""
        if self.silent:
            raise TransientError("no broker answers", code="TDM-X001")
        return [type("Info", (), {"name": name}) for name in sorted(self.there & set(names))]

    def delete_topic(self, name: str) -> None:
        if name == self.broken:
            raise ClusterRequestError("not allowed", code="TDM-X001")
        self.there.remove(name)


def test_names_are_guarded_by_no_pattern() -> None:
    """Not even by one that guards their topic: a drill on the guarded cluster must not be backed up."""
    naming = drill_options(RestoreOptions(), "0123abcd").naming
    assert naming.target("orders.eu") == f"orders.eu{SUFFIX}0123abcd"
    assert is_reserved(naming.target("orders.eu"))
    assert not is_reserved("orders.drill-sergeant")
    long = [naming.target(f"{'o' * 240}{number}") for number in (1, 2)]
    assert [len(name) for name in long] == [249, 249]
    assert len(set(long)) == 2
    assert all(is_reserved(name) for name in long)
    for wrong in ("", "0123abc", "0123ABCD", "0123abcd/"):
        with pytest.raises(ValueError, match="eight hex digits"):
            drill_options(RestoreOptions(), wrong)


@pytest.mark.parametrize("error", [None, TransientError("away", code="TDM-X001"), KeyboardInterrupt()])
def test_topics_go_however_it_ends(error: BaseException | None) -> None:
    """Those that were made; the time is told, the error goes on."""
    cluster, gone, left = Cluster("a.drill", "other"), list[str](), dict[str, str]()
    expected = nullcontext() if error is None else pytest.raises(type(error))
    with expected, _deleting(cluster, ["a.drill", "b.drill"], gone, left, RestoreListener()) as took:  # type: ignore[arg-type]  # a double
        if error is not None:
            raise error
    assert (cluster.there, gone, left, len(took)) == ({"other"}, ["a.drill"], {}, 1)


def test_what_can_not_be_deleted_is_told_of() -> None:
    """One that is refused does not keep the others; a cluster that is away keeps all."""
    cluster, gone, left = Cluster("a", "b", "c", broken="b"), list[str](), dict[str, str]()
    with _deleting(cluster, ["a", "b", "c"], gone, left, RestoreListener()):  # type: ignore[arg-type]  # a double
        pass
    assert (gone, left) == (["a", "c"], {"b": "not allowed"})
    left = {}
    with _deleting(Cluster("a", silent=True), ["a"], [], left, RestoreListener()):  # type: ignore[arg-type]  # a double
        pass
    assert left == {"a": "no broker answers"}


def test_what_was_drilled_is_told_apart() -> None:
    """What one drill found, another one of the same topics and state settles; so lists that differ read differently."""
    many = tuple("abcdefg")
    asked = [
        RestoreOptions(),
        RestoreOptions(topics=("a",)),
        RestoreOptions(topics=many),
        RestoreOptions(topics=(*many[:6], "h")),
        RestoreOptions(topics=("a",), generation=3),
    ]
    assert [_what(None, options) for options in asked[:2]] == ["all topics", "a"]
    assert len({_what(None, options) for options in asked}) == len(asked)
    assert _what(None, RestoreOptions(topics=many)).startswith("a, b, c, d, e and 2 more (")
    assert [_scope(options) for options in (*asked[:2], RestoreOptions(at=1), RestoreOptions(generation=1))] == [
        JobScope.ALL,
        JobScope.PART,
        JobScope.PART,
        JobScope.PART,
    ]
