"""What the source hands on: one partition of one fetch response, undecoded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """One partition's part of one fetch response.

    `records` holds whole record batches (magic 2); the last one may be cut short. Its first batch may begin before
    `fetch_offset` and its last one may go past the range that was asked for: the transcoder trims.
    `end_offset` is the end of the log in this very response: the last stable offset under read_committed, else the
    high watermark. `aborted` is (producer id, first offset) of each aborted transaction that touches the range.
    `leader_epoch` is that of the leader which answered, `received_at` monotonic seconds.
    """

    topic: str
    partition: int
    fetch_offset: int
    records: bytes | memoryview
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    end_offset: int
    aborted: tuple[tuple[int, int], ...]
    leader_id: int
    leader_epoch: int
    received_at: float
