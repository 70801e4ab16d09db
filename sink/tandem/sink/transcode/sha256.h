/* SHA-256 (FIPS 180-4): with the processor's instructions where it has them, else in plain C. */
#ifndef TANDEM_SHA256_H
#define TANDEM_SHA256_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    uint32_t state[8];
    uint64_t size; /* bytes so far */
    unsigned char block[64];
} tandem_sha;

static const uint32_t tandem_sha_k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static inline uint32_t tandem_sha_turn(uint32_t x, int by)
{
    return x >> by | x << (32 - by);
}

static void tandem_sha_plain(uint32_t state[8], const unsigned char *data, size_t blocks)
{
    for (; blocks; blocks--, data += 64) {
        uint32_t w[64];
        uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
        uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
        for (int t = 0; t < 16; t++)
            w[t] = (uint32_t)data[4 * t] << 24 | (uint32_t)data[4 * t + 1] << 16 | (uint32_t)data[4 * t + 2] << 8 |
                   data[4 * t + 3];
        for (int t = 16; t < 64; t++)
            w[t] = w[t - 16] + w[t - 7] +
                   (tandem_sha_turn(w[t - 15], 7) ^ tandem_sha_turn(w[t - 15], 18) ^ w[t - 15] >> 3) +
                   (tandem_sha_turn(w[t - 2], 17) ^ tandem_sha_turn(w[t - 2], 19) ^ w[t - 2] >> 10);
        for (int t = 0; t < 64; t++) {
            uint32_t one = h + (tandem_sha_turn(e, 6) ^ tandem_sha_turn(e, 11) ^ tandem_sha_turn(e, 25)) +
                           ((e & f) ^ (~e & g)) + tandem_sha_k[t] + w[t];
            uint32_t two = (tandem_sha_turn(a, 2) ^ tandem_sha_turn(a, 13) ^ tandem_sha_turn(a, 22)) +
                           ((a & b) ^ (a & c) ^ (b & c));
            h = g;
            g = f;
            f = e;
            e = d + one;
            d = c;
            c = b;
            b = a;
            a = one + two;
        }
        state[0] += a;
        state[1] += b;
        state[2] += c;
        state[3] += d;
        state[4] += e;
        state[5] += f;
        state[6] += g;
        state[7] += h;
    }
}

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include <cpuid.h>
#include <immintrin.h>

/* The instructions want the state as ABEF and CDGH (Intel, "Intel SHA Extensions", 2013). */
__attribute__((target("sha,sse4.1,ssse3"))) static void tandem_sha_hardware(uint32_t state[8],
                                                                            const unsigned char *data, size_t blocks)
{
    const __m128i order = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
    __m128i low = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)&state[0]), 0xB1);
    __m128i high = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)&state[4]), 0x1B);
    __m128i abef = _mm_alignr_epi8(low, high, 8);
    __m128i cdgh = _mm_blend_epi16(high, low, 0xF0);
    for (; blocks; blocks--, data += 64) {
        const __m128i abef_before = abef, cdgh_before = cdgh;
        __m128i w[4];
        for (int n = 0; n < 4; n++)
            w[n] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)data + n), order);
#pragma GCC unroll 16
        for (int n = 0; n < 16; n++) {
            __m128i *now = &w[n & 3];
            const __m128i next = w[(n + 1) & 3], before = w[(n + 2) & 3], last = w[(n + 3) & 3];
            const __m128i sum = _mm_add_epi32(*now, _mm_loadu_si128((const __m128i *)tandem_sha_k + n));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0E));
            if (n < 12)
                *now = _mm_sha256msg2_epu32(
                    _mm_add_epi32(_mm_sha256msg1_epu32(*now, next), _mm_alignr_epi8(last, before, 4)), last);
        }
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }
    low = _mm_shuffle_epi32(abef, 0x1B);
    high = _mm_shuffle_epi32(cdgh, 0xB1);
    _mm_storeu_si128((__m128i *)&state[0], _mm_blend_epi16(low, high, 0xF0));
    _mm_storeu_si128((__m128i *)&state[4], _mm_alignr_epi8(high, low, 8));
}

static int tandem_sha_has_hardware(void)
{
    unsigned a, b, c, d;
    __builtin_cpu_init();
    return __builtin_cpu_supports("sse4.1") && __builtin_cpu_supports("ssse3") &&
           __get_cpuid_count(7, 0, &a, &b, &c, &d) && b >> 29 & 1;
}
#else
static void tandem_sha_hardware(uint32_t state[8], const unsigned char *data, size_t blocks)
{
    tandem_sha_plain(state, data, blocks);
}

static int tandem_sha_has_hardware(void)
{
    return 0;
}
#endif

static void tandem_sha_blocks(tandem_sha *sha, const unsigned char *data, size_t blocks, int hardware)
{
    if (hardware)
        tandem_sha_hardware(sha->state, data, blocks);
    else
        tandem_sha_plain(sha->state, data, blocks);
}

static void tandem_sha_begin(tandem_sha *sha)
{
    static const uint32_t first[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(sha->state, first, sizeof first);
    sha->size = 0;
}

static void tandem_sha_add(tandem_sha *sha, const unsigned char *data, size_t size, int hardware)
{
    size_t used = sha->size & 63;
    sha->size += size;
    if (used) {
        size_t room = 64 - used;
        if (size < room) {
            memcpy(sha->block + used, data, size);
            return;
        }
        memcpy(sha->block + used, data, room);
        tandem_sha_blocks(sha, sha->block, 1, hardware);
        data += room;
        size -= room;
    }
    if (size >= 64)
        tandem_sha_blocks(sha, data, size / 64, hardware);
    if (size & 63)
        memcpy(sha->block, data + (size & ~(size_t)63), size & 63);
}

static void tandem_sha_end(tandem_sha *sha, unsigned char digest[32], int hardware)
{
    size_t used = sha->size & 63;
    uint64_t bits = sha->size * 8;
    sha->block[used++] = 0x80;
    if (used > 56) {
        memset(sha->block + used, 0, 64 - used);
        tandem_sha_blocks(sha, sha->block, 1, hardware);
        used = 0;
    }
    memset(sha->block + used, 0, 56 - used);
    for (int n = 0; n < 8; n++)
        sha->block[63 - n] = (unsigned char)(bits >> 8 * n);
    tandem_sha_blocks(sha, sha->block, 1, hardware);
    for (int n = 0; n < 8; n++) {
        digest[4 * n] = (unsigned char)(sha->state[n] >> 24);
        digest[4 * n + 1] = (unsigned char)(sha->state[n] >> 16);
        digest[4 * n + 2] = (unsigned char)(sha->state[n] >> 8);
        digest[4 * n + 3] = (unsigned char)sha->state[n];
    }
}

#endif
