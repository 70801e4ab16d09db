"""A restore's plan as a file: the options, and the chain entries on which the plan rests. Pure.

The file names no object. The plan is made anew from those chain entries, and must have the same hash. That hash covers
records and names only; the file's id is the SHA-256 of the whole document.
The file holds the keys that `--key` and `--exclude-key` named.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from tandem.backup_avro.chain.json_codec import VERSION, Fields
from tandem.backup_avro.errors import ConfigError, DamagedError
from tandem.sink.transcode.batch import Compression
from tandem.spark_jobs.restore.plan.offset_mode import MOST_FILLERS, OffsetMode
from tandem.spark_jobs.restore.plan.options import ExactPlan, RestoreOptions
from tandem.spark_jobs.restore.plan.plan import RestorePlan, TopicNaming
from tandem.spark_jobs.restore.records.partitioner import Partitioner
from tandem.spark_jobs.restore.records.record_changes import RecordChanges

_KIND: Final = "tandem restore plan"


def encode(plan: RestorePlan, options: RestoreOptions) -> bytes:
    """Return the bytes of the file."""
    shape = asdict(options.shape)
    shape["keys"] = None if options.shape.keys is None else _dump_keys(options.shape.keys)
    shape["excluded"] = _dump_keys(options.shape.excluded)
    document = {
        "v": VERSION,
        "kind": _KIND,
        "pair": plan.pair,
        "hash": plan.hash,
        "generation": plan.generation,
        "basis": {str(number): seq for number, seq in sorted(plan.basis.items())},
        "naming": asdict(options.naming),
        "topics": options.topics,
        "state": {
            "generation": options.generation,
            "at": options.at,
            "commit": options.commit,
            "checkpoint": options.checkpoint,
        },
        "until": [[topic, number, offset] for (topic, number), offset in sorted(options.until.items())],
        "shape": shape,
        "partitions": options.partitions,
        "topic_config": dict(options.topic_config),
        "bytes_per_second": options.bytes_per_second,
        "compression": None if options.compression is None else options.compression.name.lower(),
        "keep_load_config": options.keep_load_config,
        "append": options.append,
        "offsets": None if options.offsets is None else options.offsets.value,
        "max_fill": options.max_fill,
        "merge": options.merge,
        "replication_factor": options.replication_factor,
    }
    document["sha256"] = _digest(document)
    return json.dumps(document, indent=2, sort_keys=True).encode() + b"\n"


def id_of(data: bytes) -> str:
    """Return the id of a file that `encode` made or `decode` took."""
    return str(json.loads(data)["sha256"])


def _digest(document: Mapping[str, object]) -> str:
    said = {key: value for key, value in document.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(said, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def decode(data: bytes, where: str, *, pair: str) -> RestoreOptions:
    """Return the options of the file; their `exactly` identifies its plan.

    Raises ConfigError if `data` is no plan file, if it was edited, or if it belongs to another pair.
    """
    try:
        options, of_pair = _decode(data, where)
    except (DamagedError, ValueError, TypeError, KeyError, OverflowError) as error:
        raise ConfigError(
            f"{where} is no plan of a restore: {error}", code="TDM-R069", remedy="make one with --plan FILE"
        ) from error
    if of_pair != pair:
        raise ConfigError(
            f"{where} is a plan of pair {of_pair}, not of {pair}",
            code="TDM-R070",
            remedy="name that pair, or plan anew",
        )
    return options


def _decode(data: bytes, where: str) -> tuple[RestoreOptions, str]:
    fields = Fields.of_bytes(data, where)
    if fields.take_field("kind", str) != _KIND:
        raise ValueError("it is of another kind")
    if fields.take_field("sha256", str) != _digest(json.loads(data)):
        raise ValueError("it was changed after --plan had written it")
    naming = fields.take_field("naming", dict)
    state = fields.take_field("state", dict)
    shape = fields.take_field("shape", dict)
    topics = fields.take_field("topics", list, None)
    basis: dict[str, Any] = fields.take_field("basis", dict)
    compression = fields.take_field("compression", str, None)
    options = RestoreOptions(
        exactly=ExactPlan(
            hash=fields.take_field("hash", str),
            generation=fields.take_field("generation", int),
            basis={int(number): int(seq) for number, seq in basis.items()},
        ),
        naming=TopicNaming(**{**naming, "patterns": tuple((str(a), str(b)) for a, b in naming["patterns"])}),
        topics=None if topics is None else tuple(map(str, topics)),
        **state,
        until={(str(topic), int(number)): int(offset) for topic, number, offset in fields.take_field("until", list)},
        shape=_load_shape(shape),
        partitions=fields.take_field("partitions", int, None),
        topic_config={str(key): str(value) for key, value in fields.take_field("topic_config", dict, {}).items()},
        bytes_per_second=fields.take_field("bytes_per_second", int, None),
        compression=None if compression is None else Compression[compression.upper()],
        keep_load_config=fields.take_field("keep_load_config", bool),
        append=fields.take_field("append", bool, False),
        offsets=None if (offsets := fields.take_field("offsets", str, None)) is None else OffsetMode(offsets),
        max_fill=fields.take_field("max_fill", int, MOST_FILLERS),
        merge=fields.take_field("merge", bool, True),
        replication_factor=fields.take_field("replication_factor", int, None),
    )
    of_pair: str = fields.take_field("pair", str)
    fields.refuse_other_fields()
    return options, of_pair


def _load_shape(document: dict[str, Any]) -> RecordChanges:
    partitioner = document["partitioner"]
    keys = document["keys"]
    return RecordChanges(
        **{
            **document,
            "partitioner": None if partitioner is None else Partitioner(partitioner),
            "keys": None if keys is None else _load_keys(keys),
            "excluded": _load_keys(document["excluded"]),
        }
    )


def _dump_keys(keys: frozenset[bytes]) -> list[str]:
    return [base64.b64encode(key).decode() for key in sorted(keys)]


def _load_keys(found: list[str]) -> frozenset[bytes]:
    return frozenset(base64.b64decode(text, validate=True) for text in found)
