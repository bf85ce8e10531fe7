/* Copies too small for threads: through one slot, blocking or in stream order. See private.h. */
#include "private.h"

#include <string.h>

#include "driver/driver.h"
#include "driver/platform.h"
#include "hostmem/hostmem.h"

#define LINE 64

CUresult staging_slot_get(size_t bytes, void **slot)
{
    bool zeroed;

    *slot = cudriver_hostmem_try_alloc(bytes);
    return *slot != NULL ? CUDA_SUCCESS : cudriver_hostmem_alloc(bytes, SIZE_MAX, slot, &zeroed);
}

/* ---- blocking ---- */

/* The device address of page-locked memory; 0: none. On all but old platforms it is the host's
 * address. The last context in which that was so is remembered; others ask the driver. */
static CUdeviceptr word_address(CUcontext context, void *memory)
{
    static _Atomic uintptr_t alike;
    CUdeviceptr address = (CUdeviceptr)(uintptr_t)memory;

    if (atomic_load_explicit(&alike, memory_order_relaxed) == (uintptr_t)context) {
        return address;
    }
    if (cuda.cuMemHostGetDevicePointer_v2(&address, memory, 0) != CUDA_SUCCESS) {
        return 0;
    }
    if (address == (CUdeviceptr)(uintptr_t)memory) {
        atomic_store_explicit(&alike, (uintptr_t)context, memory_order_relaxed);
    }
    return address;
}

/* Waits for the stream by a word in page-locked memory that the stream writes. The driver waits
 * after TUNING_LOOK_NS, or if it has no such write. */
static CUresult word_wait(CUcontext context, CUstream stream, void *memory)
{
    _Atomic uint32_t *word = memory;
    unsigned long long until = platform_nanoseconds() + TUNING_LOOK_NS;
    CUdeviceptr address = word_address(context, memory);

    atomic_store(word, 0);
    if (address == 0 || cuda.cuStreamWriteValue32_v2 == NULL ||
        cuda.cuStreamWriteValue32_v2(stream, address, 1, 0) != CUDA_SUCCESS) {
        return cuda.cuStreamSynchronize(stream);
    }
    while (atomic_load_explicit(word, memory_order_acquire) == 0) {
        if (platform_nanoseconds() > until) {
            return cuda.cuStreamSynchronize(stream);
        }
        platform_relax();
    }
    return CUDA_SUCCESS;
}

/* Frees a slot after a wait. If that failed, the device may still use the slot: it is leaked. */
static void slot_give_back(void *slot, CUresult waited)
{
    if (waited == CUDA_SUCCESS) {
        cudriver_hostmem_free(slot);
    }
}

CUresult cudriver_staging_wait_soon(CUcontext context, CUstream stream)
{
    CUresult result;
    void *word;

    if (staging_slot_get(sizeof(uint32_t), &word) != CUDA_SUCCESS) {
        return cuda.cuStreamSynchronize(stream);
    }
    result = word_wait(context, stream, word);
    slot_give_back(word, result);
    return result;
}

CUresult cudriver_staging_ask_soon(CUstream stream)
{
    unsigned long long until = platform_nanoseconds() + TUNING_LOOK_NS;
    CUresult result;

    do {
        result = cuda.cuStreamQuery(stream);
    } while (result == CUDA_ERROR_NOT_READY && platform_nanoseconds() < until);
    return result == CUDA_ERROR_NOT_READY ? cuda.cuStreamSynchronize(stream) : result;
}

/* Waits for a queued copy. A slot has room for the word behind its bytes. */
static CUresult copy_wait(const struct cudriver_copy_plan *plan, CUstream stream, char *slot)
{
    if (plan->to_device && plan->bytes <= TUNING_ASK_MOST) {
        return cudriver_staging_ask_soon(stream);
    }
    return slot != NULL
               ? word_wait(plan->context, stream, slot + (plan->bytes + LINE - 1) / LINE * LINE)
               : cudriver_staging_wait_soon(plan->context, stream);
}

bool staging_small_copy(const struct cudriver_copy_plan *plan, struct cudriver_copy_call *call,
                        CUdeviceptr device, char *host, CUresult *result)
{
    bool up = plan->to_device;
    void *slot = NULL, *at;

    if (!plan->one_run && staging_slot_get(plan->bytes + 2 * LINE, &slot) != 0) {
        return false;
    }
    at = slot != NULL ? slot : host;
    call->function = up ? "cuMemcpyHtoDAsync_v2" : "cuMemcpyDtoHAsync_v2";
    *result = up ? cuda.cuMemcpyHtoDAsync_v2(device, at, plan->bytes, call->stream)
                 : cuda.cuMemcpyDtoHAsync_v2(at, device, plan->bytes, call->stream);
    if (*result != CUDA_SUCCESS) {
        if (slot != NULL) {
            cudriver_hostmem_free(slot);
        }
        return true;
    }
    call->function = "cuStreamSynchronize";
    *result = copy_wait(plan, call->stream, slot);
    if (slot != NULL) {
        if (*result == CUDA_SUCCESS) {
            memcpy(host, slot, plan->bytes);
        }
        slot_give_back(slot, *result);
    }
    return true;
}

/* ---- in stream order: host functions pack and unpack ---- */

/* Locked. Whether our thread may use the host's memory now: it was not given up before. */
static bool small_begin(struct cudriver_staging_transfer *transfer)
{
    bool begin = transfer->state == STAGING_QUEUED;

    if (begin) {
        staging_transfer_move(transfer, STAGING_MOVING);
    }
    return begin;
}

/* Packs the slot, unless the copy was given up. */
static void slot_pack(struct cudriver_staging_transfer *transfer)
{
    staging_lock();
    bool begin = small_begin(transfer);
    staging_unlock();
    if (begin) {
        cudriver_layout_copy_part(&transfer->walk, transfer->slot, true, transfer->host, false, 0,
                                  transfer->bytes);
        staging_lock();
        staging_transfer_move(transfer, STAGING_PASSING);
        staging_unlock();
    }
}

/* Host function, before the copy up. */
static void small_pack(void *data)
{
    slot_pack(data);
    staging_transfer_drop(data);
}

/* Host function, after the copy. */
static void small_done(void *data)
{
    struct cudriver_staging_transfer *transfer = data;

    staging_lock();
    bool unpack = !transfer->up && small_begin(transfer);
    staging_unlock();
    if (unpack) {
        cudriver_layout_copy_part(&transfer->walk, transfer->host, false, transfer->slot, true, 0,
                                  transfer->bytes);
    }
    cudriver_hostmem_free(transfer->slot);
    transfer->slot = NULL;
    staging_lock();
    staging_transfer_move(transfer, STAGING_OVER);
    staging_unlock();
    staging_transfer_drop(transfer);
}

CUresult staging_small_start(struct cudriver_staging_transfer *transfer,
                             const struct cudriver_copy_plan *copy,
                             const struct cudriver_copy_call *call)
{
    const struct staging_plan *plan = &copy->staged;
    struct cudriver_layout rows;
    void *slot;
    CUresult result, state;

    /* Query before taking a slot: if the query fails, so would the wait that frees the slot. */
    state = plan->up ? staging_stream_query(call->stream) : CUDA_SUCCESS;
    if (state != CUDA_SUCCESS && state != CUDA_ERROR_NOT_READY) {
        return state;
    }
    result = staging_slot_get(plan->bytes, &slot);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    transfer->up = plan->up;
    transfer->slot = slot;
    transfer->host = copy->host;
    transfer->bytes = plan->bytes;
    transfer->walk = plan->walk;
    staging_rows_make(&plan->walk, plan->up, &rows);
    if (plan->up && state == CUDA_SUCCESS) {
        slot_pack(transfer);
    } else if (plan->up) {
        staging_transfer_hold(transfer);
        result = cuda.cuLaunchHostFunc(call->stream, small_pack, transfer);
        if (result != CUDA_SUCCESS) {
            staging_transfer_drop(transfer);
        }
    }
    if (result == CUDA_SUCCESS) {
        result = staging_device_copy(&rows, plan->up, copy->device, transfer->slot, 0, plan->bytes,
                                     call->stream);
    }
    if (result == CUDA_SUCCESS) {
        staging_transfer_hold(transfer);
        result = cuda.cuLaunchHostFunc(call->stream, small_done, transfer);
        if (result != CUDA_SUCCESS) {
            staging_transfer_drop(transfer);
        }
    }
    return result;
}
