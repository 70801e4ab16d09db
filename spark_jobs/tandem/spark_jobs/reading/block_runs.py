"""Runs of consecutive blocks of an object that was checked, so that it can be read again run by run."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from tandem.backup_avro.record.container import ContainerBlock
from tandem.sink.encryption.objects import Plain

_DIGEST: Final = 32


class BlockRun(NamedTuple):
    """The bytes [start, end) of the checked data, and their SHA-256."""

    start: int
    end: int
    digest: bytes


class BlockRuns:
    """The runs of consecutive blocks, in order. Each takes 40 bytes of memory."""

    __slots__ = ("_digests", "_ends", "_start")

    def __init__(self, data: Plain, blocks: Iterable[ContainerBlock], *, most: int) -> None:
        """Group `blocks`, which are adjacent in `data`, into runs of at most `most` bytes, or of one larger block.

        Raises the errors of iterating over `blocks`.
        """
        self._ends = array("q")
        digests = bytearray()
        start = end = -1
        with memoryview(data) as view:
            for block in blocks:
                if start < 0:
                    start = end = self._start = block.start
                if end > start and block.end - start > most:
                    self._close(view[start:end], end, digests)
                    start = end
                end = block.end
            if end > start:
                self._close(view[start:end], end, digests)
        self._digests = bytes(digests)

    def _close(self, run: memoryview, end: int, digests: bytearray) -> None:
        digests += hashlib.sha256(run).digest()
        self._ends.append(end)

    def __iter__(self) -> Iterator[BlockRun]:
        start = self._start if self._ends else 0
        for number, end in enumerate(self._ends):
            yield BlockRun(start, end, self._digests[number * _DIGEST : (number + 1) * _DIGEST])
            start = end
