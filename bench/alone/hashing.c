/* A chain of hashes, each over the one before it and a message: by Tandem's SHA-256, by OpenSSL with one context for all,
   and by OpenSSL's call for one buffer, to which the pieces are copied. Prints ns for each message. */
#include <openssl/evp.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "sha256.h"

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

int main(int count, char **words)
{
    size_t size = strtoul(words[1], NULL, 10), left = strtoul(words[2], NULL, 10);
    int way = atoi(words[3]), hardware = tandem_sha_has_hardware();
    unsigned char digest[32] = {0}, *message = malloc(size), *joined = malloc(size + 32);
    (void)count;
    for (size_t n = 0; n < size; n++)
        message[n] = (unsigned char)(n * 131);
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    const EVP_MD *kind = EVP_sha256();
    double began = seconds();
    for (size_t n = 0; n < left; n++) {
        if (way == 0) {
            tandem_sha sha;
            tandem_sha_begin(&sha);
            tandem_sha_add(&sha, digest, 32, hardware);
            tandem_sha_add(&sha, message, size, hardware);
            tandem_sha_end(&sha, digest, hardware);
        } else if (way == 1) {
            EVP_DigestInit_ex(context, kind, NULL);
            EVP_DigestUpdate(context, digest, 32);
            EVP_DigestUpdate(context, message, size);
            EVP_DigestFinal_ex(context, digest, NULL);
        } else {
            memcpy(joined, digest, 32);
            memcpy(joined + 32, message, size);
            SHA256(joined, size + 32, digest);
        }
    }
    printf("%.1f %02x%02x%02x%02x\n", (seconds() - began) / left * 1e9, digest[0], digest[1], digest[2], digest[3]);
    return 0;
}
