"""The network between one process and the servers: delays, silences, and answers that come too late or never."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from simulation.log import Partition
from simulation.runtime import Event, Process, Runtime
from tandem.sink.kafka.errors.cluster_errors import ClusterUnreachableError
from tandem.sink.store.contract.object_store import StoreDeniedError, StoreTransientError

_ANSWER_S = 2.0


@dataclass(slots=True)
class Weather:
    """How bad it is: shares of operations. One weather for both processes; outages are by process and until when."""

    store_error: float = 0.0
    lost_answer: float = 0.0
    late_write: float = 0.0
    slow_answer: float = 0.0
    lost_message: float = 0.0
    stray_message: float = 0.0
    crash_at_call: float = 0.0
    withheld: float = 0.0
    """Fetches from which on a broker sends nothing of a partition for a moment, though it has records."""
    withheld_long: float = 0.0
    """The share of those moments that last for up to 25 s, where leaders name the records that they do not send."""
    named: bool = True
    """Whether leaders name records in answers to ListOffsets (KIP-734)."""
    answers: random.Random = field(default_factory=lambda: random.Random(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Denial:
    """A right on a topic that is missing until a time; with `config_alone` the topic may be described and read."""

    until: float
    config_alone: bool


@dataclass(slots=True)
class Network:
    """What stands between a process and everything else."""

    runtime: Runtime
    process: Process
    weather: Weather
    crash: Callable[[Process], None]
    store_down_until: float = 0.0
    brokers_down_until: float = 0.0
    blind_until: float = 0.0
    """Until when what another instance has stored can't be listed, as with a policy of an older release."""
    lacks: dict[str, Denial] = field(default_factory=dict)
    """By topic, the rights that this process lacks."""
    calls: int = field(default=0)

    @property
    def now(self) -> float:
        return self.runtime.now

    @property
    def random(self) -> random.Random:
        return self.runtime.random

    def pause(self, seconds: float) -> None:
        """Let time pass for this thread."""
        self.runtime.park(seconds)

    def brokers_answer(self) -> bool:
        """Whether they can be reached."""
        self.runtime.me()
        return self.runtime.now >= self.brokers_down_until

    def broker_call(self) -> None:
        """A request to the brokers."""
        if not self.brokers_answer():
            self.pause(_ANSWER_S)
            raise ClusterUnreachableError("no answer", code="TDM-X001", remedy="wait")
        if self.random.random() < 0.3:
            self.pause(self.random.random() * 0.05)

    def may_describe(self, topic: str) -> bool:
        """Whether brokers tell this process of a topic at all."""
        denial = self._denial(topic)
        return denial is None or denial.config_alone

    def may_configure(self, topic: str) -> bool:
        """Whether they tell it how a topic is configured."""
        return self._denial(topic) is None

    def _denial(self, topic: str) -> Denial | None:
        denial = self.lacks.get(topic)
        return denial if denial is not None and self.now < denial.until else None

    def answer_delay(self) -> float:
        """How long an answer is on its way; nearly always no time at all."""
        return self.random.random() * 8 if self.random.random() < self.weather.slow_answer else 0.0

    def long_poll(self, partitions: list[Partition], timeout_s: float) -> None:
        """Wait for something new in these logs, or for the time to pass."""
        event = Event()
        for partition in partitions:
            partition.waiters.append(event.set)
        event.wait(timeout_s)
        for partition in partitions:
            if event.set in partition.waiters:
                partition.waiters.remove(event.set)

    def may_list(self, prefix: str) -> None:
        """Raise if this process has no right to list that."""
        me = self.process.name.split("#")[0]
        if self.now < self.blind_until and "/generation=" in prefix and f"/{me}/" not in prefix:
            raise StoreDeniedError(f"no right to list {prefix}", code="TDM-X001")

    def store_call(self, effect: Callable[[], Any], *, changes: bool) -> Any:
        """Have the store do something; it does so at a moment of its own, which may be after the caller is gone."""
        runtime, rng, weather = self.runtime, self.random, self.weather
        runtime.me()
        if runtime.now < self.store_down_until:
            runtime.park(_ANSWER_S * rng.random())
            raise StoreTransientError("no answer", code="TDM-X001")
        if not changes:
            if rng.random() < weather.store_error:
                raise StoreTransientError("503", code="TDM-X001")
            if rng.random() < 0.2:
                runtime.park(rng.random() * 0.05)
            return effect()
        if rng.random() < weather.store_error:
            raise StoreTransientError(rng.choice(("409", "503")), code="TDM-X001")
        outcome: list[Any] = []
        done = Event()

        def happen() -> None:
            outcome.append(effect())
            done.set()

        late = rng.random() < weather.late_write
        runtime.at(runtime.now + rng.random() * (60.0 if late else 0.1), happen)
        if weather.crash_at_call and rng.random() < weather.crash_at_call:
            runtime.at(runtime.now + rng.random() * 0.1, lambda: self.crash(self.process))
        if not done.wait(_ANSWER_S):
            raise StoreTransientError("time-out", code="TDM-X001")
        if rng.random() < 0.3:
            runtime.park(rng.random() * 0.05)
        if rng.random() < weather.lost_answer:
            raise StoreTransientError("time-out after the fact", code="TDM-X001")
        return outcome[0]
