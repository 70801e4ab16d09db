from tandem.backup_avro.record.record_spans import Span
from tandem.sink.transcode.body_operations import Lengths, Longs

def build(
    data: bytes | memoryview,
    count: int,
    head: bytes,
    start: int,
    stop: int,
    max_bytes: int,
    max_records: int,
    seal: bool,
) -> list[tuple[bytes, int, int, int, tuple[tuple[int, int], ...], int, int, int]] | None: ...
def advance(
    data: bytes | memoryview, count: int, head: bytes, state: bytes, hardware: bool = True
) -> tuple[bytes, int, int] | None: ...
def survey(
    data: bytes | memoryview, count: int, head: bytes
) -> tuple[int, int, int, int, int, tuple[int, int] | None] | None: ...
def spans(data: bytes, start: int, most: int, head: bytes) -> tuple[list[Span], int] | None: ...
def modern(
    data: bytes | memoryview,
    count: int,
    head: bytes,
    key_null: int,
    value_null: int,
    headers_null: int,
    empty_as_null: bool,
) -> tuple[bytes, int, int] | None: ...
def stamp(data: bytearray, producer_id: int, producer_epoch: int, base_sequence: int, transactional: bool) -> None: ...
def keyed_records(data: bytes | memoryview, count: int, head: bytes, below: int) -> tuple[bytes, bytes] | None: ...
def newest_equal(keys: bytes, begins: Longs, lengths: Lengths, secret: bytes, bits: int) -> tuple[bytes, bytes]: ...
def gathered(keys: bytes, begins: Longs, lengths: Lengths) -> bytes: ...
