"""What is merged next, by sizes alone: who leaves a journal, who stays, and how large what is written becomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from support.backups.chains import Chain, key, part, position

from tandem.backup_avro.chain import layout
from tandem.backup_avro.chain.entries import PartitionKey, StoredObject
from tandem.sink.write.merge_plan import Merge, MergeOutput, MergeRules, plan_merge

RULES = MergeRules(fan_in=2, smallest=1000, own_bytes=100, limit=1000, most_runs=9)


def merge_of(*journals: Mapping[int, int], rules: MergeRules = RULES) -> Merge:
    """The merge of these journals, given as bytes by partition. Each has one record of every one of its partitions."""
    chain = Chain().open()
    for number, sizes in enumerate(journals, 1):
        place = f"{layout.data_prefix(chain.state.claim.pair, 'a', 1)}journal/{number:020}+{number:016x}.avro"
        at, parts = 100, []
        for partition, size in sizes.items():
            parts.append(replace(part(number, number, of=key(partition=partition), start=at), end=at + size))
            at += size
        item = StoredObject(
            key=place,
            journal=True,
            bytes=at,
            sha256="ab" * 32,
            parts=tuple(replace(one, sha256="cd" * 32) for one in parts),
        )
        chain.commit({one.key: position(number + 1) for one in parts}, objects=(item,))
    found = plan_merge(chain.state, rules)
    assert found is not None
    assert found.inputs == tuple(chain.state.objects.values())
    return found


def fitting(count: int, size: int) -> int:
    """How many of `count` objects of one partition, `size` bytes each, one merge takes where 200 are the limit."""
    chain = Chain().open()
    for number in range(count):
        stored = replace(part(number, number), start=10, end=size)
        one = replace(chain.object(stored), bytes=size)
        chain.commit({key(): position(number + 1)}, objects=(one,))
    found = plan_merge(chain.state, replace(RULES, limit=200))
    assert found is not None
    assert found.inputs == tuple(chain.state.objects.values())[: len(found.inputs)], "the oldest come first"
    return len(found.inputs)


def own_runs(*sizes: Sequence[int]) -> Chain:
    """A chain with objects of one partition each: of each partition these sizes, oldest first."""
    chain = Chain().open()
    for partition, of_one in enumerate(sizes):
        for number, size in enumerate(of_one):
            stored = replace(part(number, number, of=key(partition=partition)), start=10, end=size)
            one = replace(chain.object(stored, name=f"{partition}-{number}"), bytes=size)
            chain.commit({stored.key: position(number + 1)}, objects=(one,))
    return chain


def taken(*sizes: Sequence[int], rules: MergeRules = RULES) -> list[list[int]]:
    """How large what one merge takes is, by partition."""
    found = plan_merge(own_runs(*sizes).state, rules)
    inputs = () if found is None else found.inputs
    return [
        [item.bytes for item in inputs if item.parts[0].key == key(partition=number)] for number in range(len(sizes))
    ]


def partitions(output: MergeOutput) -> list[PartitionKey]:
    """Which partitions an output holds, in its order."""
    return list(dict.fromkeys(piece.part.key for group in output.groups for piece in group))


def offsets(output: MergeOutput) -> list[list[int]]:
    """The first offsets of the pieces, by group."""
    return [[piece.part.first for piece in group] for group in output.groups]


def test_a_partition_of_some_size_gets_an_object_of_its_own() -> None:
    """From `own_bytes` on, all journals taken together; the others share one that has the place of the newest."""
    own, shared = merge_of({0: 50, 1: 49}, {0: 50, 1: 50}).outputs
    assert (own.place, partitions(own), offsets(own)) == (None, [key(partition=0)], [[1, 2]])
    assert (shared.place, partitions(shared), offsets(shared)) == (2, [key(partition=1)], [[1, 2]])


def test_a_journal_stays_within_the_limit() -> None:
    """As much as the limit is shared; where it is more, the largest leave, in whatever order partitions come."""
    rules = replace(RULES, own_bytes=150, limit=200)
    (shared,) = merge_of({0: 50, 1: 50}, {0: 50, 1: 50}, rules=rules).outputs
    assert (shared.place, partitions(shared)) == (2, [key(partition=0), key(partition=1)])
    own, shared = merge_of({0: 40, 1: 70}, {0: 40, 1: 70}, rules=rules).outputs
    assert (own.place, partitions(own)) == (None, [key(partition=1)])
    assert (shared.place, partitions(shared)) == (2, [key(partition=0)])


def test_an_object_is_filled_up_to_the_limit() -> None:
    """Two pieces of 60 bytes are 120, so each two fill one; a piece beyond the limit stands alone."""
    fours = merge_of(*[{0: 60}] * 4, rules=replace(RULES, limit=120)).outputs
    assert [(output.place, offsets(output)) for output in fours] == [(None, [[1, 2]]), (None, [[3, 4]])]
    threes = merge_of(*[{0: 60}] * 4, rules=replace(RULES, limit=180)).outputs
    assert [offsets(output) for output in threes] == [[[1, 2, 3]], [[4]]]
    large = merge_of({0: 60}, {0: 200}, {0: 60}, {0: 60}, rules=replace(RULES, limit=120)).outputs
    assert [offsets(output) for output in large] == [[[1]], [[2]], [[3, 4]]]


def test_what_is_merged_of_one_partition_stays_within_the_limit() -> None:
    """Exactly the limit fits. Two are always less: each is below half of it."""
    assert fitting(4, 60) == 3
    assert fitting(5, 50) == 4
    assert fitting(4, 99) == 2


def test_one_merge_reads_about_so_much_of_partitions_own_objects() -> None:
    """Whole partitions, until it is so much; the next merge takes the others."""
    for most, merged in ((1, 1), (119, 1), (120, 1), (121, 2), (240, 2), (241, 3), (1000, 3)):
        found = taken([60, 60], [60, 60], [60, 60], rules=replace(RULES, most_bytes=most))
        assert found == [[60, 60]] * merged + [[]] * (3 - merged), most


def test_one_object_alone_is_not_merged_and_half_of_the_limit_is_left_alone() -> None:
    """Nor are runs of a size that would be written again and again."""
    assert taken([60], [60, 60]) == [[], [60, 60]]
    assert taken([60, 60], rules=replace(RULES, limit=120)) == [[]]
    assert taken([60, 60], rules=replace(RULES, limit=121)) == [[]]
    assert taken([60, 60], rules=replace(RULES, limit=122)) == [[60, 60]]


def test_runs_of_a_class_are_merged_before_larger_ones() -> None:
    """What is twice as large as the smallest waits for its like."""
    rules = replace(RULES, smallest=50)
    assert taken([200, 60, 60], rules=rules) == [[60, 60]]
    assert taken([150, 60, 60], rules=rules) == [[60, 60]]
    assert taken([200, 60], rules=rules) == [[200, 60]], "a class has what lies below it as well"
    assert taken([200, 60, 60], rules=replace(rules, fan_in=3, smallest=20)) == [[200, 60, 60]]
