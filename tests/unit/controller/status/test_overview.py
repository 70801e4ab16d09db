"""The status of a pair, from real chains in a file store: what is said of every state a pair can be in."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from support.backups.build_backup import CLUSTER, PAIR, Backup, TopicSpec, records
from support.pairs.sights import LIVENESS_S, listening, message, sight
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import EntryKind
from tandem.backup_avro.documents.coordination_message import CoordinationEvent
from tandem.controller.cli.output.output import plain
from tandem.controller.status.check import CheckLimits, Severity, check_pair
from tandem.controller.status.health import Fault
from tandem.controller.status.overview import GenerationState, GenerationStatus, Overview, overview
from tandem.controller.status.pair_view import Gap
from tandem.sink.store import ObjectStore
from tandem.sink.store.chain import pins
from tandem.sink.store.chain.chain_writer import now_ms

ORDERS = TopicSpec("orders", partitions=2)
BOTH = {"a": 1.0, "b": 2.0}


def begin(store: ObjectStore, number: int = 1, instance: str = "a", upto: int = 10) -> Backup:
    """A generation with a first commit of both partitions; the second partition stays empty."""
    return Backup.begun(
        store, records("orders", 0, range(upto), tombstones=[3]), topics=[ORDERS], number=number, instance=instance
    )


def completed(store: ObjectStore, number: int = 1, instance: str = "a", upto: int = 10) -> Backup:
    """A generation that is COMPLETE."""
    backup = begin(store, number, instance, upto)
    backup.complete()
    return backup


def faults(found: Overview) -> list[Fault]:
    """What is wrong, in order."""
    return [problem.fault for problem in found.problems]


def generation(found: Overview, number: int) -> GenerationStatus:
    """One generation of the document."""
    return next(one for one in found.generations if one.number == number)


def test_nothing_stored_yet(store: ObjectStore) -> None:
    """A pair that never ran has no backup, and is told how to begin."""
    found = overview(sight(store, heard_s={}))
    assert faults(found) == [Fault.NO_COMPLETE_BACKUP, Fault.INSTANCE_SILENT, Fault.INSTANCE_SILENT]
    assert found.problems[0].message == "there is no complete backup: nothing is stored yet"
    assert "tandem run" in found.problems[0].remedy
    assert (found.healthy, found.restore, found.generations) == (False, None, ())


def test_everything_was_deleted_under_an_active(store: ObjectStore) -> None:
    """It is not told to start what runs already: what it believes to have stored is not there."""
    at = now_ms(store)
    active = message(instance="a", at=at, state="Active", generation=3)
    found = overview(sight(store, listener=listening(active, message(instance="b", at=at, state="Passive"))))
    assert faults(found) == [Fault.NO_COMPLETE_BACKUP]
    assert "nothing of this pair is stored, though instance a is Active" in found.problems[0].message
    assert "under a new root" in found.problems[0].remedy
    left = message(CoordinationEvent.LEAVING, instance="a", at=at, state="Active", generation=3)
    gone = overview(sight(store, listener=listening(active, left)))
    assert gone.problems[0].message == "there is no complete backup: nothing is stored yet"


def test_an_older_build_waits_for_the_newer_one_of_its_instance(store: ObjectStore) -> None:
    """An instance builds one at a time."""
    completed(store)
    begin(store, 2, "b")
    begin(store, 3, "b")
    found = overview(sight(store, heard_s=BOTH))
    assert generation(found, 2).waits_for == "generation 3: b builds one at a time"
    assert generation(found, 3).waits_for == "b to append COMPLETE"


def test_a_junk_pin_is_named(store: ObjectStore) -> None:
    """What it keeps, until when, and what to delete."""
    completed(store)
    store.put_if_absent(f"{PAIR}/pins/reader-junk.json", b"junk")
    pins.put_pin(store, PAIR, generation=1, owner="x", until=pins.FOR_EVER, pin_id="reader-long")
    store.put_if_absent(f"{PAIR}/pins/checkpoint-junk.json", b"junk")
    found = [note for note in overview(sight(store, heard_s=BOTH)).notes if note.startswith("pin ")]
    assert [note.partition(" until ")[0] for note in found] == [
        "pin checkpoint-junk: it can't be read, and it keeps every generation",
        "pin reader-junk: it can't be read, and it keeps every generation",
        "pin reader-long: it names an end that is later than a reader's pin has one, and it keeps generation 1",
    ]
    assert "until it is deleted; " in found[0]
    assert found[1].endswith(f"delete {PAIR}/pins/reader-junk.json")


def test_first_generation_under_way(store: ObjectStore) -> None:
    """Before the first COMPLETE nothing can be restored; what is missing is named."""
    begin(store)
    found = overview(sight(store, heard_s=BOTH, topics=[ORDERS, TopicSpec("new")]))
    assert faults(found) == [Fault.NO_COMPLETE_BACKUP]
    assert "generation 1 of a is being built: 2 of 3 partitions are read through" in found.problems[0].message
    one = generation(found, 1)
    assert (one.state, one.partitions_complete, one.partitions) == (GenerationState.OPEN, 2, 3)
    assert one.missing == ("new-0 is not read yet",)
    assert one.waits_for == "COMPLETE: one thing is missing"
    assert (one.completed_at, one.window, found.restore) == (None, None, None)


def test_a_claim_that_was_never_opened(store: ObjectStore) -> None:
    """A claim alone is shown, and after liveness.timeout no longer counts as a generation being built."""
    claimed = Backup.claim(store, topics=[ORDERS])
    store.delete([layout.entry_key(PAIR, 1, 1)])
    del claimed
    fresh, old = overview(sight(store)), overview(sight(store, later_s=LIVENESS_S + 1))
    assert generation(fresh, 1).state is GenerationState.CLAIMED
    assert generation(fresh, 1).waits_for == "a to open it"
    assert "is being built" in fresh.problems[0].message
    assert "none is being built" in old.problems[0].message


def test_all_is_well(store: ObjectStore) -> None:
    """A complete generation with both instances alive: no problem, figures, window and positions as stored."""
    backup = completed(store)
    found = overview(sight(store, heard_s=BOTH, topics=[ORDERS], ends={("orders", 0): 10, ("orders", 1): 0}))
    assert found.problems == ()
    assert found.healthy
    one = generation(found, 1)
    assert (one.state, one.records, one.tombstones, one.objects) == (GenerationState.COMPLETE, 10, 1, 1)
    assert one.bytes == sum(item.bytes for item in backup.writer.state.objects.values()) > 0
    assert (one.partitions_complete, one.partitions, one.missing, one.lag) == (2, 2, (), 0)
    assert one.window is not None
    assert one.window.start == one.window.end == one.completed_at
    assert found.restore is not None
    assert (found.restore.generation, found.restore.lag, found.restore.tainted) == (1, 0, False)
    assert [(p.topic, p.partition, p.offset, p.log_end, p.lag) for p in one.positions] == [
        ("orders", 0, 10, 10, 0),
        ("orders", 1, 0, 0, 0),
    ]


def test_the_document_is_json(store: ObjectStore) -> None:
    """All of it has a form in JSON, with times in ISO 8601 and spans in seconds."""
    completed(store)
    document = plain(overview(sight(store, heard_s=BOTH, topics=[ORDERS])))
    assert isinstance(document, dict)
    again = json.loads(json.dumps(document, allow_nan=False))
    assert again["generations"][0]["openedAt"].endswith("Z")
    assert again["instances"][0]["heardAgeSeconds"] == pytest.approx(1.0, abs=0.5)


def test_lag_is_told_against_the_logs_end(store: ObjectStore) -> None:
    """What the log has beyond the last commit is summed up, and is no problem by itself."""
    completed(store)
    found = overview(sight(store, heard_s=BOTH, topics=[ORDERS], ends={("orders", 0): 25, ("orders", 1): 4}))
    assert found.healthy
    assert found.restore is not None
    assert (found.restore.lag, generation(found, 1).lag) == (19, 19)


def test_unknown_ends_are_not_zero_lag(store: ObjectStore) -> None:
    """Without the brokers' answer nobody claims that nothing is missing."""
    completed(store)
    found = overview(sight(store, heard_s=BOTH, topics=[ORDERS]))
    assert found.restore is not None
    assert (found.restore.lag, generation(found, 1).lag) == (None, None)


def test_store_alone(store: ObjectStore) -> None:
    """Without brokers nothing is said of instances, and health is judged by what the store has."""
    completed(store)
    found = overview(sight(store))
    assert found.healthy
    assert [(one.alive, one.role, one.heard_at) for one in found.instances] == [(None, None, None)] * 2


def test_brokers_that_do_not_answer_are_a_problem(store: ObjectStore) -> None:
    """Asked in vain is not the same as not asked."""
    completed(store)
    found = overview(sight(store, gaps=(Gap(message="no broker answers", remedy="start one"),)))
    assert [(problem.fault, problem.message) for problem in found.problems] == [(Fault.NOT_KNOWN, "no broker answers")]
    assert found.problems[0].remedy.startswith("start one; with --s3-only")
    assert found.restore is not None


def test_silent_active(store: ObjectStore) -> None:
    """An Active with neither heartbeat nor entry for liveness.timeout is named, with who takes over."""
    completed(store)
    found = overview(sight(store, later_s=200, heard_s={"a": 190, "b": 1}))
    assert faults(found) == [Fault.ACTIVE_SILENT]
    assert found.problems[0].message.startswith("a, the Active, was last heard 3m 10s ago; the last entry of")
    assert "b is alive and takes over by itself" in found.problems[0].remedy


def test_a_silent_active_of_a_store_whose_clock_was_set_back(store: ObjectStore) -> None:
    """An entry that is dated tomorrow says no more of life than one of yesterday; its age once counted as none."""
    completed(store)
    found = overview(sight(store, later_s=-86_400, heard_s={"a": 190, "b": 1}))
    assert faults(found) == [Fault.ACTIVE_SILENT]
    assert "the last entry of generation 1 is dated 1d in the future" in found.problems[0].message


def test_a_claim_from_before_the_clock_was_set_back_is_nobody_s_build(store: ObjectStore) -> None:
    """An instance claims the next number at once, so status must not say for a day that this one is being built."""
    Backup.claim(store, topics=[ORDERS])
    store.delete([layout.entry_key(PAIR, 1, 1)])
    found = overview(sight(store, later_s=-86_400))
    assert "none is being built" in found.problems[0].message


def test_silent_active_with_a_silent_peer(store: ObjectStore) -> None:
    """Nobody is promised to take over: the process is to be started again."""
    completed(store)
    found = overview(sight(store, later_s=200, heard_s={"a": 190, "b": 190}))
    assert faults(found) == [Fault.ACTIVE_SILENT, Fault.INSTANCE_SILENT]
    assert found.problems[0].remedy == "look at the process and the log of a, and start it again"


def test_silent_active_that_still_writes(store: ObjectStore) -> None:
    """No heartbeats, but entries: its records are backed up, so only its messages are the trouble."""
    completed(store)
    found = overview(sight(store, later_s=10, heard_s={"a": 190, "b": 1}))
    assert faults(found) == [Fault.INSTANCE_SILENT]
    assert "nobody to take the next turn" not in found.problems[0].message


def test_silent_passive(store: ObjectStore) -> None:
    """A Passive that is gone leaves nobody to take over: that is a problem before it is needed."""
    completed(store)
    found = overview(sight(store, heard_s={"a": 1, "b": 100}))
    assert faults(found) == [Fault.INSTANCE_SILENT]
    assert found.problems[0].message.startswith("b was last heard 1m 40s ago: there is nobody")


@pytest.mark.parametrize(("ago_s", "healthy"), [(5, True), (LIVENESS_S + 5, False)])
def test_a_restart_is_no_alarm(store: ObjectStore, ago_s: float, healthy: bool) -> None:
    """An instance that left in order has liveness.timeout to come back before it is a problem."""
    completed(store)
    at = now_ms(store)
    heard = listening(
        message(instance="a", at=at, state="Active"),
        message(CoordinationEvent.LEAVING, instance="b", at=at - round(ago_s * 1000)),
    )
    found = overview(sight(store, listener=heard))
    assert found.healthy is healthy
    assert found.instances[1].left
    assert found.instances[1].alive is False


def test_a_taint_with_nothing_newer(store: ObjectStore) -> None:
    """A tainted Active without a newer complete generation is a problem; its earlier moments stay restorable."""
    backup = completed(store)
    backup.taint("orders", 0, 10, reason="read too late")
    found = overview(sight(store, heard_s=BOTH))
    assert faults(found) == [Fault.TAINTED]
    assert "orders-0 from offset 10 (read too late)" in found.problems[0].message
    assert found.restore is not None
    assert found.restore.tainted
    assert generation(found, 1).tainted == ("orders-0 from offset 10: read too late",)
    assert generation(found, 1).partitions_complete == 1


def test_a_taint_that_a_newer_generation_has_healed(store: ObjectStore) -> None:
    """With a newer untainted complete generation it is a remark, no problem."""
    completed(store).taint("orders", 0, 10)
    completed(store, 2, "b")
    found = overview(sight(store, heard_s=BOTH))
    assert found.healthy
    assert found.notes == ("generation 1 is tainted, but a newer complete one is not",)


def test_what_a_restore_created_is_a_remark(store: ObjectStore) -> None:
    """It matches a pattern and is not backed up: no problem, and not to be passed over in silence."""
    completed(store)
    seen = sight(store, heard_s=BOTH, topics=[ORDERS])
    assert seen.brokers is not None
    found = overview(replace(seen, brokers=replace(seen.brokers, restored=("orders.restored",))))
    assert found.healthy
    assert found.notes == (
        "restores created orders.restored: not backed up, although a pattern matches, unless topics.include names it",
    )


def test_groups_whose_positions_are_not_recorded_are_a_remark(store: ObjectStore) -> None:
    """Named with the reason, a few of them: nothing is wrong with the backup, but a restore can't set them."""
    completed(store).append(EntryKind.COMMIT, unrecorded={"b": "share group", "a": "not allowed: grant Describe on it"})
    found = overview(sight(store, heard_s=BOTH))
    assert found.healthy
    [note] = found.notes
    assert note.startswith("generation 1 has no positions of these groups, so a restore can't set them: ")
    assert note.endswith(": a (not allowed: grant Describe on it), b (share group)")


def test_a_taint_beside_a_kept_older_generation(store: ObjectStore) -> None:
    """An older sound generation is what a restore uses, but the taint of the Active remains a problem."""
    completed(store).seal()
    completed(store, 2, "b").taint("orders", 0, 10)
    found = overview(sight(store, heard_s=BOTH))
    assert faults(found) == [Fault.TAINTED]
    assert found.restore is not None
    assert found.restore.generation == 1


def test_a_spoilt_generation_waits_to_be_cleared(store: ObjectStore) -> None:
    """A taint before COMPLETE ends a generation; it does not count as being built."""
    begin(store).taint("orders", 0, 10)
    found = overview(sight(store, heard_s=BOTH))
    assert "none is being built" in found.problems[0].message
    assert generation(found, 1).waits_for == "a to clear it: it is tainted"


def test_an_active_that_stands_still(store: ObjectStore) -> None:
    """Heartbeats without commit or confirmation for longer than any interval are not enough."""
    completed(store)
    quiet = overview(sight(store, later_s=900, heard_s=BOTH))
    stuck = overview(sight(store, later_s=1200, heard_s=BOTH))
    assert quiet.healthy
    assert faults(stuck) == [Fault.NOT_COMMITTING]
    assert "has not committed for 20m" in stuck.problems[0].message


DAY_MS = 86_400_000


@pytest.mark.parametrize(("days", "late"), [(10, False), (11, True)])
def test_a_turn_that_nobody_takes(days: int, late: bool) -> None:
    """Rotation is due after 7 days; half of that more is enough for any turn."""
    store = MemoryStore()
    active = completed(store)
    store.clock_ms += days * DAY_MS
    active.commit(records("orders", 0, range(10, 12)))
    found = overview(sight(store, heard_s=BOTH))
    assert faults(found) == ([Fault.TURN_OVERDUE] if late else [])
    if late:
        assert "is 4d late: nobody builds the next one" in found.problems[0].message


def test_a_build_without_end() -> None:
    """It holds the next turn back until a person asks for another one beside it."""
    store = MemoryStore()
    active = completed(store)
    store.clock_ms += 8 * DAY_MS
    building = begin(store, 2, "b")
    store.clock_ms += 33 * DAY_MS
    active.commit(records("orders", 0, range(10, 12)))
    building.commit(records("orders", 0, range(10, 11)))
    found = overview(sight(store, heard_s=BOTH))
    assert faults(found) == [Fault.TURN_OVERDUE]
    assert "generation 2 of b, 33d old, has read" in found.problems[0].message
    assert "failover --force" in found.problems[0].remedy


def test_a_sealed_generation_alone(store: ObjectStore) -> None:
    """If every complete generation is sealed, somebody must say that nothing is appended any more."""
    completed(store).seal()
    assert faults(overview(sight(store, heard_s=BOTH))) == [Fault.NO_ACTIVE]


def test_the_end_of_a_turn_step_by_step(store: ObjectStore) -> None:
    """COMPLETE beside a newer one, SEALED, CLEARING behind a pin, KEPT: each says what it waits for."""
    old, new = completed(store), completed(store, 2, "b", upto=8)

    def waits(window_s: float = 0.0) -> tuple[GenerationState, str | None]:
        one = generation(overview(sight(store, heard_s=BOTH, topics=[ORDERS], window_s=window_s)), 1)
        return one.state, one.waits_for

    assert waits() == (GenerationState.COMPLETE, "generation 2 to cover orders-0")
    new.commit(records("orders", 0, range(8, 12)))
    assert waits() == (GenerationState.COMPLETE, "a to seal it: generation 2 covers it")
    old.seal()
    assert waits() == (GenerationState.SEALED, "a to clear it")
    kept = "its time: recovery.window keeps it for 1h after it was sealed"
    assert waits(window_s=3600.0) == (GenerationState.SEALED, kept)
    pin = pins.put_pin(store, PAIR, generation=1, owner="restore", until=now_ms(store) + 60_000)
    kept = old.clearing({old.key("orders", 1): "its last backup is kept"})
    assert waits() == (GenerationState.CLEARING, "readers to finish: restore")
    pins.release_pin(store, PAIR, pin)
    assert waits() == (GenerationState.CLEARING, "a to delete its objects")
    old.append(EntryKind.CLEARED, clearing=kept)
    found = overview(sight(store, heard_s=BOTH, topics=[ORDERS]))
    assert (generation(found, 1).state, generation(found, 1).kept) == (
        GenerationState.KEPT,
        ("orders-1: its last backup is kept",),
    )
    assert found.notes == ("generation 1 keeps orders-1: its last backup is kept",)
    assert found.healthy


def test_a_sealed_copy_of_a_higher_epoch_is_named(store: ObjectStore) -> None:
    """Volumes were put back to a snapshot and count epochs anew: nothing covers the copy, and nothing clears it."""
    spec = TopicSpec("orders")
    old = Backup.claim(store, topics=[spec])
    old.commit(records("orders", 0, range(10)), epoch=5)
    old.complete()
    old.seal()
    Backup.completed(store, records("orders", 0, range(8)), topics=[spec], number=2, instance="b")
    found = overview(sight(store, heard_s=BOTH, topics=[spec]))
    [problem] = found.problems
    assert problem.fault is Fault.COPY_NOT_COVERED
    assert problem.message == (
        "generation 1 is sealed, and nothing can cover orders-0 (read to offset 10 in leader epoch 5): the logs have "
        "lower leader epochs now, as when the volumes of brokers were put back to a snapshot. It is kept"
    )
    assert "`tandem verify --against-generation 1`" in problem.remedy
    assert generation(found, 1).waits_for == (
        "a newer complete generation that covers it: orders-0 in a higher leader epoch"
    )
    report = check_pair(found, {}, CheckLimits())
    assert [(one.severity, one.fault) for one in report.findings] == [(Severity.WARNING, Fault.COPY_NOT_COVERED)]
    Backup.claim(store, topics=[spec], number=3).commit(records("orders", 0, range(8)), epoch=6)
    assert faults(overview(sight(store, heard_s=BOTH, topics=[spec]))) == [Fault.COPY_NOT_COVERED], "a build is none"
    third = Backup.claim(store, topics=[spec], number=4)
    third.commit(records("orders", 0, range(8)), epoch=6)
    third.complete()
    assert faults(overview(sight(store, heard_s=BOTH, topics=[spec]))) == []


def test_a_sealed_generation_counts_its_own_partitions(store: ObjectStore) -> None:
    """Topics that came after it was sealed are not missing from it."""
    completed(store).seal()
    completed(store, 2, "b")
    found = overview(sight(store, heard_s=BOTH, topics=[ORDERS, TopicSpec("new")]))
    assert (generation(found, 1).partitions_complete, generation(found, 1).partitions) == (2, 2)
    assert (generation(found, 2).partitions_complete, generation(found, 2).partitions) == (2, 3)


def test_a_topic_that_came_later(store: ObjectStore) -> None:
    """A guarded topic that no restore would bring back is a problem until it is read through."""
    completed(store)
    found = overview(sight(store, heard_s=BOTH, topics=[ORDERS, TopicSpec("new", partitions=5)]))
    assert faults(found) == [Fault.PARTITION_INCOMPLETE]
    assert "lacks new-0, new-1, new-2 and 2 more" in found.problems[0].message
    assert generation(found, 1).missing[0] == "new-0 is not read through yet"


def test_topics_that_do_not_exist(store: ObjectStore) -> None:
    """A name in topics.include without a topic, and a pattern that matches nothing, are told."""
    completed(store)
    named = overview(sight(store, heard_s=BOTH, topics=[ORDERS], missing=["ordres"]))
    assert faults(named) == [Fault.TOPIC_MISSING]
    assert "ordres" in named.problems[0].message
    none = overview(sight(store, heard_s=BOTH, topics=[]))
    assert faults(none) == [Fault.TOPIC_MISSING]
    assert "topics.patterns" in none.problems[0].message


def test_another_cluster(store: ObjectStore) -> None:
    """Brokers of another cluster than the backup's: both ids are shown."""
    completed(store)
    found = overview(sight(store, heard_s=BOTH, topics=[ORDERS], cluster_id="elsewhere"))
    assert faults(found) == [Fault.WRONG_CLUSTER]
    assert CLUSTER in found.problems[0].message
    assert "elsewhere" in found.problems[0].message


def test_one_damaged_chain_hides_no_other(store: ObjectStore) -> None:
    """A generation that can't be read is a problem; the others are shown and counted on."""
    completed(store)
    completed(store, 2, "b")
    store.delete([layout.entry_key(PAIR, 1, 2)])
    found = overview(sight(store, heard_s=BOTH))
    assert faults(found) == [Fault.CHAIN_DAMAGED]
    assert found.problems[0].message.startswith("generation 1 can't be read")
    assert [one.number for one in found.generations] == [2]
    assert found.restore is not None


def test_what_an_instance_complains_about(store: ObjectStore) -> None:
    """Troubles in a fresh heartbeat become problems; those of a dead process do not."""
    completed(store)
    at = now_ms(store)
    details = {
        "phase": "failed",
        "error": "this process: Too many open files",
        "store": "403",
        "trouble": "orders-0: no leader",
        "base_remaining": "12",
    }
    heard = listening(
        message(instance="a", at=at, state="Active", generation=1, lag_records=7, details=details),
        message(instance="b", at=at - 200_000, details={"store": "old story"}),
    )
    found = overview(sight(store, listener=heard))
    assert faults(found) == [Fault.INSTANCE_TROUBLED] * 3 + [Fault.INSTANCE_SILENT]
    assert found.problems[0].message.endswith("is started again: this process: Too many open files")
    assert "store: 403" in found.problems[1].message
    first = found.instances[0]
    assert (first.role, first.generation, first.lag, first.base_remaining) == ("Active", 1, 7, 12)


def test_two_processes_under_one_name(store: ObjectStore) -> None:
    """A process that speaks again after another one under its name spoke is a second one; a restart is not."""
    completed(store)
    at = now_ms(store)
    other = message(instance="b", at=at)
    restarted = [message(instance="a", at=at, incarnation=name) for name in ("one", "one", "two")]
    twice = message(instance="a", at=at, incarnation="one")
    last_word = message(CoordinationEvent.LEAVING, instance="a", at=at, incarnation="one")
    again = message(instance="a", at=at, incarnation="two")
    assert overview(sight(store, listener=listening(other, *restarted))).healthy
    assert overview(sight(store, listener=listening(other, *restarted, last_word, again))).healthy
    assert faults(overview(sight(store, listener=listening(other, *restarted, twice)))) == [Fault.TWO_PROCESSES]


def test_a_request_that_waits(store: ObjectStore) -> None:
    """An ACTIVATE for the next number is shown until somebody claims it."""
    completed(store)
    at = now_ms(store)
    alive = [message(instance=name, at=at) for name in ("a", "b")]
    asked = message(CoordinationEvent.ACTIVATE, instance="cli", at=at - 5000, target="b", generation=2, reason="drill")
    (told,) = overview(sight(store, listener=listening(*alive, asked))).notes
    assert re.fullmatch(r"cli asked b 5(\.\d)?s ago to build generation 2 \(drill\): not claimed yet", told)
    begin(store, 2, "b")
    notes = overview(sight(store, listener=listening(*alive, asked))).notes
    assert len(notes) == 1
    assert notes[0].startswith("generation 2 of b is being built (test): 2 of 2")


def test_open_transactions_are_named(store: ObjectStore) -> None:
    """What transactions hold back can't be read; it is no lag, but it is said, with the partition."""
    completed(store)
    ends = {("orders", 0): (10, 15), ("orders", 1): 0}
    found = overview(sight(store, heard_s=BOTH, topics=[ORDERS], ends=ends))
    assert found.restore is not None
    assert found.restore.lag == 0
    assert found.notes[0].endswith("before they end: orders-0 5")
