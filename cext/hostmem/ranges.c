/* Finds the registration of an address: see private.h. */
#include <stdlib.h>
#include <string.h>

#include "private.h"

static struct {
    struct hostmem_range **list; /* sorted by address; no two overlap */
    size_t count, room;
} ranges;

/* The index of the first range that ends after `address`. */
static size_t ranges_find(uintptr_t address)
{
    size_t low = 0, high = ranges.count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if ((uintptr_t)ranges.list[middle]->base + ranges.list[middle]->bytes > address) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

struct hostmem_range *hostmem_range_meeting(const void *address, size_t bytes)
{
    size_t at = ranges_find((uintptr_t)address);
    struct hostmem_range *range = at < ranges.count ? ranges.list[at] : NULL;

    return range != NULL && (uintptr_t)range->base < (uintptr_t)address + bytes ? range : NULL;
}

bool hostmem_range_holds(const struct hostmem_range *range, const void *address, size_t bytes)
{
    size_t offset = (uintptr_t)address - (uintptr_t)range->base;

    return offset < range->bytes && bytes <= range->bytes - offset;
}

size_t hostmem_range_run(const void *address, size_t bytes)
{
    struct hostmem_range *range = hostmem_range_meeting(address, 1);

    if (range == NULL) {
        return 0;
    }
    size_t offset = (uintptr_t)address - (uintptr_t)range->base,
           locked = atomic_load(&range->locked);
    if (offset >= locked) {
        return 0;
    }
    size_t run = range->step - offset % range->step;
    run = run < locked - offset ? run : locked - offset;
    return run < bytes ? run : bytes;
}

bool hostmem_range_uses_device(CUdevice device)
{
    for (size_t i = 0; i < ranges.count; i++) {
        if (ranges.list[i]->device == device || ranges.list[i]->device < 0 /* perhaps there */) {
            return true;
        }
    }
    return false;
}

bool hostmem_range_insert(struct hostmem_range *range)
{
    size_t at = ranges_find((uintptr_t)range->base);

    if (ranges.count == ranges.room) {
        size_t room = 2 * ranges.room + 8;
        struct hostmem_range **grown = realloc(ranges.list, room * sizeof(struct hostmem_range *));
        if (grown == NULL) {
            return false;
        }
        ranges.list = grown;
        ranges.room = room;
    }
    memmove(&ranges.list[at + 1], &ranges.list[at],
            (ranges.count - at) * sizeof(struct hostmem_range *));
    ranges.list[at] = range;
    ranges.count++;
    return true;
}

void hostmem_range_remove(struct hostmem_range *range)
{
    size_t at = 0;

    while (ranges.list[at] != range) {
        at++;
    }
    ranges.count--;
    memmove(&ranges.list[at], &ranges.list[at + 1],
            (ranges.count - at) * sizeof(struct hostmem_range *));
}
