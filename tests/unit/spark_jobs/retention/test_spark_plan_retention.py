"""What retention may remove, rule by rule. The states are folded from real chains; listings and times are given."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import Base, Clearing, EntryKind, Position, StoredObject
from tandem.backup_avro.record.current import Record
from tandem.sink.store import ObjectStore, UploadInfo
from tandem.sink.store.chain import pins
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.chain_writer import now_ms
from tandem.sink.store.chain.pins import Pin
from tandem.spark_jobs.retention import retention_job
from tandem.spark_jobs.retention.retention_job import RetentionJob
from tandem.spark_jobs.retention.retention_plan import make_plan, narrow_step
from tandem.spark_jobs.retention.retention_steps import (
    KeptItem,
    RetentionAction,
    RetentionPlan,
    RetentionRules,
    RetentionStep,
    StoreObservation,
    steps_still_due,
)

HOUR = 3_600_000
DAY = 24 * HOUR
LOGS = TopicSpec("logs", config={"cleanup.policy": "delete", "retention.ms": str(HOUR)})
ORDERS = TopicSpec("orders", 2)


def observe(
    store: ObjectStore,
    *,
    after: int = 0,
    modified: Mapping[str, int] | None = None,
    uploads: Mapping[int, tuple[UploadInfo, ...]] | None = None,
    pins: Iterable[Pin] = (),
) -> StoreObservation:
    """What is in the store, `after` ms from now; `modified` sets the time of objects (ms from now)."""
    reader = ChainReader(store, PAIR, ended=True)
    reader.refresh()
    states = reader.history()
    objects = {}
    for state in states:
        found = list(store.list(f"{PAIR}/{state.instance}/generation={state.number:08d}/"))
        objects[state.number] = tuple(
            replace(info, modified=moment(modified[info.key])) if modified and info.key in modified else info
            for info in found
        )
    return StoreObservation(
        pair=PAIR,
        at=now_ms(store) + after,
        states=tuple(states),
        objects=objects,
        uploads=uploads or {},
        pins=tuple(pins),
    )


def moment(ms: int) -> datetime:
    """A time, ms from now."""
    return datetime.now(UTC) + timedelta(milliseconds=ms)


def plan(store: ObjectStore, rules: RetentionRules | None = None, **seen: object) -> RetentionPlan:
    """The plan for what is in the store."""
    return make_plan(observe(store, **seen), rules or RetentionRules())  # type: ignore[arg-type]  # named by the caller


def steps(found: RetentionPlan) -> dict[tuple[RetentionAction, int | None], RetentionStep]:
    """The steps by action and generation; each pair occurs once in these tests."""
    by_place = {(step.action, step.generation): step for step in found.steps}
    assert len(by_place) == len(found.steps)
    return by_place


def why(found: RetentionPlan, what: str) -> str:
    (kept,) = [kept for kept in found.kept if kept.what == what]
    return kept.reason


def logged(store: ObjectStore, spec: TopicSpec = LOGS, *, timestamps: Iterable[int] = (-3, -2, -1)) -> Backup:
    """A complete generation with one object of `spec` per timestamp (hours from now), oldest first."""
    backup = Backup.claim(store, topics=[spec, ORDERS])
    for number, hours in enumerate(timestamps):
        first = number * 10
        at = now_ms(store) + hours * HOUR - first - 60_000
        backup.commit(records(spec.name, 0, range(first, first + 5), timestamp=at))
    backup.complete()
    return backup


def keys(backup: Backup) -> list[str]:
    """The keys of a generation's objects in commit order."""
    return list(backup.writer.state.objects)


# --- topics whose policy is `delete`


def test_only_objects_whole_past_the_limit_go(store: ObjectStore) -> None:
    """The newest record of an object decides."""
    backup = logged(store, timestamps=(-3, -2, 0, 0))
    step = steps(plan(store))[RetentionAction.EXPIRE, 1]
    assert step.keys == tuple(keys(backup)[:2])
    assert step.topics == ("logs",)
    assert step.bytes == sum(item.bytes for item in list(backup.writer.state.objects.values())[:2])


@pytest.mark.parametrize("rules", [RetentionRules(), RetentionRules(older_than=2 * HOUR)])
def test_time_goes_on_only_while_somebody_reads(store: ObjectStore, rules: RetentionRules) -> None:
    """Where the cluster is lost the last backup of a topic is not worn away, however long the job goes on."""
    backup = logged(store, timestamps=(-9, 0, 0, 0))
    assert steps(plan(store, rules))[RetentionAction.EXPIRE, 1].keys == tuple(keys(backup)[:1])
    assert steps(plan(store, rules, after=1000 * HOUR))[RetentionAction.EXPIRE, 1].keys == tuple(keys(backup)[:1])


def test_what_follows_a_record_that_stays_is_in_the_log_too(store: ObjectStore) -> None:
    """Brokers delete from the log's start: old timestamps of a later copy of old data expire nothing there."""
    backup = logged(store, timestamps=(-30, 0, -30, 0))
    assert steps(plan(store))[RetentionAction.EXPIRE, 1].keys == tuple(keys(backup)[:1])


def test_what_the_log_has_lost_keeps_nothing(store: ObjectStore) -> None:
    """A record with a wrong, late timestamp was deleted by size: what followed it goes by its age."""
    backup = logged(store, timestamps=(0, -30, -20, 0))
    assert plan(store).steps == ()
    backup.commit(records("logs", 0, range(40, 45), timestamp=now_ms(store)), log_start=5)
    assert steps(plan(store))[RetentionAction.EXPIRE, 1].keys == tuple(keys(backup)[1:3])


def test_records_without_a_timestamp_keep_only_themselves(store: ObjectStore) -> None:
    """They never expire by age, and tell nothing of how old the log is where they lie."""
    backup = Backup.claim(store, topics=[LOGS, ORDERS])
    now = now_ms(store)
    for first, timestamps in ((0, [-1] * 5), (10, [now - 30 * HOUR] * 5), (20, [-1, *[now] * 4])):
        backup.commit(
            [
                replace(one, timestamp=at)
                for one, at in zip(records("logs", 0, range(first, first + 5)), timestamps, strict=True)
            ]
        )
    backup.complete()
    assert steps(plan(store))[RetentionAction.EXPIRE, 1].keys == tuple(keys(backup)[1:2])


def test_the_newest_object_of_a_partition_stays(store: ObjectStore) -> None:
    """Even when all are past the limit."""
    backup = logged(store, timestamps=(-9, -8, -7))
    assert steps(plan(store))[RetentionAction.EXPIRE, 1].keys == tuple(keys(backup)[:2])
    Backup.completed(store, records("logs", 0, range(5), timestamp=0), topics=[LOGS], number=2, instance="b")
    assert (RetentionAction.EXPIRE, 2) not in steps(plan(store))


def test_older_than_replaces_the_recorded_retention(store: ObjectStore) -> None:
    """In both directions, and where none is recorded."""
    backup = logged(store, timestamps=(-30, -20, -10, 0))
    assert steps(plan(store, RetentionRules(older_than=25 * HOUR)))[RetentionAction.EXPIRE, 1].keys == tuple(
        keys(backup)[:1]
    )
    assert (RetentionAction.EXPIRE, 1) not in steps(plan(store, RetentionRules(older_than=40 * HOUR)))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"cleanup.policy": "compact", "retention.ms": "1"}, "nothing of them goes that is in the chain: logs, orders"),
        ({"cleanup.policy": "compact,delete", "retention.ms": "1"}, "in the chain: logs, orders"),
        ({"cleanup.policy": "delete, compact", "retention.ms": "1"}, "in the chain: logs, orders"),
        ({"cleanup.policy": "delete", "retention.ms": "-1"}, "retention.ms is unlimited: logs"),
        ({"cleanup.policy": "delete"}, "retention.ms is not recorded: logs"),
        ({"cleanup.policy": "delete", "retention.ms": "soon"}, "retention.ms is not recorded: logs"),
        ({"retention.ms": "1"}, "cleanup.policy is not recorded: logs"),
    ],
)
def test_what_is_not_surely_a_deleting_topic_stays(store: ObjectStore, config: dict[str, str], reason: str) -> None:
    """Any doubt about policy or limit keeps everything, and the plan says why."""
    logged(store, TopicSpec("logs", config=config), timestamps=(-9, -8, -7))
    found = plan(store)
    assert found.steps == ()
    assert any(reason in kept.reason for kept in found.kept)


def test_records_without_a_time_are_never_past_it(store: ObjectStore) -> None:
    """A timestamp of -1 is no age."""
    backup = Backup.claim(store, topics=[LOGS])
    for first in (0, 10, 20):
        backup.commit([replace(record, timestamp=-1) for record in records("logs", 0, range(first, first + 5))])
    backup.complete()
    assert plan(store).steps == ()


def test_a_deleted_topic_keeps_its_last_backup(store: ObjectStore) -> None:
    """Nobody can read it from Kafka any more."""
    backup = logged(store, timestamps=(-9, -8, -7))
    backup.append(EntryKind.COMMIT, topics=(replace(backup.topics["logs"], removed=True),))
    found = plan(store)
    assert found.steps == ()
    assert "their last backup: logs" in why(found, "topics")


def test_a_journal_goes_only_if_every_partition_in_it_may(store: ObjectStore) -> None:
    """One compacted topic, or one partition's newest records, keep it."""
    old = now_ms(store) - 9 * HOUR
    backup = Backup.claim(store, topics=[LOGS, replace(LOGS, name="audit"), ORDERS])

    def log(topic: str, first: int) -> list[Record]:
        return records(topic, 0, range(first, first + 3), timestamp=old)

    backup.commit([*log("logs", 0), *log("audit", 0)], journal=True)
    backup.commit([*log("logs", 10), *log("orders", 10)], journal=True)
    backup.commit([*log("logs", 20), *log("audit", 20)], journal=True)
    backup.commit(log("logs", 30))
    backup.complete()
    step = steps(plan(store))[RetentionAction.EXPIRE, 1]
    assert step.keys == tuple(keys(backup)[:1])
    assert step.topics == ("audit", "logs")


def test_generations_that_take_no_rewrite_keep_what_is_expired(store: ObjectStore) -> None:
    """A sealed one goes as a whole; one that is not complete is still being read."""
    backup = logged(store, timestamps=(-9, -8, -7))
    backup.seal()
    found = plan(store)
    assert found.steps == ()
    assert "takes no rewrite" in why(found, "expired objects")
    building = Backup.claim(store, topics=[LOGS], number=2, instance="b")
    for first in (0, 10):
        building.commit(records("logs", 0, range(first, first + 5), timestamp=0))
    assert (RetentionAction.EXPIRE, 2) not in steps(plan(store))


# --- what a rewrite replaced


def rewritten(store: ObjectStore) -> tuple[Backup, str]:
    """A complete generation whose first object was replaced."""
    backup = logged(store)
    old = keys(backup)[0]
    backup.append(EntryKind.REWRITE, replaced=(old,))
    return backup, old


def test_replaced_objects_go_after_the_grace_time(store: ObjectStore) -> None:
    """Not at it, but past it, by the store's clock."""
    _, old = rewritten(store)
    early = plan(store, RetentionRules(grace=HOUR, older_than=90 * DAY))
    assert early.steps == ()
    assert "grace time" in why(early, "replaced objects")
    late = plan(store, RetentionRules(grace=HOUR, older_than=90 * DAY), after=HOUR + 1000)
    assert steps(late)[RetentionAction.REPLACED, 1].keys == (old,)


@pytest.mark.parametrize(
    ("generation", "until", "goes"), [(1, 2 * DAY, False), (None, None, False), (2, 2 * DAY, True)]
)
def test_a_pin_keeps_what_was_replaced(
    store: ObjectStore, generation: int | None, until: int | None, goes: bool
) -> None:
    """A reader planned with it; an unreadable pin may be anybody's; another generation's pin does not matter."""
    rewritten(store)
    pin = Pin(id="p", generation=generation, owner="restore", until=None if until is None else now_ms(store) + until)
    found = plan(store, RetentionRules(grace=HOUR, older_than=90 * DAY), after=DAY, pins=[pin])
    assert ((RetentionAction.REPLACED, 1) in steps(found)) is goes
    if not goes:
        assert "pinned by restore" in why(found, "replaced objects")


def test_pins_that_ended_are_removed_and_hold_nothing(store: ObjectStore) -> None:
    """Their owners died; what they held goes in the same plan."""
    rewritten(store)
    pin = Pin(id="p", generation=1, owner="restore", until=now_ms(store) + HOUR)
    found = steps(plan(store, RetentionRules(grace=HOUR, older_than=90 * DAY), after=DAY, pins=[pin]))
    assert found[RetentionAction.PINS, None].pins == (pin,)
    assert (RetentionAction.REPLACED, 1) in found


# --- what is in no chain


def orphan(backup: Backup) -> StoredObject:
    """An uploaded object that no entry names."""
    return backup.put_object([(("orders", 1), records("orders", 1, range(3)), None)], journal=False)


def test_a_live_writers_uploads_are_left_alone_however_old(store: ObjectStore) -> None:
    """Age proves nothing: a paused process can go on after a year."""
    item = orphan(logged(store, timestamps=(0,)))
    found = plan(store, after=400 * DAY, modified={item.key: -400 * DAY})
    assert all(item.key not in step.keys for step in found.steps)
    assert "may still commit" in why(found, "objects in no chain")


def test_orphans_of_a_sealed_generation_go(store: ObjectStore) -> None:
    """Nothing can follow SEALED. What the chain holds stays."""
    backup = logged(store, timestamps=(0,))
    item = orphan(backup)
    backup.seal()
    found = steps(plan(store))
    assert list(found) == [(RetentionAction.ORPHANS, 1)]
    assert found[RetentionAction.ORPHANS, 1].keys == (item.key,)


@pytest.mark.parametrize("modified", [-400 * DAY, 0, 400 * DAY])
def test_orphans_of_a_superseded_incarnation_go(store: ObjectStore, modified: int) -> None:
    """Their names say whose they are. No time does: the store's clock may have been set, or a put have come late."""
    backup = logged(store, timestamps=(0,))
    former = backup.writer.incarnation
    nameless = layout.journal_key(PAIR, "a", 1, seq=7, nonce=secrets.token_hex(8))
    store.put_if_absent(nameless, b"as releases of before have named them")
    backup.restart()
    theirs, mine = (named(backup, mark) for mark in (layout.mark_of(former), layout.mark_of(backup.writer.incarnation)))
    found = plan(store, modified=dict.fromkeys((nameless, theirs, mine), modified))
    assert steps(found)[RetentionAction.ORPHANS, 1].keys == (theirs,)
    assert "lost the chain" in steps(found)[RetentionAction.ORPHANS, 1].reason
    assert sorted(kept.reason for kept in found.kept if kept.what == "objects in no chain") == [
        "their names don't say whose they are, so their writer may still commit them",
        "their writer may still commit them",
    ]


def named(backup: Backup, mark: str) -> str:
    """An object of this mark that is in no chain; its key."""
    where = (PAIR, backup.writer.state.instance, backup.number)
    nonce = layout.marked(secrets.token_hex(8), mark)
    key = layout.journal_key(*where, seq=7, nonce=nonce)
    backup.store.put_if_absent(key, b"whatever it holds")
    return key


def test_no_incarnation_has_the_mark_of_workers() -> None:
    """Or what is about to be committed would be taken for what nobody takes any more."""
    assert layout.mark_in(f"x+{layout.marked('0' * 16, layout.NOBODY)}.avro") == layout.NOBODY
    assert all(set(layout.mark_of(str(n))) <= set("0123456789abcdef") for n in range(100))
    assert not set(layout.NOBODY) <= set("0123456789abcdef")


def test_uploads_follow_the_rules_of_orphans(store: ObjectStore) -> None:
    """Aborted where the writer is gone, left alone where it may live."""
    backup = logged(store, timestamps=(0,))
    nonce = layout.marked(secrets.token_hex(8), layout.mark_of(backup.writer.incarnation))
    key = layout.journal_key(PAIR, "a", 1, seq=7, nonce=nonce)
    upload = UploadInfo(key=key, upload_id="u", initiated=moment(-400 * DAY))
    found = plan(store, uploads={1: (upload,)})
    assert found.steps == ()
    assert "may still commit" in why(found, "unfinished uploads")
    backup.restart()
    assert steps(plan(store, uploads={1: (upload,)}))[RetentionAction.UPLOADS, 1].uploads == (upload,)
    unknown = replace(upload, key=f"{PAIR}/a/generation=00000001/x")
    assert plan(store, uploads={1: (unknown,)}).steps == ()
    backup.seal()
    assert steps(plan(store, uploads={1: (unknown,)}))[RetentionAction.UPLOADS, 1].uploads == (unknown,)


def base_of_a_job(*, done: bool) -> Base:
    """The base of a partition of which a job has read the upper half, and then all."""
    return Base(start=0, end=100, leader=1, attempts=1, done=((0 if done else 50, 100),), done_at=1 if done else None)


def job_stored(backup: Backup, *, partition: int = 0) -> tuple[str, str]:
    """An object and the offer of it, in the name of the generation, as a catch-up job leaves them; their keys."""
    where = (PAIR, backup.writer.state.instance, backup.number)
    nonce = layout.marked(secrets.token_hex(8), layout.NOBODY)
    data = layout.data_key(where, topic="orders", partition=partition, first=0, last=49, nonce=nonce)
    offer = layout.offers_prefix(*where) + layout.offer_name(
        layout.OfferedOffsets(*backup.key("orders", partition), floor=1, leader=1, low=0, high=50),
        secrets.token_hex(8),
    )
    for key in (data, offer):
        backup.store.put_if_absent(key, b"no offer that anybody could read")
    return data, offer


def being_read(store: ObjectStore, *, done: Iterable[int] = (), number: int = 1) -> Backup:
    """A generation whose chain knows two partitions, the bases of those in `done` read to the end."""
    backup = Backup.claim(store, topics=[ORDERS], number=number)
    at = now_ms(store)
    positions = {
        backup.key("orders", partition): Position(
            offset=100, epoch=0, head_at=at, log_start=0, base=base_of_a_job(done=partition in done)
        )
        for partition in (0, 1)
    }
    backup.append(EntryKind.COMMIT, topics=tuple(backup.topics.values()), positions=positions)
    return backup


def test_what_a_catch_up_job_stored_outlives_a_restart_of_its_instance(store: ObjectStore) -> None:
    """It is of no incarnation: the next one takes it, however old it is, and whether its offer can be read or not.

    Also where a base is done: by name that may be an earlier life's, and a worker reads the next one before the chain
    knows of it (seeds 104264, 55642 and 57146).
    """
    backup = being_read(store, done=[1])
    job_stored(backup)
    job_stored(backup, partition=1)
    backup.restart()
    found = plan(store, after=400 * DAY)
    assert found.steps == ()
    kept = [one for one in found.kept if one.what == "objects in no chain"]
    assert all("catch-up job may have stored them" in one.reason for one in kept)
    assert sum(one.count for one in kept) == 4


def test_what_no_offer_names_yet_is_left_to_the_job_that_reads_on(store: ObjectStore) -> None:
    """It stores objects before it offers them; of a partition that the chain does not know nobody can say."""
    backup = being_read(store)
    data, offer = job_stored(backup)
    store.delete([offer])
    job_stored(backup, partition=7)
    upload = UploadInfo(key=data, upload_id="u", initiated=moment(-400 * DAY))
    found = plan(store, after=2 * DAY, uploads={1: (upload,)})
    assert found.steps == ()
    assert [kept.count for kept in found.kept] == [3, 1], "two objects and an offer; the upload"
    assert "a catch-up job may have stored them" in why(found, "unfinished uploads")


def test_what_a_catch_up_job_left_goes_once_the_generation_takes_no_more(store: ObjectStore) -> None:
    """Nothing can follow SEALED, whether the restart was before or after."""
    backup = being_read(store, done=[0, 1])
    backup.complete()
    left = job_stored(backup)
    backup.seal()
    assert set(steps(plan(store))[RetentionAction.ORPHANS, 1].keys) == set(left)


# --- generations that nobody needs


def complete(store: ObjectStore, number: int, instance: str) -> Backup:
    """A complete generation without anything to remove."""
    return Backup.completed(store, records("orders", 0, range(5)), topics=[ORDERS], number=number, instance=instance)


def building(store: ObjectStore, number: int, instance: str) -> Backup:
    """A generation that did not become complete."""
    return Backup.begun(store, records("orders", 0, range(3)), topics=[ORDERS], number=number, instance=instance)


def test_a_generation_given_up_by_its_owner_is_cleared(store: ObjectStore) -> None:
    """Its instance has a newer one, and a newer one is complete."""
    given_up = building(store, 1, "a")
    complete(store, 2, "a")
    step = steps(plan(store))[RetentionAction.CLEAR, 1]
    assert step.keys == tuple(keys(given_up))
    assert "a has gone on to generation 2" in step.reason


def test_without_a_newer_complete_one_nothing_is_abandoned(store: ObjectStore) -> None:
    """An incomplete generation may be all there is; a tainted or sealed-and-cleared successor does not count."""
    building(store, 1, "a")
    building(store, 2, "a")
    assert plan(store, after=400 * DAY).steps == ()
    third = complete(store, 3, "b")
    third.taint("orders", 0, 2)
    assert plan(store, after=400 * DAY).steps == ()


def test_a_builder_that_may_live_is_left_alone_until_it_was_silent_for_long(store: ObjectStore) -> None:
    """Its peer completed a newer one; the builder itself has claimed nothing since."""
    building(store, 1, "a")
    complete(store, 2, "b")
    assert plan(store, after=6 * DAY).steps == ()
    assert "no entry since" in steps(plan(store, after=8 * DAY))[RetentionAction.CLEAR, 1].reason


def test_the_newest_generation_is_never_abandoned(store: ObjectStore) -> None:
    """It is being built beside the complete one, however long that takes."""
    complete(store, 1, "a")
    building(store, 2, "b")
    assert plan(store, after=400 * DAY).steps == ()


def test_a_pinned_generation_is_not_cleared(store: ObjectStore) -> None:
    """Somebody verifies it."""
    building(store, 1, "a")
    complete(store, 2, "a")
    pin = Pin(id="p", generation=1, owner="verify", until=now_ms(store) + DAY)
    found = plan(store, pins=[pin])
    assert found.steps == ()
    assert "pinned by verify" in why(found, "abandoned generation")


def test_a_clearing_is_left_to_its_owner_and_taken_over_from_a_janitor(store: ObjectStore) -> None:
    """An owner that began goes on when it is back; a janitor that was killed is no more."""
    backup = building(store, 1, "a")
    complete(store, 2, "b")
    backup.clearing()
    found = plan(store, after=400 * DAY)
    assert found.steps == ()
    assert "its owner, a, clears it" in why(found, "generation being cleared")
    seen = observe(store)
    first = replace(seen.states[0], clearing_by="janitor-x")
    assert (RetentionAction.CLEAR, 1) in steps(
        make_plan(replace(seen, states=(first, *seen.states[1:])), RetentionRules())
    )


def test_only_its_owner_clears_what_was_complete(store: ObjectStore) -> None:
    """A janitor never touches a clearing of a complete generation, however old."""
    backup = complete(store, 1, "a")
    complete(store, 2, "b")
    backup.seal()
    backup.clearing()
    found = plan(store, after=400 * DAY)
    assert found.steps == ()
    assert "its owner, a, clears it" in why(found, "generation being cleared")


def test_leftovers_of_a_cleared_generation_go_but_not_what_stays(store: ObjectStore) -> None:
    """An upload that arrived late is left over; the partition that was kept is not."""
    backup = Backup.completed(
        store, [*records("orders", 0, range(5)), *records("orders", 1, range(5))], topics=[ORDERS]
    )
    backup.seal()
    late = orphan(backup)
    going = backup.clearing(stays={backup.key("orders", 1): "released by nobody"})
    backup.append(EntryKind.CLEARED, clearing=going)
    (kept,) = backup.writer.state.objects
    step = steps(plan(store))[RetentionAction.ORPHANS, 1]
    assert late.key in step.keys
    assert kept not in step.keys
    assert len(step.keys) == 2
    rest = Clearing(goes=tuple(sorted(backup.positions)), stays={})
    backup.append(EntryKind.CLEARING, clearing=rest)
    backup.append(EntryKind.CLEARED, clearing=rest)
    assert kept in steps(plan(store))[RetentionAction.LEFTOVERS, 1].keys


def test_what_an_erasure_stores_for_a_kept_partition_is_left_to_it(store: ObjectStore) -> None:
    """It rewrites what a cleared generation keeps, and commits it later: what its chain then names must be there."""
    backup = Backup.completed(
        store, [*records("orders", 0, range(5)), *records("orders", 1, range(5))], topics=[ORDERS]
    )
    backup.seal()
    going = backup.clearing(stays={backup.key("orders", 1): "keys vanished: 1"})
    backup.append(EntryKind.CLEARED, clearing=going)
    state = backup.writer.state
    where = (PAIR, state.instance, state.number)
    key = layout.swept_key(where, topic="orders", partition=1, first=0, last=4, nonce="0" * 16)
    store.put_if_absent(key, b"x")
    uploads = {1: (UploadInfo(key=key, upload_id="u", initiated=moment(-HOUR)),)}
    pin = Pin(id="p", generation=1, owner="retention", until=now_ms(store) + HOUR)
    for held in ([pin], []):
        assert all(key not in step.keys for step in plan(store, pins=held).steps)
    assert "an erasure may still commit them" in why(plan(store), "objects in no chain")
    for after, aborted in ((0, False), (DAY, True)):
        actions = {step.action for step in plan(store, uploads=uploads, after=after).steps}
        assert (RetentionAction.UPLOADS in actions) is aborted


def test_what_was_compacted_does_not_expire_after_a_change_of_its_policy(store: ObjectStore) -> None:
    """It may be an accident: a turn compares the copies, and needs what this one has (decision 122)."""
    backup = logged(store, TopicSpec("logs", config={"cleanup.policy": "compact", "retention.ms": str(DAY)}))
    changed = {"logs": {"cleanup.policy": "delete", "retention.ms": str(DAY)}}
    backup.commit(records("logs", 0, [100]), config=changed)
    for rules in (RetentionRules(), RetentionRules(older_than=1), RetentionRules(max_bytes=1)):
        found = plan(store, rules, after=400 * DAY)
        assert found.steps == ()
        assert "policy was `compact` before" in why(found, "topics")


# --- the plan as a whole


def test_a_step_is_carried_out_only_as_far_as_a_new_plan_agrees(store: ObjectStore) -> None:
    """What the new plan no longer names is left out, to the single object."""
    logged(store, timestamps=(-9, -8, -7, -6))
    before = plan(store)
    (step,) = before.steps
    assert steps_still_due(step, before.steps) == step
    assert steps_still_due(step, ()) is None
    fewer = replace(step, objects=step.objects[1:])
    assert steps_still_due(step, [fewer]) == fewer
    other = replace(step, generation=2)
    assert steps_still_due(step, [other]) is None


def test_steps_come_in_the_order_of_their_actions(store: ObjectStore) -> None:
    """What leaves the chain first, deletion afterwards, whatever the generations' numbers."""
    building(store, 1, "a")
    backup = Backup.claim(store, topics=[LOGS, ORDERS], number=2, instance="a")
    for first in (0, 10, 20):
        backup.commit(records("logs", 0, range(first, first + 5), timestamp=0))
    backup.complete()
    backup.append(EntryKind.REWRITE, replaced=(keys(backup)[0],))
    found = plan(store, RetentionRules(grace=0), after=1000)
    assert [step.action for step in found.steps] == [
        RetentionAction.EXPIRE,
        RetentionAction.REPLACED,
        RetentionAction.CLEAR,
    ]
    assert found.bytes == sum(step.bytes for step in found.steps)


def test_what_nobody_can_explain_is_named_and_stays(store: ObjectStore) -> None:
    """Folders without a claim and pins that can't be read are for a person to look at."""
    complete(store, 1, "a")
    seen = replace(
        observe(store, pins=[Pin(id="odd", generation=None, owner="unknown", until=None)]), strange=("shop/a/what/",)
    )
    found = make_plan(seen, RetentionRules())
    assert found.steps == ()
    reasons = {kept.what: kept.reason for kept in found.kept if isinstance(kept, KeptItem)}
    assert "shop/a/what/" in reasons["folder"]
    assert "odd" in reasons["pin"]


def test_listed_objects_that_the_chain_holds_never_go(store: ObjectStore) -> None:
    """Over all these states together: only expiry names what a chain holds."""
    building(store, 1, "a")
    backup = logged_two(store)
    backup.seal()
    complete(store, 3, "a")
    seen = observe(store, after=400 * DAY)
    held = {key for state in seen.states if state.complete for key in state.objects}
    for step in make_plan(seen, RetentionRules(grace=0)).steps:
        assert step.action is RetentionAction.EXPIRE or not held & set(step.keys)


def logged_two(store: ObjectStore) -> Backup:
    """Generation 2 of instance b, complete, with an orphan and a replaced object."""
    backup = Backup.claim(store, topics=[LOGS, ORDERS], number=2, instance="b")
    for first in (0, 10, 20):
        backup.commit(records("logs", 0, range(first, first + 5), timestamp=0))
    backup.complete()
    orphan(backup)
    backup.append(EntryKind.REWRITE, replaced=(keys(backup)[0],))
    return backup


# --- bytes per topic, and what janitors left behind


def test_the_oldest_objects_beyond_the_size_go(store: ObjectStore) -> None:
    """Of each topic for itself, in the order of offsets; never the newest object of a partition."""
    spec = replace(LOGS, config={"cleanup.policy": "delete", "retention.ms": "-1"})
    backup = logged(store, spec, timestamps=(-1, -3, -2, 0))
    parts = {item.key: item.parts[0] for item in backup.writer.state.objects.values()}
    names, sizes = list(parts), [part.end - part.start for part in parts.values()]
    (step,) = plan(store, RetentionRules(max_bytes=sum(sizes[2:]))).steps
    assert step.keys == tuple(names[:2])
    assert "beyond" in step.reason
    (step,) = plan(store, RetentionRules(max_bytes=sum(sizes[2:]) - 1)).steps
    assert step.keys == tuple(names[:3])
    (step,) = plan(store, RetentionRules(max_bytes=0)).steps
    assert step.keys == tuple(names[:3])
    assert plan(store, RetentionRules(max_bytes=sum(sizes))).steps == ()


def test_bytes_do_not_count_for_compacted_topics(store: ObjectStore) -> None:
    """Nor for one that is deleted both ways."""
    logged(store, TopicSpec("logs", config={"cleanup.policy": "compact,delete"}))
    assert plan(store, RetentionRules(max_bytes=0)).steps == ()


def test_what_a_janitor_left_behind_goes_unless_one_is_at_work(store: ObjectStore) -> None:
    """Whoever holds the chain; its unfinished uploads after the grace time."""
    backup = logged(store, timestamps=(0,))
    state = backup.writer.state
    where = (PAIR, state.instance, state.number)
    key = layout.swept_key(where, topic="orders", partition=0, first=0, last=9, nonce="0" * 16)
    store.put_if_absent(key, b"x")
    uploads = {1: (UploadInfo(key=key, upload_id="u", initiated=moment(-HOUR)),)}
    found = steps(plan(store, uploads=uploads))
    assert found[RetentionAction.ORPHANS, 1].keys == (key,)
    assert (RetentionAction.UPLOADS, 1) not in found
    assert (RetentionAction.UPLOADS, 1) in steps(plan(store, uploads=uploads, after=DAY))
    pin = Pin(id="p", generation=1, owner="retention", until=now_ms(store) + HOUR)
    assert (RetentionAction.ORPHANS, 1) not in steps(plan(store, pins=[pin]))
    other = replace(pin, owner="restore")
    assert (RetentionAction.ORPHANS, 1) in steps(plan(store, pins=[other]))


# --- steps that are looked at once more


def _worlds(store: ObjectStore) -> Iterator[tuple[str, Callable[[], None]]]:
    """What may happen between a plan and its execution, one thing after the other."""
    building(store, 1, "a")
    logs, bytes_ = LOGS, TopicSpec("bytes", 2, config={"cleanup.policy": "delete", "retention.ms": "-1"})
    backup = Backup.claim(store, topics=[logs, bytes_, ORDERS], number=2, instance="b")
    for first in (0, 10, 20, 30):
        large = [item for number in (0, 1) for item in records("bytes", number, range(first, first + 5), timestamp=0)]
        backup.commit(records("logs", 0, range(first, first + 5), timestamp=0))
        backup.commit(large)
        backup.commit([*records("logs", 0, [first + 7], timestamp=0), *records("bytes", 1, [first + 7])])
        shared = [*records("logs", 0, [first + 8], timestamp=0), *records("bytes", 0, [first + 8], timestamp=0)]
        backup.commit(shared, journal=True)
        backup.commit([*records("logs", 0, [first + 9], timestamp=0), *records("orders", 0, [first])], journal=True)
    backup.complete()
    orphan(backup)
    backup.append(EntryKind.REWRITE, replaced=(keys(backup)[0],))
    third = complete(store, 3, "a")
    yield "nothing", lambda: None
    yield "more is committed", lambda: _ignore(backup.commit(records("logs", 0, range(40, 45), timestamp=0)))
    yield "some is gone", lambda: _ignore(backup.append(EntryKind.REWRITE, replaced=(keys(backup)[1], keys(backup)[5])))
    compacted = replace(backup.topics["logs"], config={"cleanup.policy": "compact"})
    yield "a topic is compacted", lambda: _ignore(backup.append(EntryKind.COMMIT, topics=(compacted,)))
    yield "sealed", lambda: _ignore(backup.seal())
    yield "another is sealed", lambda: _ignore(third.seal())


def _ignore(_: object) -> None:
    """For its effect."""


@pytest.mark.parametrize(
    "rules",
    [RetentionRules(grace=0), RetentionRules(max_bytes=1000), RetentionRules(grace=0, older_than=DAY, max_bytes=1)],
)
@pytest.mark.parametrize("pinned", [None, 1, 2])
def test_a_step_for_itself_is_judged_as_in_a_whole_plan(
    store: ObjectStore, rules: RetentionRules, pinned: int | None
) -> None:
    """Whatever happened since, and although only what bears on it is looked at."""
    asked: set[RetentionAction] = set()
    left: set[bool] = set()
    ended = Pin(id="ended", generation=3, owner="verify", until=now_ms(store) - DAY)
    for what, happens in _worlds(store):
        upload = UploadInfo(key="x", upload_id="u", initiated=moment(-9 * DAY))
        seen = observe(store, after=9 * DAY, pins=[ended], uploads={1: (upload,)})
        seen = replace(seen, states=tuple(state.frozen_copy() for state in seen.states))
        steps_then = make_plan(seen, rules).steps
        happens()
        later = observe(store, after=9 * DAY)
        pins = () if pinned is None else (Pin(id="p", generation=pinned, owner="restore", until=later.at + DAY),)
        now = replace(seen, states=later.states, at=later.at, pins=(*pins, ended))
        again = make_plan(now, rules).steps
        for step in steps_then:
            expected = steps_still_due(step, again)
            assert narrow_step(step, now, rules) == expected, (what, step)
            asked.add(step.action)
            left.add(expected == step)
    assert left == {True, False}
    assert asked >= {RetentionAction.EXPIRE, RetentionAction.ORPHANS, RetentionAction.CLEAR, RetentionAction.PINS}


def merge(backup: Backup, old: str) -> None:
    """The Active puts another object in the place of one."""
    item = backup.writer.state.objects[old]
    new = named(backup, layout.mark_of(backup.writer.incarnation))
    backup.append(EntryKind.REWRITE, replaced=(old,), objects=(replace(item, key=new),), reason="merged")


@pytest.mark.parametrize(
    ("happens", "left"),
    [
        (lambda _: None, 3),
        (lambda backup: merge(backup, keys(backup)[0]), 2),
        (lambda backup: [merge(backup, old) for old in keys(backup)[:3]], 0),
        (lambda backup: backup.seal(), 0),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_what_changes_after_the_last_look_is_left_alone(
    happens: Callable[[Backup], object], left: int, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Merged objects are not taken for damage, whether the janitor's writer has seen the merge or loses the race."""
    clock = _Clock()
    address: Any = clock
    spark: Any = None
    clock.store.clock_ms = 1_780_000_000_000
    backup = logged(clock.store, timestamps=(-9, -8, -7, 0))
    job = RetentionJob(spark, address, PAIR, RetentionRules())
    job._seen = observe(clock.store)
    made = make_plan(job._seen, RetentionRules())
    real = retention_job.narrow_step

    def narrow(step: RetentionStep, seen: StoreObservation, rules: RetentionRules) -> RetentionStep | None:
        found = real(step, seen, rules)
        happens(backup)
        if not late:
            job._reader.refresh()
        return found

    monkeypatch.setattr(retention_job, "narrow_step", narrow)
    (outcome,) = job.execute(made)
    assert (outcome.failed, outcome.count) == (False, left)
    assert outcome.note == (None if left == 3 else f"{3 - left} no longer so; left alone")
    assert len(ChainReader(clock.store, PAIR).load(1).objects) == 4 - left


class _Clock:
    """An address of a store whose clock goes on by a second with every pin that is read."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.store.before = self._read

    def _read(self, operation: str, key: str) -> None:
        if operation == "get" and "/pins/" in key:
            self.store.clock_ms += 1_000

    def open(self) -> MemoryStore:
        return self.store


def test_a_pin_that_is_renewed_while_pins_are_listed_has_not_ended() -> None:
    """What counts is the time before they were listed."""
    address: Any = _Clock()
    spark: Any = None
    job = RetentionJob(spark, address, "orders", RetentionRules())
    before = address.store.clock_ms
    pins.put_pin(address.store, "orders", generation=1, owner="restore", until=before + HOUR)
    seen = job._refresh(StoreObservation(pair="orders", at=0, states=()))
    assert len(seen.pins) == 1
    assert before < seen.at < before + 1_000
    assert address.store.clock_ms > before + 1_000
