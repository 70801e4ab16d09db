"""The crew: those who write and those who read along, and how a campaign waits for them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Final, Self

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from chaos.broker_log import SkippedMarkers
from chaos.facts import Ends, Facts, Place
from chaos.follower import Follower
from chaos.writers import Order, Writer, stop_all

POLL_S: Final = 0.3
#: Names of topics, each with its number of partitions and its settings.
Topics = Mapping[str, tuple[int, Mapping[str, str]]]


class UnhealthyError(Exception):
    """The crew or the pair is not as it should be, or what came back is not what was written."""


class Crew:
    """Writers and the follower; use it in a `with`. `limit_s` is the longest wait for the follower."""

    def __init__(
        self,
        bootstrap: str,
        orders: Sequence[Order],
        places: Sequence[Place],
        facts: Facts,
        *,
        seed: str,
        limit_s: float,
    ) -> None:
        self._facts = facts
        self._limit_s = limit_s
        self._writers = [Writer(bootstrap, order, facts, seed=f"{seed}/{order.name}") for order in orders]
        self._follower = Follower(bootstrap, places, facts)

    def __enter__(self) -> Self:
        """Begin to read, then to write."""
        self._follower.start()
        for writer in self._writers:
            writer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        stop_all(self._writers)
        self._follower.stop()

    def check(self) -> None:
        """Raise UnhealthyError if one is gone: a campaign whose own people are gone proves nothing."""
        gone = [writer for writer in self._writers if not writer.alive]
        if gone or not self._follower.alive:
            raise UnhealthyError("a writer or the follower ended by itself: its traceback is on stderr")

    def await_facts(self, ends: Ends) -> None:
        """Wait until all facts before `ends` are known. Raises UnhealthyError."""
        deadline = time.monotonic() + self._limit_s
        while behind := self._facts.behind(ends):
            self.check()
            if time.monotonic() > deadline:
                raise UnhealthyError(f"the follower did not come to the cut in {sorted(behind)}: {dict(ends)}")
            time.sleep(POLL_S)

    def doubt(self, skipped: Iterable[SkippedMarkers]) -> None:
        """Take back that the records of these transactions must come back. The follower must have passed them."""
        for one in skipped:
            for writer in self._writers:
                if writer.transactional_id == one.transactional_id:
                    for seen in writer.records_of(one.at):
                        if seen.place in one.places:
                            self._facts.doubt(seen)


def make_topics(bootstrap: str, topics: Topics) -> None:
    """Create them with one replica each, and wait until they are there."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    wanted = [
        NewTopic(topic, num_partitions=count, replication_factor=1, config=dict(config))
        for topic, (count, config) in topics.items()
    ]
    for future in admin.create_topics(wanted, operation_timeout=30).values():
        future.result(timeout=60)


def raise_to(highest: dict[Place, int], ends: Ends) -> None:
    """Raise each place's offset to that of `ends` where that is higher."""
    for place, end in ends.items():
        highest[place] = max(highest.get(place, 0), end)
