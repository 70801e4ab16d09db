# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""What a restore and a verification do with every record of a body, outside of the interpreter's lock.

As in `_twin`, nothing is raised here for what is wrong with the data: None is returned, and the plain Python, asked for
the same bytes, says what it is. No byte is read before it is known to be there; what a length claims is compared with
what is left before it is used. All functions want the encoded topic and partition that every record must begin with.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcmp, memcpy, memset

from tandem.sink.transcode._wire cimport (
    BASE_TIMESTAMP_AT,
    Buffer,
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
    MAGIC,
    MAGIC_AT,
    MAX_TIMESTAMP_AT,
    NO_MEMORY,
    PRODUCER_AT,
    TRANSACTIONAL,
    Verdict,
    __builtin_sub_overflow,
    make_room,
    number,
    put_bytes,
    put_long,
    put_unsigned,
    tandem_crc32c,
    tandem_crc_has_hardware,
    tandem_crc_prepare,
)

cdef extern from "sha256.h" nogil:
    ctypedef struct tandem_sha:
        pass
    int tandem_sha_has_hardware()
    void tandem_sha_begin(tandem_sha *sha)
    void tandem_sha_add(tandem_sha *sha, const uint8_t *data, size_t size, int hardware)
    void tandem_sha_end(tandem_sha *sha, uint8_t *digest, int hardware)

cdef int64_t INT_MAX = 0x7FFFFFFF
cdef int64_t LONG_MAX = 0x7FFFFFFFFFFFFFFF
cdef enum:
    DIGEST_SIZE = 32
    NO_PRODUCER_SIZE = 14  # id, epoch and sequence, all -1

cdef struct Span:
    # A record; see `spans.Span`. Null has no place of its length.
    int64_t offset
    int64_t timestamp
    int kind
    const uint8_t *key_at
    const uint8_t *key
    const uint8_t *key_end
    const uint8_t *value_at
    const uint8_t *value
    const uint8_t *value_end
    const uint8_t *headers
    uint64_t header_count
    const uint8_t *end

cdef struct Head:
    const uint8_t *data
    size_t size

cdef struct Run:
    int64_t first
    int64_t last

cdef struct Built:
    size_t start  # where it is in the output, its header first
    size_t end
    size_t first_byte  # of the body
    size_t last_byte
    size_t runs_at
    size_t runs
    int64_t records
    int64_t base_timestamp
    int64_t min_timestamp
    int64_t max_timestamp

cdef struct Output:
    Buffer bytes
    Built *batches
    size_t count
    size_t room
    Run *runs
    size_t run_count
    size_t run_room

tandem_crc_prepare()
cdef bint _crc_hardware = tandem_crc_has_hardware()
cdef bint _sha_hardware = tandem_sha_has_hardware()


cdef inline int64_t signed(uint64_t raw) noexcept nogil:
    return <int64_t>(raw >> 1) ^ -<int64_t>(raw & 1)


cdef inline void put32(uint8_t *to, uint32_t value) noexcept nogil:
    to[0] = <uint8_t>(value >> 24)
    to[1] = <uint8_t>(value >> 16)
    to[2] = <uint8_t>(value >> 8)
    to[3] = <uint8_t>value


cdef inline void put64(uint8_t *to, uint64_t value) noexcept nogil:
    put32(to, <uint32_t>(value >> 32))
    put32(to + 4, <uint32_t>value)


cdef inline size_t long_size(int64_t value) noexcept nogil:
    cdef uint64_t left = ((<uint64_t>value << 1) ^ <uint64_t>(value >> 63)) >> 7
    cdef size_t size = 1
    while left:
        left >>= 7
        size += 1
    return size


cdef inline const uint8_t *sized(const uint8_t *at, const uint8_t *end, const uint8_t **begin) noexcept nogil:
    """Read a length and as many bytes from `begin` on; return the place after them."""
    cdef uint64_t size
    at = number(at, end, &size)
    if at == NULL or size & 1 or size >> 1 > <uint64_t>(end - at):
        return NULL
    begin[0] = at
    return at + (size >> 1)


cdef const uint8_t *array_end(const uint8_t *at, const uint8_t *end, uint64_t *count) noexcept nogil:
    """Return the place after an array of headers and how many there are. It may come in blocks, as Avro allows."""
    cdef uint64_t raw, items
    cdef const uint8_t *begin
    count[0] = 0
    while True:
        at = number(at, end, &raw)
        if at == NULL or not raw:
            return at
        items = raw >> 1
        if raw & 1:  # "a negative count is followed by the block's size in bytes"
            items += 1
            at = number(at, end, &raw)
            if at == NULL:
                return NULL
        if items > <uint64_t>(end - at):
            return NULL
        count[0] += items
        while items:
            at = sized(at, end, &begin)
            if at == NULL:
                return NULL
            at = number(at, end, &raw)
            if at == NULL or raw & ~<uint64_t>2:
                return NULL
            if raw:
                at = sized(at, end, &begin)
                if at == NULL:
                    return NULL
            items -= 1


cdef inline const uint8_t *read(
    const uint8_t *at, const uint8_t *end, const Head *head, Span *span
) noexcept nogil:
    """Read the record at `at`; return the place after it, NULL if it is damaged or not of this topic and partition."""
    cdef uint64_t raw
    if <size_t>(end - at) < head.size or memcmp(at, head.data, head.size):
        return NULL
    at = number(at + head.size, end, &raw)
    if at == NULL:
        return NULL
    span.offset = signed(raw)
    at = number(at, end, &raw)
    if at == NULL:
        return NULL
    span.timestamp = signed(raw)
    if end - at < 2 or (at[0] != 0 and at[0] != 2 and at[0] != 4):
        return NULL
    span.kind = at[0] >> 1
    at += 1

    if at[0] == 2:
        span.key_at = at + 1
        at = sized(at + 1, end, &span.key)
        if at == NULL:
            return NULL
        span.key_end = at
    elif at[0] == 0:
        span.key_at = span.key = span.key_end = NULL
        at += 1
    else:
        return NULL

    if at >= end:
        return NULL
    if at[0] == 2:
        span.value_at = at + 1
        at = sized(at + 1, end, &span.value)
        if at == NULL:
            return NULL
        span.value_end = at
    elif at[0] == 0:
        span.value_at = span.value = span.value_end = NULL
        at += 1
    else:
        return NULL

    span.headers = at
    if at >= end:
        return NULL
    if at[0]:
        at = array_end(at, end, &span.header_count)
    else:
        span.header_count = 0
        at += 1
    span.end = at
    return at


cdef size_t headers_size(const Span *span) noexcept nogil:
    """Return the bytes of the headers as a batch has them."""
    cdef uint64_t left = span.header_count, raw = 0, items
    cdef const uint8_t *at = span.headers
    cdef const uint8_t *begin = NULL
    cdef size_t size = long_size(<int64_t>left)
    while left:
        at = number(at, span.end, &raw)
        items = raw >> 1
        if raw & 1:
            items += 1
            at = number(at, span.end, &raw)
        left -= items
        while items:
            at = sized(at, span.end, &begin)
            size += long_size(at - begin) + (at - begin)
            at = number(at, span.end, &raw)
            if raw:
                at = sized(at, span.end, &begin)
                size += long_size(at - begin) + (at - begin)
            else:
                size += 1
            items -= 1
    return size


cdef uint8_t *put_headers(uint8_t *to, const Span *span) noexcept nogil:
    """Write the headers as a batch has them."""
    cdef uint64_t left = span.header_count, raw = 0, items
    cdef const uint8_t *at = span.headers
    cdef const uint8_t *begin = NULL
    to = put_long(to, <int64_t>left)
    while left:
        at = number(at, span.end, &raw)
        items = raw >> 1
        if raw & 1:
            items += 1
            at = number(at, span.end, &raw)
        left -= items
        while items:
            at = sized(at, span.end, &begin)
            to = put_bytes(put_long(to, at - begin), begin, at - begin)
            at = number(at, span.end, &raw)
            if raw:
                at = sized(at, span.end, &begin)
                to = put_bytes(put_long(to, at - begin), begin, at - begin)
            else:
                to = put_long(to, -1)
            items -= 1
    return to


cdef Verdict open_batch(Output *out, const Span *span, size_t first_byte) noexcept nogil:
    cdef void *items
    cdef size_t room
    cdef Built *batch
    if out.count == out.room:
        room = 2 * out.room + 8
        items = realloc(out.batches, room * sizeof(Built))
        if items == NULL:
            return NO_MEMORY
        out.batches = <Built *>items
        out.room = room
    if make_room(&out.bytes, HEADER_SIZE) != FINE:
        return NO_MEMORY
    batch = &out.batches[out.count]
    out.count += 1
    batch.start = out.bytes.size
    out.bytes.size += HEADER_SIZE
    batch.first_byte = first_byte
    batch.runs_at = out.run_count
    batch.runs = 0
    batch.records = 0
    batch.base_timestamp = batch.min_timestamp = batch.max_timestamp = span.timestamp
    return FINE


cdef Verdict add_offset(Output *out, Built *batch, int64_t offset) noexcept nogil:
    cdef void *items
    cdef size_t room
    if batch.runs and out.runs[out.run_count - 1].last == offset - 1:
        out.runs[out.run_count - 1].last = offset
        return FINE
    if out.run_count == out.run_room:
        room = 2 * out.run_room + 8
        items = realloc(out.runs, room * sizeof(Run))
        if items == NULL:
            return NO_MEMORY
        out.runs = <Run *>items
        out.run_room = room
    out.runs[out.run_count].first = out.runs[out.run_count].last = offset
    out.run_count += 1
    batch.runs += 1
    return FINE


cdef Verdict close_batch(Output *out, bint seal) noexcept nogil:
    """Write the header of the last batch, as that of an uncompressed one; its CRC only to `seal` it."""
    cdef Built *batch = &out.batches[out.count - 1]
    cdef uint8_t *at = out.bytes.data + batch.start
    cdef size_t size = out.bytes.size - batch.start
    batch.end = out.bytes.size
    if size > <size_t>INT_MAX:
        return DAMAGED
    memset(at, 0, HEADER_SIZE)
    put32(at + LENGTH_AT, <uint32_t>(size - LENGTH_FROM))
    put32(at + EPOCH_AT, <uint32_t>-1)
    at[MAGIC_AT] = MAGIC
    put32(at + LAST_DELTA_AT, <uint32_t>(batch.records - 1))
    put64(at + BASE_TIMESTAMP_AT, <uint64_t>batch.base_timestamp)
    put64(at + MAX_TIMESTAMP_AT, <uint64_t>batch.max_timestamp)
    memset(at + PRODUCER_AT, 0xFF, NO_PRODUCER_SIZE)
    put32(at + COUNT_AT, <uint32_t>batch.records)
    if seal:
        put32(at + CRC_AT, tandem_crc32c(at + COVERED_AT, size - COVERED_AT, _crc_hardware))
    return FINE


cdef Verdict fill(
    const uint8_t *data,
    size_t data_size,
    int64_t count,
    const Head *head,
    int64_t start,
    int64_t stop,
    int64_t max_bytes,
    int64_t max_records,
    bint seal,
    Output *out,
) noexcept nogil:
    """Fill batch after batch, as `avro_to_batch.build_batches` does."""
    cdef const uint8_t *at = data
    cdef const uint8_t *end = data + data_size
    cdef const uint8_t *begin
    cdef uint8_t *to
    cdef Built *batch = NULL
    cdef Span span
    cdef int64_t previous = -1, distance = 0, index
    cdef size_t content, headers, length
    while count:
        count -= 1
        begin = at
        at = read(at, end, head, &span)
        if at == NULL or span.offset <= previous:
            return DAMAGED
        previous = span.offset
        if span.offset < start:
            continue
        if span.offset >= stop:
            break
        headers = 1 if not span.header_count else headers_size(&span)
        content = (
            (1 if span.key_at == NULL else <size_t>(span.key_end - span.key_at))
            + (1 if span.value_at == NULL else <size_t>(span.value_end - span.value_at))
            + headers
        )
        index = 0 if batch == NULL else batch.records
        length = 0
        if index:
            # A distance that a batch can't hold: the next one starts here.
            if index >= max_records or __builtin_sub_overflow(span.timestamp, batch.base_timestamp, &distance):
                index = 0
            else:
                length = 1 + long_size(distance) + long_size(index) + content
                if <int64_t>(out.bytes.size - batch.start + long_size(<int64_t>length) + length) > max_bytes:
                    index = 0
        if not index:
            if batch != NULL and close_batch(out, seal) != FINE:
                return DAMAGED
            if open_batch(out, &span, begin - data) != FINE:
                return NO_MEMORY
            batch = &out.batches[out.count - 1]
            distance = 0
            length = 3 + content
        if make_room(&out.bytes, length + 10) != FINE:
            return NO_MEMORY
        to = put_long(out.bytes.data + out.bytes.size, <int64_t>length)
        to[0] = 0
        to = put_long(put_long(to + 1, distance), index)
        if span.key_at == NULL:
            to[0] = 1
            to += 1
        else:
            to = put_bytes(to, span.key_at, span.key_end - span.key_at)
        if span.value_at == NULL:
            to[0] = 1
            to += 1
        else:
            to = put_bytes(to, span.value_at, span.value_end - span.value_at)
        if span.header_count:
            to = put_headers(to, &span)
        else:
            to[0] = 0
            to += 1
        out.bytes.size = to - out.bytes.data
        if add_offset(out, batch, span.offset) != FINE:
            return NO_MEMORY
        batch.records += 1
        batch.last_byte = at - data
        if span.timestamp < batch.min_timestamp:
            batch.min_timestamp = span.timestamp
        elif span.timestamp > batch.max_timestamp:
            batch.max_timestamp = span.timestamp
    else:
        if at != end:
            return DAMAGED
    return FINE if batch == NULL else close_batch(out, seal)


def build(
    const uint8_t[::1] data,
    int64_t count,
    bytes head,
    int64_t start,
    int64_t stop,
    int64_t max_bytes,
    int64_t max_records,
    bint seal,
):
    """Return the batches of a body, or None if something is wrong with it.

    Each is (bytes, base timestamp, least, greatest, runs, first byte, last byte, records): finished batches under
    `seal`, else only the records, for whoever compresses them.
    """
    cdef const uint8_t *at = NULL
    cdef size_t size = data.shape[0], skipped = 0 if seal else HEADER_SIZE
    cdef Verdict verdict
    cdef Head wanted
    cdef Output out
    cdef Built *batch
    cdef size_t n, run
    if count <= 0 or not size:
        return None
    at = &data[0]
    wanted.data, wanted.size = head, len(head)
    memset(&out, 0, sizeof(Output))
    try:
        with nogil:
            # A record has its topic and partition only there, and its own length only here.
            verdict = make_room(&out.bytes, size + 4096)
            if verdict == FINE:
                verdict = fill(at, size, count, &wanted, start, stop, max_bytes, max_records, seal, &out)
        if verdict == NO_MEMORY:
            raise MemoryError
        if verdict == DAMAGED:
            return None
        found = []
        for n in range(out.count):
            batch = &out.batches[n]
            runs = []
            for run in range(batch.runs_at, batch.runs_at + batch.runs):
                runs.append((out.runs[run].first, out.runs[run].last))
            found.append(
                (
                    out.bytes.data[batch.start + skipped : batch.end],
                    batch.base_timestamp,
                    batch.min_timestamp,
                    batch.max_timestamp,
                    tuple(runs),
                    batch.first_byte,
                    batch.last_byte,
                    batch.records,
                )
            )
        return found
    finally:
        free(out.bytes.data)
        free(out.batches)
        free(out.runs)


cdef inline void hash_bytes(
    tandem_sha *sha, const uint8_t *place, const uint8_t *data, const uint8_t *end, bint hardware
) noexcept nogil:
    """Add a length and as many bytes; without a `place`, null."""
    cdef uint8_t length[4]
    put32(length, <uint32_t>-1 if place == NULL else <uint32_t>(end - data))
    tandem_sha_add(sha, length, 4, hardware)
    if end != data:
        tandem_sha_add(sha, data, end - data, hardware)


cdef void hash_headers(tandem_sha *sha, const Span *span, bint hardware) noexcept nogil:
    cdef uint64_t left = span.header_count, raw = 0, items
    cdef const uint8_t *at = span.headers
    cdef const uint8_t *begin = NULL
    cdef uint8_t length[4]
    put32(length, <uint32_t>left)
    tandem_sha_add(sha, length, 4, hardware)
    while left:
        at = number(at, span.end, &raw)
        items = raw >> 1
        if raw & 1:
            items += 1
            at = number(at, span.end, &raw)
        left -= items
        while items:
            at = sized(at, span.end, &begin)
            hash_bytes(sha, begin, begin, at, hardware)
            at = number(at, span.end, &raw)
            if raw:
                at = sized(at, span.end, &begin)
                hash_bytes(sha, begin, begin, at, hardware)
            else:
                hash_bytes(sha, NULL, NULL, NULL, hardware)
            items -= 1


def advance(const uint8_t[::1] data, int64_t count, bytes head, bytes state, bint hardware=True):
    """Return what `content_hash.advance_body` does, or None if something is wrong with the body."""
    cdef const uint8_t *at
    cdef const uint8_t *end
    cdef size_t size = data.shape[0]
    cdef Head wanted
    cdef Span span
    cdef tandem_sha sha
    cdef uint8_t digest[DIGEST_SIZE]
    cdef uint8_t stamp[8]
    cdef int64_t tombstones = 0, null_keys = 0, left = count
    cdef const uint8_t *before = state
    if count <= 0 or not size or len(state) != DIGEST_SIZE or <int64_t>size > INT_MAX:
        return None
    wanted.data, wanted.size = head, len(head)
    memcpy(digest, before, DIGEST_SIZE)
    hardware = hardware and _sha_hardware
    at = &data[0]
    end = at + size
    with nogil:
        while left and at != NULL:
            left -= 1
            at = read(at, end, &wanted, &span)
            if at == NULL:
                break
            tandem_sha_begin(&sha)
            tandem_sha_add(&sha, digest, DIGEST_SIZE, hardware)
            put64(stamp, <uint64_t>span.timestamp)
            tandem_sha_add(&sha, stamp, 8, hardware)
            hash_bytes(&sha, span.key_at, span.key, span.key_end, hardware)
            hash_bytes(&sha, span.value_at, span.value, span.value_end, hardware)
            hash_headers(&sha, &span, hardware)
            tandem_sha_end(&sha, digest, hardware)
            tombstones += span.value_at == NULL
            null_keys += span.key_at == NULL
    if at != end:
        return None
    return (<const char *>digest)[:DIGEST_SIZE], tombstones, null_keys


def survey(const uint8_t[::1] data, int64_t count, bytes head):
    """Return (tombstones, first, last, least timestamp, greatest, disorder) of a body, or None if something is wrong.

    `disorder` is the first offset that is not above the one before it, with that one, or None.
    """
    cdef const uint8_t *at
    cdef const uint8_t *end
    cdef size_t size = data.shape[0]
    cdef Head wanted
    cdef Span span
    cdef int64_t tombstones = 0, left = count
    cdef int64_t first = 0, last = 0, least = 0, greatest = 0, wrong = 0, before_wrong = 0
    cdef bint ordered = True
    if count <= 0 or not size:
        return None
    wanted.data, wanted.size = head, len(head)
    at = &data[0]
    end = at + size
    with nogil:
        while left:
            at = read(at, end, &wanted, &span)
            if at == NULL:
                break
            if left == count:
                first = span.offset
                least = greatest = span.timestamp
            elif ordered and span.offset <= last:
                ordered = False
                wrong, before_wrong = span.offset, last
            left -= 1
            last = span.offset
            if span.timestamp < least:
                least = span.timestamp
            elif span.timestamp > greatest:
                greatest = span.timestamp
            tombstones += span.value_at == NULL
    if at != end:
        return None
    return tombstones, first, last, least, greatest, None if ordered else (wrong, before_wrong)


def spans(bytes data, size_t start, int64_t most, bytes head):
    """Return the spans of `most` records from byte `start` on and the place after them, or None if something is wrong.

    Here the interpreter's lock is held: what is made is Python's.
    """
    cdef const uint8_t *begin = data
    cdef const uint8_t *end = begin + len(data)
    cdef const uint8_t *record = begin + start
    cdef const uint8_t *after
    cdef Head wanted
    cdef Span span
    cdef list found = []
    wanted.data, wanted.size = head, len(head)
    if start > <size_t>len(data):
        return None
    while most > 0:
        after = read(record, end, &wanted, &span)
        if after == NULL:
            return None
        found.append((
            head,
            record - begin,
            span.offset,
            span.timestamp,
            span.kind,
            -1 if span.key_at == NULL else span.key_at - begin,
            -1 if span.key_at == NULL else span.key - begin,
            key_end(&span) - begin,
            -1 if span.value_at == NULL else span.value_at - begin,
            -1 if span.value_at == NULL else span.value - begin,
            span.headers - begin,
            span.headers - begin,
            after - begin,
        ))
        record = after
        most -= 1
    return found, record - begin


cdef inline const uint8_t *key_end(const Span *span) noexcept nogil:
    """Return the place after the key, or after the byte that says that there is none."""
    if span.key_at != NULL:
        return span.key_end
    return span.headers - 1 if span.value_at == NULL else span.value_at - 1


cdef inline const uint8_t *put_modern(
    const uint8_t *at, const uint8_t *end, uint8_t **to, int null, bint empty_as_null, int64_t *empty
) noexcept nogil:
    """Write a key or value of version 1 as it is today; return the place after it. `null` -1: it is no union."""
    cdef const uint8_t *begin = NULL
    if null >= 0:
        if at >= end or (at[0] != 0 and at[0] != 2):
            return NULL
        at += 1
        if at[-1] >> 1 == null:
            to[0][0] = 0
            to[0] += 1
            return at
    at = sized(at, end, &begin)
    if at == NULL:
        return NULL
    empty[0] += at == begin
    if empty_as_null and at == begin:
        to[0][0] = 0
        to[0] += 1
    else:
        to[0][0] = 2
        to[0] = put_bytes(put_long(to[0] + 1, at - begin), begin, at - begin)
    return at


cdef const uint8_t *map_end(const uint8_t *at, const uint8_t *end, uint64_t *count) noexcept nogil:
    """Return the place after a map of bytes and how many entries it has. It may come in blocks, as Avro allows."""
    cdef uint64_t raw = 0, items
    cdef const uint8_t *begin = NULL
    count[0] = 0
    while True:
        at = number(at, end, &raw)
        if at == NULL or not raw:
            return at
        items = raw >> 1
        if raw & 1:
            items += 1
            at = number(at, end, &raw)
            if at == NULL:
                return NULL
        if items > <uint64_t>(end - at):
            return NULL
        count[0] += items
        while items:
            at = sized(at, end, &begin)
            if at == NULL:
                return NULL
            at = sized(at, end, &begin)
            if at == NULL:
                return NULL
            items -= 1


cdef uint8_t *put_map(const uint8_t *at, const uint8_t *end, uint8_t *to, uint64_t left, bint empty_as_null) noexcept nogil:
    """Write the `left` entries of a map that `map_end` has looked at, as an array of headers."""
    cdef uint64_t raw = 0, items
    cdef const uint8_t *begin = NULL
    cdef int64_t empty = 0
    if left:
        to = put_long(to, <int64_t>left)
    while left:
        at = number(at, end, &raw)
        items = raw >> 1
        if raw & 1:
            items += 1
            at = number(at, end, &raw)
        left -= items
        while items:
            at = sized(at, end, &begin)
            to = put_bytes(put_long(to, at - begin), begin, at - begin)
            at = put_modern(at, end, &to, -1, empty_as_null, &empty)
            items -= 1
    to[0] = 0
    return to + 1


cdef const uint8_t *put_record(
    const uint8_t *at, const uint8_t *end, const Head *head, Buffer *out, int *nulls, bint empty_as_null, int64_t *empty
) noexcept nogil:
    """Write a record of version 1 as it is today, behind what `out` holds; return the place after it."""
    cdef uint64_t raw = 0, entries = 0
    cdef const uint8_t *begin
    cdef const uint8_t *after
    cdef uint8_t *to
    if <size_t>(end - at) < head.size or memcmp(at, head.data, head.size):
        return NULL
    begin = at = at + head.size
    to = out.data + out.size
    to = put_bytes(to, head.data, head.size)
    at = number(at, end, &raw)
    if at == NULL:
        return NULL
    to = put_unsigned(to, raw)
    at = number(at, end, &raw)
    if at == NULL:
        return NULL
    to = put_unsigned(to, raw)
    to[0] = 0  # no timestamp type
    to += 1
    at = put_modern(at, end, &to, nulls[0], empty_as_null, &empty[0])
    if at == NULL:
        return NULL
    at = put_modern(at, end, &to, nulls[1], empty_as_null, &empty[1])
    if at == NULL:
        return NULL
    if nulls[2] >= 0:
        if at >= end or (at[0] != 0 and at[0] != 2):
            return NULL
        at += 1
        if at[-1] >> 1 == nulls[2]:
            to[0] = 0
            out.size = to + 1 - out.data
            return at
    after = map_end(at, end, &entries)
    if after == NULL:
        return NULL
    out.size = put_map(at, after, to, entries, empty_as_null) - out.data
    return after


def modern(
    const uint8_t[::1] data,
    int64_t count,
    bytes head,
    int key_null,
    int value_null,
    int headers_null,
    bint empty_as_null,
):
    """Return (body, empty keys, empty values) as `record_v1.modern` does, or None if something is wrong with the body.

    The three numbers say which branch of a union is null, -1 for a field that is none.
    """
    cdef const uint8_t *at
    cdef const uint8_t *end
    cdef size_t size = data.shape[0]
    cdef Head wanted
    cdef Buffer out
    cdef int64_t left = count
    cdef int64_t[2] empty
    cdef int[3] nulls
    cdef Verdict verdict = FINE
    if count <= 0 or not size:
        return None
    wanted.data, wanted.size = head, len(head)
    empty[0] = empty[1] = 0
    nulls[0], nulls[1], nulls[2] = key_null, value_null, headers_null
    memset(&out, 0, sizeof(Buffer))
    at = &data[0]
    end = at + size
    try:
        with nogil:
            # A record has at least seven bytes more than its topic; at most it gets four bytes more, and one for each
            # header, which has at least two.
            if <uint64_t>count > size:
                at = NULL
            else:
                verdict = make_room(&out, size + size // 2 + 4 * <size_t>count)
            while verdict == FINE and left and at != NULL:
                left -= 1
                at = put_record(at, end, &wanted, &out, nulls, empty_as_null, empty)
        if verdict == NO_MEMORY:
            raise MemoryError
        if at != end:
            return None
        return (<const char *>out.data)[: out.size], empty[0], empty[1]
    finally:
        free(out.data)


def stamp(bytearray data, int64_t producer_id, int32_t producer_epoch, int32_t base_sequence, bint transactional):
    """Write a producer into the header of a finished batch, in place, and the CRC that it then has."""
    cdef uint8_t[::1] view = data
    cdef size_t size = view.shape[0]
    cdef uint8_t *at
    if size < HEADER_SIZE:
        raise ValueError("a batch is larger than its header")
    at = &view[0]
    with nogil:
        put64(at + PRODUCER_AT, <uint64_t>producer_id)
        at[PRODUCER_AT + 8] = <uint8_t>(producer_epoch >> 8)
        at[PRODUCER_AT + 9] = <uint8_t>producer_epoch
        put32(at + PRODUCER_AT + 10, <uint32_t>base_sequence)
        at[COVERED_AT + 1] = at[COVERED_AT + 1] & ~TRANSACTIONAL | (TRANSACTIONAL if transactional else 0)
        put32(at + CRC_AT, tandem_crc32c(at + COVERED_AT, size - COVERED_AT, _crc_hardware))


cdef packed struct KeyedRow:
    # See `body_operations.KeyedRecords`.
    int64_t offset
    uint32_t record
    uint32_t size
    uint32_t length
    uint32_t tombstone


def keyed_records(const uint8_t[::1] data, int64_t count, bytes head, int64_t below):
    """Return (rows, keys) of the records with a key and an offset below `below`, or None if something is wrong."""
    cdef const uint8_t *at
    cdef const uint8_t *begin
    cdef const uint8_t *end
    cdef size_t size = data.shape[0]
    cdef Head wanted
    cdef Span span
    cdef Buffer rows, keys
    cdef KeyedRow row
    cdef int64_t record = 0
    cdef Verdict verdict = FINE
    if count <= 0 or not size or <uint64_t>count > size or size > <size_t>INT_MAX:
        return None
    wanted.data, wanted.size = head, len(head)
    memset(&rows, 0, sizeof(Buffer))
    memset(&keys, 0, sizeof(Buffer))
    at = &data[0]
    end = at + size
    try:
        with nogil:
            while record < count:
                begin = at
                at = read(at, end, &wanted, &span)
                if at == NULL:
                    break
                if span.key_at != NULL and span.offset < below:
                    row.offset, row.record, row.size = span.offset, <uint32_t>record, <uint32_t>(at - begin)
                    row.length, row.tombstone = <uint32_t>(span.key_end - span.key), span.value_at == NULL
                    verdict = make_room(&rows, sizeof(KeyedRow))
                    if verdict == FINE:
                        verdict = make_room(&keys, row.length)
                    if verdict != FINE:
                        break
                    memcpy(rows.data + rows.size, &row, sizeof(KeyedRow))
                    memcpy(keys.data + keys.size, span.key, row.length)
                    rows.size += sizeof(KeyedRow)
                    keys.size += row.length
                record += 1
        if verdict == NO_MEMORY:
            raise MemoryError
        if at != end:
            return None
        return (<const char *>rows.data)[: rows.size], (<const char *>keys.data)[: keys.size]
    finally:
        free(rows.data)
        free(keys.data)


cdef inline uint64_t turned(uint64_t value, int by) noexcept nogil:
    return value << by | value >> (64 - by)


cdef inline void sip_round(uint64_t *v) noexcept nogil:
    v[0] += v[1]
    v[2] += v[3]
    v[1] = turned(v[1], 13) ^ v[0]
    v[3] = turned(v[3], 16) ^ v[2]
    v[0] = turned(v[0], 32)
    v[2] += v[1]
    v[0] += v[3]
    v[1] = turned(v[1], 17) ^ v[2]
    v[3] = turned(v[3], 21) ^ v[0]
    v[2] = turned(v[2], 32)


cdef inline uint64_t little(const uint8_t *at, size_t size) noexcept nogil:
    cdef uint64_t value = 0
    while size:
        size -= 1
        value = value << 8 | at[size]
    return value


cdef uint64_t sip_hash(const uint8_t *data, size_t size, uint64_t low, uint64_t high) noexcept nogil:
    """SipHash-2-4 (Aumasson, Bernstein 2012)."""
    cdef uint64_t[4] v
    cdef uint64_t word
    cdef size_t left = size
    v[0] = low ^ <uint64_t>0x736F6D6570736575
    v[1] = high ^ <uint64_t>0x646F72616E646F6D
    v[2] = low ^ <uint64_t>0x6C7967656E657261
    v[3] = high ^ <uint64_t>0x7465646279746573
    while left >= 8:
        word = little(data, 8)
        v[3] ^= word
        sip_round(v)
        sip_round(v)
        v[0] ^= word
        data += 8
        left -= 8
    word = <uint64_t>(size & 0xFF) << 56 | little(data, left)
    v[3] ^= word
    sip_round(v)
    sip_round(v)
    v[0] ^= word
    v[2] ^= 0xFF
    sip_round(v)
    sip_round(v)
    sip_round(v)
    sip_round(v)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def newest_equal(bytes keys, const int64_t[::1] begins, const uint32_t[::1] lengths, bytes secret, int bits):
    """Return (newest, hashes) of keys as `BodyWorker.newest_equal` does."""
    cdef const uint8_t *data = keys
    cdef int64_t size = len(keys), rows = begins.shape[0], row
    cdef uint64_t low = little(secret, 8), high = little(<const uint8_t *>secret + 8, 8)
    cdef uint64_t mask = ~<uint64_t>0 >> (64 - bits)
    cdef uint64_t places = 16, at
    cdef uint32_t first
    if len(secret) != 16 or not 0 < bits <= 64 or lengths.shape[0] != rows or rows >= INT_MAX:
        raise ValueError("a secret has 16 bytes, a hash 1 to 64 bits, and each key a length")
    for row in range(rows):
        if begins[row] < 0 or begins[row] > size or lengths[row] > size - begins[row]:
            raise ValueError("a key lies outside of the keys")
    while places < 2 * <uint64_t>rows:
        places *= 2
    cdef bytearray found = bytearray(4 * rows), hashed = bytearray(8 * rows)
    cdef bytearray latest = bytearray(4 * rows), table = bytearray(4 * places)
    if not rows:
        return b"", b""
    cdef uint32_t *firsts = <uint32_t *><char *>found
    cdef uint64_t *hashes = <uint64_t *><char *>hashed
    cdef uint32_t *newest = <uint32_t *><char *>latest
    cdef uint32_t *known = <uint32_t *><char *>table  # the first row of a key, plus 1
    with nogil:
        for row in range(rows):
            hashes[row] = sip_hash(data + begins[row], lengths[row], low, high) & mask
            at = hashes[row] & (places - 1)
            while True:
                if not known[at]:
                    known[at] = <uint32_t>row + 1
                    first = <uint32_t>row
                    break
                first = known[at] - 1
                if (
                    hashes[first] == hashes[row]
                    and lengths[first] == lengths[row]
                    and not memcmp(data + begins[first], data + begins[row], lengths[row])
                ):
                    break
                at = (at + 1) & (places - 1)
            firsts[row] = first
            newest[first] = <uint32_t>row
        for row in range(rows):
            firsts[row] = newest[firsts[row]]
    return bytes(found), bytes(hashed)


def gathered(bytes keys, const int64_t[::1] begins, const uint32_t[::1] lengths):
    """Return some keys one after the other, as `BodyWorker.gathered` does."""
    cdef const uint8_t *data = keys
    cdef int64_t size = len(keys), rows = begins.shape[0], row, total = 0
    if lengths.shape[0] != rows:
        raise ValueError("each key has a length")
    for row in range(rows):
        if begins[row] < 0 or begins[row] > size or lengths[row] > size - begins[row]:
            raise ValueError("a key lies outside of the keys")
        total += lengths[row]
    cdef bytes found = PyBytes_FromStringAndSize(NULL, total)
    cdef uint8_t *to = <uint8_t *><char *>found
    with nogil:
        for row in range(rows):
            memcpy(to, data + begins[row], lengths[row])
            to += lengths[row]
    return found


cdef packed struct Entry:
    # A key in a table, followed by its bytes. The offset is ~offset for a tombstone, GONE for a key that was let go.
    int64_t offset
    uint32_t length

cdef int64_t GONE = -0x7FFFFFFFFFFFFFFF - 1
cdef size_t MOST_ENTRIES = <size_t>-1 >> 32
cdef size_t UNIT = 4  # entries begin at multiples of it, so that 32 bits name their places


cdef class KeyTable:
    """Keys with an offset each, as `backup_avro.selection.vanished_keys.KeyTable` says, on bodies of blocks.

    Keys and offsets lie one after the other in one buffer. A hash table of 8 bytes for each place names where, with half
    of the key's hash. Methods that read a body return whether it is sound.
    """

    cdef uint64_t low, high
    cdef Buffer entries
    cdef uint64_t *places
    cdef uint64_t mask
    cdef uint64_t used
    cdef int64_t left
    cdef int64_t first

    def __cinit__(self, bytes secret):
        if len(secret) != 16:
            raise ValueError("a secret has 16 bytes")
        self.low, self.high = little(secret, 8), little(<const uint8_t *>secret + 8, 8)
        memset(&self.entries, 0, sizeof(Buffer))
        self.places = NULL
        self.mask = self.used = self.left = 0
        self.first = LONG_MAX

    def __dealloc__(self):
        self.clear()

    cpdef clear(self):
        """Forget all keys."""
        free(self.entries.data)
        free(self.places)
        memset(&self.entries, 0, sizeof(Buffer))
        self.places = NULL
        self.mask = self.used = self.left = 0
        self.first = LONG_MAX

    def __len__(self):
        return self.left

    @property
    def lowest(self):
        """The lowest offset that was added."""
        return self.first

    @property
    def size(self):
        """The bytes that are in use."""
        return self.entries.size + (8 * (self.mask + 1) if self.places != NULL else 0)

    cdef Entry *at(self, uint64_t place) noexcept nogil:
        return <Entry *>(self.entries.data + (<size_t><uint32_t>place - 1) * UNIT)

    cdef uint64_t *find(self, const uint8_t *key, size_t length, uint64_t hashed) noexcept nogil:
        """Return the place of a key, or the free one where it belongs."""
        cdef uint64_t number = hashed & self.mask
        cdef Entry *entry
        while self.places[number]:
            if self.places[number] >> 32 == hashed >> 32:
                entry = self.at(self.places[number])
                if entry.length == length and not memcmp(<uint8_t *>entry + sizeof(Entry), key, length):
                    break
            number = (number + 1) & self.mask
        return &self.places[number]

    cdef Verdict grow(self) noexcept nogil:
        """Make room for one key more."""
        cdef uint64_t size, number, old
        cdef uint64_t *before = self.places
        cdef Entry *entry
        if before != NULL and 4 * (self.used + 1) <= 3 * (self.mask + 1):
            return FINE
        size = 1024 if before == NULL else 2 * (self.mask + 1)
        self.places = <uint64_t *>calloc(size, 8)
        if self.places == NULL:
            self.places = before
            return NO_MEMORY
        old = 0 if before == NULL else self.mask + 1
        self.mask = size - 1
        for number in range(old):
            if before[number]:
                entry = self.at(before[number])
                self.find(
                    <uint8_t *>entry + sizeof(Entry),
                    entry.length,
                    sip_hash(<uint8_t *>entry + sizeof(Entry), entry.length, self.low, self.high),
                )[0] = before[number]
        free(before)
        return FINE

    cdef Verdict put(self, const Span *span) noexcept nogil:
        """Remember a record of a key, if it is newer than the one that is remembered."""
        cdef size_t length = <size_t>(span.key_end - span.key), taken
        cdef uint64_t hashed = sip_hash(span.key, length, self.low, self.high)
        cdef uint64_t *place
        cdef Entry *entry
        if self.grow() != FINE:
            return NO_MEMORY
        place = self.find(span.key, length, hashed)
        if not place[0]:
            taken = (sizeof(Entry) + length + UNIT - 1) // UNIT * UNIT
            if self.entries.size // UNIT >= MOST_ENTRIES or make_room(&self.entries, taken) != FINE:
                return NO_MEMORY
            entry = <Entry *>(self.entries.data + self.entries.size)
            entry.offset, entry.length = span.offset, <uint32_t>length
            memcpy(<uint8_t *>entry + sizeof(Entry), span.key, length)
            place[0] = hashed >> 32 << 32 | <uint64_t>(self.entries.size // UNIT + 1)
            self.entries.size += taken
            self.used += 1
            self.left += 1
        else:
            entry = self.at(place[0])
            if span.offset > entry.offset:
                entry.offset = span.offset
        self.first = min(self.first, span.offset)
        return FINE

    def add(self, const uint8_t[::1] data, int64_t count, bytes head, const int64_t[::1] there):
        """Remember the records with a key and a value whose offset is not in `there`, which ascends."""
        cdef Head wanted
        cdef Span span
        cdef const uint8_t *at
        cdef const uint8_t *end
        cdef Verdict verdict = FINE
        cdef Py_ssize_t next_there = 0, known = there.shape[0]
        if count <= 0 or not data.shape[0]:
            return False
        wanted.data, wanted.size = head, len(head)
        at, end = &data[0], &data[0] + data.shape[0]
        with nogil:
            while count and verdict == FINE:
                count -= 1
                at = read(at, end, &wanted, &span)
                if at == NULL:
                    break
                if span.key_at == NULL or span.value_at == NULL:
                    continue
                while next_there < known and there[next_there] < span.offset:
                    next_there += 1
                if next_there == known or there[next_there] != span.offset:
                    verdict = self.put(&span)
        if verdict != FINE:
            raise MemoryError
        return at == end

    def drop_newer(self, const uint8_t[::1] data, int64_t count, bytes head):
        """Let go of each key of which there is a record at its offset or above."""
        return self._meet(data, count, head, True)

    def note(self, const uint8_t[::1] data, int64_t count, bytes head):
        """Remember the newest record of each key, and whether it is a tombstone."""
        return self._meet(data, count, head, False)

    cdef bint _meet(self, const uint8_t[::1] data, int64_t count, bytes head, bint dropping):
        cdef Head wanted
        cdef Span span
        cdef const uint8_t *at
        cdef const uint8_t *end
        cdef uint64_t *place
        cdef Entry *entry
        cdef size_t length
        if count <= 0 or not data.shape[0]:
            return False
        wanted.data, wanted.size = head, len(head)
        at, end = &data[0], &data[0] + data.shape[0]
        with nogil:
            while count:
                count -= 1
                at = read(at, end, &wanted, &span)
                if at == NULL:
                    break
                if span.key_at == NULL or span.offset < self.first or self.places == NULL:
                    continue
                length = <size_t>(span.key_end - span.key)
                place = self.find(span.key, length, sip_hash(span.key, length, self.low, self.high))
                if not place[0]:
                    continue
                entry = self.at(place[0])
                if entry.offset == GONE or span.offset < max(entry.offset, ~entry.offset):
                    continue
                if dropping:
                    entry.offset = GONE
                    self.left -= 1
                else:
                    entry.offset = ~span.offset if span.value_at == NULL else span.offset
        return at == end

    def values(self):
        """Return the offsets of the keys that are left and do not end with a tombstone, as bytes of int64."""
        cdef Buffer found
        cdef size_t at = 0
        cdef Entry *entry
        cdef Verdict verdict = FINE
        memset(&found, 0, sizeof(Buffer))
        try:
            while at < self.entries.size:
                entry = <Entry *>(self.entries.data + at)
                if entry.offset >= 0:
                    verdict = make_room(&found, 8)
                    if verdict != FINE:
                        raise MemoryError
                    memcpy(found.data + found.size, &entry.offset, 8)
                    found.size += 8
                at += (sizeof(Entry) + entry.length + UNIT - 1) // UNIT * UNIT
            return (<const char *>found.data)[: found.size] if found.size else b""
        finally:
            free(found.data)


def offsets(const uint8_t[::1] data, int64_t count, bytes head):
    """Return the offsets of all records of a body, as bytes of int64, or None if something is wrong."""
    cdef Head wanted
    cdef Span span
    cdef const uint8_t *at
    cdef const uint8_t *end
    cdef int64_t number = 0
    if count <= 0 or count > data.shape[0]:
        return None
    cdef bytes found = PyBytes_FromStringAndSize(NULL, 8 * count)
    cdef int64_t *to = <int64_t *><char *>found
    wanted.data, wanted.size = head, len(head)
    at, end = &data[0], &data[0] + data.shape[0]
    with nogil:
        while number < count:
            at = read(at, end, &wanted, &span)
            if at == NULL:
                break
            to[number] = span.offset
            number += 1
    return found if at == end else None
