/*
 * For LD_PRELOAD: counts what the threads that ask for it allocate, by malloc, calloc, realloc and
 * aligned allocation, whoever calls. Calls from one range of code, the simulated driver's, can be
 * left out.
 */
#include <stddef.h>
#include <stdint.h>

#define PUBLIC __attribute__((visibility("default")))

/* glibc's own names for what stands behind the public ones. */
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *block, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

static uintptr_t skip_begin, skip_end;
static __thread int counting __attribute__((tls_model("initial-exec")));
static __thread long count __attribute__((tls_model("initial-exec")));

static void note(const void *caller)
{
    count += counting && (uintptr_t)caller - skip_begin >= skip_end - skip_begin;
}

/* Leaves out calls from [begin, end). */
PUBLIC void count_malloc_skip(uintptr_t begin, uintptr_t end)
{
    skip_begin = begin;
    skip_end = end;
}

/* From here on this thread counts. */
PUBLIC void count_malloc_begin(void)
{
    count = 0;
    counting = 1;
}

/* This thread counts no more. The number of allocations since. */
PUBLIC long count_malloc_end(void)
{
    counting = 0;
    return count;
}

PUBLIC void *malloc(size_t bytes)
{
    note(__builtin_return_address(0));
    return __libc_malloc(bytes);
}

PUBLIC void *calloc(size_t number, size_t bytes)
{
    note(__builtin_return_address(0));
    return __libc_calloc(number, bytes);
}

PUBLIC void *realloc(void *block, size_t bytes)
{
    note(__builtin_return_address(0));
    return __libc_realloc(block, bytes);
}

PUBLIC int posix_memalign(void **block, size_t alignment, size_t bytes)
{
    note(__builtin_return_address(0));
    *block = __libc_memalign(alignment, bytes);
    return *block != NULL ? 0 : 12; /* ENOMEM */
}

PUBLIC void *aligned_alloc(size_t alignment, size_t bytes)
{
    note(__builtin_return_address(0));
    return __libc_memalign(alignment, bytes);
}
