"""What travels to a task of Spark: nothing of the other partitions of a journal."""

from __future__ import annotations

import pickle
from dataclasses import replace

from support.backups.chains import Chain, key, part, position

from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.selection.restorable_state import Slice
from tandem.sink.store import StoreAccess
from tandem.spark_jobs.reading.object_reader import StoreAddress
from tandem.spark_jobs.reading.task_objects import with_used_parts_only
from tandem.spark_jobs.verify import compare_keys

MANY = 500
KEYS = [key(partition=number) for number in range(MANY)]


def journals(number: int, count: int = 8) -> Generation:
    """A generation of many partitions with a journal for each commit."""
    chain = Chain(number)
    chain.open()
    for commit in range(count):
        parts = [part(10 * commit, 10 * commit + 9, of=one, start=100 + 50 * place) for place, one in enumerate(KEYS)]
        chain.commit({one: position(10 * commit + 10) for one in KEYS}, *parts)
    chain.complete()
    return chain.state


def slices(state: Generation, partition: int) -> list[Slice]:
    """All of a partition, in offset order."""
    found = [(item, one) for item, one in state.live_parts() if one.key == KEYS[partition]]
    found.sort(key=lambda place: place[1].first)
    return [Slice(generation=1, opening=state.opening, item=item, part=one, low=0, high=1000) for item, one in found]


def test_a_task_carries_its_own_parts() -> None:
    """Of the rest of a journal nothing is named."""
    state = journals(1)
    for number in (0, 7, MANY - 1):
        given = slices(state, number)
        kept = with_used_parts_only(given)
        assert [(piece.part, piece.low, piece.high) for piece in kept] == [
            (piece.part, piece.low, piece.high) for piece in given
        ]
        for piece, whole in zip(kept, given, strict=True):
            assert {one.start for one in piece.item.parts} == {piece.part.start}
            assert (piece.item.key, piece.item.sha256) == (whole.item.key, whole.item.sha256)
        assert len(pickle.dumps(kept)) < len(pickle.dumps(given)) / 50


def test_the_order_stays() -> None:
    """Between two pieces of one object may lie one of another: offsets must not go back."""
    state = journals(1, count=2)
    first, second = slices(state, 3)
    mixed = [first, second, replace(first, low=1000, high=2000)]
    assert [(piece.item.key, piece.low) for piece in with_used_parts_only(mixed)] == [
        (piece.item.key, piece.low) for piece in mixed
    ]


def test_an_object_of_one_part_is_left_alone() -> None:
    """There is nothing to take out."""
    chain = Chain(1)
    chain.open()
    chain.commit({KEYS[0]: position(10)}, part(0, 9, of=KEYS[0]))
    [piece] = with_used_parts_only(slices(chain.state, 0))
    assert piece.item in chain.state.objects.values()


def test_comparisons_of_generations_are_slim() -> None:
    """Both sides of each partition's task."""
    tasks, _ = compare_keys._overlap(
        journals(1), journals(2), StoreAddress(root="file:///nowhere", settings=StoreAccess())
    )
    assert len(tasks) == MANY
    assert max(len(pickle.dumps(task)) for task in tasks) < 20_000
