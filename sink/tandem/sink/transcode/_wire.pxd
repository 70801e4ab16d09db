"""What the compiled twins share: the header of a batch, numbers, CRCs, and a buffer that grows."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport realloc
from libc.string cimport memcpy

cdef extern from "crc32c.h" nogil:
    void tandem_crc_prepare()
    int tandem_crc_has_hardware()
    uint32_t tandem_crc32c(const uint8_t *data, size_t size, int hardware)

cdef extern from *:
    bint __builtin_add_overflow(int64_t a, int64_t b, int64_t *result) nogil
    bint __builtin_sub_overflow(int64_t a, int64_t b, int64_t *result) nogil

# Where the fields of a batch's header are, in bytes; see `batch.HEADER`.
cdef enum:
    LENGTH_AT = 8
    EPOCH_AT = 12
    MAGIC_AT = 16
    CRC_AT = 17
    COVERED_AT = 21
    LAST_DELTA_AT = 23
    BASE_TIMESTAMP_AT = 27
    MAX_TIMESTAMP_AT = 35
    PRODUCER_AT = 43
    COUNT_AT = 57
    HEADER_SIZE = 61
    LENGTH_FROM = 12
    MAGIC = 2
    COMPRESSION_MASK = 0x07
    LOG_APPEND_TIME = 0x08
    TRANSACTIONAL = 0x10
    CONTROL = 0x20
    ABORT_MARKER = 0

cdef enum Verdict:
    FINE
    DAMAGED
    NO_MEMORY

cdef struct Buffer:
    uint8_t *data
    size_t size
    size_t room

cdef inline const uint8_t *number(const uint8_t *at, const uint8_t *end, uint64_t *value) noexcept nogil:
    """Read a number, still zigzagged; return the place after it, NULL if it is cut short or has over 64 bits."""
    cdef uint64_t result
    cdef int shift
    if at >= end:
        return NULL
    if at[0] < 0x80:
        value[0] = at[0]
        return at + 1
    result = at[0] & 0x7F
    at += 1
    shift = 7
    while shift < 70:
        if at >= end:
            return NULL
        if shift == 63 and at[0] > 1:
            return NULL
        result |= <uint64_t>(at[0] & 0x7F) << shift
        if at[0] < 0x80:
            value[0] = result
            return at + 1
        at += 1
        shift += 7
    return NULL


cdef inline uint8_t *put_unsigned(uint8_t *to, uint64_t value) noexcept nogil:
    while value >= 0x80:
        to[0] = <uint8_t>(value | 0x80)
        to += 1
        value >>= 7
    to[0] = <uint8_t>value
    return to + 1


cdef inline uint8_t *put_long(uint8_t *to, int64_t value) noexcept nogil:
    return put_unsigned(to, (<uint64_t>value << 1) ^ <uint64_t>(value >> 63))


cdef inline uint8_t *put_bytes(uint8_t *to, const uint8_t *data, size_t size) noexcept nogil:
    memcpy(to, data, size)
    return to + size


cdef inline Verdict make_room(Buffer *out, size_t more) noexcept nogil:
    cdef size_t room
    cdef void *data
    if out.room - out.size >= more:
        return FINE
    room = out.room + out.room // 2 + more
    data = realloc(out.data, room)
    if data == NULL:
        return NO_MEMORY
    out.data = <uint8_t *>data
    out.room = room
    return FINE
