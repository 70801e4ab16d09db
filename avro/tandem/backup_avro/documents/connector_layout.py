"""Where the Java connector put its files, whose records are version 1 (see `record.version_1`).

Two layouts below a root, distinguished by the folder of a partition. In both, a file's own name has no meaning: any
name that ends in `.avro` counts.

    [<folder>/]<topic>/partition=<n>/<name>.avro       as S3 sink connectors do; the folder is often `topics`
    <topic>/<instance>/<n>/<name>.avro                 the connector's own pair of instances

Names that were URL-encoded when the files were copied (`partition%3D0`) are understood.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from urllib.parse import unquote

from tandem.backup_avro.chain import layout
from tandem.backup_avro.errors import DamagedError
from tandem.backup_avro.record.varint import INT_MAX

SUFFIX: Final = ".avro"
#: The pair's name where one is needed: the connector's files have none.
PAIR: Final = "connector"
#: The name of the copy that has no folder above the topics' folders. No folder has it, so the copy is joined to none.
_NO_FOLDER: Final = "."
_PARTITION: Final = re.compile(r"partition=(\d{1,10})", re.ASCII)
_NUMBER: Final = re.compile(r"\d{1,10}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class ConnectorFilePlace:
    """The place that a file's folder names: a partition of one copy of a topic.

    `copy` is the instance that wrote it, or the folder above the topic's, or `.` if there is none. Copies are
    independent backups of the same topic.
    """

    topic: str
    copy: str
    partition: int


def place_of(key: str) -> ConnectorFilePlace | None:
    """Return the place that a key's folder names; None if it is no file of either layout."""
    if not key.endswith(SUFFIX):
        return None
    match [unquote(segment) for segment in key.split("/")[:-1]]:
        case [topic, folder] if number := _PARTITION.fullmatch(folder):
            return _place(topic, _NO_FOLDER, number[1])
        case [copy, topic, folder] if number := _PARTITION.fullmatch(folder):
            return _place(topic, copy, number[1])
        case [topic, copy, folder] if _NUMBER.fullmatch(folder):
            return _place(topic, copy, folder)
    return None


def _place(topic: str, copy: str, number: str) -> ConnectorFilePlace | None:
    try:
        layout.check_topic(topic)
    except DamagedError:
        return None
    if not copy or int(number) > INT_MAX:
        return None
    return ConnectorFilePlace(topic=topic, copy=copy, partition=int(number))


class OverlapPreference(StrEnum):
    """Which of two files is used where they have different records at one offset."""

    NEWER = "newer"  # the one that was written later, by the store's clock
    OLDER = "older"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorReading:
    """How a connector's files are read.

    `instance` names whose copy of each topic is read, `instances` the same for single topics, as (topic, instance);
    neither: the copy that reaches furthest. `prefer` None: different records at one offset are an error. `left_out` are
    keys of files that are not read. `empty_as_null` turns empty keys, values and header values into null.
    """

    empty_as_null: bool = False
    instance: str | None = None
    instances: tuple[tuple[str, str], ...] = ()
    prefer: OverlapPreference | None = None
    left_out: frozenset[str] = frozenset()

    def wanted(self, topic: str) -> str | None:
        """Return the instance whose copy of a topic is requested, None if none is."""
        return dict(self.instances).get(topic, self.instance)
