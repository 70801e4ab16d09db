"""From which offsets on a topic was compacted only, folded from the policies and log starts that entries tell of."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.backups.chains import OPENING, Chain, key, position, topic

from tandem.backup_avro.chain.entries import EntryKind
from tandem.backup_avro.chain.snapshot import dump_state
from tandem.backup_avro.selection.vanished_keys import known_compaction

K, OTHER = key(), key("t", 1)


def told(chain: Chain, policy: str, **positions: int) -> Chain:
    """A commit with the topic's policy, and with log starts."""
    changed = replace(topic(partitions=2), config={"cleanup.policy": policy})
    of = {"first": K, "second": OTHER}
    here = {of[name]: position(20 + chain.state.seq, log_start=start) for name, start in positions.items()}
    return chain.append(EntryKind.COMMIT, topics=(changed,), positions=here)


def test_it_is_the_log_start_when_the_policy_was_first_compact_alone() -> None:
    """Whatever comes later: a spell of another policy may move the log start."""
    chain = told(Chain().open(), "compact", first=0)
    assert chain.state.compacted_from == {K: 0}
    told(chain, "compact,delete", first=7, second=7)
    assert chain.state.compacted_from == {K: 0}
    told(chain, "compact", first=8)
    assert chain.state.compacted_from == {K: 0, OTHER: 7}


def test_what_a_policy_deleted_before_does_not_count() -> None:
    """A topic that was made with the wrong policy: what had expired by then was no loss."""
    chain = told(Chain().open(), "delete", first=5, second=-1)
    assert chain.state.compacted_from == {}
    told(chain, "compact")
    assert chain.state.compacted_from == {K: 5, OTHER: 0}
    copy = chain.state.frozen_copy()
    told(chain, "compact", first=6)
    assert copy.compacted_from == {K: 5, OTHER: 0}


def test_a_reader_that_begins_with_a_snapshot_knows_it_too() -> None:
    """It is a part of the state."""
    chain = told(Chain().open(), "compact", first=0)
    told(chain, "compact,delete", first=7)
    entry = chain.snapshot()
    chain.put(entry)
    assert chain.begun(entry) == chain.state
    assert chain.state.compacted_from == {K: 0}


@pytest.mark.parametrize(("policy", "found"), [("compact", {K: 7}), ("compact,delete", {})])
def test_a_snapshot_of_an_earlier_release(policy: str, found: object) -> None:
    """From there on all readers use what it tells of policy and log start."""
    chain = told(told(Chain().open(), "compact", first=0), policy, first=7)
    old = {name: value for name, value in dump_state(chain.state).items() if name != "compacted_from"}
    entry = chain.snapshot(folded=old)
    assert chain.state.compacted_from == {K: 0}
    chain.put(entry)
    assert chain.state.compacted_from == found
    assert chain.begun(entry) == chain.state


def test_a_generation_remembers_what_earlier_ones_have_seen() -> None:
    """Until it sees such a policy itself; only of partitions that it has read. A SNAPSHOT has it too."""
    before = replace(OPENING, compacted_from={K: (3, 1), OTHER: (4, 1)})
    chain = told(Chain(2).append(EntryKind.OPEN, opening=before), "compact,delete", first=7)
    assert (chain.state.compacted_since(K), chain.state.compacted_since(OTHER)) == ((3, 1), None)
    assert chain.state.opening == OPENING  # it goes with each piece of work on objects, and needs no partitions
    told(chain, "compact", first=8)
    assert (chain.state.compacted_since(K), chain.state.compacted_since(OTHER)) == ((8, 2), None)
    entry = chain.snapshot()
    chain.put(entry)
    assert chain.begun(entry) == chain.state


def test_the_last_generation_that_has_seen_such_a_policy_is_told_of() -> None:
    """Whether it saw it itself or was told."""
    first = told(Chain().open(), "compact", first=0)
    opening = replace(OPENING, compacted_from={K: (2, 2)})
    third = told(Chain(3).append(EntryKind.OPEN, opening=opening), "delete", first=5)
    assert known_compaction([first.state, third.state]) == {K: (2, 2)}
    assert known_compaction([third.state, first.state]) == {K: (2, 2)}
    assert known_compaction([first.state]) == {K: (0, 1)}
