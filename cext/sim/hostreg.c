/* Page-locked host memory: allocated by the driver, or registered with it. */
#define _GNU_SOURCE
#include "sim.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct host {
    struct sim_range range;
    struct sim_context *context; /* borrowed: the range is removed with the context */
    unsigned flags;
    bool allocated; /* by cuMemHostAlloc */
    bool leaving;   /* being freed or unregistered */
    size_t mapping; /* allocated: bytes of the mapping */
    /* Registered: the same pages at another address, or NULL. A registration is of pages, not of
     * addresses: unmapped and mapped again, those show new pages to the program, and the old ones
     * to the device. Linux makes such a second mapping of shared memory only. */
    char *pages;
    size_t skip; /* from there to the first byte */
};

enum sim_host_kind sim_host_kind(uintptr_t address, size_t bytes)
{
    const struct sim_range *range = sim_range_find(sim.hosts, address);

    if (range == NULL) {
        return HOST_PAGEABLE; /* even if a locked range begins within */
    }
    return range->bytes - (address - range->start) >= bytes ? HOST_LOCKED : HOST_TORN;
}

char *sim_host_bytes(uintptr_t address, size_t bytes)
{
    const struct host *host = (struct host *)sim_range_find(sim.hosts, address);

    return sim_host_kind(address, bytes) == HOST_LOCKED && host->pages != NULL
               ? host->pages + host->skip + (address - host->range.start)
               : (char *)address;
}

bool sim_host_info(uintptr_t address, struct sim_host_info *info)
{
    struct host *host = (struct host *)sim_range_find(sim.hosts, address);

    if (host == NULL) {
        return false;
    }
    info->start = host->range.start;
    info->bytes = host->range.bytes;
    info->context = host->context;
    info->mapped = true; /* always, with unified addressing */
    return true;
}

static void host_free(struct host *host)
{
    if (host != NULL && host->pages != NULL) {
        munmap(host->pages, host->skip + host->range.bytes);
    }
    free(host);
}

/* In the monitor, given up meanwhile. */
static void host_remove(struct host *host)
{
    sim_range_remove(&sim.hosts, &host->range);
    if (host->allocated) {
        sim_unlock();
        munmap((void *)host->range.start, host->mapping);
        sim_lock();
    }
    host_free(host);
}

/* Memory of cuMemHostAlloc is freed with the context; registered memory belongs to the program. */
static void host_forget(struct sim_context *context)
{
    struct sim_range *range = sim_range_next(sim.hosts, 0);

    while (range != NULL) {
        struct host *host = (struct host *)range;
        uintptr_t end = range->start + range->bytes;
        if (host->context == context) {
            host_remove(host);
        }
        range = sim_range_next(sim.hosts, end);
    }
}

static __attribute__((constructor)) void join(void)
{
    sim_context_on_end(FORGET_HOST, host_forget);
}

static long long host_live(bool allocated, bool bytes)
{
    struct sim_range *range = sim_range_next(sim.hosts, 0);
    long long sum = 0;

    while (range != NULL) {
        if (((struct host *)range)->allocated == allocated) {
            sum += bytes ? (long long)range->bytes : 1;
        }
        range = sim_range_next(sim.hosts, range->start + range->bytes);
    }
    return sum;
}

long long sim_host_registered(bool bytes)
{
    return host_live(false, bytes);
}

long long sim_host_allocated(bool bytes)
{
    return host_live(true, bytes);
}

/* ---- allocation ---- */

CUresult cuMemHostAlloc(void **address, size_t bytes, unsigned int flags)
{
    const unsigned known =
        CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
    struct sim_context *context;
    CUresult result = sim_enter_current(CALL_cuMemHostAlloc, &context);
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct host *host;
    void *memory;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (address == NULL || (flags & ~known) != 0) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    if (bytes == 0) {
        *address = NULL;
        return sim_leave(CUDA_SUCCESS);
    }
    if (bytes > SIZE_MAX - page) {
        return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    sim_context_work_begin(context);
    sim_unlock();
    size_t mapping = (bytes + page - 1) & ~(page - 1);
    memory = mmap(NULL, mapping, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    host = calloc(1, sizeof *host);
    sim_lock();
    sim_context_work_end(context);
    if (memory == MAP_FAILED || host == NULL ||
        sim_range_overlap(sim.hosts, (uintptr_t)memory, bytes)) {
        /* Overlaps a registration that outlived its mapping; the system reused the address. */
        free(host);
        sim_unlock();
        if (memory != MAP_FAILED) {
            munmap(memory, mapping);
        }
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    host->range.start = (uintptr_t)memory;
    host->range.bytes = bytes;
    host->mapping = mapping;
    host->context = context;
    host->flags = flags | CU_MEMHOSTALLOC_DEVICEMAP;
    host->allocated = true;
    sim_range_insert(&sim.hosts, &host->range);
    *address = memory;
    return sim_leave(CUDA_SUCCESS);
}

/* In the monitor, given up meanwhile. Waits for work that may use the range, then removes it. */
static CUresult host_end(struct host *host)
{
    struct sim_context *context = host->context;
    CUresult result;

    host->leaving = true;
    sim_context_work_begin(context);
    result = sim_stream_settle_device(context);
    if (result == CUDA_SUCCESS) {
        result = sim_context_state(context);
    }
    if (result == CUDA_SUCCESS) {
        host_remove(host);
    } else {
        host->leaving = false;
    }
    sim_context_work_end(context);
    return result;
}

/* Freeing and unregistering need no current context: the memory's own is used. */

CUresult cuMemFreeHost(void *address)
{
    CUresult result = sim_enter(CALL_cuMemFreeHost);
    struct host *host;

    if (result != CUDA_SUCCESS || address == NULL) {
        return result;
    }
    sim_lock();
    host = (struct host *)sim_range_find(sim.hosts, (uintptr_t)address);
    if (host == NULL || !host->allocated || host->leaving ||
        host->range.start != (uintptr_t)address) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    return sim_leave(host_end(host));
}

/* ---- registration ---- */

/*
 * Whether all of [start, start + bytes) is mapped and readable, and with `writable` also writable.
 * *one: by one mapping. Reads /proc/self/maps, about 100 us: as long as a registration on hardware.
 * True without /proc.
 */
static bool memory_is_there(uintptr_t start, size_t bytes, bool writable, bool *one)
{
    uintptr_t reached = start, end = start + bytes;
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512];
    bool whole_line = true;

    *one = false;
    if (maps == NULL) {
        return true;
    }
    while (reached < end && fgets(line, sizeof line, maps) != NULL) {
        unsigned long long first, last;
        char mode[5];
        bool begins = whole_line;
        whole_line = strchr(line, '\n') != NULL;
        if (!begins || sscanf(line, "%llx-%llx %4s", &first, &last, mode) != 3 || last <= reached) {
            continue;
        }
        if (first > reached || mode[0] != 'r' || (writable && mode[1] != 'w')) {
            break;
        }
        *one = first <= start && last >= end;
        reached = (uintptr_t)last;
    }
    fclose(maps);
    return reached >= end;
}

/* New: a registration of memory that is there. NULL: no memory. */
static struct host *host_new(uintptr_t start, size_t bytes, bool one)
{
    struct host *host = calloc(1, sizeof *host);
    void *pages = MAP_FAILED;

    if (host == NULL) {
        return NULL;
    }
    host->range.start = start;
    host->range.bytes = bytes;
    host->skip = start % (size_t)sysconf(_SC_PAGESIZE);
    if (one) {
        pages = mremap((void *)(start - host->skip), 0, host->skip + bytes, MREMAP_MAYMOVE);
    }
    host->pages = pages != MAP_FAILED ? pages : NULL;
    return host;
}

/* In the monitor. The error for a new registration that overlaps another one, or memory of
 * cuMemHostAlloc. */
static CUresult overlap_check(uintptr_t start, size_t bytes)
{
    struct host *host = (struct host *)sim_range_overlap(sim.hosts, start, bytes);

    if (host == NULL) {
        return CUDA_SUCCESS;
    }
    return host->allocated ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
}

CUresult cuMemHostRegister_v2(void *address, size_t bytes, unsigned int flags)
{
    const unsigned known =
        CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_READ_ONLY;
    uintptr_t start = (uintptr_t)address;
    struct sim_context *context;
    CUresult result = sim_enter_current(CALL_cuMemHostRegister_v2, &context);
    struct host *host;
    bool there, one;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (address == NULL || bytes == 0 || (flags & ~known) != 0 || start + bytes < start ||
        bytes >= atomic_load(&sim_knobs.registration_limit)) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    result = overlap_check(start, bytes);
    if (result != CUDA_SUCCESS) {
        return sim_leave(result);
    }
    sim_context_work_begin(context);
    sim_unlock();
    there = memory_is_there(start, bytes, (flags & CU_MEMHOSTREGISTER_READ_ONLY) == 0, &one);
    host = host_new(start, bytes, there && one);
    sim_lock();
    if (host == NULL) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    } else if (!there) {
        result = CUDA_ERROR_INVALID_VALUE;
    } else {
        result = overlap_check(start, bytes);
    }
    if (result == CUDA_SUCCESS) {
        host->context = context;
        /* As hardware reports them: always mapped, and never read-only. */
        host->flags =
            (flags & ~(unsigned)CU_MEMHOSTREGISTER_READ_ONLY) | CU_MEMHOSTREGISTER_DEVICEMAP;
        sim_range_insert(&sim.hosts, &host->range);
        host = NULL;
    }
    host_free(host);
    sim_context_work_end(context);
    return sim_leave(result);
}

CUresult cuMemHostUnregister(void *address)
{
    CUresult result = sim_enter(CALL_cuMemHostUnregister);
    struct host *host;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (address == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_lock();
    host = (struct host *)sim_range_find(sim.hosts, (uintptr_t)address);
    if (host == NULL || host->leaving) {
        return sim_leave(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    }
    if (host->allocated || host->range.start != (uintptr_t)address) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    return sim_leave(host_end(host));
}

/* ---- queries ---- */

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *address, unsigned int flags)
{
    struct sim_context *context;
    CUresult result = sim_enter_current(CALL_cuMemHostGetDevicePointer_v2, &context);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (device == NULL || flags != 0 || sim_range_find(sim.hosts, (uintptr_t)address) == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *device = (CUdeviceptr)(uintptr_t)address;
    return sim_leave(CUDA_SUCCESS);
}

CUresult cuMemHostGetFlags(unsigned int *flags, void *address)
{
    struct sim_context *context;
    CUresult result = sim_enter_current(CALL_cuMemHostGetFlags, &context);
    struct host *host;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    host = (struct host *)sim_range_find(sim.hosts, (uintptr_t)address);
    if (flags == NULL || host == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    *flags = host->flags;
    return sim_leave(CUDA_SUCCESS);
}
