/* Follows the plan of a copy: by the driver's own copies, or by one of the engine's ways. */
#include "private.h"

#include <string.h>

#include "driver/driver.h"
#include "driver/platform.h"
#include "hostmem/hostmem.h"

#define LINE 64 /* bytes of a cache line */

/* A copy to another device. On a default stream it comes after the default work of both devices,
 * and before what follows on either. */
static CUresult issue_peer(const struct cudriver_copy_plan *plan, struct cudriver_copy_call *call)
{
    CUcontext near = plan->context;
    CUcontext far = near == plan->dst.context ? plan->src.context : plan->dst.context;
    bool both = cudriver_stream_is_default(call->stream);
    CUresult result = both ? cudriver_staging_follow(far, NULL, near, call->stream) : CUDA_SUCCESS;

    call->function = "cuStreamWaitEvent";
    if (result == CUDA_SUCCESS) {
        call->function = "cuMemcpyPeerAsync";
        result = cuda.cuMemcpyPeerAsync(plan->dst.device + (CUdeviceptr)plan->layout.dst_offset,
                                        plan->dst.context,
                                        plan->src.device + (CUdeviceptr)plan->layout.src_offset,
                                        plan->src.context, plan->bytes, call->stream);
    }
    if (result == CUDA_SUCCESS && both) {
        call->function = "cuStreamWaitEvent";
        result = cudriver_staging_follow(near, call->stream, far, NULL);
    }
    return result;
}

/* A copy on one device by the kernel. Loading that takes a while, at the first use in a context. */
static CUresult issue_kernel(const struct cudriver_copy_plan *plan, struct cudriver_copy_call *call)
{
    CUdeviceptr dst = plan->dst.device, src = plan->src.device;
    struct staging_kernels *kernels;
    struct staging_place *place;
    CUresult result = staging_place_enter(plan->context, &place);

    call->function = "cuCtxGetId";
    if (result != CUDA_SUCCESS) {
        return result;
    }
    call->function = "cuModuleLoadDataEx";
    result = staging_place_kernels(place, &kernels);
    if (result == CUDA_SUCCESS) {
        call->function = "cuLaunchKernel";
        result = staging_kernels_launch(kernels, &plan->layout, dst, src, call->stream);
    }
    /* Then the path through the host may work. A launch answers INVALID_HANDLE if the stream is of
     * another context, as another library's may be. */
    call->refused = result == CUDA_ERROR_NOT_SUPPORTED || result == CUDA_ERROR_OUT_OF_MEMORY ||
                    result == CUDA_ERROR_INVALID_HANDLE;
    if (result != CUDA_SUCCESS) {
        cuda.cuStreamSynchronize(call->stream); /* of several launches some may be queued */
    }
    staging_place_leave(place);
    return result;
}

/* A fill of dense memory. */
static CUresult issue_fill(const struct cudriver_copy_plan *plan, struct cudriver_copy_call *call)
{
    CUdeviceptr device = plan->device + (CUdeviceptr)plan->layout.dst_offset;
    unsigned short two;
    unsigned int four;

    if (plan->word == 1) {
        call->function = "cuMemsetD8Async";
        return cuda.cuMemsetD8Async(device, (unsigned char)*plan->host, plan->bytes, call->stream);
    }
    if (plan->word == 2) {
        call->function = "cuMemsetD16Async";
        memcpy(&two, plan->host, 2);
        return cuda.cuMemsetD16Async(device, two, plan->bytes / 2, call->stream);
    }
    call->function = "cuMemsetD32Async";
    memcpy(&four, plan->host, 4);
    return cuda.cuMemsetD32Async(device, four, plan->bytes / 4, call->stream);
}

/* ---- blocking, dense ---- */

/* Lets the stream write 1 to a word of page-locked memory. False: the driver cannot. H200, us with
 * cuStreamQuery, the word: 64 bytes up 7.1, 7.1, down 7.2, 6.5; 64 KiB up 10.3, 9.8. */
static bool word_queue(const struct cudriver_copy_plan *plan, CUstream stream,
                       _Atomic uint32_t *word)
{
    CUdeviceptr address = staging_device_address(plan->context, word);

    atomic_store(word, 0);
    return address != 0 && cuda.cuStreamWriteValue32_v2 != NULL &&
           cuda.cuStreamWriteValue32_v2(stream, address, 1, 0) == CUDA_SUCCESS;
}

/* Waits for a small copy, or for a part of one: polls the word, or if that is NULL cuStreamQuery,
 * for a moment, then sleeps: what the stream did before may last. Work that others queue meanwhile
 * does not delay the end by more than that moment. */
static CUresult small_wait(const struct cudriver_copy_call *call, _Atomic uint32_t *word)
{
    unsigned long long until = platform_nanoseconds() + TUNING_WAIT_SPIN_NS;
    CUresult result = CUDA_ERROR_NOT_READY;

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
        result = cudriver_staging_stream_ask(call->stream, true, call->interrupted, call->data);
    }
    return result == CUDA_SUCCESS || result == CUDRIVER_STAGING_INTERRUPTED
               ? result
               : cuda.cuStreamSynchronize(call->stream);
}

/* A small, dense copy. Down to pageable memory it goes through a slot, in parts that are
 * moved on while the next arrive, which is faster than the driver's blocking call; NOT_READY: there
 * is none, and nothing was done. If it is interrupted, call->queued says so. */
static CUresult small_copy(const struct cudriver_copy_plan *plan, struct cudriver_copy_call *call)
{
    bool through = !plan->dst.on_device && !plan->page_locked;
    size_t most = through ? TUNING_SLOT_PART : plan->bytes, at, bytes;
    size_t words = through ? (plan->bytes + LINE - 1) / LINE * LINE : 0; /* behind the bytes */
    size_t lines = (plan->bytes + most - 1) / most * LINE;
    CUresult result = CUDA_SUCCESS, waited = CUDA_SUCCESS;
    struct cudriver_copy_end here = {.host = NULL};
    void *slot;
    bool told = staging_slot_get(words + lines, &slot) == CUDA_SUCCESS;

    if (through && !told) {
        return CUDA_ERROR_NOT_READY;
    }
    here.host = slot;
    for (at = 0; at < plan->bytes && result == CUDA_SUCCESS; at += most) {
        bytes = plan->bytes - at < most ? plan->bytes - at : most;
        result = through ? staging_bytes_issue(&here, (int64_t)at, &plan->src,
                                               plan->layout.src_offset + (int64_t)at, bytes,
                                               call->stream, &call->function)
                         : staging_direct_issue(plan, call->stream, &call->function);
        told = told && result == CUDA_SUCCESS &&
               word_queue(plan, call->stream, (void *)(here.host + words + at / most * LINE));
    }
    if (result != CUDA_SUCCESS) { /* a part may be queued */
        waited = cuda.cuStreamSynchronize(call->stream);
    }
    for (at = 0; at < plan->bytes && result == CUDA_SUCCESS && waited == CUDA_SUCCESS; at += most) {
        bytes = plan->bytes - at < most ? plan->bytes - at : most;
        waited = small_wait(call, told ? (void *)(here.host + words + at / most * LINE) : NULL);
        if (through && waited == CUDA_SUCCESS) {
            memcpy(plan->host + plan->layout.dst_offset + at, here.host + at, bytes);
        }
    }
    if (waited == CUDRIVER_STAGING_INTERRUPTED) {
        call->queued = true;
        call->slot = slot;
    } else if (waited == CUDA_SUCCESS && slot != NULL) { /* else the device may still use it */
        cudriver_hostmem_free(slot);
    }
    if (result == CUDA_SUCCESS && waited != CUDA_SUCCESS) {
        result = waited;
        call->function = "cuStreamSynchronize";
    }
    return result;
}

/* Copies `bytes` bytes and waits: on a default stream by the driver's blocking call, which alone
 * waits for other blocking streams before it reads pageable memory. An upload may return before the
 * device has the bytes if the memory is pageable, perhaps since another thread ended its lock. */
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
    if (result == CUDA_SUCCESS &&
        (call->stream != NULL ||
         (up && !(plan->page_locked && cudriver_hostmem_is_page_locked(host, host + bytes))))) {
        call->function = "cuStreamSynchronize";
        result = cuda.cuStreamSynchronize(call->stream);
    }
    return result;
}

/* A dense copy between host and device, in parts of TUNING_CUT bytes at most. */
static CUresult dense_copy(const struct cudriver_copy_plan *plan, struct cudriver_copy_call *call)
{
    bool up = plan->dst.on_device, cut = plan->page_locked && !plan->one_run;
    const struct cudriver_layout *layout = &plan->layout;
    CUdeviceptr device = plan->device + (CUdeviceptr)(up ? layout->dst_offset : layout->src_offset);
    char *host = plan->host + (up ? layout->src_offset : layout->dst_offset);
    bool timed = plan->coherent && plan->bytes >= TUNING_BIG;
    unsigned long long began = timed ? platform_nanoseconds() : 0;
    CUresult result = CUDA_SUCCESS;

    for (size_t at = 0, bytes; at < plan->bytes && result == CUDA_SUCCESS; at += bytes) {
        bytes = plan->bytes - at < TUNING_CUT ? plan->bytes - at : TUNING_CUT;
        if (cut) {
            bytes = cudriver_hostmem_run(host + at, bytes); /* split at a registration's end too */
        }
        result = part_copy(plan, device + at, host + at, bytes, call);
        if (timed && at == 0 && result == CUDA_SUCCESS &&
            staging_coherent_crawls(up, bytes, platform_nanoseconds() - began) &&
            bytes < plan->bytes) {
            call->crawls = true;
            call->function = NULL; /* of what is staged, several */
            break;
        }
        if (result == CUDA_ERROR_INVALID_VALUE && !cut) {
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

/* ---- any plan ---- */

/* Queues a copy that is not staged on the stream, and does not wait. */
static CUresult plan_issue(const struct cudriver_copy_plan *plan, struct cudriver_copy_call *call)
{
    switch (plan->kind) {
    case CUDRIVER_COPY_KERNEL:
        return issue_kernel(plan, call);
    case CUDRIVER_COPY_PEER:
        return issue_peer(plan, call);
    case CUDRIVER_COPY_DIRECT:
        return staging_direct_issue(plan, call->stream, &call->function);
    case CUDRIVER_COPY_FILL:
        return issue_fill(plan, call);
    default:
        return staging_rows_issue(&plan->layout, &plan->dst, &plan->src, call->stream,
                                  &call->function);
    }
}

/* Follows a plan that is not staged. Nothing is in flight after an error. */
static CUresult driver_copy(const struct cudriver_copy_plan *plan, struct cudriver_copy_call *call,
                            bool wait)
{
    CUresult result, waited;

    /* A blocking copy of microseconds, which may be queued behind other work, is issued at once,
     * and its wait can be interrupted. Not a pageable one up: only the driver's own call waits for
     * the stream before it reads the host. */
    if (wait && plan->kind == CUDRIVER_COPY_DIRECT && (plan->page_locked || plan->src.on_device) &&
        plan->bytes <= (plan->dst.on_device && plan->src.on_device ? TUNING_SMALL_INSIDE
                                                                   : TUNING_SMALL_MOST)) {
        result = small_copy(plan, call);
        if (result != CUDA_ERROR_NOT_READY) {
            return result;
        }
    }
    if (wait) {
        call->function = "cuStreamQuery";
        result = cudriver_staging_stream_settle(call->stream, call->interrupted, call->data);
        if (result != CUDA_SUCCESS) {
            return result;
        }
        if (plan->kind == CUDRIVER_COPY_DIRECT && plan->dst.on_device != plan->src.on_device) {
            return dense_copy(plan, call);
        }
    }
    result = plan_issue(plan, call);
    if (!wait && (result == CUDA_SUCCESS || call->refused)) {
        return result;
    }
    /* After a failure a part may be in flight, and nobody would keep its memory alive. */
    waited = cuda.cuStreamSynchronize(call->stream);
    if (result == CUDA_SUCCESS && waited != CUDA_SUCCESS) {
        result = waited;
        call->function = "cuStreamSynchronize";
    }
    return result;
}

CUresult cudriver_copy_follow(const struct cudriver_copy_plan *plan,
                              struct cudriver_copy_call *call,
                              struct cudriver_staging_transfer **transfer)
{
    struct cudriver_copy_plan again;
    CUresult result, staged;

    call->refused = call->queued = call->crawls = false;
    call->slot = NULL;
    call->function = NULL;
    if (plan->kind == CUDRIVER_COPY_STAGED) {
        return staging_copy(plan, call, transfer);
    }
    result = driver_copy(plan, call, transfer == NULL);
    if (!call->crawls && (result != CUDA_ERROR_INVALID_VALUE || plan->one_run || plan->fixed ||
                          plan->dst.on_device == plan->src.on_device)) {
        return result;
    }
    /* The same, staged: the driver refuses a copy across the end of a registration, and another
     * thread may lock and unlock the memory in steps; or its own copy crawls. */
    again = *plan;
    cudriver_driver_relax();
    staging_plan_make(&again, transfer == NULL,
                      cudriver_copy_is_usable(plan->device, plan->context));
    staged = staging_copy(&again, call, transfer);
    cudriver_driver_restore();
    return call->crawls || staged == CUDA_SUCCESS || staged == CUDRIVER_STAGING_INTERRUPTED
               ? staged
               : result;
}
