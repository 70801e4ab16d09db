"""Looks up records at single offsets: sizes the fetch requests, and reads the result of each partition.

A broker returns no records of a partition whose first record batch is larger than the requested size (KIP-74), except
for the first partition of a response. So the first request is for a small size, and the size grows for the partitions
that have returned nothing yet.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import islice
from types import MappingProxyType
from typing import Any, Final

from tandem.backup_avro.chain.entries import RecordHash
from tandem.backup_avro.errors import DamagedError
from tandem.sink.kafka.errors.error_codes import ErrorCode, name_of
from tandem.sink.kafka.events import LogPlace, TopicPartition
from tandem.sink.kafka.wire import requests, topic_ids
from tandem.sink.kafka.wire.sessions import FetchPlan, PartitionRequest
from tandem.sink.transcode.content_hash import last_record
from tandem.sink.transcode.implementation_choice import best_transcoder
from tandem.sink.transcode.transcoder_result import Transcoded, Transcoder

SIZES: Final = (16 << 10, 512 << 10, 16 << 20)
_RESPONSE_BYTES: Final = 16 << 20
_BATCH_HEAD: Final = struct.Struct(">qi")


class RecordLookup:
    """The places to look up, and the records found so far.

    `starts` are the log starts of the partitions with readable places, and `read_committed` is their isolation level.
    """

    def __init__(
        self,
        places: Mapping[TopicPartition, LogPlace],
        *,
        starts: Mapping[TopicPartition, int] = MappingProxyType({}),
        read_committed: bool = True,
    ) -> None:
        self._places = places
        self._read_committed = read_committed
        self._next = {tp: max(place.offset, starts.get(tp, 0)) for tp, place in places.items()}
        self._size = dict.fromkeys(places, 0)
        self._advanced = False
        self.found: dict[TopicPartition, RecordHash | None] = {
            tp: None for tp, place in places.items() if place.readable and self._next[tp] >= place.until
        }

    @property
    def left(self) -> list[TopicPartition]:
        """The partitions without a result yet."""
        return [tp for tp in self._places if tp not in self.found]

    def is_of(self, tp: TopicPartition, view: requests.TopicView) -> bool:
        """Return whether the topic has the wanted topic id; always true if the cluster gives no ids."""
        return view.topic_id is None or topic_ids.as_text(view.topic_id) == self._places[tp].topic_id

    def requests(
        self, leaders: Iterable[tuple[TopicPartition, int]], views: Mapping[str, requests.TopicView]
    ) -> Iterator[Any]:
        """Build requests to one broker for (partition, leader epoch); each answer is bounded to a few fetches' size."""
        alike: dict[tuple[int, bool], list[tuple[TopicPartition, PartitionRequest]]] = {}
        for tp, epoch in leaders:
            ask = PartitionRequest(
                partition=tp.partition,
                current_leader_epoch=epoch,
                fetch_offset=self._next[tp],
                last_fetched_epoch=-1,
                partition_max_bytes=SIZES[self._size[tp]],
                topic_id=views[tp.topic].topic_id,
                serial=0,
            )
            alike.setdefault((ask.partition_max_bytes, self._is_committed(tp)), []).append((tp, ask))
        for (size, read_committed), asks in alike.items():
            rest = iter(asks)
            while some := tuple(islice(rest, _RESPONSE_BYTES // size)):
                by_id = all(ask.topic_id is not None for _, ask in some)
                plan = FetchPlan(session_id=0, epoch=-1, send=some, forget=(), by_id=by_id)
                yield requests.fetch_request(
                    plan, max_wait_ms=0, max_bytes=_RESPONSE_BYTES, read_committed=read_committed
                )

    def take_progress(self) -> bool:
        """Return whether a search has come further since the last call, so that it can go on at once."""
        advanced, self._advanced = self._advanced, False
        return advanced

    def process_response(self, tp: TopicPartition, data: Any) -> str | None:  # noqa: ANN401 - kafka-python has no types
        """Process a partition's part of a response; return the problem if the partition has to be requested again."""
        place = self._places[tp]
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and not place.readable:
            self.found[tp] = None
            return None
        if data.error_code != ErrorCode.NONE:
            return name_of(data.error_code)
        records = memoryview(data.records or b"")
        head = _BATCH_HEAD.size
        first = head + _BATCH_HEAD.unpack_from(records)[1] if len(records) >= head else 0
        if not 0 < first <= len(records):
            if data.high_watermark > self._next[tp] and self._size[tp] + 1 < len(SIZES):
                self._size[tp] += 1
                return None
            first, records = 0, memoryview(b"")
        if place.readable:
            return self._search(tp, records, first, data)
        read = self._transcoded(tp, records[:first], data)
        self.found[tp] = None if read is None else last_record(read.segments)
        return None

    def _search(self, tp: TopicPartition, records: memoryview, first: int, data: Any) -> str | None:  # noqa: ANN401
        """Search an answer, whose first batch has `first` bytes, and go on behind it; return as `process_response`."""
        # A damaged batch must not hide the record of one before it.
        read = self._transcoded(tp, records, data) or self._transcoded(tp, records[:first], data)
        if read is None:
            return f"the record batch at offset {self._next[tp]} is damaged"
        record = last_record(read.segments)
        until = self._places[tp].until
        if record is None and self._next[tp] < read.next_offset < until:
            self._next[tp] = read.next_offset
            self._size[tp] = max(self._size[tp], 1)
            self._advanced = True
            return None
        end = requests.stable_offset(data) if self._is_committed(tp) else data.high_watermark
        if record is None and end < until:
            return f"an open transaction, or a new leader, holds back what comes from {end} on"
        self.found[tp] = record
        return None

    def _is_committed(self, tp: TopicPartition) -> bool:
        return self._read_committed and self._places[tp].readable

    def _transcoded(self, tp: TopicPartition, records: memoryview, data: Any) -> Transcoded | None:  # noqa: ANN401
        """Return what batches hold below `until`, None if one is damaged."""
        place = self._places[tp]
        try:
            return self._transcoder.transcode(
                bytes(records),
                topic=tp.topic,
                partition=tp.partition,
                start=self._next[tp] if place.readable else 0,
                until=place.until,
                aborted=requests.aborted_transactions(data),
                read_committed=self._is_committed(tp),
            )
        except DamagedError:
            return None

    @cached_property
    def _transcoder(self) -> Transcoder:
        return best_transcoder()
