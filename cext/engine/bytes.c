/* memcpy past the CPU's caches. No CUDA. See private.h. */
#include "private.h"

#include <string.h>

#ifdef __x86_64__
#include <immintrin.h>
#endif

#ifdef __x86_64__
/* The stores write whole cache lines to memory. */
__attribute__((target("avx2"))) static void stream_avx2(char *dst, const char *src, size_t bytes)
{
    size_t lead = -(uintptr_t)dst & 31;

    lead = lead < bytes ? lead : bytes;
    memcpy(dst, src, lead);
    dst += lead;
    src += lead;
    bytes -= lead;
    for (; bytes >= 128; bytes -= 128, dst += 128, src += 128) {
        __m256i a = _mm256_loadu_si256((const __m256i *)src);
        __m256i b = _mm256_loadu_si256((const __m256i *)(src + 32));
        __m256i c = _mm256_loadu_si256((const __m256i *)(src + 64));
        __m256i d = _mm256_loadu_si256((const __m256i *)(src + 96));
        _mm256_stream_si256((__m256i *)dst, a);
        _mm256_stream_si256((__m256i *)(dst + 32), b);
        _mm256_stream_si256((__m256i *)(dst + 64), c);
        _mm256_stream_si256((__m256i *)(dst + 96), d);
    }
    _mm_sfence(); /* before anybody is told that the bytes are there */
    memcpy(dst, src, bytes);
}
#endif

void staging_bytes_stream(void *dst, const void *src, size_t bytes)
{
#ifdef __x86_64__
    if (bytes >= 4096 && __builtin_cpu_supports("avx2")) {
        stream_avx2(dst, src, bytes);
        return;
    }
#endif
    memcpy(dst, src, bytes);
}
