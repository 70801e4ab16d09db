"""How many bytes each broker's next answer may bring, so that all of them together fit into one sum. Pure.

A broker may answer in full at any time, and what it sends is in memory before it can be counted. A hundred answers of
`fetch.max.bytes` would be most of a gigabyte outside of `memory.budget`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from tandem.sink.kafka.fetch.assignment import Broker

LEAST: Final = 64 << 10
"""Bytes that any broker is asked for, however many there are. One record batch always comes whole (KIP-74)."""
WHOLE_ANSWERS: Final = 4
"""Answers of the largest size that the sum has room for."""


def bytes_to_ask(broker: Broker, brokers: Collection[Broker], *, most: int) -> int:
    """Return how many bytes the next request to `broker` asks for, at most `most`.

    `brokers` are all, this one too. What was asked for and is not handed out stays within `WHOLE_ANSWERS` times `most`,
    and `LEAST` more for each broker. Of more brokers than that those that had more to send at their last answer share
    what the others leave, which are asked for `LEAST`: they send little, or show by it that they have more.
    """
    read = [one for one in brokers if one is broker or len(one.session) > 0]
    if len(read) <= WHOLE_ANSWERS:
        wanted = most
    elif broker.busy:
        busy = sum(one.busy for one in read)
        wanted = (WHOLE_ANSWERS * most - LEAST * (len(read) - busy)) // busy
    else:
        wanted = LEAST
    left = WHOLE_ANSWERS * most - sum(one.asked for one in brokers if one.in_flight or one.buffered)
    return min(most, max(LEAST, min(wanted, left)))
