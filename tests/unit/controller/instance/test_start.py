"""What an instance says at its start."""

from __future__ import annotations

import threading

import pytest
import structlog
from support.pipeline.doubles import MemoryStore

from tandem.controller.config.model import Config
from tandem.controller.instance.start import StoppedEarlyError, set_up


def test_what_is_unusual_about_the_store_is_logged() -> None:
    """A bucket with versions, clocks that differ, rules that delete: the backup works, and a person has to know."""
    stop = threading.Event()

    class Unusual(MemoryStore):
        def probe(self, prefix: str) -> tuple[str, ...]:
            assert prefix == "shop/"
            stop.set()  # what comes after it needs brokers
            return ("versioning is on", "clocks differ")

    config = Config.model_validate(
        {
            "pair": "shop",
            "instance": "a",
            "instances": ["a", "b"],
            "topics": {"include": ["orders"]},
            "kafka": {"bootstrap.servers": "nowhere:9092"},
            "store": {"root": "s3://bucket/prefix"},
        }
    )
    with structlog.testing.capture_logs() as logs, pytest.raises(StoppedEarlyError):
        set_up(config, Unusual, incarnation="1", stop=stop, wake=threading.Event())
    assert [entry["reason"] for entry in logs if entry["log_level"] == "warning"] == [
        "versioning is on",
        "clocks differ",
    ]
