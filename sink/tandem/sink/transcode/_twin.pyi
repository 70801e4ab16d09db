from collections.abc import Callable

from tandem.sink.transcode.transcoder_result import Transcoded

def crc32c(data: bytes | memoryview, hardware: bool = True) -> int: ...
def transcode(
    data: bytes | bytearray | memoryview,
    prefix: bytes,
    start: int,
    stop: int,
    aborted: list[tuple[int, int]],
    read_committed: bool,
    decompress: Callable[[bytes, int], bytes],
    piece_bytes: int,
    output_limit: int,
) -> Transcoded | None: ...
