"""Operations on bodies in plain Python: the reference of `compiled_bodies`, and the fallback without a C compiler."""

from __future__ import annotations

from collections.abc import Iterator

from tandem.backup_avro.record import version_1
from tandem.backup_avro.record.record_spans import Span, spans
from tandem.backup_avro.record.version_1 import ConvertedBody, LayoutV1
from tandem.sink.transcode import avro_to_batch, content_hash
from tandem.sink.transcode.batch import Compression, with_producer
from tandem.sink.transcode.body_operations import BodySurvey, BuiltBatch, HashState
from tandem.sink.transcode.transcoder_result import REFERENCE


class PlainBodies:
    """`BodyWorker` that delegates to the modules in plain Python."""

    name = REFERENCE

    def build_batches(
        self,
        body: bytes | memoryview,
        count: int,
        *,
        max_batch_bytes: int,
        max_batch_records: int,
        compression: Compression,
        start: int = 0,
        until: int | None = None,
    ) -> Iterator[BuiltBatch]:
        """See `avro_to_batch.build_batches`."""
        return avro_to_batch.build_batches(
            body,
            count,
            max_batch_bytes=max_batch_bytes,
            max_batch_records=max_batch_records,
            compression=compression,
            start=start,
            until=until,
        )

    def advance(self, state: bytes, body: bytes | memoryview, count: int) -> HashState:
        """See `content_hash.advance_body`."""
        return content_hash.advance_body(state, body, count)

    def survey(self, body: bytes, count: int) -> BodySurvey | None:
        """Return None: the caller reads the records one by one."""
        del body, count
        return None

    def spans(self, body: bytes, count: int) -> Iterator[Span]:
        """See `backup_avro.record.record_spans.spans`."""
        return spans(body, count)

    def modern(self, body: bytes, count: int, layout: LayoutV1, *, empty_as_null: bool) -> ConvertedBody:
        """See `backup_avro.record.version_1.modern`."""
        return version_1.modern(body, count, layout, empty_as_null=empty_as_null)

    def stamped(
        self, data: bytes | bytearray, *, producer_id: int, producer_epoch: int, base_sequence: int, transactional: bool
    ) -> bytes | bytearray:
        """See `batch.with_producer`."""
        return with_producer(
            data,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            transactional=transactional,
        )
