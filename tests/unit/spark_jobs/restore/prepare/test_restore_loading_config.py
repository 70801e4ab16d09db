"""A target whose config somebody sets back while it is loaded gets it again, or is not handed over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from tandem.backup_avro.errors import RefusedError
from tandem.sink.kafka.cluster.guarded_topics import HELD_KEYS, held_by_restore, own_config
from tandem.spark_jobs.restore.lease.lease_record import OvertakenError
from tandem.spark_jobs.restore.plan import plan
from tandem.spark_jobs.restore.prepare.loading_config import LoadingConfig
from tandem.spark_jobs.restore.target import append


class Cluster:
    """One topic, `t`. What is in `fixed` stays as it is."""

    def __init__(self, config: Mapping[str, str]) -> None:
        self.config = dict(config)
        self.fixed: frozenset[str] = frozenset()

    def set_on(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """Return what is set."""
        assert list(names) == ["t"]
        return {"t": dict(self.config)}

    def set_configs(self, wanted: Mapping[str, Mapping[str, str | None]]) -> dict[str, dict[str, str]]:
        if not wanted:
            return {}
        [(topic, changes)] = wanted.items()
        assert topic == "t"
        taken = {key: value for key, value in changes.items() if key not in self.fixed}
        self.config = {key: value for key, value in {**self.config, **taken}.items() if value is not None}
        return {"t": dict.fromkeys(changes.keys() - taken.keys(), "no")}


def in_charge() -> None:
    """Nobody has taken over."""


def test_a_config_that_nobody_touches_is_left_alone() -> None:
    """Nothing is said, and nothing refused."""
    cluster = Cluster({**plan.LOADING, "more": "1"})
    held = LoadingConfig(cluster, {"t": plan.LOADING})
    cluster.fixed = frozenset(plan.LOADING)
    assert held.set_again(in_charge) == {}
    held.refuse_if_changed()


def test_what_was_changed_is_set_again_and_named() -> None:
    """With its key, and what to do about whoever did it. A key that was dropped counts as well."""
    cluster = Cluster(plan.LOADING)
    cluster.config["cleanup.policy"] = "compact"
    del cluster.config["retention.ms"]
    held = LoadingConfig(cluster, {"t": plan.LOADING})
    (said,) = held.set_again(in_charge).values()
    assert "cleanup.policy = compact, retention.ms not set" in said
    assert "operator" in said
    assert cluster.config == plan.LOADING
    held.refuse_if_changed()


def test_what_is_changed_again_is_not_handed_over() -> None:
    """What is there may be gone by then."""
    cluster = Cluster(plan.LOADING)
    held = LoadingConfig(cluster, {"t": plan.LOADING})
    held.set_again(in_charge)
    cluster.config["retention.ms"] = "1000"
    with pytest.raises(RefusedError, match=r"topic t: retention\.ms = 1000.*give the same command again"):
        held.refuse_if_changed()


def test_what_the_cluster_does_not_take_is_nobodys_change() -> None:
    """As settings that it does not know, or has for all topics in one way."""
    cluster = Cluster({key: value for key, value in plan.LOADING.items() if key != "segment.ms"})
    cluster.fixed = frozenset({"segment.ms"})
    held = LoadingConfig(cluster, {"t": plan.LOADING})
    assert held.set_again(in_charge) == {}
    held.refuse_if_changed()


@pytest.mark.parametrize("before", [True, False])
def test_what_another_run_has_set_stays(*, before: bool) -> None:
    """It has ended the restore, and set the recorded config: whether that is noticed before or after it is changed."""
    recorded = {"cleanup.policy": "compact", "more": "1"}
    cluster = Cluster(recorded)
    asked: list[dict[str, str]] = []

    def overtaken() -> None:
        asked.append(dict(cluster.config))
        if before or len(asked) == 2:
            raise OvertakenError("another run", code="TDM-X001")

    with pytest.raises(OvertakenError):
        LoadingConfig(cluster, {"t": plan.LOADING}).set_again(overtaken)
    assert asked[0] == recorded
    assert cluster.config == recorded


# --- what the pair records meanwhile ----------------------------------------------------------------------------------

_OWN = {"cleanup.policy": "compact,delete", "retention.ms": "1000", "min.compaction.lag.ms": "5", "segment.ms": "7"}


def test_the_config_of_an_append_is_not_what_is_recorded() -> None:
    """But the topic's own, of before; what else is changed meanwhile is recorded."""
    held = {**_OWN, **append.HELD, "max.message.bytes": "33000000"}
    assert {*append.HELD, "max.message.bytes"} == HELD_KEYS
    assert own_config(held, _OWN) == _OWN
    assert own_config({**held, "segment.ms": "8"}, _OWN) == {**_OWN, "segment.ms": "8"}
    own = {**_OWN, "retention.ms": "-1", "retention.bytes": "-1"}
    assert held_by_restore(held)
    assert not held_by_restore(own), "somebody keeps it for ever"
