"""The newest state of which an incomplete copy of a bucket has everything, and a restore of it.

Histories are random: commits, merges, SNAPSHOTs, objects that retention deletes. Then entries and objects of the last
while are missing, any of them. What each entry's state was is noted while the chain is written, not read from it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from support.backups.build_backup import PAIR, Backup, TopicSpec, records
from support.backups.witness import rows_of
from support.pipeline.doubles import MemoryStore

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import EntryKind, StoredObject
from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.record.current import Record
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.sink.store.chain.intact_state import newest_intact
from tandem.spark_jobs.reading.wanted_state import StateRequest
from tandem.spark_jobs.state.find_state import find_state

PARTITIONS = 2


@dataclass
class History:
    """A generation that grows; `objects` and `ends` of its partitions after each entry, `moments` are restorable."""

    rng: random.Random
    store: MemoryStore = field(default_factory=MemoryStore)
    live: dict[int, list[tuple[StoredObject, list[Record]]]] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)
    objects: dict[int, set[str]] = field(default_factory=dict)
    ends: dict[int, dict[int, int]] = field(default_factory=dict)
    moments: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.backup = Backup.claim(self.store, topics=[TopicSpec("t", partitions=PARTITIONS)])
        self.live = {number: [] for number in range(PARTITIONS)}
        self.commit(range(PARTITIONS))
        self.backup.complete()
        self.note(moment=True)

    def note(self, *, moment: bool) -> None:
        """Note what the state is now."""
        seq = self.backup.writer.state.seq
        self.objects[seq] = {item.key for pieces in self.live.values() for item, _ in pieces}
        self.ends[seq] = {n: pieces[-1][1][-1].offset + 1 for n, pieces in self.live.items() if pieces}
        if moment:
            self.moments.append(seq)

    def commit(self, partitions: range) -> None:
        """Commit records of some partitions."""
        batch = {}
        for number in partitions:
            pieces = self.live[number]
            begin = pieces[-1][1][-1].offset + 1 if pieces else 0
            batch[number] = records("t", number, range(begin, begin + self.rng.randint(1, 4)))
        entry = self.backup.commit([record for some in batch.values() for record in some])
        for item in entry.objects:
            self.live[item.parts[0].key.partition].append((item, batch[item.parts[0].key.partition]))

    def merge(self, number: int) -> None:
        """Put the last few objects of a partition into one, as an instance does."""
        taken = self.live[number][-self.rng.randint(2, 3) :]
        together = [record for _, some in taken for record in some]
        item = self.backup.put_object([(("t", number), together, None)], journal=False)
        names = tuple(old.key for old, _ in taken)
        self.backup.append(EntryKind.REWRITE, objects=(item,), replaced=names, reason="merged")
        self.live[number][-len(taken) :] = [(item, together)]
        self.gone += names

    def step(self) -> None:
        """Do one of the things that a generation does."""
        chance = self.rng.random()
        number = self.rng.randrange(PARTITIONS)
        if chance < 0.25 and len(self.live[number]) > 3:
            self.merge(number)
            self.note(moment=False)
        elif chance < 0.35:
            self.backup.append(EntryKind.SNAPSHOT)
            self.note(moment=False)
        else:
            self.commit(range(number, self.rng.randint(number + 1, PARTITIONS)))
            self.note(moment=True)

    def lose(self) -> None:
        """Take away what a replica does not have yet, and what retention deleted in both."""
        head = self.backup.writer.state.seq
        recent = range(max(1, head - self.rng.randint(0, 8)), head + 1)
        for seq in recent:
            if self.rng.random() < 0.2:
                del self.store.objects[layout.entry_key(PAIR, 1, seq)]
        late = sorted(self.objects[head] - self.objects[recent[0]]) if recent[0] in self.objects else []
        lost = {key for key in late if self.rng.random() < 0.3}
        lost |= {key for key in self.gone if self.rng.random() < 0.2}
        for key in lost:
            del self.store.objects[key]

    def newest_whole(self) -> int | None:
        """The last moment with all entries up to it, and all of its objects."""
        found = None
        for seq in range(1, self.backup.writer.state.seq + 1):
            if layout.entry_key(PAIR, 1, seq) not in self.store.objects:
                break
            if seq in self.moments and self.objects[seq] <= self.store.objects.keys():
                found = seq
        return found

    def rows(self, entry: int) -> list[tuple[int, int]]:
        """Partition and offset of each record that was committed up to an entry."""
        return sorted((number, offset) for number, end in self.ends[entry].items() for offset in range(end))


def restored(history: History, entry: int) -> list[tuple[int, int]]:
    """What a restore of that entry reads."""
    found = find_state(ChainReader(history.store, PAIR), StateRequest(generation=1, commit=entry))
    selection = found.select(wanted=lambda _: True, removed=False)
    return sorted((row.partition, row.offset) for row in rows_of(history.store, selection))


@pytest.mark.parametrize("seed", range(60))
def test_what_a_replica_has_of_a_generation(seed: int) -> None:
    """No newer moment is whole, and that one is restored with each of its records."""
    history = History(random.Random(seed))
    for _ in range(history.rng.randint(5, 25)):
        history.step()
    history.lose()
    found = newest_intact(ChainReader(history.store, PAIR), 1)
    whole = history.newest_whole()
    assert whole is None or found is not None
    if found is not None:
        assert found.entry >= (whole or 0)  # a SNAPSHOT may stand for entries before it
        assert found.entry in history.moments
        assert history.objects[found.entry] <= history.store.objects.keys()
        assert restored(history, found.entry) == history.rows(found.entry)
        assert newest_intact(ChainReader(history.store, PAIR), 1, without=history.objects[found.entry]) != found


def test_the_newest_state_is_refused_with_a_gap() -> None:
    """Only a person who names an entry gets what lies before the gap, and nothing at or behind it."""
    history = History(random.Random(1))
    for _ in range(3):
        history.commit(range(PARTITIONS))
        history.note(moment=True)
    before, gap, behind = history.moments[-3:]
    del history.store.objects[layout.entry_key(PAIR, 1, gap)]
    assert restored(history, before) == history.rows(before)
    for request in (StateRequest(), StateRequest(generation=1)):
        with pytest.raises(DamagedError, match="is missing"):
            find_state(ChainReader(history.store, PAIR), request)
    for entry in (gap, behind):
        with pytest.raises(Exception, match=r"not a restorable moment|is missing"):
            restored(history, entry)
