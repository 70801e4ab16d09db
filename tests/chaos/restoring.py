"""What S3 alone gives back: by production's selection and decoding, or loaded by `tandem restore` and read back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka.admin import AdminClient

from chaos.facts import Facts, Place, Seen, digest_of
from chaos.follower import read_topics
from chaos.judge import Restored
from tandem.backup_avro.chain.generation import Generation
from tandem.backup_avro.record.current import decode_body
from tandem.backup_avro.selection.restorable_state import Selection, restorable, select
from tandem.sink.store.chain import pins
from tandem.sink.store.chain.chain_reader import ChainReader
from tandem.spark_jobs.reading.object_reader import ObjectReader

_TANDEM = (sys.executable, "-c", "import sys; from tandem.controller.cli.main import main; sys.exit(main())")
# Much longer than any takes beside nothing else: a busy machine is no finding.
_SPARK_S = 900.0


def positions(state: Generation) -> dict[Place, int]:
    """Return how far a generation has come, by name; what is tainted counts up to the taint."""
    return {
        (state.topics[key.topic_id].name, key.partition): state.sound_offset(key)
        for key in state.positions
        if state.usable(key)
    }


def log_starts(generations: Iterable[Generation]) -> dict[Place, int]:
    """Return the highest start of each log that a complete generation recorded."""
    found: dict[Place, int] = {}
    for state in generations:
        if state.complete:
            for key, position in state.positions.items():
                place = (state.topics[key.topic_id].name, key.partition)
                found[place] = max(found.get(place, 0), position.log_start)
    return found


def confirmed(generations: Iterable[Generation]) -> dict[Place, int]:
    """Return what the complete generations together hold: no restore may come back with less from now on."""
    found: dict[Place, int] = {}
    for state in generations:
        if state.complete and state.clearing is None:
            for place, end in positions(state).items():
                found[place] = max(found.get(place, 0), end)
    return found


class RestoreFailedError(Exception):
    """The newest state could not be read although a complete generation was there."""


class TaintedError(Exception):
    """The newest state is restorable with a warning only: its generation is tainted and the next one is being built."""


def read_backups(reader: ChainReader) -> list[Restored]:
    """Read the newest state, and then what each complete and sound generation holds by itself.

    As a restore does: pin, read the chains on, choose, fetch, check, decode. Raises RestoreFailedError if something
    that is guarded has no sound copy; TaintedError; RefusedError if nothing is complete.
    """
    while True:
        numbers = {state.number for state in reader.refresh()}
        with pins.hold_pins(reader.store, reader.pair, numbers, owner="chaos"):
            states = reader.refresh()
            if not numbers.issuperset(state.number for state in states):
                continue  # the newest one has no pin
            newest = select(states)
            if newest.incomplete:
                raise RestoreFailedError(f"generation {newest.generation} lacks {', '.join(newest.incomplete)}")
            warnings = [part.warning for part in newest.partitions if part.warning is not None]
            if warnings:
                raise TaintedError(f"generation {newest.generation}: {'; '.join(warnings)}")
            alone = [select([state], number=state.number) for state in restorable(states) if _whole_and_sound(state)]
            objects = ObjectReader(reader.store)
            return [_read(objects, selection) for selection in (newest, *alone)]


def _whole_and_sound(state: Generation) -> bool:
    return not state.taints and state.whole


def _read(objects: ObjectReader, selection: Selection) -> Restored:
    ends, starts = {}, {}
    for part in selection.partitions:
        place = (part.topic.name, part.key.partition)
        ends[place], starts[place] = part.end, part.log_start
    rows = tuple(_rows(objects, selection))
    return Restored(generation=selection.generation, rows=rows, ends=ends, log_starts=starts)


def _rows(objects: ObjectReader, selection: Selection) -> Iterable[Seen]:
    for part in selection.partitions:
        for piece in part.slices:
            for body in objects.bodies(piece):
                for record in decode_body(body.body, body.records):
                    yield Seen(
                        (record.topic, record.partition),
                        record.offset,
                        record.key,
                        digest_of(record.key, record.value, record.headers, record.timestamp),
                        record.value is None,
                    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """What `tandem restore` loaded into new topics, under the names of the sources but with offsets of the copies."""

    generation: int
    ends: Mapping[Place, int]
    rows: Mapping[Place, list[Seen]]


def restore_with_spark(
    settings: Mapping[str, Any], folder: Path, *, bootstrap: str, suffix: str, places: Iterable[Place]
) -> Copies:
    """Run `tandem restore` into new topics, read them to their ends, and delete them. Raises RestoreFailedError."""
    # The load config keeps the broker from compacting the copy before it is read.
    words = ("restore", "--suffix", suffix, "--keep-load-config", "--yes")
    document = _command(settings, folder, words, log=f"restore{suffix}")
    ends = {
        (topic["source"], int(part["partition"])): int(part["end"])
        for topic in document["topics"]
        for part in topic["partitions"]
    }
    copies = {(f"{topic}{suffix}", number): (topic, number) for topic, number in places}
    rows = read_topics(bootstrap, copies)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for future in admin.delete_topics(sorted({name for name, _ in copies}), operation_timeout=30).values():
        future.result(timeout=60)
    return Copies(generation=document["generation"], ends=ends, rows=rows)


def sweep_with_spark(
    settings: Mapping[str, Any], folder: Path, *, log: str, horizon: str | None = None
) -> Mapping[str, Any]:
    """Run `tandem retention --execute` for what nobody needs, and return its report.

    Of what is in a chain it only takes what was superseded before the `horizon`; without one, nothing.
    """
    more = () if horizon is None else ("--horizon", horizon)
    words = ("retention", "--execute", "--older-than", "3650d", *more)
    report: Mapping[str, Any] = _command(settings, folder, words, log=log)
    return report


def _command(settings: Mapping[str, Any], folder: Path, words: Sequence[str], *, log: str) -> Any:
    """Run a command and return its JSON. Raises RestoreFailedError that names the log."""
    config = folder / f"{log}.yaml"
    config.write_text(yaml.safe_dump(dict(settings), sort_keys=False), encoding="utf-8")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "TANDEM_"))}
    with (folder / f"{log}.log").open("ab") as errors:
        try:
            done = subprocess.run(
                [*_TANDEM, *words, "--config", str(config), "-o", "json"],
                stdout=subprocess.PIPE,
                stderr=errors,
                stdin=subprocess.DEVNULL,
                env=kept | {"AWS_EC2_METADATA_DISABLED": "true"},
                timeout=_SPARK_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise RestoreFailedError(
                f"tandem {words[0]} did not end within {_SPARK_S:.0f} s, see {folder}/{log}.log"
            ) from error
    if done.returncode != 0:
        raise RestoreFailedError(f"tandem {words[0]} ended with exit code {done.returncode}, see {folder}/{log}.log")
    return json.loads(done.stdout)


def placed(copies: Copies, facts: Facts, *, log_starts: Mapping[Place, int]) -> Restored:
    """Lead copies back to their places in the sources, by content, so that they are judged like any other restore.

    The facts must reach the cut. What nobody wrote gets a place above the cut; what came more often than it was written
    keeps its last place, and so shows as twice.
    """
    rows: list[Seen] = []
    for place, copied in copies.rows.items():
        end = copies.ends.get(place, 0)
        offsets = {digest: deque(found) for digest, found in facts.offsets_of(place, end).items()}
        last: dict[int, int] = {}
        for row in copied:
            left = offsets.get(row.digest)
            last[row.digest] = left.popleft() if left else last.get(row.digest, end + row.offset)
            rows.append(row._replace(offset=last[row.digest]))
    return Restored(generation=copies.generation, rows=tuple(rows), ends=copies.ends, log_starts=log_starts)
