/* Copies by the calling thread alone: dense ones, those too small for threads, those for which no
 * lane can be had. And waits of microseconds. See private.h. */
#include "private.h"

#include <stdlib.h>
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

/* ---- waits ---- */

/* Waits for the stream by a word in page-locked memory that the stream writes. The driver waits
 * after TUNING_LOOK_NS, or if it has no such write. */
static CUresult word_wait(CUcontext context, CUstream stream, void *memory)
{
    _Atomic uint32_t *word = memory;
    unsigned long long until = platform_nanoseconds() + TUNING_LOOK_NS;
    CUdeviceptr address = staging_device_address(context, memory);

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

/* Frees a slot, if there is one, after a wait. If that failed, the device may still use the slot:
 * it is leaked. */
static void slot_give_back(void *slot, CUresult waited)
{
    if (waited == CUDA_SUCCESS && slot != NULL) {
        cudriver_hostmem_free(slot);
    }
}

CUresult staging_wait_soon(CUcontext context, CUstream stream)
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

/* The same by cuStreamQuery: the fastest wait for a small copy up. */
static CUresult ask_soon(CUstream stream)
{
    unsigned long long until = platform_nanoseconds() + TUNING_LOOK_NS;
    CUresult result;

    do {
        result = cuda.cuStreamQuery(stream);
    } while (result == CUDA_ERROR_NOT_READY && platform_nanoseconds() < until);
    return result == CUDA_ERROR_NOT_READY ? cuda.cuStreamSynchronize(stream) : result;
}

/* ---- dense ---- */

/* Waits for the copy of a part. A slot has room for the word behind its bytes. */
static CUresult part_wait(const struct cudriver_copy_plan *plan, size_t bytes, CUstream stream,
                          char *slot)
{
    if (plan->dst.on_device && bytes <= (plan->one_run ? TUNING_ASK_MOST : TUNING_SMALL_MOST)) {
        return ask_soon(stream);
    }
    if (slot != NULL) {
        return word_wait(plan->context, stream, slot + (bytes + LINE - 1) / LINE * LINE);
    }
    return plan->one_run && bytes <= TUNING_SMALL_MOST ? staging_wait_soon(plan->context, stream)
                                                       : cuda.cuStreamSynchronize(stream);
}

/* Queues the copy of a part on a default stream by the driver's blocking call. *over: that waited.
 * A pageable upload may return before the device has the bytes. */
static CUresult part_block(const struct cudriver_copy_plan *plan, CUdeviceptr device, char *host,
                           size_t bytes, const char **function, bool *over)
{
    *over = !plan->dst.on_device || plan->page_locked;
    *function = plan->dst.on_device ? "cuMemcpyHtoD_v2" : "cuMemcpyDtoH_v2";
    return plan->dst.on_device ? cuda.cuMemcpyHtoD_v2(device, host, bytes)
                               : cuda.cuMemcpyDtoH_v2(host, device, bytes);
}

/* Copies `bytes` bytes and waits. Down to little pageable memory it goes through a page-locked
 * slot, if that can be had, which is faster than the driver's blocking call. Not so up: only the
 * driver's own call waits for the stream before it reads the host. */
static CUresult part_copy(const struct cudriver_copy_plan *plan, CUdeviceptr device, char *host,
                          size_t bytes, struct cudriver_copy_call *call)
{
    bool up = plan->dst.on_device, little = bytes <= TUNING_SMALL_MOST, over = false;
    void *slot = NULL;
    CUresult result;

    if (little && !up && !plan->page_locked) {
        (void)staging_slot_get(bytes + 2 * LINE, &slot);
    }
    if (call->stream == NULL && slot == NULL && !(little && plan->one_run)) {
        result = part_block(plan, device, host, bytes, &call->function, &over);
    } else {
        const struct cudriver_copy_end there = {.on_device = true, .device = device};
        const struct cudriver_copy_end here = {.host = slot != NULL ? slot : host};
        result = staging_bytes_issue(up ? &there : &here, 0, up ? &here : &there, 0, bytes,
                                     call->stream, &call->function);
    }
    if (result != CUDA_SUCCESS || over) {
        slot_give_back(slot, CUDA_SUCCESS);
        return result;
    }
    call->function = "cuStreamSynchronize";
    result = part_wait(plan, bytes, call->stream, slot);
    if (slot != NULL && result == CUDA_SUCCESS) {
        memcpy(host, slot, bytes);
    }
    slot_give_back(slot, result);
    return result;
}

CUresult staging_dense_copy(const struct cudriver_copy_plan *plan, struct cudriver_copy_call *call)
{
    bool up = plan->dst.on_device;
    bool slot =
        !up && !plan->page_locked && plan->bytes <= TUNING_SMALL_MOST; /* if one is to be had */
    bool cut = !plan->one_run && !plan->unlooked && !slot;
    const struct cudriver_layout *layout = &plan->layout;
    CUdeviceptr device = plan->device + (CUdeviceptr)(up ? layout->dst_offset : layout->src_offset);
    char *host = plan->host + (up ? layout->src_offset : layout->dst_offset);
    CUresult result = CUDA_SUCCESS;

    for (size_t at = 0, bytes; at < plan->bytes && result == CUDA_SUCCESS; at += bytes) {
        bytes = plan->bytes - at < TUNING_CUT ? plan->bytes - at : TUNING_CUT;
        if (cut) {
            bytes = cudriver_hostmem_run(host + at, bytes); /* split at a registration's end too */
        }
        result = part_copy(plan, device + at, host + at, bytes, call);
        if (result == CUDA_ERROR_INVALID_VALUE && !plan->one_run &&
            cudriver_hostmem_run(host + at, bytes) < bytes) {
            cut = true; /* a registration ends within the range, maybe since a moment ago */
            bytes = 0;
            result = CUDA_SUCCESS;
        } else if (result == CUDA_SUCCESS && at + bytes < plan->bytes &&
                   call->interrupted(call->data)) {
            result = CUDRIVER_STAGING_INTERRUPTED;
        }
    }
    return result;
}

/* ---- through one slot ---- */

/* Copies a part through `slot`. *waited: whether the device no longer uses it. */
static CUresult slot_part(const struct cudriver_copy_plan *copy, const struct staging_boxes *parts,
                          size_t part, CUstream stream, char *slot, CUresult *waited)
{
    const struct staging_plan *plan = &copy->staged;
    const struct cudriver_copy_end block = {.host = slot},
                                   device = {.on_device = true, .device = copy->device};
    struct cudriver_layout layout;
    const char *function;
    size_t begin, end;
    CUresult result;

    staging_box_find(plan, parts, part, &begin, &end, &layout);
    if (plan->up) {
        cudriver_layout_copy_part(&plan->walk, slot, true, copy->host, false, begin, end);
        result = staging_rows_issue(&layout, &device, &block, stream, &function);
    } else {
        result = staging_rows_issue(&layout, &block, &device, stream, &function);
    }
    *waited = cuda.cuStreamSynchronize(stream); /* after a failure earlier rows may be under way */
    result = result != CUDA_SUCCESS ? result : *waited;
    if (!plan->up && result == CUDA_SUCCESS) {
        cudriver_layout_copy_part(&plan->walk, copy->host, false, slot, true, begin, end);
    }
    return result;
}

CUresult staging_slot_copy(const struct cudriver_copy_plan *copy,
                           const struct cudriver_copy_call *call)
{
    const struct staging_boxes parts = staging_boxes_make(&copy->staged, TUNING_ALONE);
    unsigned long long asked = parts.count > 1 ? platform_nanoseconds() : 0;
    CUresult result = CUDA_SUCCESS, waited = CUDA_SUCCESS;
    void *locked, *slot;

    slot =
        staging_slot_get(parts.largest, &locked) == CUDA_SUCCESS ? locked : malloc(parts.largest);
    if (slot == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    for (size_t part = 0; part < parts.count && result == CUDA_SUCCESS; part++) {
        if (part > 0) {
            result = staging_may_go_on(call, platform_nanoseconds(), &asked);
        }
        if (result == CUDA_SUCCESS) {
            result = slot_part(copy, &parts, part, call->stream, slot, &waited);
        }
    }
    if (waited != CUDA_SUCCESS) {
        return result; /* given up: the device may still use the slot */
    }
    if (locked != NULL) {
        cudriver_hostmem_free(locked);
    } else {
        free(slot);
    }
    return result;
}
