"""A merger over a backup in a store in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from support.backups.build_backup import Backup, TopicSpec, records
from support.pipeline.doubles import MemoryStore
from tandem.sink.store.chain.chain_writer import ChainWriter
from tandem.sink.write.commit import Task
from tandem.sink.write.merge import Merger
from tandem.sink.write.merge_plan import MergeRules

RULES = MergeRules(fan_in=3, smallest=1000, own_bytes=400, limit=4000, most_runs=9)

TOPICS = [TopicSpec("t", partitions=3), TopicSpec("u")]


@dataclass
class AtOnce:
    """Appends in the caller's thread. `meanwhile` is done before each."""

    writer: ChainWriter
    error: Exception | None = None
    meanwhile: list[Task] = field(default_factory=list)

    def request(self, task: Task) -> None:
        while self.meanwhile:
            self.meanwhile.pop()(self.writer)
        task(self.writer)


def merger(backup: Backup, rules: MergeRules = RULES, committer: Any = None, turn: Any = None) -> Merger:
    """A merger of a backup that is not written to meanwhile."""
    return Merger(
        writer=backup.writer,
        store=backup.store,
        committer=committer or AtOnce(backup.writer),
        rules=rules,
        name="merge",
        turn=turn,
    )


def to_the_end(it: Merger) -> int:
    """Merge until there is nothing to merge; return how often that was."""
    steps = 0
    while it.step():
        steps += 1
        assert steps < 100
    return steps


def backup_of(store: MemoryStore, commits: int, *, journal: bool, size: int = 2) -> Backup:
    """A complete generation of many small commits."""
    it = Backup.claim(store, topics=TOPICS)
    for n in range(commits):
        low = n * size
        batch = [record for p in range(3) for record in records("t", p, range(low, low + size), tombstones=[low])]
        it.commit([*batch, *records("u", 0, range(low, low + size))], journal=journal, base_end={("t", 0): size})
    it.complete()
    return it
