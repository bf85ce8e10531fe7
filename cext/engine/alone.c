/* Blocking copies by the calling thread alone: dense ones, those too small for threads, those for
 * which no lane can be had. See private.h. */
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

/* Lets the stream write 1 to a word of page-locked memory. False: the driver cannot. */
static bool word_queue(const struct cudriver_copy_plan *plan, CUstream stream,
                       _Atomic uint32_t *word)
{
    CUdeviceptr address = staging_device_address(plan->context, word);

    atomic_store(word, 0);
    return address != 0 && cuda.cuStreamWriteValue32_v2 != NULL &&
           cuda.cuStreamWriteValue32_v2(stream, address, 1, 0) == CUDA_SUCCESS;
}

/* Waits for a small copy: polls the word, or if that is NULL cuStreamQuery, for a moment, then
 * sleeps: what the stream did before may last. Work that others queue meanwhile does not delay the
 * end by more than that moment. */
static CUresult small_wait(const struct cudriver_copy_plan *plan,
                           const struct cudriver_copy_call *call, _Atomic uint32_t *word)
{
    unsigned long long until = platform_nanoseconds() + TUNING_LOOK_NS;
    CUresult result = CUDA_ERROR_NOT_READY;

    if (word != NULL && !word_queue(plan, call->stream, word)) {
        word = NULL;
    }
    do {
        if (word == NULL) {
            result = cuda.cuStreamQuery(call->stream);
        } else if (atomic_load_explicit(word, memory_order_acquire) != 0) {
            result = CUDA_SUCCESS;
        } else {
            platform_relax();
        }
    } while (result == CUDA_ERROR_NOT_READY && platform_nanoseconds() < until);
    if (result == CUDA_ERROR_NOT_READY) {
        result = cudriver_staging_stream_wait(call->stream, call->interrupted, call->data);
    }
    return result == CUDA_SUCCESS || result == CUDRIVER_STAGING_INTERRUPTED
               ? result
               : cuda.cuStreamSynchronize(call->stream);
}

CUresult staging_small_copy(const struct cudriver_copy_plan *plan, struct cudriver_copy_call *call)
{
    bool through = !plan->dst.on_device && !plan->page_locked;
    bool word = !plan->dst.on_device || plan->src.on_device || plan->bytes > TUNING_ASK_MOST;
    size_t at = through ? (plan->bytes + LINE - 1) / LINE * LINE : 0; /* of the word */
    CUresult result, waited;
    void *slot = NULL;

    if (word && staging_slot_get(at + LINE, &slot) != CUDA_SUCCESS && through) {
        return CUDA_ERROR_NOT_READY;
    }
    if (through) {
        const struct cudriver_copy_end here = {.host = slot};
        result = staging_bytes_issue(&here, 0, &plan->src, plan->layout.src_offset, plan->bytes,
                                     call->stream, &call->function);
    } else {
        result = staging_direct_issue(plan, call->stream, &call->function);
    }
    /* After a failure a part may be queued. */
    waited = result != CUDA_SUCCESS
                 ? cuda.cuStreamSynchronize(call->stream)
                 : small_wait(plan, call, slot != NULL ? (void *)((char *)slot + at) : NULL);
    if (waited == CUDRIVER_STAGING_INTERRUPTED) {
        call->queued = true;
        call->slot = slot;
    } else if (waited == CUDA_SUCCESS && slot != NULL) { /* else the device may still use it */
        if (through && result == CUDA_SUCCESS) {
            memcpy(plan->host + plan->layout.dst_offset, slot, plan->bytes);
        }
        cudriver_hostmem_free(slot);
    }
    if (result == CUDA_SUCCESS && waited != CUDA_SUCCESS) {
        result = waited;
        call->function = "cuStreamSynchronize";
    }
    return result;
}

/* Copies `bytes` bytes and waits: on a default stream by the driver's blocking call. A pageable
 * upload may return before the device has the bytes. */
static CUresult part_copy(const struct cudriver_copy_plan *plan, CUdeviceptr device, char *host,
                          size_t bytes, struct cudriver_copy_call *call)
{
    bool up = plan->dst.on_device;
    CUresult result;

    if (call->stream == NULL) {
        call->function = up ? "cuMemcpyHtoD_v2" : "cuMemcpyDtoH_v2";
        result = up ? cuda.cuMemcpyHtoD_v2(device, host, bytes)
                    : cuda.cuMemcpyDtoH_v2(host, device, bytes);
    } else {
        const struct cudriver_copy_end there = {.on_device = true, .device = device};
        const struct cudriver_copy_end here = {.host = host};
        result = staging_bytes_issue(up ? &there : &here, 0, up ? &here : &there, 0, bytes,
                                     call->stream, &call->function);
    }
    if (result == CUDA_SUCCESS && (call->stream != NULL || (up && !plan->page_locked))) {
        call->function = "cuStreamSynchronize";
        result = cuda.cuStreamSynchronize(call->stream);
    }
    return result;
}

CUresult staging_dense_copy(const struct cudriver_copy_plan *plan, struct cudriver_copy_call *call)
{
    bool up = plan->dst.on_device, cut = !plan->one_run && !plan->unlooked;
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
