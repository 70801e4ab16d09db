"""Faust: counts facts by key in a table with a changelog topic; its state is in memory or in RocksDB."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import faust
from job import Stopwatch, facts, load_job, tell

_JOB = load_job()
_WATCH = Stopwatch()
_PARTITIONS = 2
_GRACE_S = 1.0
_LIMIT_S = 20.0
_OPTIONS = {"driver": "rocksdict"} if "store" in _JOB.options else {}

app = faust.App(
    _JOB.name,
    broker=f"kafka://{_JOB.bootstrap}",
    store=_JOB.options.get("store", "memory://"),
    topic_partitions=_PARTITIONS,
    topic_replication_factor=1,
    web_enabled=False,
    datadir=Path(_JOB.folder),
    broker_commit_interval=0.5,
)
facts_topic = app.topic(f"{_JOB.name}-input", key_type=bytes, value_type=bytes, partitions=_PARTITIONS)
counts = app.Table("counts", default=int, partitions=_PARTITIONS, options=_OPTIONS)
sums = app.Table("sums", default=int, partitions=_PARTITIONS, options=_OPTIONS)


@app.agent(facts_topic)
async def count(stream: faust.Stream) -> None:
    async for key, value in stream.items():
        counts[key.decode()] += 1
        sums[key.decode()] += int(value)


@app.task
async def tell_state() -> None:
    """Wait until the tables are recovered, and what was written is counted; then end the worker."""
    recovery = app.tables.recovery
    while recovery.in_recovery or not recovery.completed.is_set():  # noqa: ASYNC110 - the event is set before the first
        await asyncio.sleep(0.05)
    ready = _WATCH.seconds
    if _JOB.phase == "write":
        sent = [await facts_topic.send(key=fact.key.encode(), value=str(fact.number).encode()) for fact in facts(_JOB)]
        for one in sent:
            await one  # the broker has it; an end before that would lose it
        began, quiet, before = time.monotonic(), time.monotonic(), -1
        # Until all are counted, or too long, and nothing has been counted for a while.
        while time.monotonic() < quiet + _GRACE_S:
            total = sum(counts.values())
            if total != before or (total < _JOB.last and time.monotonic() < began + _LIMIT_S):
                quiet, before = time.monotonic(), total
            await asyncio.sleep(0.05)
    else:
        await asyncio.sleep(_GRACE_S)  # what comes again would be counted by then
    state = {key: [counts[key], sums[key]] for key in list(counts)}
    tell(_JOB.phase, ready, state)
    os.kill(os.getpid(), signal.SIGTERM)  # the orderly end, which commits


faust.Worker(app, loglevel="INFO").execute_from_commandline()
