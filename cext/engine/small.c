/* Dense blocking copies too small for threads, and waits of microseconds. See private.h. */
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
