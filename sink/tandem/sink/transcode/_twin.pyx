# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The compiled twin of `plain_transcoder`: the same bytes, outside of the interpreter's lock, no object per record.

Nothing is raised here for what is wrong with the data: `transcode` returns None, and the reference, asked for the same
bytes, says what it is. So the twin has to know right from wrong, but only one of the two has the words. No byte is
read before it is known to be there; what a length claims is compared with what is left before it is used.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc

from tandem.sink.transcode._wire cimport (
    ABORT_MARKER,
    BASE_TIMESTAMP_AT,
    Buffer,
    COMPRESSION_MASK,
    CONTROL,
    COUNT_AT,
    COVERED_AT,
    CRC_AT,
    DAMAGED,
    EPOCH_AT,
    FINE,
    HEADER_SIZE,
    LAST_DELTA_AT,
    LENGTH_AT,
    LENGTH_FROM,
    LOG_APPEND_TIME,
    MAGIC,
    MAGIC_AT,
    MAX_TIMESTAMP_AT,
    NO_MEMORY,
    PRODUCER_AT,
    TRANSACTIONAL,
    Verdict,
    __builtin_add_overflow,
    make_room,
    number,
    put_bytes,
    put_long,
    tandem_crc32c,
    tandem_crc_has_hardware,
    tandem_crc_prepare,
)
from tandem.sink.transcode.transcoder_result import Segment, Transcoded

cdef int64_t LONG_MAX = 0x7FFFFFFFFFFFFFFF
cdef size_t OWN_BYTES = 64  # what a record takes at most besides its prefix and what is copied
cdef size_t OWN_WEIGHT = 24  # as `encode` has it

cdef struct Piece:
    size_t start
    size_t end
    int64_t records
    int64_t tombstones
    int64_t first
    int64_t last
    size_t last_at
    int64_t min_timestamp
    int64_t max_timestamp
    size_t largest
    int codecs

cdef struct Pieces:
    Piece *items
    size_t count
    size_t room

cdef struct Wanted:
    const uint8_t *prefix
    size_t prefix_size
    int64_t start
    int64_t stop

cdef struct Aborted:
    int64_t *producers  # of the listed transactions, by their first offset
    int64_t *firsts
    size_t listed
    size_t reached
    int64_t *active
    size_t active_count

tandem_crc_prepare()
cdef bint _hardware = tandem_crc_has_hardware()


cdef inline int32_t get32(const uint8_t *at) noexcept nogil:
    return <int32_t>(<uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | <uint32_t>at[3])


cdef inline int64_t get64(const uint8_t *at) noexcept nogil:
    return <int64_t>(<uint64_t><uint32_t>get32(at) << 32 | <uint64_t><uint32_t>get32(at + 4))


cdef const uint8_t *headers_end(const uint8_t *at, const uint8_t *end) noexcept nogil:
    """Return the place after a record's headers, NULL if they are not right."""
    cdef uint64_t count, size
    at = number(at, end, &count)
    if at == NULL or count & 1:
        return NULL
    count >>= 1
    while count:
        at = number(at, end, &size)
        if at == NULL or size & 1 or size >> 1 > <uint64_t>(end - at):
            return NULL
        at += size >> 1
        at = number(at, end, &size)
        if at == NULL:
            return NULL
        if not size & 1:
            if size >> 1 > <uint64_t>(end - at):
                return NULL
            at += size >> 1
        count -= 1
    return at


cdef uint8_t *put_headers(uint8_t *to, const uint8_t *at, const uint8_t *end) noexcept nogil:
    """Turn headers, found right by `headers_end`, into an Avro array."""
    cdef uint64_t count = 0, size = 0
    cdef const uint8_t *begin = at
    at = number(at, end, &count)
    if not count:
        to[0] = 0
        return to + 1
    to = put_bytes(to, begin, at - begin)
    count >>= 1
    while count:
        begin = at
        at = number(at, end, &size)
        at += size >> 1
        to = put_bytes(to, begin, at - begin)
        begin = at
        at = number(at, end, &size)
        if size & 1:
            to[0] = 0
            to += 1
        else:
            at += size >> 1
            to[0] = 2
            to = put_bytes(to + 1, begin, at - begin)
        count -= 1
    to[0] = 0
    return to + 1


cdef Verdict encode(
    const uint8_t *at,
    const uint8_t *end,
    int64_t count,
    bint fill,
    int64_t base_offset,
    int64_t last_offset,
    int64_t base_timestamp,
    bint append,
    const Wanted *wanted,
    Buffer *out,
    Piece *piece,
    size_t *room,
    bint *cut,
) noexcept nogil:
    """Encode the `count` records at `at` up to `end` that are wanted, as `encode.encode_batch` does.

    What they weigh is taken from `room`, which is 0 once it is full; `cut` is set if that left out what follows.
    """
    cdef int64_t previous, offset = base_offset - 1
    cdef int64_t timestamp = base_timestamp
    cdef uint64_t size, raw, distance
    cdef const uint8_t *record_end
    cdef const uint8_t *key
    cdef const uint8_t *value
    cdef const uint8_t *headers
    cdef const uint8_t *key_end
    cdef const uint8_t *value_end
    cdef uint8_t *to
    cdef bint has_key, has_value
    cdef size_t length, weight
    cdef bint trim = base_offset < wanted.start or last_offset >= wanted.stop
    while count:
        count -= 1
        at = number(at, end, &size)
        if at == NULL or size & 1 or size >> 1 > <uint64_t>(end - at):
            return DAMAGED
        record_end = at + (size >> 1)
        length = size >> 1
        if at >= end:
            return DAMAGED
        at = number(at + 1, end, &raw)  # after the attributes, which are not in use
        if at == NULL:
            return DAMAGED
        at = number(at, end, &distance)
        if at == NULL or distance & 1:
            return DAMAGED
        previous = offset
        if distance >> 1 > <uint64_t>(last_offset - base_offset):
            return DAMAGED
        offset = base_offset + <int64_t>(distance >> 1)
        if offset <= previous:
            return DAMAGED
        if trim and not wanted.start <= offset < wanted.stop:
            at = record_end
            continue

        key = at
        at = number(at, end, &size)
        if at == NULL:
            return DAMAGED
        has_key = not size & 1
        if has_key:
            if size >> 1 > <uint64_t>(end - at):
                return DAMAGED
            at += size >> 1
        key_end = value = at
        at = number(at, end, &size)
        if at == NULL:
            return DAMAGED
        has_value = not size & 1
        if has_value:
            if size >> 1 > <uint64_t>(end - at):
                return DAMAGED
            at += size >> 1
        value_end = headers = at
        at = headers_end(at, end)
        if at != record_end:
            return DAMAGED
        if not append:
            if __builtin_add_overflow(base_timestamp, <int64_t>(raw >> 1) ^ -<int64_t>(raw & 1), &timestamp):
                return DAMAGED

        # A header takes at least two bytes there, and at most one more here.
        if make_room(out, wanted.prefix_size + OWN_BYTES + 2 * <size_t>(at - key)) != FINE:
            return NO_MEMORY
        piece.last_at = out.size
        to = put_bytes(out.data + out.size, wanted.prefix, wanted.prefix_size)
        to = put_long(to, offset)
        to = put_long(to, timestamp)
        to[0] = 0 if timestamp == -1 else 4 if append else 2
        to += 1
        if has_key:
            to[0] = 2
            to = put_bytes(to + 1, key, key_end - key)
        else:
            to[0] = 0
            to += 1
        if has_value:
            to[0] = 2
            to = put_bytes(to + 1, value, value_end - value)
        else:
            to[0] = 0
            to += 1
            piece.tombstones += 1
        if headers[0] == 0:
            to[0] = 0
            to += 1
        else:
            to = put_headers(to, headers, at)
        out.size = to - out.data
        if not piece.records:
            piece.first = offset
            piece.min_timestamp = piece.max_timestamp = timestamp
        elif timestamp < piece.min_timestamp:
            piece.min_timestamp = timestamp
        elif timestamp > piece.max_timestamp:
            piece.max_timestamp = timestamp
        if length > piece.largest:
            piece.largest = length
        piece.last = offset
        piece.records += 1
        weight = length + wanted.prefix_size + OWN_WEIGHT
        room[0] = room[0] - weight if room[0] > weight else 0
        if not room[0] and count:
            cut[0] = True
            return FINE
    return FINE if at == end or not fill else DAMAGED


cdef Verdict is_abort(const uint8_t *at, const uint8_t *end, bint *found) noexcept nogil:
    """Tell whether the first record of a control batch ends its transaction as aborted."""
    cdef uint64_t size
    at = number(at, end, &size)
    if at == NULL or at >= end:
        return DAMAGED
    at = number(at + 1, end, &size)
    if at == NULL:
        return DAMAGED
    at = number(at, end, &size)
    if at == NULL:
        return DAMAGED
    at = number(at, end, &size)
    if at == NULL or size & 1 or size >> 1 < 4 or size >> 1 > <uint64_t>(end - at):
        return DAMAGED
    found[0] = at[2] == 0 and at[3] == ABORT_MARKER
    return FINE


cdef void reach(Aborted *txns, int64_t offset) noexcept nogil:
    cdef size_t at
    while txns.reached < txns.listed and txns.firsts[txns.reached] <= offset:
        for at in range(txns.active_count):
            if txns.active[at] == txns.producers[txns.reached]:
                break
        else:
            txns.active[txns.active_count] = txns.producers[txns.reached]
            txns.active_count += 1
        txns.reached += 1


cdef bint is_aborted(Aborted *txns, int64_t producer) noexcept nogil:
    cdef size_t at
    for at in range(txns.active_count):
        if txns.active[at] == producer:
            return True
    return False


cdef void ended(Aborted *txns, int64_t producer) noexcept nogil:
    cdef size_t at
    for at in range(txns.active_count):
        if txns.active[at] == producer:
            txns.active_count -= 1
            txns.active[at] = txns.active[txns.active_count]
            return


cdef Verdict close_piece(Pieces *pieces, const Piece *piece) noexcept nogil:
    cdef Piece *items
    cdef size_t room
    if pieces.count == pieces.room:
        room = 2 * pieces.room + 8
        items = <Piece *>realloc(pieces.items, room * sizeof(Piece))
        if items == NULL:
            return NO_MEMORY
        pieces.items = items
        pieces.room = room
    pieces.items[pieces.count] = piece[0]
    pieces.count += 1
    return FINE


def crc32c(const uint8_t[::1] data, bint hardware=True):
    """Return the CRC-32C of `data`; for tests, which compare the two ways to it."""
    cdef size_t size = data.shape[0]
    cdef const uint8_t *at = &data[0] if size else NULL
    return tandem_crc32c(at, size, hardware and _hardware)


def transcode(
    const uint8_t[::1] data,
    bytes prefix,
    int64_t start,
    int64_t stop,
    list aborted,
    bint read_committed,
    object decompress,
    size_t piece_bytes,
    size_t output_limit,
):
    """Return what `Transcoder.transcode` does, or None if something is wrong with `data`.

    `prefix` are the first two fields of every record. `aborted` are (first offset, producer id), ascending.
    `decompress` is called with (the compressed records, the codec's number), and may return more than the records.
    Segments have about `piece_bytes`, and hold whole batches. Once the records weigh `output_limit` it stops, maybe
    inside of a batch.
    """
    cdef const uint8_t *bytes_at = NULL
    cdef size_t size = data.shape[0]
    cdef size_t at = 0, end
    cdef const uint8_t *batch
    cdef const uint8_t *body
    cdef const uint8_t *body_end
    cdef int64_t base_offset, last_offset, next_offset = start
    cdef uint64_t past = 0  # the first offset after the batches so far
    cdef int32_t length, last_delta, count, leader_epoch = -1
    cdef int attributes
    cdef int64_t before
    cdef bint is_abort_marker = False, cut = False
    cdef size_t room = output_limit
    cdef Verdict verdict = FINE
    cdef Wanted wanted
    cdef Buffer out
    cdef Piece piece
    cdef Pieces pieces
    cdef Aborted txns
    cdef const uint8_t[::1] plain
    cdef size_t n
    cdef size_t piece_at

    if size:
        bytes_at = &data[0]
    wanted.prefix = prefix
    wanted.prefix_size = len(prefix)
    wanted.start, wanted.stop = start, stop
    out.data, out.size, out.room = NULL, 0, 0
    pieces.items, pieces.count, pieces.room = NULL, 0, 0
    piece.records = piece.tombstones = piece.first = piece.last = piece.min_timestamp = piece.max_timestamp = 0
    piece.start = piece.end = piece.last_at = piece.largest = 0
    piece.codecs = 0
    txns.listed, txns.reached, txns.active_count = len(aborted), 0, 0
    txns.producers = txns.firsts = txns.active = NULL
    try:
        if txns.listed:
            txns.producers = <int64_t *>malloc(3 * txns.listed * sizeof(int64_t))
            if txns.producers == NULL:
                raise MemoryError
            txns.firsts = txns.producers + txns.listed
            txns.active = txns.firsts + txns.listed
            for n in range(txns.listed):
                txns.firsts[n], txns.producers[n] = aborted[n]
        with nogil:
            # Most of a response is one partition's records, which grow by the prefix and shrink by little.
            verdict = make_room(&out, size + size // 4 + 4096)
            while verdict == FINE and size - at > MAGIC_AT:
                batch = bytes_at + at
                base_offset, length = get64(batch), get32(batch + LENGTH_AT)
                if (
                    batch[MAGIC_AT] != MAGIC
                    or length < HEADER_SIZE - LENGTH_FROM
                    or base_offset < 0
                    or <uint64_t>base_offset < past
                ):
                    verdict = DAMAGED
                    break
                if <size_t>length > size - at - LENGTH_FROM or size - at < LENGTH_FROM:
                    break
                if base_offset >= stop:
                    next_offset = stop
                    break
                end = at + LENGTH_FROM + <size_t>length
                body, body_end = batch + HEADER_SIZE, bytes_at + end
                if tandem_crc32c(batch + COVERED_AT, body_end - batch - COVERED_AT, _hardware) != <uint32_t>get32(
                    batch + CRC_AT
                ):
                    verdict = DAMAGED
                    break
                attributes = <int>batch[COVERED_AT] << 8 | batch[COVERED_AT + 1]
                last_delta, count = get32(batch + LAST_DELTA_AT), get32(batch + COUNT_AT)
                if last_delta < 0 or count < 0 or count - 1 > last_delta or base_offset > LONG_MAX - last_delta:
                    verdict = DAMAGED
                    break
                last_offset = base_offset + last_delta
                if read_committed:
                    reach(&txns, last_offset)
                if attributes & CONTROL:
                    if read_committed and count:
                        verdict = is_abort(body, body_end, &is_abort_marker)
                        if verdict == FINE and is_abort_marker:
                            ended(&txns, get64(batch + PRODUCER_AT))
                elif (
                    count
                    and last_offset >= start
                    and not (
                        read_committed
                        and attributes & TRANSACTIONAL
                        and is_aborted(&txns, get64(batch + PRODUCER_AT))
                    )
                ):
                    if attributes & COMPRESSION_MASK:
                        with gil:
                            plain = None  # the batch before goes first
                            plain = decompress((<const char *>body)[: body_end - body], attributes & COMPRESSION_MASK)
                            body = &plain[0] if plain.shape[0] else batch
                            body_end = body + plain.shape[0]
                    before = piece.records
                    verdict = encode(
                        body,
                        body_end,
                        count,
                        not attributes & COMPRESSION_MASK,
                        base_offset,
                        last_offset,
                        get64(batch + MAX_TIMESTAMP_AT)
                        if attributes & LOG_APPEND_TIME
                        else get64(batch + BASE_TIMESTAMP_AT),
                        attributes & LOG_APPEND_TIME,
                        &wanted,
                        &out,
                        &piece,
                        &room,
                        &cut,
                    )
                    if piece.records > before:
                        piece.codecs |= 1 << (attributes & COMPRESSION_MASK)
                    if verdict == FINE and cut:
                        last_offset = piece.last
                    if verdict == FINE and out.size - piece.start >= piece_bytes:
                        piece.end = out.size
                        verdict = close_piece(&pieces, &piece)
                        piece.start = out.size
                        piece.records = piece.tombstones = 0
                        piece.largest = 0
                        piece.codecs = 0
                if verdict == FINE:
                    at = end
                    past = <uint64_t>last_offset + 1
                    leader_epoch = get32(batch + EPOCH_AT)
                    next_offset = stop if past >= <uint64_t>stop else max(start, <int64_t>past)
                    if not room:
                        break
            if verdict == FINE and piece.records:
                piece.end = out.size
                verdict = close_piece(&pieces, &piece)
        if verdict == NO_MEMORY:
            raise MemoryError
        if verdict == DAMAGED:
            return None
        plain = None  # it may be larger than all that is returned
        segments = []
        for piece_at in range(pieces.count):
            piece = pieces.items[piece_at]
            segments.append(
                Segment(
                    body=out.data[piece.start : piece.end],
                    records=piece.records,
                    tombstones=piece.tombstones,
                    first_offset=piece.first,
                    last_offset=piece.last,
                    last_at=piece.last_at - piece.start,
                    min_timestamp=piece.min_timestamp,
                    max_timestamp=piece.max_timestamp,
                    largest=piece.largest,
                    codecs=piece.codecs,
                )
            )
        return Transcoded(segments=tuple(segments), next_offset=next_offset, leader_epoch=leader_epoch)
    finally:
        free(out.data)
        free(pieces.items)
        free(txns.producers)
