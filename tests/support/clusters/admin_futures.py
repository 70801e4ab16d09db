"""Answers as confluent-kafka's AdminClient gives them."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException


def answered(answer: object) -> Future[Any]:
    """Return the future of a call that has ended: a KafkaError is raised, all else is its result."""
    future: Future[Any] = Future()
    if isinstance(answer, KafkaError):
        future.set_exception(KafkaException(answer))
    else:
        future.set_result(answer)
    return future
