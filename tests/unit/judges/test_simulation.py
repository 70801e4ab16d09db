"""The simulation itself: one seed is one history, and it is able to fail."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from simulation import runtime
from simulation.directed import HISTORIES
from simulation.judge import Judge
from simulation.log import Cluster, Partition

from tandem.backup_avro.chain.entries import PartitionKey

ROOT = Path(__file__).parents[3]


def run(*arguments: str, code: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run the simulation in a process of its own, which it patches all through; `code` runs first.

    It imports what this process does: in a copy of the code, the copy.
    """
    begin, end = (
        "import sys\nfrom simulation import world\n",
        "\nfrom simulation.__main__ import main\nsys.exit(main())",
    )
    program = begin + (code or "") + end
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "0"},
    )


def test_a_seed_is_replayed_byte_for_byte() -> None:
    """Two processes tell the same story of a seed, another seed tells another one."""
    first, again, other = run("--seed", "7"), run("--seed", "7"), run("--seed", "8")
    assert first.returncode == 0, first.stdout[-2000:] + first.stderr[-2000:]
    assert first.stdout == again.stdout
    assert first.stdout != other.stdout
    assert "is Active" in first.stdout or "became" in first.stdout or "complete generation" in first.stdout


@pytest.mark.parametrize(
    ("mistake", "seeds"),
    [
        pytest.param(
            "from tandem.backup_avro.selection import coverage\n"
            "coverage.uncovered_partitions = lambda newer, older, guarded: []\n"
            "coverage.cover = lambda newer, older, key: coverage.Cover.COVERED",
            60,
            id="everything counts as covered",
        ),
        pytest.param(
            "import tandem.sink.write.commit as commit\ncommit.Committer._upload = lambda self, built: None",
            4,
            id="a commit names objects that were never stored",
        ),
    ],
)
def test_a_broken_rule_is_found(mistake: str, seeds: int) -> None:
    """With a rule taken away some history breaks the promise, and is told: its seed and its end."""
    found = run("--seeds", str(seeds), "--jobs", "1", "--stop-after", "1", code=mistake)
    assert found.returncode == 3, found.stdout + found.stderr
    assert "seed " in found.stdout


def test_an_instance_takes_no_role_that_the_table_does_not_lead_to() -> None:
    """With one transition taken out of the table of roles, both instances stop where they would need it."""
    mistake = (
        "from tandem.controller.decision import role_machine\n"
        "role_machine.TABLE = tuple(row for row in role_machine.TABLE if row[0] != 'claim')"
    )
    found = run("--seeds", "1", "--jobs", "1", code=mistake)
    assert found.returncode == 3, found.stdout + found.stderr
    assert "ValueError: no transition leads from Passive to Catch-up" in found.stdout
    assert "0 generations became COMPLETE" in found.stdout


def test_what_a_cleaner_took_may_be_lacking_though_a_new_disk_has_it_again() -> None:
    """The judges may not call certain what somebody may have read over in between (seeds 38705 and 70101)."""
    log = Partition(topic_id="t", number=0, retention_s=20.0)
    old, _new, last = (log.append(5, value) for value in (1, 2, 3))
    rng = random.Random(1)
    while old.offset in log.replicas[log.leader].records:
        log.clean(log.leader, 0.0, rng)
    assert old.offset in log.replicas[3 - log.leader].records
    log.come_back()
    assert all(old.offset in replica.records for replica in log.replicas.values())
    assert log.let_go == {old.offset}
    assert last.offset not in log.let_go
    assert log.passed_over(old, tail_from=old.offset)
    assert not log.passed_over(old, tail_from=old.offset + 1), "a scan that counts has read what superseded it"
    assert not log.passed_over(last, tail_from=0)
    log.cut(0)
    assert log.let_go == set()


def test_a_new_disk_has_no_tombstone_s_time_of_a_pass_that_has_not_come_to_it() -> None:
    """Else it would lose the tombstone at once with what that supersedes, which no broker does (seed 134228)."""
    for seed in range(100):
        log = Partition(topic_id="t", number=0, retention_s=20.0)
        old, tombstone, _other = (log.append(key, value) for key, value in ((5, 1), (5, None), (6, 1)))
        rng = random.Random(seed)
        log.clean(2, 0.0, rng)
        if log.replicas[2].passing is not None:
            break
    replica = log.replicas[2]
    assert old.offset in replica.records, "a pass has begun, and removed nothing"
    copy = replica.copied()
    log.replicas[1] = copy
    for when, gone in ((100.0, {old.offset}), (119.0, {old.offset}), (121.0, {old.offset, tombstone.offset})):
        for _ in range(50):
            log.clean(1, when, rng)
        assert {0, 1, 2} - copy.records.keys() == gone
    for _ in range(50):
        log.clean(2, 100.0, rng)
    assert replica.records.keys() == {2}, "the time of the replica's own pass is counted from its beginning"


def test_of_volumes_that_were_set_back_a_copy_knows_what_its_hashes_say() -> None:
    """The judge may not ask for more certainty than they give, and not for less (seed 15888)."""
    key = PartitionKey("t", 0)
    log = Partition(topic_id="t", number=0, retention_s=20.0)
    kept = [SimpleNamespace(offset=offset) for offset in (2, 4, 9)]
    tainted = SimpleNamespace(taints={key: SimpleNamespace(cut_at=5)}, positions={key: SimpleNamespace(hashes=kept)})
    sound = SimpleNamespace(taints={}, positions=tainted.positions)
    judge = Judge(Cluster(), cast("Any", None), "orders")
    everything = judge._known_up_to(key, log, cast("Any", sound))
    assert judge._known_up_to(key, log, cast("Any", tainted)) == everything, "nothing was set back"
    log.set_back_to.append(6)
    assert judge._known_up_to(key, log, cast("Any", sound)) == everything
    assert judge._known_up_to(key, log, cast("Any", tainted)) == 5
    log.set_back_to.append(4)
    assert judge._known_up_to(key, log, cast("Any", tainted)) == 3


def test_memory_is_given_back_twice_a_turn() -> None:
    """When a generation is complete, and when one has been cleared: not at each try, which may be every second.

    In the histories 1, 39 and 43 COMPLETE is tried several times.
    """
    look = (
        "from simulation.__main__ import play\n"
        "from tandem.controller.instance.act import InstanceTasks\n"
        "world.wire()\n"
        "real, cleared = InstanceTasks.clear, []\n"
        "InstanceTasks.clear = lambda *a, **k: (real(*a, **k), cleared.append(a))[0]\n"
        "for seed in (1, 4, 29, 39, 43):\n"
        "    cleared.clear()\n"
        "    outcome = play(seed, verbose=True)\n"
        "    complete = sum(' complete generation=' in line for line in outcome.lines)\n"
        "    given = outcome.counts['memory given back']\n"
        "    assert given == complete + len(cleared) > 0, f'seed {seed}: {given}, {complete} and {len(cleared)}'\n"
    )
    found = run("--seeds", "1", code=look)
    assert found.returncode == 0, found.stdout + found.stderr


def test_nothing_of_a_history_outlives_it() -> None:
    """What an ended history leaves behind would grow over thousands of seeds: its greenlets keep all they refer to."""
    look = (
        "import gc\n"
        "from simulation.__main__ import play\n"
        "world.wire()\n"
        "for seed in (1, 2):\n"
        "    play(seed)\n"
        "gc.collect()\n"
        "left = [item for item in gc.get_objects() if isinstance(item, world.World)]\n"
        "assert not left, f'{len(left)} are left'\n"
    )
    told = run("--seeds", "1", "--jobs", "1", code=look)
    assert told.returncode == 0, told.stdout + told.stderr


def test_without_the_coordination_topic_the_pair_goes_by_its_chains() -> None:
    """Nobody can ever read it: instances start, take turns when their peer seems dead, and keep the promise."""
    deaf = (
        "from simulation.board import Coordination\n"
        "Coordination.caught_up = property(lambda self: False, lambda self, value: None)\n"
        "Coordination._deliver = lambda self, data: None\n"
    )
    told = run("--seeds", "8", "--jobs", "1", code=deaf)
    assert told.returncode == 0, told.stdout + told.stderr
    assert "8 passed, 0 failed" in told.stdout


def test_directed_histories() -> None:
    """What was thought out to break a promise keeps it; `make test-all` plays more seeds."""
    told = run("--directed", "--seeds", "1")
    assert told.returncode == 0, told.stdout + told.stderr
    assert f"{len(HISTORIES)} passed, 0 failed" in told.stdout


def test_directed_histories_of_one_rule_fail_together() -> None:
    """Nobody asks the brokers about logs that were cut, or set back: three histories go by what they answer."""
    mistake = (
        "from tandem.controller.instance.act import InstanceTasks\n"
        "InstanceTasks.prove_cuts = lambda self, number: frozenset()\n"
    )
    told = run("--directed", "--seeds", "1", code=mistake)
    assert told.returncode == 3, told.stdout + told.stderr
    assert "a never became Active: the cut keeps it from COMPLETE" in told.stdout
    assert f"{len(HISTORIES) - 3} passed, 3 failed" in told.stdout


def test_a_restore_of_a_former_log_is_found() -> None:
    """When all trouble is over: here nobody is left to read the log as it is.

    What it has lost at its end, where nothing was written since, may follow.
    """
    history = (
        "from simulation import directed\n"
        "def former(seed):\n"
        "    stage = directed.Stage(seed, 'busy', 'idle')\n"
        "    stage.world.start('a')\n"
        "    directed.demand(stage.run(40, lambda: stage.complete('a')), 'a never became Active')\n"
        "    stage.kill_for_good('a')\n"
        "    stage.world.judge.check_present_logs()\n"
        "    stage.cut('idle', 17)\n"
        "    stage.world.judge.check_present_logs()\n"
        "    stage.set_back('idle', 12, more=3)\n"
        "    stage.world.judge.check_present_logs()\n"
        "    return stage.world\n"
        "directed.HISTORIES.clear()\n"
        "directed.HISTORIES['a former log'] = former\n"
    )
    told = run("--directed", "--seeds", "1", code=history)
    assert told.returncode == 3, told.stdout + told.stderr
    assert "a former log, seed 1: 04-0 restored up to 20 from generations (1,): " in told.stdout


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        pytest.param(
            "from tandem.controller.instance.act import InstanceTasks\n"
            "InstanceTasks._mark_in_time = lambda self, other, rewritten: None\n",
            "a never became Active: the mark of b's copy is waited for",
            id="nobody marks the copy of an instance that is gone for good",
        ),
        pytest.param(
            "from tandem.sink import pipeline\n"
            "from tandem.sink.read.progress.tombstone_guarantee import away_s\n"
            "pipeline.away_s = lambda **how: away_s(**how | {'skew': None})\n",
            "the store's clock hides an absence, seed 1: ",
            id="the store's clock alone says how long nobody read",
        ),
        pytest.param(
            "from tandem.sink import pipeline\n"
            "from tandem.sink.read.progress.tombstone_guarantee import away_s\n"
            "pipeline.away_s = lambda **how: away_s(**how | {'store_ms': how['local_ms'] - (how['skew'] or 0)})\n",
            "a machine's clock hides an absence, seed 1: ",
            id="the machine's clock alone does",
        ),
        pytest.param(
            "from tandem.sink.read.progress.partition_progress import PartitionProgress\n"
            "def guarantee(self, retention_s, *, now):\n"
            "    self.retention_s = self.held_to_s = retention_s\n"
            "PartitionProgress.set_guarantee = guarantee\n",
            "a longer promise hides an absence, seed 1: ",
            id="what was missed is judged by what is promised now",
        ),
        pytest.param(
            "from tandem.sink.read.progress.next_scan_range import ScanPlan\n"
            "ScanPlan.led_by = lambda self, leader, epoch: leader == self.base.leader\n",
            "a leader comes back with another log, seed 1: ",
            id="a base names a broker, not its epoch",
        ),
        pytest.param(
            "from tandem.sink.read.skip.copied_records import CopiedRecords\n"
            "CopiedRecords.proof = lambda self, *_, now: None\n",
            "records are withheld from a turn, seed 1: ",
            id="no other copy is asked for what brokers send nothing of",
        ),
        pytest.param(
            "from tandem.sink.read.progress.partition_progress import PartitionProgress\n"
            "PartitionProgress._proven = property(lambda self: True, lambda self, proven: None)\n",
            "an instance is suspended before it reads a base, seed 1: ",
            id="what was committed before its base was read is sound",
        ),
    ],
)
def test_a_directed_history_can_fail(mistake: str, said: str) -> None:
    """With a rule taken away the history that was thought out for it fails."""
    told = run("--directed", "--seeds", "1", code=mistake)
    assert told.returncode == 3, told.stdout + told.stderr
    assert said in told.stdout
    assert f"{len(HISTORIES) - 1} passed, 1 failed" in told.stdout


def test_two_processes_that_wait_for_each_other_are_seen() -> None:
    """Of two that hold a generation each, one must go on: with either waiting for the other, nobody takes the turn."""
    told = run(
        "--directed",
        "--seeds",
        "1",
        code="from tandem.controller.decision import decide\n"
        "first = decide._twin_first\n"
        "decide._twin_first = lambda foreign, held, seen, policy: first(foreign, [], seen, policy)\n",
    )
    assert told.returncode == 3, told.stdout + told.stderr
    assert "two processes of a wait for each other" in told.stdout


def test_a_sweep_that_takes_too_much_is_seen() -> None:
    """Of each key the newest record below the horizon is what every later moment needs."""
    told = run(
        "--directed",
        "--seeds",
        "1",
        code="from tandem.spark_jobs.retention import sweep_partition as sweep_records\n"
        "sweep_records._newest_first = lambda body, count: list(sweep_records.best_bodies().spans(body, count))\n",
    )
    assert told.returncode == 3, told.stdout + told.stderr
    assert "janitors beside an Active" in told.stdout


def test_threads_that_one_of_them_killed_are_let_go() -> None:
    """A thread that kills another process becomes what its threads go back to; the end must not wake it with them."""
    scheduler = runtime.Runtime(1)
    runtime.install(scheduler)
    victim, killer = runtime.Process("victim"), runtime.Process("killer")
    scheduler.spawn(victim, lambda: scheduler.park(None) and None)
    scheduler.run(until=1001.0)
    scheduler.spawn(killer, lambda: scheduler.kill(victim))
    scheduler.run(until=1002.0)
    assert len(scheduler.free) == 2
    scheduler.end()
    assert scheduler.free == []
