/*
 * Pins: page-locking memory that somebody else owns, in place. See hostmem.h.
 *
 * The driver registers ranges by byte, refuses any overlap (712) and releases only whole
 * registrations. So the pinned bytes are kept as a sorted list of pieces that do not overlap. Each
 * piece is one registration and counts the pins that touch it. A new pin shares existing pieces and
 * registers the gaps. A piece is unregistered when its last pin has gone.
 *
 * Whoever pins keeps the memory alive until the pin is destroyed. Memory that is unmapped while
 * registered would stay registered by address, with its old pages: the driver would refuse to
 * register what is mapped there next (712), or copy from pages that nobody sees any more.
 * Overlapping pins are on one owner's memory, so a piece is alive as long as any pin touches it.
 *
 * The lock is never held across a driver call. Instead a piece is PENDING while it is being
 * registered and LEAVING while it is being released, and other threads that need its bytes wait. A
 * thread that has such pieces never waits for another's, so there is no deadlock.
 */
#include "hostmem.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "driver/driver.h"
#include "private.h"

#define FLAGS (CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP)

enum piece_state {
    PIECE_PENDING,
    PIECE_REGISTERED,
    PIECE_LOST, /* its home was reset; the next pin that touches it registers it again */
    PIECE_LEAVING,
    PIECE_GONE, /* to be freed before the lock is given up */
};

struct piece {
    uintptr_t begin, end;
    enum piece_state state;
    bool renewed;  /* while PENDING: it was LOST before */
    bool ours;     /* while PENDING: we have registered it */
    CUdevice home; /* where it is registered, one reference held; unused while LOST */
    size_t pins;   /* how many touch it */
};

struct cudriver_pin {
    uintptr_t begin, end;
    size_t count;
    size_t pending;         /* while it is made: how many pieces, at the front, it must register */
    struct piece *pieces[]; /* borrowed from the list; each counts this pin */
};

static struct {
    struct piece **pieces; /* owned, sorted by address */
    size_t count, room;
    size_t pins;
    size_t bytes; /* registered */
} pins;

/* --- the list, under the lock --- */

/* The index of the first piece that ends after `address`. */
static size_t pieces_find(uintptr_t address)
{
    size_t low = 0, high = pins.count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (pins.pieces[middle]->end > address) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

/* Inserts new pieces at an index. False: out of memory. */
static bool pieces_insert(size_t at, struct piece *const *fresh, size_t more)
{
    if (more > pins.room - pins.count) {
        size_t room = 2 * (pins.count + more);
        struct piece **grown = realloc(pins.pieces, room * sizeof(struct piece *));
        if (grown == NULL) {
            return false;
        }
        pins.pieces = grown;
        pins.room = room;
    }
    if (more > 0) {
        memmove(&pins.pieces[at + more], &pins.pieces[at],
                (pins.count - at) * sizeof(struct piece *));
        memcpy(&pins.pieces[at], fresh, more * sizeof(struct piece *));
        pins.count += more;
    }
    return true;
}

/* Removes and frees the pieces in the range that are GONE. */
static void pieces_sweep(uintptr_t begin, uintptr_t end)
{
    size_t i = pieces_find(begin), kept = i;

    for (; i < pins.count && pins.pieces[i]->begin < end; i++) {
        if (pins.pieces[i]->state == PIECE_GONE) {
            free(pins.pieces[i]);
        } else {
            pins.pieces[kept++] = pins.pieces[i];
        }
    }
    if (kept < i) {
        memmove(&pins.pieces[kept], &pins.pieces[i], (pins.count - i) * sizeof(struct piece *));
        pins.count -= i - kept;
    }
}

static bool is_in_motion(const struct piece *piece)
{
    return piece->state == PIECE_PENDING || piece->state == PIECE_LEAVING;
}

/* Waits until no piece in the range is PENDING or LEAVING. Returns the index of the first piece
 * that ends after `begin`. */
static size_t pieces_settle(uintptr_t begin, uintptr_t end)
{
    for (;;) {
        size_t first = pieces_find(begin), i = first;
        while (i < pins.count && pins.pieces[i]->begin < end && !is_in_motion(pins.pieces[i])) {
            i++;
        }
        if (i == pins.count || pins.pieces[i]->begin >= end) {
            return first;
        }
        hostmem_wait();
    }
}

/* --- the driver, without the lock --- */

/*
 * Whether the driver says that every byte of the range is page-locked already. Such a range is not
 * entered in the list: whoever locked it may unlock it, and the next pin must notice that.
 */
static bool is_locked_by_others(uintptr_t begin, uintptr_t end)
{
    while (begin < end) {
        CUdeviceptr start = 0;
        size_t size = 0;
        unsigned kind = 0;
        if (cuda.cuPointerGetAttribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, begin) !=
                CUDA_SUCCESS ||
            kind != CU_MEMORYTYPE_HOST ||
            cuda.cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, begin) !=
                CUDA_SUCCESS ||
            cuda.cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, begin) !=
                CUDA_SUCCESS ||
            begin < start || begin - start >= size) {
            return false;
        }
        begin = (uintptr_t)start + size;
    }
    return true;
}

static bool supports_read_only(void)
{
    CUdevice device;
    int supported = 0;

    return cuda.cuCtxGetDevice(&device) == CUDA_SUCCESS &&
           cuda.cuDeviceGetAttribute(&supported,
                                     CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED,
                                     device) == CUDA_SUCCESS &&
           supported != 0;
}

/* Registers a piece, or finds it locked by others; piece->ours tells. Its home is current. */
static CUresult piece_register(struct piece *piece, bool read_only)
{
    void *address = (void *)piece->begin;
    size_t bytes = piece->end - piece->begin;
    CUresult result = cuda.cuMemHostRegister_v2(address, bytes, FLAGS);

    piece->ours = result == CUDA_SUCCESS;
    /* Overlap returns 712 with registered memory, INVALID_VALUE with memory the driver
     * allocated. */
    if (result != CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED && result != CUDA_ERROR_INVALID_VALUE) {
        return result;
    }
    if (is_locked_by_others(piece->begin, piece->end)) {
        return CUDA_SUCCESS;
    }
    /* INVALID_VALUE also means a mapping without write permission. The read-only flag is tried
     * second: writable memory that is only meant to be read is better registered without it. */
    if (result == CUDA_ERROR_INVALID_VALUE && read_only && supports_read_only()) {
        result = cuda.cuMemHostRegister_v2(address, bytes, FLAGS | CU_MEMHOSTREGISTER_READ_ONLY);
        piece->ours = result == CUDA_SUCCESS;
    }
    return result;
}

static CUresult piece_unregister(const struct piece *piece)
{
    CUresult result = hostmem_unregister((char *)piece->begin, piece->end - piece->begin);

    hostmem_home_release(piece->home, 1);
    return result;
}

/* Registers the pending pieces of a new pin; all or nothing. */
static CUresult pin_register(const struct cudriver_pin *pin, bool read_only)
{
    CUresult result = CUDA_SUCCESS;

    for (size_t i = 0; i < pin->pending && result == CUDA_SUCCESS; i++) {
        struct piece *piece = pin->pieces[i];
        result = hostmem_home_retain(piece->home);
        if (result != CUDA_SUCCESS) {
            break;
        }
        result = piece_register(piece, read_only);
        if (result == CUDA_ERROR_OUT_OF_MEMORY) { /* the pool's free memory counts as locked */
            size_t released;
            (void)cudriver_hostmem_trim(0, &released);
            result = piece_register(piece, read_only);
        }
        hostmem_home_release(piece->home, !piece->ours);
    }
    for (size_t i = 0; i < pin->pending && result != CUDA_SUCCESS; i++) {
        if (pin->pieces[i]->ours) {
            (void)piece_unregister(pin->pieces[i]);
        }
    }
    return result;
}

/* --- pins --- */

/* How many pieces a pin on the range touches, *gaps of them new. */
static size_t range_count(size_t first, uintptr_t begin, uintptr_t end, size_t *gaps)
{
    size_t count = 0;

    *gaps = 0;
    for (size_t i = first; begin < end;) {
        bool piece = i < pins.count && pins.pieces[i]->begin < end;
        uintptr_t gap_end = piece ? pins.pieces[i]->begin : end;
        if (begin < gap_end) {
            *gaps += (gap_end - begin + HOSTMEM_PIECE - 1) / HOSTMEM_PIECE;
        }
        if (!piece) {
            break;
        }
        begin = pins.pieces[i++]->end;
        count++;
    }
    return count + *gaps;
}

/* Makes a pin that holds the pieces in the range, with new PENDING ones for the gaps. NULL: out of
 * memory. */
static struct cudriver_pin *range_hold(CUdevice home, uintptr_t begin, uintptr_t end)
{
    size_t first = pieces_settle(begin, end), gaps;
    size_t count = range_count(first, begin, end, &gaps);
    struct cudriver_pin *pin = calloc(1, sizeof *pin + count * sizeof pin->pieces[0]);
    size_t made = 0;

    while (pin != NULL && made < gaps &&
           (pin->pieces[made] = calloc(1, sizeof(struct piece))) != NULL) {
        made++;
    }
    if (pin == NULL || made < gaps || !pieces_insert(first, pin->pieces, gaps)) {
        while (made > 0) {
            free(pin->pieces[--made]);
        }
        free(pin);
        return NULL;
    }
    pin->begin = begin;
    pin->end = end;
    pin->count = count;
    /* The new pieces that have no place yet are those from `to` up to `next`. */
    for (size_t to = first, next = first + gaps, shared = count; begin < end; to++) {
        struct piece *old = next < pins.count ? pins.pieces[next] : NULL;
        struct piece *piece = pins.pieces[to];
        if (old != NULL && old->begin <= begin) {
            pins.pieces[next++] = piece;
            pins.pieces[to] = piece = old;
            piece->renewed = piece->state == PIECE_LOST;
        } else {
            uintptr_t gap_end = old != NULL && old->begin < end ? old->begin : end;
            piece->begin = begin;
            piece->end = gap_end - begin < HOSTMEM_PIECE ? gap_end : begin + HOSTMEM_PIECE;
        }
        piece->pins++;
        begin = piece->end;
        if (piece->state == PIECE_REGISTERED) {
            pin->pieces[--shared] = piece;
        } else {
            piece->state = PIECE_PENDING;
            piece->home = home;
            pin->pieces[pin->pending++] = piece;
        }
    }
    return pin;
}

/* After the driver calls: PENDING pieces become REGISTERED, return to LOST, or are removed. */
static void range_resolve(struct cudriver_pin *pin, bool succeeded)
{
    size_t kept = 0;

    for (size_t i = 0; i < pin->count; i++) {
        struct piece *piece = pin->pieces[i];
        if (i < pin->pending) {
            if (succeeded && piece->ours) {
                piece->state = PIECE_REGISTERED;
                pins.bytes += piece->end - piece->begin;
            } else if (piece->renewed) {
                piece->state = PIECE_LOST;
            } else {
                piece->state = PIECE_GONE; /* no other pin has it: locked by others, or failed */
                continue;
            }
            piece->renewed = piece->ours = false;
        }
        pin->pieces[kept++] = piece;
    }
    pin->count = kept;
    pieces_sweep(pin->begin, pin->end);
    hostmem_announce();
}

/* Drops a pin's pieces and unregisters those that no pin holds. Locked before and after, not in
 * between. */
static CUresult pieces_release(struct cudriver_pin *pin)
{
    CUresult first = CUDA_SUCCESS;
    size_t leaving = 0;

    for (size_t i = 0; i < pin->count; i++) {
        struct piece *piece = pin->pieces[i];
        if (--piece->pins > 0) {
            continue;
        }
        if (piece->state == PIECE_LOST) {
            piece->state = PIECE_GONE;
            continue;
        }
        piece->state = PIECE_LEAVING;
        pin->pieces[leaving++] = piece;
    }
    pin->count = leaving;
    pieces_sweep(pin->begin, pin->end);
    if (leaving == 0) {
        return CUDA_SUCCESS;
    }
    hostmem_unlock();
    for (size_t i = 0; i < leaving; i++) {
        struct piece *piece = pin->pieces[i];
        CUresult result = piece_unregister(piece);
        if (first == CUDA_SUCCESS) {
            first = result;
        }
    }
    hostmem_lock();
    for (size_t i = 0; i < leaving; i++) {
        struct piece *piece = pin->pieces[i];
        pins.bytes -= piece->end - piece->begin;
        piece->state = PIECE_GONE;
    }
    pieces_sweep(pin->begin, pin->end);
    hostmem_announce();
    return first;
}

/* Makes the pin of [begin, end); `home` is current. */
static CUresult pin_make(CUdevice home, uintptr_t begin, uintptr_t end, bool read_only,
                         struct cudriver_pin **out)
{
    struct cudriver_pin *pin;
    CUresult result;

    hostmem_lock();
    pin = range_hold(home, begin, end);
    if (pin == NULL) {
        hostmem_unlock();
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pins.pins++;
    hostmem_unlock();

    result = pin_register(pin, read_only);

    hostmem_lock();
    range_resolve(pin, result == CUDA_SUCCESS);
    if (result != CUDA_SUCCESS) {
        pins.pins--;
        (void)pieces_release(pin);
        free(pin);
        pin = NULL;
    }
    hostmem_unlock();
    *out = pin;
    return result;
}

CUresult cudriver_pin_create(void *address, size_t bytes, bool read_only, struct cudriver_pin **out)
{
    uintptr_t begin = (uintptr_t)address;
    CUdevice home;
    CUresult result;

    *out = NULL;
    if (cudriver_driver_is_forked()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if ((address == NULL && bytes > 0) || bytes > UINTPTR_MAX - begin) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    /* The pool keeps its regions registered, and the pinned array keeps its block: an empty pin
     * will do. */
    bool pooled = bytes > 0 && hostmem_pool_holds(address, bytes, &result);
    if (pooled && result != CUDA_SUCCESS) {
        return result;
    }
    result = hostmem_home_enter(&home);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = pin_make(home, begin, pooled ? begin : begin + bytes, read_only, out);
    hostmem_home_leave();
    hostmem_home_release(home, 1);
    return result;
}

CUresult cudriver_pin_destroy(struct cudriver_pin *pin)
{
    CUresult result;

    if (pin == NULL) {
        return CUDA_SUCCESS;
    }
    hostmem_lock();
    pins.pins--;
    result = pieces_release(pin);
    hostmem_unlock();
    free(pin);
    return result;
}

/* --- for registrations.c --- */

bool hostmem_pins_have_home(CUdevice home)
{
    bool found = false;

    hostmem_lock();
    for (size_t i = 0; i < pins.count; i++) {
        found |= pins.pieces[i]->home == home && pins.pieces[i]->state != PIECE_LOST;
    }
    hostmem_unlock();
    return found;
}

size_t hostmem_pins_forget_home(CUdevice home)
{
    size_t count = 0;

    hostmem_lock();
    for (size_t i = 0; i < pins.count; i++) {
        struct piece *piece = pins.pieces[i];
        if (piece->home == home && piece->state == PIECE_REGISTERED) {
            piece->state = PIECE_LOST;
            pins.bytes -= piece->end - piece->begin;
            count++;
        }
    }
    hostmem_unlock();
    return count;
}

void hostmem_pins_count(size_t *count, size_t *bytes)
{
    hostmem_lock();
    *count = pins.pins;
    *bytes = pins.bytes;
    hostmem_unlock();
}

size_t hostmem_pins_run(const void *address, size_t bytes, bool *registered)
{
    uintptr_t begin = (uintptr_t)address;
    size_t run = 0;

    hostmem_lock();
    size_t at = pieces_find(begin);
    *registered = false;
    if (at < pins.count && pins.pieces[at]->begin <= begin) {
        run = pins.pieces[at]->end - begin;
        run = run < bytes ? run : bytes;
        *registered = pins.pieces[at]->state == PIECE_REGISTERED;
    }
    hostmem_unlock();
    return run;
}
