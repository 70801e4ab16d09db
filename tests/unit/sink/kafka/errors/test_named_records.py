"""The record that a leader's index names, where it sends none: asked for, and how long a reader is held to it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import kafka.errors as kafka_errors
import pytest
from support.clusters.lookups import T1, Answer, Brokers, parts
from support.pipeline.doubles import evidence
from support.pipeline.lane_reader import T0, Reader

from tandem.backup_avro.errors import TransientError
from tandem.sink.kafka.errors.error_codes import ErrorCode
from tandem.sink.kafka.events import TopicPartition
from tandem.sink.process import clock
from tandem.sink.read import reader_context
from tandem.sink.read.reader_context import EmptyTail

PATIENCE_S = reader_context.NAMED_PATIENCE_S


# --- the question -----------------------------------------------------------------------------------------------------


class Leaders(Brokers):
    """Answers by the timestamp that is asked for: (version, {partition: (error, offset)}), or an error."""

    def __init__(self, answers: dict[int, tuple[int, dict[TopicPartition, tuple[ErrorCode, int]]] | Exception]) -> None:
        super().__init__(2)
        self.asked: list[tuple[int, list[int]]] = []
        self.answers = answers
        self._manager.send = self._send

    def _send(self, request: Any, node_id: int) -> Answer:
        del node_id
        [topic] = request.topics
        [timestamp] = {part.timestamp for part in topic.partitions}
        numbers = [part.partition_index for part in topic.partitions]
        self.asked.append((timestamp, numbers))
        answer = self.answers[timestamp]
        if isinstance(answer, Exception):
            raise answer
        version, found = answer
        told = [
            SimpleNamespace(
                partition_index=n,
                error_code=found[T0._replace(partition=n)][0],
                offset=found[T0._replace(partition=n)][1],
                leader_epoch=5,
            )
            for n in numbers
        ]
        return Answer(SimpleNamespace(API_VERSION=version, topics=[SimpleNamespace(name="t", partitions=told)]))

    def named(self) -> dict[TopicPartition, int]:
        """What they name of both partitions."""
        return asyncio.run(self.named_records(parts(2), clock.now() + 30))


def test_leaders_name_the_record_with_the_largest_timestamp() -> None:
    """Or that they have none."""
    leaders = Leaders({-3: (7, {T0: (ErrorCode.NONE, 41), T1: (ErrorCode.NONE, -1)})})
    assert leaders.named() == {T0: 41, T1: -1}
    assert leaders.asked == [(-3, [0, 1])]


def test_leaders_that_do_not_know_it_name_their_first_record() -> None:
    """One that takes it for a time, and one that refuses it."""
    first = (6, {T0: (ErrorCode.NONE, 3), T1: (ErrorCode.NONE, 0)})
    assert Leaders({-3: (6, {T0: (ErrorCode.NONE, 0), T1: (ErrorCode.NONE, 0)}), 0: first}).named() == {T0: 3, T1: 0}
    refused = Leaders({-3: (10, {T0: (ErrorCode.NONE, 41), T1: (ErrorCode.UNSUPPORTED_VERSION, -1)}), 0: first})
    assert refused.named() == {T0: 41, T1: 0}
    assert refused.asked == [(-3, [0, 1]), (0, [1])]


def test_of_a_leader_that_knows_neither_nothing_is_expected() -> None:
    """What may pass is not known now; an old message format has no times."""
    old = {T0: (ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, -1), T1: (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)}
    assert Leaders({-3: (7, old), 0: (7, old)}).named() == {T0: -1}
    broken = kafka_errors.KafkaConnectionError("gone")
    assert Leaders({-3: broken, 0: broken}).named() == {}


def test_a_partition_without_a_leader_names_nothing() -> None:
    """It is not waited for."""
    brokers = Brokers(1, leaderless=[0])
    assert asyncio.run(brokers.named_records([T0], clock.now() + 30)) == {}


# --- what lanes do with the answer ------------------------------------------------------------------------------------


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, in a list of one; it stands still."""
    now = [1000.0]
    monkeypatch.setattr(clock, "now", lambda: now[0])
    return now


def again(reader: Reader) -> None:
    """It is answered so often enough once more."""
    reader.take(evidence(clock.now()))


@pytest.mark.parametrize("tail", [True, False])
def test_a_record_that_the_leader_names_is_waited_for(tail: bool, at: list[float]) -> None:
    """For a while: an index may be wrong, and a partition must not stand still for ever."""
    it = Reader(tail=tail, limit_s=1000.0)
    it.source.named[T0] = 4
    again(it)
    assert not it.through
    [trouble] = it.context.trouble.values()
    assert trouble.startswith(
        "t-0: nothing comes of offsets 0 to 9, but its leader names the record at offset 4; for 240 s it is asked again"
    )
    at[0] += PATIENCE_S - 1
    again(it)
    assert not it.through
    at[0] += 1
    again(it)
    assert it.through
    assert it.skipped == [9]


def test_a_chunk_that_took_too_long_meanwhile_is_not_held_up_once_more(at: list[float]) -> None:
    """It is read again, and what was waited for is remembered."""
    it = Reader(tail=False)
    it.source.named[T0] = 4
    again(it)
    at[0] += PATIENCE_S
    again(it)
    assert not it.through
    for _ in range(9):
        if not it.through:
            again(it)
    assert it.through


@pytest.mark.parametrize("tail", [True, False])
@pytest.mark.parametrize("named", [-1, 9, 12])
def test_a_record_that_lies_elsewhere_proves_nothing(tail: bool, named: int) -> None:
    """Behind the end of the range, or nowhere."""
    it = Reader(tail=tail)
    it.source.named[T0] = named
    again(it)
    assert it.through


def test_another_record_is_waited_for_anew(at: list[float]) -> None:
    """The index changes, so the broker lives."""
    it = Reader(tail=True)
    it.source.named[T0] = 4
    again(it)
    at[0] += PATIENCE_S - 1
    it.source.named[T0] = 5
    again(it)
    at[0] += PATIENCE_S - 1
    again(it)
    assert not it.through
    it.source.named[T0] = -1
    again(it)
    assert it.through


@pytest.mark.parametrize("tail", [True, False])
@pytest.mark.parametrize("error", [None, TransientError("no answer", code="TDM-X001")])
def test_a_leader_that_does_not_answer_is_waited_for_as_well(
    tail: bool, error: Exception | None, at: list[float]
) -> None:
    """Together with what it names once it does."""
    it = Reader(tail=tail, limit_s=1000.0)
    it.source.unnamed = error is None
    it.source.name_error = error
    again(it)
    assert not it.through
    [trouble] = it.context.trouble.values()
    assert "and its leader does not say whether there is a record; for 240 s it is asked again" in trouble
    at[0] += PATIENCE_S / 2
    it.source.unnamed, it.source.name_error, it.source.named[T0] = False, None, 4
    again(it)
    it.source.unnamed = True
    again(it)
    at[0] += PATIENCE_S / 2
    again(it)
    assert it.through


def test_what_was_waited_for_outlasts_what_comes_from_below(at: list[float]) -> None:
    """Records of what lies below the range say nothing of it; those that come from within begin anew."""
    it = Reader(tail=True)
    seen = EmptyTail(start=4, end=9, requested=0.0, received=0.0, evidence=evidence(0.0), named=8)

    def goes_on() -> bool:
        return it.context.may_skip(it.progress, seen, to=9, tail=True)

    assert not goes_on()
    at[0] += PATIENCE_S
    it.context.reads_on(T0, tail=True, upto=4)
    assert goes_on()
    it.context.reads_on(T0, tail=True, upto=5)
    assert not goes_on()
    at[0] += PATIENCE_S
    assert goes_on()
    it.context.reads_on(T0, tail=True)
    assert not goes_on()
