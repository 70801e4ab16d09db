"""An index of a connector's files on the local machine: files that did not change are not read again for a plan.

The index only shortens planning. A reader of records checks each file against the checksum in the index.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from tandem.backup_avro.chain.entries import is_sha256_hex
from tandem.backup_avro.chain.integers import is_int64
from tandem.backup_avro.documents.connector_layout import place_of
from tandem.backup_avro.errors import ConfigError
from tandem.spark_jobs.connector.file_findings import ConnectorFile, ListedFile

_KIND: Final = "tandem index of a connector's files"
_VERSION: Final = 1
_COLUMNS: Final = tuple(field.name for field in fields(ConnectorFile) if field.name not in {"listed", "findings"})


def load(path: Path, *, root: str, empty_as_null: bool) -> dict[str, ConnectorFile]:
    """Return the known files by key; an empty dict if the index does not exist yet.

    Raises ConfigError if the file can't be read, is not an index, or is of another root or another way of decoding.
    """
    try:
        with path.open(encoding="utf-8") as lines:
            head = json.loads(next(lines, "null"))
            if not isinstance(head, dict) or head.get("kind") != _KIND or head.get("v") != _VERSION:
                raise ConfigError(f"{path} is no index of files", code="TDM-P016", remedy="name a new file")
            if head != _head(root, empty_as_null=empty_as_null):
                raise ConfigError(
                    f"{path} is the index of another root, or was made with another --empty-as-null",
                    code="TDM-P017",
                    remedy="name a file for each",
                )
            return {file.key: file for file in map(_file, lines)}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(
            f"{path} can't be read: {error.strerror}", code="TDM-P018", remedy="name another --index, or delete it"
        ) from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ConfigError(
            f"{path} is damaged", code="TDM-P019", remedy="remove it: the files are read again"
        ) from error


def save(path: Path, files: Iterable[ConnectorFile], *, root: str, empty_as_null: bool) -> None:
    """Replace the index with the given files, but for those with findings. Raises ConfigError."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with beside.open("x", encoding="utf-8") as out:
            out.write(json.dumps(_head(root, empty_as_null=empty_as_null)) + "\n")
            for file in files:
                if not file.findings:
                    values = [getattr(file, name) for name in _COLUMNS]
                    out.write(json.dumps([file.key, file.listed.size, file.listed.modified, *values]) + "\n")
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise ConfigError(
            f"{path} can't be written: {error.strerror}", code="TDM-P020", remedy="name another file"
        ) from error


def _head(root: str, *, empty_as_null: bool) -> dict[str, Any]:
    return {"v": _VERSION, "kind": _KIND, "root": root, "emptyAsNull": empty_as_null}


def _file(line: str) -> ConnectorFile:
    key, size, modified, *values = json.loads(line)
    place = place_of(key) if isinstance(key, str) else None
    columns = dict(zip(_COLUMNS, values, strict=True))
    if place is None or not all(map(is_int64, (size, modified))) or not _is_sound(columns, size):
        raise ValueError(line)
    return ConnectorFile(listed=ListedFile(key=key, size=size, modified=modified, place=place), **columns)


def _is_sound(columns: Mapping[str, Any], size: int) -> bool:
    """Return whether a sound file of this size can have these columns: plans use them without reading the file."""
    if not all(is_int64(value) for name, value in columns.items() if name != "sha256"):
        return False
    records, start = columns["records"], columns["start"]
    if columns["size"] != size or not 0 <= start <= size or records < 0:
        return False
    if any(not 0 <= columns[name] <= records for name in ("tombstones", "empty_keys", "empty_values")):
        return False
    first, last = columns["first"], columns["last"]
    within = 0 <= first <= last and records <= last - first + 1 if records else first == last == -1
    return within and is_sha256_hex(columns["sha256"])
