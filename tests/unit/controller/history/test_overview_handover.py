"""What `tandem failover` may ask, what it says that it costs, and where the chains say that it stands."""

from __future__ import annotations

import re

import pytest
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.pairs.sights import LIVENESS_S, listening, message, sight

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import EntryKind
from tandem.backup_avro.documents.coordination_message import CoordinationEvent
from tandem.backup_avro.errors import ConfigError, RefusedError
from tandem.controller.history.handover_progress import HandoverPlan, HandoverStanding, Stage, handover_standing, plan
from tandem.controller.status.overview import overview
from tandem.sink.store import ObjectStore
from tandem.sink.store.chain import pins
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.chain_writer import now_ms

ORDERS = TopicSpec("orders")
BOTH = {"a": 1.0, "b": 2.0}


def begin(store: ObjectStore, number: int = 1, instance: str = "a") -> Backup:
    """A generation with ten records."""
    return Backup.begun(store, records("orders", 0, range(10)), number=number, instance=instance)


def completed(store: ObjectStore, number: int = 1, instance: str = "a") -> Backup:
    """A generation that is COMPLETE."""
    backup = begin(store, number, instance)
    backup.complete()
    return backup


def asked(store: ObjectStore, *, to: str | None = None, force: bool = False, **look: object) -> HandoverPlan:
    """The plan for one look at the store; both instances are alive unless told otherwise."""
    seen = sight(store, **({"heard_s": BOTH, "topics": [ORDERS]} | look))  # type: ignore[arg-type]  # sight's own
    return plan(seen, to=to, force=force)


def test_the_other_one_is_asked_for_the_next_number(store: ObjectStore) -> None:
    """By default the one that is not Active builds newest + 1; the cost is what the present generation holds."""
    backup = completed(store)
    found = asked(store)
    assert (found.target, found.generation, found.active, found.former) == ("b", 2, "a", 1)
    assert (found.records, found.bytes) == (10, sum(item.bytes for item in backup.writer.state.objects.values()))
    assert found.scan_s is not None
    assert 0 <= found.scan_s < 60
    assert (found.warnings, found.beside_itself) == ((), False)


def test_the_active_may_refresh_itself(store: ObjectStore) -> None:
    """Asking the Active is allowed and warned of: it then does both at once."""
    completed(store)
    found = asked(store, to="a")
    assert found.beside_itself
    assert found.warnings[0].startswith("a is the Active itself")


def test_no_such_instance(store: ObjectStore) -> None:
    """A wrong name is a usage error that lists the right ones."""
    completed(store)
    with pytest.raises(ConfigError, match="TDM-I007") as caught:
        asked(store, to="c")
    assert caught.value.remedy == "choose a or b"


def test_refused_before_the_first_complete(store: ObjectStore) -> None:
    """Without a complete generation there is nothing to hand over."""
    begin(store)
    with pytest.raises(RefusedError, match="no complete backup: generation 1 of a is being built"):
        asked(store)


def test_refused_on_nothing(store: ObjectStore) -> None:
    """An empty store is refused too."""
    with pytest.raises(RefusedError, match="nothing is stored yet"):
        asked(store)


def test_refused_while_somebody_alive_builds(store: ObjectStore) -> None:
    """A handover under way is named instead of a second one being asked for; --force builds beside one without end."""
    completed(store)
    begin(store, 2, "b")
    with pytest.raises(RefusedError, match="generation 2 is already being built by b, which is alive: 1 of 1"):
        asked(store)
    found = asked(store, force=True)
    assert (found.generation, found.target) == (3, "b")
    assert "the new one is built beside it" in found.warnings[0]


def test_a_request_that_nobody_has_acted_on_yet_is_told(store: ObjectStore) -> None:
    """Asked twice, it is one turn: both are for the same number. What the second one changes is said."""
    completed(store)
    at = now_ms(store)
    request = message(CoordinationEvent.ACTIVATE, instance="cli", at=at - 3000, target="b", generation=2)
    alive = [message(instance=name, at=at) for name in ("a", "b")]
    found = asked(store, heard_s=None, listener=listening(*alive, request))
    assert (found.generation, found.target) == (2, "b")
    assert re.match(r"cli asked b for generation 2 [3-9](\.\d)?s ago, and nobody has claimed it yet", found.warnings[0])


def test_a_dead_builder_is_no_obstacle(store: ObjectStore) -> None:
    """When the builder is silent, the next number may be asked of the other one."""
    completed(store)
    begin(store, 2, "b")
    found = asked(store, to="a", heard_s={"a": 1, "b": LIVENESS_S + 1})
    assert (found.generation, found.target) == (3, "a")


def test_refused_for_a_silent_target(store: ObjectStore) -> None:
    """A request that nobody would act on is refused, with the one who would; --force leaves it, with a warning."""
    completed(store)
    silent = {"a": 1.0, "b": 120.0}
    with pytest.raises(RefusedError, match=r"b was last heard 2m ago: no process would act") as caught:
        asked(store, heard_s=silent)
    assert "choose a with --to" in str(caught.value.remedy)
    assert asked(store, heard_s=silent, force=True).warnings[0].startswith("b was last heard 2m ago: the request stays")
    with pytest.raises(RefusedError, match="b was never heard"):
        asked(store, heard_s={"a": 1.0})


def test_refused_for_a_target_that_left(store: ObjectStore) -> None:
    """An instance that was stopped is as good as silent, however recently it spoke."""
    completed(store)
    at = now_ms(store)
    heard = listening(message(instance="a", at=at), message(CoordinationEvent.LEAVING, instance="b", at=at - 2000))
    with pytest.raises(RefusedError, match="b was stopped"):
        asked(store, heard_s=None, listener=heard)


def test_a_dead_active_is_told(store: ObjectStore) -> None:
    """The Active need not be alive, but then nobody seals its generation: that is said."""
    completed(store)
    found = asked(store, heard_s={"a": 120, "b": 1})
    [warning] = found.warnings
    assert warning.startswith("a, the Active, was last heard 2m ago: it may not be appending")


def test_refused_on_another_cluster(store: ObjectStore) -> None:
    """A configuration that mixes the store of one cluster with the brokers of another must not ask anything."""
    completed(store)
    with pytest.raises(RefusedError, match="backup is of cluster cluster-1, but the brokers belong to cluster elsewh"):
        asked(store, cluster_id="elsewhere")


def test_a_damaged_chain_is_left_behind(store: ObjectStore) -> None:
    """A new generation is the way out, so it may be asked for, with a warning."""
    completed(store)
    completed(store, 2, "b")
    store.delete([layout.entry_key(PAIR, 1, 2)])
    assert "generation 1 can't be read and is left behind" in asked(store).warnings


def test_nobody_active(store: ObjectStore) -> None:
    """When all complete generations are sealed, the next one may be asked for; nothing old is waited for."""
    completed(store).seal()
    found = asked(store)
    assert (found.active, found.former, found.target) == (None, None, "b")
    assert found.warnings[0].startswith("nobody appends")


def where(
    store: ObjectStore, request: HandoverPlan, requested_at: int = 0, *, held: tuple[int, ...] = ()
) -> HandoverStanding:
    """Where a handover stands now."""
    reader = ChainReader(store, PAIR, ended=True)
    reader.refresh()
    guarded = sight(store, topics=[ORDERS]).brokers
    assert guarded is not None
    return handover_standing(request, requested_at, {g.number: g for g in reader.history()}, guarded.guarded, held=held)


def test_a_handover_from_the_request_to_the_end(store: ObjectStore) -> None:
    """Each entry in the chains moves it on; times and steps come from the chains."""
    old = completed(store)
    request = asked(store)
    requested_at = now_ms(store)
    assert where(store, request, requested_at) == HandoverStanding(stage=Stage.REQUESTED, builder=None, steps=())
    new = begin(store, 2, "b")
    now = where(store, request, requested_at)
    assert (now.stage, now.builder, [step.step for step in now.steps]) == (Stage.BUILDING, "b", ["claimed"])
    new.complete()
    assert where(store, request).stage is Stage.COMPLETE
    old.seal()
    assert where(store, request).stage is Stage.SEALED
    going = old.clearing()
    assert where(store, request).stage is Stage.SEALED
    old.append(EntryKind.CLEARED, clearing=going)
    end = where(store, request, requested_at)
    assert end.stage is Stage.DONE
    assert [step.step for step in end.steps] == ["claimed", "complete", "sealed", "cleared"]
    total_s = (end.steps[-1].at.timestamp() * 1000 - requested_at) / 1000
    assert sum(step.seconds for step in end.steps) == pytest.approx(total_s, abs=0.01)


def test_what_is_retained_is_not_waited_for(store: ObjectStore) -> None:
    """With a recovery window the old one stays, so SEALED is the end."""
    old = completed(store)
    request = asked(store, window_s=60.0)
    completed(store, 2, "b")
    old.seal()
    assert where(store, request).stage is Stage.DONE


def test_what_a_checkpoint_keeps_is_not_waited_for(store: ObjectStore) -> None:
    """It is said before; SEALED is the end then, and `status` says that it stays."""
    old = completed(store)
    pins.put_pin(store, PAIR, generation=1, owner="checkpoint x", until=pins.FOR_EVER, pin_id=f"{pins.LASTING}x")
    request = asked(store)
    assert "generation 1 is kept for checkpoint x: it stays when the new one is complete" in request.warnings
    assert request.kept_for == ("checkpoint x",)
    notes = overview(sight(store, topics=[ORDERS])).notes
    assert "generation 1 stays after its turn: it is kept for checkpoint x" in notes
    completed(store, 2, "b")
    assert where(store, request, held=(1,)).stage is Stage.COMPLETE
    old.seal()
    assert where(store, request, held=(1,)).stage is Stage.DONE


def test_what_is_kept_whole_is_not_waited_for(store: ObjectStore) -> None:
    """When the cluster has nothing any more of what the old one holds, no CLEARING will come."""
    old = Backup.completed(store, records("deleted", 0, range(3)))
    request = asked(store, topics=[ORDERS])
    completed(store, 2, "b")
    old.seal()
    assert where(store, request).stage is Stage.DONE


@pytest.mark.parametrize("how", ["tainted", "cleared", "superseded"])
def test_a_generation_that_is_given_up(store: ObjectStore, how: str) -> None:
    """A generation that can't become COMPLETE any more, or need not, is not waited for."""
    completed(store)
    request = asked(store)
    new = begin(store, 2, "b")
    if how == "tainted":
        new.taint("orders", 0, 10)
    elif how == "cleared":
        new.clearing()
    else:
        completed(store, 3, "a")
    assert where(store, request).stage is Stage.GIVEN_UP


def test_somebody_else_claims_the_number(store: ObjectStore) -> None:
    """The number decides, not who was asked: the builder is told."""
    completed(store)
    request = asked(store)
    begin(store, 2, "a")
    assert (request.target, where(store, request).builder) == ("b", "a")
