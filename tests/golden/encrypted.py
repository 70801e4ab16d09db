"""What the files in encryption/ hold, and how they were written: `python tests/golden/encrypted.py`.

Keys and data keys are fixed here, which they are nowhere else, so that the same bytes come out again.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from tandem.backup_avro.chain.entries import Part, PartitionKey, StoredObject, sha256_hex
from tandem.backup_avro.chain.json_codec import canonical, dump_object
from tandem.backup_avro.record import chunk_cipher
from tandem.backup_avro.record.envelope import Envelope

FOLDER: Final = Path(__file__).parent / "encryption"
PLAIN: Final = Path(__file__).parent / "0.1.0" / "record-null.avro"
#: What `encryption.key_file` holds; the other one is as a KMS gives it.
KEY_TEXT: Final = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
KEY: Final = bytes(range(32))
DATA_KEY: Final = bytes(range(100, 132))
KMS_KEY_ID: Final = "00112233445566ff"
WRAPPING_KEY: Final = bytes(range(200, 232))
KMS_BLOB: Final = b"what the KMS opens"
NAME: Final = (
    "shop/a/generation=00000007/topics/orders.v1/partition=0/"
    "orders.v1+0+00000000000000000000+09223372036854775807+0123456789abcdef.avro"
)
PART: Final = Part(
    key=PartitionKey("QwertyUIOPasdfghJKLzxc", 0),
    first=0,
    last=(1 << 63) - 1,
    records=4,
    tombstones=2,
    min_timestamp=-1,
    max_timestamp=(1 << 63) - 1,
    start=1000,
    end=1500,
)


def envelopes() -> dict[str, Envelope]:
    """Return the envelopes by the name of their file. Chunks are small, so that there are several."""
    local = Envelope(
        key_id=chunk_cipher.key_id(KEY),
        data_key=chunk_cipher.wrap(DATA_KEY, chunk_cipher.wrapping_key(KEY)),
        chunk_size=1024,
    )
    kms = replace(local, key_id=KMS_KEY_ID, data_key=chunk_cipher.wrap(DATA_KEY, WRAPPING_KEY), wrapping_key=KMS_BLOB)
    return {"local": local, "kms": kms}


def files() -> dict[str, bytes]:
    """Return every golden file that this release would write."""
    found = {}
    for name, envelope in envelopes().items():
        data = bytes(chunk_cipher.seal(envelope, DATA_KEY, PLAIN.read_bytes(), name=NAME))
        item = StoredObject(
            key=NAME, journal=False, bytes=len(data), sha256=sha256_hex(data), parts=(PART,), envelope=envelope
        )
        found[f"{name}.avro.sealed"] = data
        found[f"{name}.json"] = canonical(dump_object(item))
    return found


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, data in files().items():
        with (FOLDER / name).open("xb") as file:
            file.write(data)
