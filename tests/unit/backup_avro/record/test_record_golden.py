"""What older releases wrote stays readable, and what is written today is what they would have written."""

from __future__ import annotations

import io
from pathlib import Path

import fastavro
import polars as pl
import pytest
from golden.formats import BLOCKS, FOLDER, MESSAGES, METADATA, SYNC, V1_RECORDS, write_blocks, write_v1
from support.records.stored import as_dict

from tandem.backup_avro.documents.coordination_message import decode as decode_message
from tandem.backup_avro.documents.coordination_message import encode as encode_message
from tandem.backup_avro.record.container import Codec, decode_header, decompress, iter_blocks
from tandem.backup_avro.record.current import Record
from tandem.backup_avro.record.version_1 import decoder_for

RECORDS = [record for block in BLOCKS for record in block]


def read(path: Path, *, empty_as_null: bool = False) -> list[Record]:
    """All records of a file, of whichever version."""
    data = path.read_bytes()
    header = decode_header(data)
    decode = decoder_for(header.schema_json, empty_as_null=empty_as_null)
    return [
        record for block in iter_blocks(data, header) for record in decode(decompress(block, header.codec), block.count)
    ]


@pytest.mark.parametrize("codec", Codec)
def test_files_of_0_1_0(codec: Codec) -> None:
    """Same records, metadata and sync marker; a foreign reader agrees."""
    path = FOLDER / f"record-{codec.value}.avro"
    assert read(path) == RECORDS
    header = decode_header(path.read_bytes())
    assert (header.codec, header.sync, header.metadata) == (codec, SYNC, METADATA)
    with path.open("rb") as file:
        assert list(iter(fastavro.reader(file))) == [as_dict(record) for record in RECORDS]


@pytest.mark.parametrize("codec", [Codec.NULL, Codec.DEFLATE, Codec.SNAPPY])
def test_files_of_0_1_0_in_polars(codec: Codec) -> None:
    """A reader not written in Python agrees as well."""
    frame = pl.read_avro(FOLDER / f"record-{codec.value}.avro")
    assert frame.to_dicts() == [as_dict(record) for record in RECORDS]


def test_the_format_is_still_that_of_0_1_0() -> None:
    """Without compression, whose libraries may change, the bytes are the same."""
    assert write_blocks(Codec.NULL) == (FOLDER / "record-null.avro").read_bytes()
    data, before = write_v1(), (FOLDER / "record-v1.avro").read_bytes()
    assert list(iter(fastavro.reader(io.BytesIO(data)))) == list(iter(fastavro.reader(io.BytesIO(before))))


def test_a_file_of_version_1() -> None:
    """As it is, and with empty bytes taken for null."""
    path = FOLDER / "record-v1.avro"
    assert read(path) == list(V1_RECORDS)
    first = read(path, empty_as_null=True)[0]
    assert (first.key, first.value, first.headers) == (b"k", None, (("h", b"1"), ("i", None)))


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_messages_of_0_1_0(name: str) -> None:
    """Both ways, byte for byte."""
    data = (FOLDER / f"{name}.bin").read_bytes()
    assert decode_message(data) == MESSAGES[name]
    assert encode_message(MESSAGES[name]) == data
