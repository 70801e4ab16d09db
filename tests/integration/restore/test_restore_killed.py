"""Restores whose driver is killed with SIGKILL at random moments, again and again, on a real broker."""

from __future__ import annotations

import collections
import json
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.clusters.topics import TopicMaker
from support.pairs.sessions import kill_session
from support.restores.cases import ends_of, last_offset, read_all, read_with_offsets, rows_of
from support.restores.records import load_task, plan_state
from support.restores.restore_plans import make_plan

from tandem.controller.sandbox.kafka import KafkaServer
from tandem.sink.store import StoreAccess, open_store
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.spark_jobs.reading.object_reader import StoreAddress
from tandem.spark_jobs.restore.check.check_partition import (
    CheckTask,
    ExpectedRecords,
    check_partition,
    map_tasks,
    stretches,
)
from tandem.spark_jobs.restore.check.written_ranges import WrittenRanges
from tandem.spark_jobs.restore.lease import lease_record, progress_topic
from tandem.spark_jobs.restore.plan.plan import TopicNaming, transactional_id
from tandem.spark_jobs.restore.progress import offset_pages
from tandem.spark_jobs.restore.records.load_task import LoadPace, SourcePartition
from tandem.spark_jobs.restore.target.target_cluster import TargetCluster
from tandem.spark_jobs.spark.kafka_cluster import ClusterAddress

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.slow]

# More than the runs can load before they are killed.
_COUNT = 150_000

_WORKER_COUNT = 100_000
# So many fillers that a worker may be killed while it writes them.
_WORKER_FIRST = 4_000_000
# Killed, or stopped and woken up later, beside another one or when all is done.
_KILLS = 30

# Small batches and transactions, each waited for: slow enough to be hit in mid-way.
_DRIVER = """
import json, sys, time
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store import StoreAccess
from tandem.spark_jobs.reading.object_reader import StoreAddress
from tandem.spark_jobs.restore.job import RestoreRequest, restore
from tandem.spark_jobs.restore.report import RestoreListener
from tandem.spark_jobs.restore.plan.options import RestoreOptions
from tandem.spark_jobs.restore.records.load_task import LoadPace
from tandem.spark_jobs.restore.plan.plan import TopicNaming
from tandem.spark_jobs.restore.target.target_cluster import TargetCluster
from tandem.spark_jobs.spark.session import session

root, pair, servers, target = sys.argv[1:]

class Lines(RestoreListener):
    before = 0

    def phase(self, text):
        if text.startswith("resuming: "):
            self.before = int(text.split()[1])
        print(text, flush=True)

    def records(self, done, of):
        if done > self.before:
            print(f"committed {done}", flush=True)

address = StoreAddress(root=root, settings=StoreAccess())
pace = LoadPace(batch_records=40, in_flight_bytes=0, commit_seconds=0.2)
options = RestoreOptions(naming=TopicNaming(only=target), pace=pace)
with session("local[2,4]", name="killed") as spark:
    request = RestoreRequest(
        address=address, reader=ChainReader(address.open(), pair), target=TargetCluster({"bootstrap.servers": servers}),
        options=options, now=lambda: round(time.time() * 1000),
    )
    report = restore(spark, request, tell=Lines())
found = {"records": report.records, "resumed": report.resumed, "mismatches": len(report.mismatches)}
print(json.dumps(found), flush=True)
"""


class _Run:
    """One driver process and all that it starts: they share a session, whatever process groups they make."""

    def __init__(self, log: Path, *arguments: str) -> None:
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _DRIVER, *arguments],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(iter(self.process.stdout.readline, ""))

    def said(self, text: str) -> bool:
        """Whether a line with `text` came."""
        return any(text in line for line in self.lines)

    def wait_for(self, text: str, log: Path) -> None:
        """Wait until a line has `text`."""
        deadline = time.monotonic() + 120
        while not self.said(text):
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            assert self.process.poll() is None, log.read_text()[-3000:]
            time.sleep(0.02)

    def kill_driver(self) -> None:
        """Kill the Python driver alone: JVM and workers notice, or go on as zombies."""
        self.process.kill()
        self.process.wait()

    def kill_rest(self) -> None:
        """End what is left of its session."""
        kill_session(self.process.pid)


# One worker without Spark: it starts in a second, so it can be killed often.
_WORKER = """
import pickle, sys
from pathlib import Path
from tandem.spark_jobs.restore.load.load import load_partition

print("loading", flush=True)
print(pickle.dumps(load_partition(pickle.loads(Path(sys.argv[1]).read_bytes()))).hex())
"""


@pytest.mark.parametrize("exact", [False, True], ids=["floor", "exact"])
def test_a_worker_killed_or_stopped_at_any_moment(
    tmp_path: Path, kafka: KafkaServer, make_topic: TopicMaker, *, exact: bool
) -> None:
    """Killed, or asleep while others go on, again and again: each record is there once, in order, and is counted.

    Of those that sleep some wake up beside a later worker and some behind the last one: they can write nothing. With
    exact offsets, each record is at its source offset, and all wake up at the end: one that wakes up before a later
    worker has written shifts offsets, which ends that load.
    """
    (tmp_path / "store").mkdir()
    root = f"file://{tmp_path}/store"
    backup = Backup.claim(open_store(root), topics=[TopicSpec("orders")], block_records=200)
    offsets = range(_WORKER_FIRST, _WORKER_FIRST + 2 * _WORKER_COUNT, 2)
    items = records("orders", 0, offsets, tombstones=offsets[::10])
    backup.commit(items)
    backup.complete()
    target = TargetCluster({"bootstrap.servers": kafka.bootstrap})
    name = make_topic(compacted=False, config={"retention.ms": "-1"})
    found = target.look([name])[name]
    reader = ChainReader(open_store(root), PAIR)
    plan = make_plan(reader.refresh(), pair=PAIR, naming=TopicNaming(only=name))
    [topic] = plan.topics
    spread = progress_topic.ensure_topic(target.admin, brokers=1, largest=0)
    state = plan_state(
        plan=plan.hash,
        run="one",
        basis=plan.basis,
        targets={name: found.topic_id},
        sources={topic.source.topic_id: 1},
        spread=spread,
    )
    lease_record.write_phase(target, None, state)
    task = load_task(
        plan=plan.hash,
        run="one",
        restore="r1",
        topic="orders",
        topic_id=topic.source.topic_id,
        sources=(SourcePartition(partition=0, slices=topic.partitions[0].slices),),
        target=name,
        target_topic_id=found.topic_id,
        transactional_id=transactional_id(plan.hash, topic.source.topic_id, 0),
        spread=spread,
        alone=True,
        floor=not exact,
        exact=exact,
        store=StoreAddress(root=root, settings=StoreAccess()),
        cluster=ClusterAddress(props=target.props),
        pace=LoadPace(batch_records=8, in_flight_bytes=0, commit_seconds=0.1),
    )
    (tmp_path / "task").write_bytes(pickle.dumps(task))
    command = [sys.executable, "-c", _WORKER, str(tmp_path / "task")]
    dice = random.Random(name)
    ended: list[str] = []
    asleep: list[subprocess.Popen[bytes]] = []

    def wake_up(worker: subprocess.Popen[bytes]) -> None:
        """Let it go on, beside or behind a later one: it ends soon, whatever it was about to write."""
        worker.send_signal(signal.SIGCONT)
        worker.wait(120)
        ended.append("woken")

    with ThreadPoolExecutor(_KILLS) as beside:
        for number in range(_KILLS):
            worker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            assert worker.stdout is not None
            worker.stdout.readline()
            if asleep and not exact and not dice.randrange(3):
                beside.submit(wake_up, asleep.pop(dice.randrange(len(asleep))))
            # Now at any moment, now soon after it has written fillers or records, however slow the machine is.
            before = target.look([name])[name].ends[0]
            if number % 4 == 3:
                before = max(before, offsets[-1] + 1 - _WORKER_COUNT)
            while number % 2 and worker.poll() is None and target.look([name])[name].ends[0] <= before:
                time.sleep(0.05)
            try:
                worker.wait(dice.uniform(0.0, 0.3 if number % 2 else 2.0))
            except subprocess.TimeoutExpired:
                if dice.randrange(2):
                    worker.kill()
                    worker.wait()
                    ended.append("killed")
                else:
                    worker.send_signal(signal.SIGSTOP)
                    asleep.append(worker)
                    ended.append("asleep")
        late = asleep if exact else asleep[::2]
        for worker in () if exact else asleep[1::2]:
            beside.submit(wake_up, worker)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    loaded = pickle.loads(bytes.fromhex(done.stdout.removeprefix("loading\n")))
    for worker in late:
        wake_up(worker)
    counts = collections.Counter(ended)
    assert counts["killed"] >= _KILLS // 6
    assert counts["asleep"] == counts["woken"] >= _KILLS // 6
    assert (loaded.records, loaded.tombstones) == (_WORKER_COUNT, _WORKER_COUNT // 10)
    assert loaded.resumed > 0
    found_rows = [one for one in read_with_offsets(kafka.bootstrap, name, 0) if one[1][1] is not None]
    assert [row for _, row in found_rows] == rows_of(items)
    looked = target.look([name])[name]
    start, end = looked.starts[0], looked.ends[0]
    assert start == (offsets[0] if exact else offsets[-1] + 1 - _WORKER_COUNT)
    if exact:
        assert [offset for offset, _ in found_rows] == list(offsets)
    assert loaded.strands[0].last == end - 1, "something lies behind the last record"
    check_task = CheckTask(
        target=name,
        target_topic_id=found.topic_id,
        partition=0,
        start=start,
        end=end,
        expected=(
            ExpectedRecords(
                what="it",
                records=end - start if exact else loaded.records,
                hash=loaded.strands[0].hash,
                first=loaded.strands[0].first,
                last=loaded.strands[0].last,
                page=loaded.page,
            ),
        ),
        among_others=False,
        shared=False,
        alone=True,
        exact=exact,
        cluster=task.cluster,
    )
    assert [item.same for item in check_partition(check_task)] == [True]
    moved = replace(check_task.expected[0], first=start + 1)
    shifted = [(item.shifted, item.same) for item in check_partition(replace(check_task, expected=(moved,)))]
    assert shifted == [(exact, not exact)]
    # By the rows of the offset map the same records are found again.
    shared = replace(check_task, shared=True)
    [map_task] = map_tasks([shared], task.store, pair=task.pair, restore=task.restore or "")
    written = WrittenRanges(stretch for number, stretch in stretches(map_task) if number == 0)
    assert [item.same for item in check_partition(shared, written)] == [True]
    store = task.store.open()
    rows = sorted(offset_pages.read(store, loaded.page, pair=task.pair, restore=task.restore or ""))
    assert sum(row.records for row in rows) == (end - start if exact else _WORKER_COUNT)
    assert all(before.last < after.first and before.end <= after.base for before, after in pairwise(rows))
    assert all(row.end > row.last and row.base >= row.first for row in rows)


def test_nothing_is_lost_and_nothing_is_twice(tmp_path: Path, kafka: KafkaServer, topic_name: str) -> None:
    """Killed again and again, the same command ends with exactly the records of the backup, in order."""
    (tmp_path / "store").mkdir()
    store = open_store(f"file://{tmp_path}/store")
    backup = Backup.claim(store, topics=[TopicSpec(topic_name, partitions=2)], block_records=200)
    parts = [records(topic_name, number, range(number, _COUNT, 2)) for number in range(2)]
    backup.commit([*parts[0][:7000], *parts[1][:9000]])
    backup.commit([*parts[0][7000:], *parts[1][9000:]])
    backup.complete()
    target = f"{topic_name}.restored"
    dice = random.Random(topic_name)
    log = tmp_path / "driver.log"
    arguments = (f"file://{tmp_path}/store", PAIR, kafka.bootstrap, target)
    left: list[_Run] = []
    # Once before anything is committed, then in the midst of transactions; the last run is left alone.
    waits = ["loading", "committed", "committed"]
    try:
        for number, sign in enumerate(waits):
            run = _Run(log, *arguments)
            left.append(run)
            run.wait_for(sign, log)
            time.sleep(dice.uniform(0, 1.0))
            assert run.process.poll() is None, f"run {number} ended before it was killed: too few records"
            run.kill_driver()
            # The backup grows meanwhile; the plan that was begun is resumed all the same.
            backup.commit(records(topic_name, 0, range(_COUNT + 10 * number, _COUNT + 10 * number + 10)))
        last = _Run(log, *arguments)
        left.append(last)
        assert last.process.wait(200) == 0, log.read_text()[-3000:]
        last._reader.join(10)
        report = json.loads(last.lines[-1])
        assert report == {"records": _COUNT, "resumed": report["resumed"], "mismatches": 0}
        assert 0 < report["resumed"] < _COUNT
        for number in range(2):
            assert read_all(kafka.bootstrap, target, number) == rows_of(parts[number])
            assert last_offset(kafka.bootstrap, target, number) == ends_of(kafka.bootstrap, target)[number] - 1
    finally:
        for run in left:
            run.kill_rest()
