/* CRC-32C (Castagnoli, RFC 3720 appendix B.4), as Kafka's record batches carry it: with the processor's instruction
 * where it has one, else eight bytes at a time from tables (Kounavis and Berry, "Slicing by 8"). */
#ifndef TANDEM_CRC32C_H
#define TANDEM_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static uint32_t tandem_crc_table[8][256];

static void tandem_crc_prepare(void)
{
    for (int n = 0; n < 256; n++) {
        uint32_t crc = (uint32_t)n;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? (crc >> 1) ^ 0x82F63B78u : crc >> 1;
        tandem_crc_table[0][n] = crc;
    }
    for (int n = 0; n < 256; n++)
        for (int k = 1; k < 8; k++) {
            uint32_t before = tandem_crc_table[k - 1][n];
            tandem_crc_table[k][n] = (before >> 8) ^ tandem_crc_table[0][before & 0xFF];
        }
}

static uint32_t tandem_crc_tables(uint32_t crc, const unsigned char *data, size_t size)
{
    const uint32_t (*t)[256] = (const uint32_t (*)[256])tandem_crc_table;
    while (size >= 8) {
        uint32_t low = crc ^ ((uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 |
                              (uint32_t)data[3] << 24);
        crc = t[7][low & 0xFF] ^ t[6][low >> 8 & 0xFF] ^ t[5][low >> 16 & 0xFF] ^ t[4][low >> 24] ^ t[3][data[4]] ^
              t[2][data[5]] ^ t[1][data[6]] ^ t[0][data[7]];
        data += 8;
        size -= 8;
    }
    while (size--)
        crc = (crc >> 8) ^ t[0][(crc ^ *data++) & 0xFF];
    return crc;
}

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
__attribute__((target("sse4.2"))) static uint32_t tandem_crc_hardware(uint32_t crc, const unsigned char *data,
                                                                       size_t size)
{
    uint64_t wide = crc;
    while (size >= 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        wide = __builtin_ia32_crc32di(wide, word);
        data += 8;
        size -= 8;
    }
    crc = (uint32_t)wide;
    while (size--)
        crc = __builtin_ia32_crc32qi(crc, *data++);
    return crc;
}

static int tandem_crc_has_hardware(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("sse4.2");
}
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
static uint32_t tandem_crc_hardware(uint32_t crc, const unsigned char *data, size_t size)
{
    while (size >= 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        crc = __crc32cd(crc, word);
        data += 8;
        size -= 8;
    }
    while (size--)
        crc = __crc32cb(crc, *data++);
    return crc;
}

static int tandem_crc_has_hardware(void)
{
    return 1;
}
#else
static uint32_t tandem_crc_hardware(uint32_t crc, const unsigned char *data, size_t size)
{
    return tandem_crc_tables(crc, data, size);
}

static int tandem_crc_has_hardware(void)
{
    return 0;
}
#endif

static uint32_t tandem_crc32c(const unsigned char *data, size_t size, int hardware)
{
    uint32_t crc = 0xFFFFFFFFu;
    crc = hardware ? tandem_crc_hardware(crc, data, size) : tandem_crc_tables(crc, data, size);
    return crc ^ 0xFFFFFFFFu;
}

#endif
