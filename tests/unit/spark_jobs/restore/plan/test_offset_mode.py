"""Which offsets records get, why, and how many fillers that takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.restores.restore_plans import make_plan

from tandem.backup_avro.errors import RefusedError
from tandem.sink.store import open_store
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.spark_jobs.restore.plan import plan as restore_plan
from tandem.spark_jobs.restore.plan import plan_file
from tandem.spark_jobs.restore.plan.offset_mode import (
    OffsetMode,
    TopicTarget,
    choose_mode,
    fillers,
    most_fillers,
)
from tandem.spark_jobs.restore.plan.options import RestoreOptions
from tandem.spark_jobs.restore.plan.plan import RestorePlan, TargetTopic, TopicNaming
from tandem.spark_jobs.restore.records.record_changes import NOTHING, RecordChanges

_FRESH = TopicTarget(name="orders", append=False, repartitioned=False, selects=False, recorded=True, compacted=True)
_OTHERS = {
    "append": _FRESH._replace(append=True),
    "repartitioned": _FRESH._replace(repartitioned=True),
    "selects": _FRESH._replace(selects=True),
    "files": _FRESH._replace(recorded=False),
}


def test_a_fresh_target_gets_a_floor() -> None:
    """Unless the user says otherwise."""
    assert choose_mode(None, _FRESH).mode is OffsetMode.FLOOR
    assert choose_mode(OffsetMode.FLOOR, _FRESH) == choose_mode(None, _FRESH)
    assert choose_mode(OffsetMode.DENSE, _FRESH) == (OffsetMode.DENSE, "as was chosen")


@pytest.mark.parametrize("what", list(_OTHERS))
def test_other_targets_do_not(what: str) -> None:
    """The reason is said, and what was asked for is refused, not given up."""
    mode, why = choose_mode(None, _OTHERS[what])
    assert mode is OffsetMode.DENSE
    assert choose_mode(OffsetMode.DENSE, _OTHERS[what]).mode is OffsetMode.DENSE
    with pytest.raises(RefusedError, match=why):
        choose_mode(OffsetMode.FLOOR, _OTHERS[what])
    with pytest.raises(RefusedError, match=why):
        choose_mode(OffsetMode.EXACT, _OTHERS[what])
    assert len({choose_mode(None, item).why for item in _OTHERS.values()}) == len(_OTHERS)


def test_exact_offsets_are_for_compacted_topics() -> None:
    """Nothing else removes the fillers between the records; and only who asks for them gets them."""
    assert choose_mode(OffsetMode.EXACT, _FRESH).mode is OffsetMode.EXACT
    with pytest.raises(RefusedError, match="orders, which is not compacted") as refused:
        choose_mode(OffsetMode.EXACT, _FRESH._replace(compacted=False))
    assert refused.value.code == "TDM-R157"
    assert choose_mode(None, _FRESH._replace(compacted=False)).mode is OffsetMode.FLOOR


def _plan(folder: Path, offsets: range) -> RestorePlan:
    backup = Backup.claim(open_store(f"file://{folder}"), topics=[TopicSpec("orders", partitions=2)])
    backup.commit(records("orders", 0, offsets))
    backup.complete()
    return make_plan(ChainReader(backup.store, PAIR).refresh(), pair=PAIR, naming=TopicNaming())


def test_how_many_fillers(tmp_path: Path) -> None:
    """As many as the source has offsets without a record, up to the last record; none for a partition without any."""
    assert fillers(0, -1) == 0
    assert fillers(1, 0) == 0
    assert fillers(10, 99) == 90
    assert most_fillers(()) == 0
    plan = restore_plan.shaped(_plan(tmp_path, range(100, 200, 10)), NOTHING, {})
    [topic] = plan.topics
    assert {item.key.partition: topic.most_fillers(item) for item in topic.partitions} == {0: 181, 1: 0}
    [piece] = topic.partitions[0].slices
    # Of a part that is cut, it is not known how many records are left.
    assert most_fillers([replace(piece, high=150)]) == 150
    dense = restore_plan.shaped(_plan_again(tmp_path), NOTHING, {}, offsets=OffsetMode.DENSE)
    assert [dense.topics[0].most_fillers(item) for item in dense.topics[0].partitions] == [0, 0]


def _compacted(plan: RestorePlan) -> RestorePlan:
    config = {"cleanup.policy": "compact"}
    topics = [replace(topic, source=replace(topic.source, config=config)) for topic in plan.topics]
    return replace(plan, topics=tuple(topics))


def test_the_plan_warns_of_fillers(tmp_path: Path) -> None:
    """Of those between records: applications see them for a while."""
    exact = restore_plan.shaped(_compacted(_plan(tmp_path, range(0, 9, 3))), NOTHING, {}, offsets=OffsetMode.EXACT)
    assert [text for text in exact.warnings() if "fillers" in text and "cleaner" in text]
    floor = restore_plan.shaped(_plan_again(tmp_path), NOTHING, {})
    assert not [text for text in floor.warnings() if "fillers" in text]


def test_fillers_that_are_deleted_need_no_warning(tmp_path: Path) -> None:
    """Those below the first record, which is all of them where the others have no gaps."""
    plan = _compacted(_plan(tmp_path, range(100, 109)))
    exact = restore_plan.shaped(plan, NOTHING, {}, offsets=OffsetMode.EXACT)
    assert max(map(exact.topics[0].most_fillers, exact.topics[0].partitions)) == 100
    assert not [text for text in exact.warnings() if "fillers" in text]


def test_exact_offsets_need_a_log_that_begins_at_0(tmp_path: Path) -> None:
    """An empty topic is not enough: offsets that were given once are not given again."""
    plan = _compacted(_plan(tmp_path, range(5)))
    exact = restore_plan.shaped(plan, NOTHING, {}, offsets=OffsetMode.EXACT)
    used = TargetTopic(
        name="orders", topic_id="x", replication_factor=1, config={}, starts={0: 0, 1: 4}, ends={0: 0, 1: 4}
    )
    with pytest.raises(RefusedError) as refused:
        restore_plan.refuse_unless_empty(used, exact)
    assert refused.value.code == "TDM-R130"
    restore_plan.refuse_unless_empty(replace(used, starts={0: 0, 1: 0}, ends={0: 0, 1: 0}), exact)
    restore_plan.refuse_unless_empty(used, restore_plan.shaped(plan, NOTHING, {}))


def _plan_again(folder: Path) -> RestorePlan:
    return make_plan(ChainReader(open_store(f"file://{folder}"), PAIR).refresh(), pair=PAIR, naming=TopicNaming())


def test_another_mode_is_another_plan(tmp_path: Path) -> None:
    """A run that has written fillers is not resumed as one that has not; where there is no choice, nothing differs."""
    plan = _plan(tmp_path, range(5))
    floor = restore_plan.shaped(plan, NOTHING, {})
    dense = restore_plan.shaped(plan, NOTHING, {}, offsets=OffsetMode.DENSE)
    assert floor.hash == plan.hash != dense.hash
    exact = restore_plan.shaped(_compacted(plan), NOTHING, {}, offsets=OffsetMode.EXACT)
    assert len({floor.hash, dense.hash, exact.hash}) == 3
    some = RecordChanges(latest=True)
    chosen = restore_plan.shaped(plan, some, {}, offsets=OffsetMode.DENSE)
    assert restore_plan.shaped(plan, some, {}).hash == chosen.hash


def test_a_plan_file_says_it(tmp_path: Path) -> None:
    """And how many fillers were agreed to."""
    plan = _plan(tmp_path, range(5))
    for options in (
        RestoreOptions(),
        RestoreOptions(offsets=OffsetMode.DENSE, max_fill=7),
        RestoreOptions(offsets=OffsetMode.EXACT),
    ):
        found = plan_file.decode(plan_file.encode(plan, options), "here", pair=PAIR)
        assert (found.offsets, found.max_fill) == (options.offsets, options.max_fill)
