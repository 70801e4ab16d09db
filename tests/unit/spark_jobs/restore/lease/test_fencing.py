"""Fencing the tasks of restores: in threads, and whoever waits for them can be interrupted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import ClassVar

import pytest
from support.restores.records import plan_state

from tandem.spark_jobs.restore.lease import fencing
from tandem.spark_jobs.restore.lease.fencing import fence, fence_all
from tandem.spark_jobs.restore.progress.batch_producer import ProduceError

_STATE = plan_state(basis={1: 1}, targets={"t": "id"}, sources={"id-1": 40})


class Fences:
    """Stands in for `fence`. Each waits until it may `go`, but for the `failing` ones."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.begun: list[str] = []
        self.given_up: list[Callable[[], bool]] = []
        self.failing: set[int] = set()

    def __call__(self, props: object, name: str, *, given_up: Callable[[], bool]) -> None:
        del props
        self.given_up.append(given_up)
        self.begun.append(name)
        if len(self.begun) - 1 in self.failing:
            raise ProduceError("no answer", code="TDM-X001")
        self.go.wait(60)


@pytest.fixture
def fences(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fences]:
    """A cluster whose transaction coordinators do not answer."""
    found = Fences()
    monkeypatch.setattr(fencing, "fence", found)
    yield found
    found.go.set()


def test_all_are_fenced(fences: Fences) -> None:
    """Each once, of all plans."""
    fences.go.set()
    fence_all({}, [_STATE, _STATE])
    assert len(fences.begun) == 80
    assert len(set(fences.begun)) == 40
    assert fences.given_up[0](), "nobody waits any more"
    fence_all({}, [])


def test_whoever_waits_can_be_interrupted(fences: Fences, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, whatever is under way; and nothing more is begun."""

    def interrupted(*_: object, **__: object) -> None:
        while len(fences.begun) < 8:
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(fencing, "SimpleQueue", type("Queue", (SimpleQueue,), {"get": interrupted}))
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        fence_all({}, [_STATE])
    assert time.monotonic() - began < 30
    fences.go.set()
    for thread in threading.enumerate():
        if thread.name.startswith("fence-"):
            thread.join(30)
    assert len(fences.begun) == 8


def test_the_first_that_fails_is_the_last_that_is_waited_for(fences: Fences) -> None:
    """Where a broker is away each takes minutes."""
    fences.failing = {3}
    began = time.monotonic()
    with pytest.raises(ProduceError, match="no answer"):
        fence_all({}, [_STATE])
    assert time.monotonic() - began < 30
    assert len(fences.begun) <= 8
    assert all(given_up() for given_up in fences.given_up), "none is tried again"


class Silent:
    """Stands in for a producer whose transaction coordinator does not answer."""

    tries: ClassVar[int] = 0

    def __init__(self, *_: object, **__: object) -> None:
        Silent.tries += 1

    def init_transactions(self) -> None:
        raise ProduceError("no answer", code="TDM-X001")

    def discard(self) -> None:
        """Nothing is open."""


def test_what_nobody_waits_for_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It might end what a later attempt has begun under the same id."""
    monkeypatch.setattr(fencing, "BatchProducer", Silent)
    Silent.tries = 0
    with pytest.raises(ProduceError, match="no answer"):
        fence({}, "id", given_up=lambda: Silent.tries == 3)
    assert Silent.tries == 3
