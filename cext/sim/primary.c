/* The primary context of each device: always the same handle, active while it is retained. */
#include "sim.h"

/* sim_enter for a call on a device. On success the monitor is held. */
static CUresult primary_enter(enum sim_call call, CUdevice device)
{
    CUresult result = sim_enter(call);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!sim_device_is_valid(device)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    sim_lock();
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *handle, CUdevice device)
{
    CUresult result = primary_enter(CALL_cuDevicePrimaryCtxRetain, device);
    struct sim_device *home;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (handle == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    home = &sim.devices[device];
    if (home->primary == NULL) {
        home->primary = sim_context_new(device);
        if (home->primary == NULL) {
            return sim_leave(CUDA_ERROR_OUT_OF_MEMORY);
        }
        home->primary->primary = true;
    }
    /* Another thread may be destroying it. */
    while (home->primary->closing) {
        sim_context_wait(home->primary);
    }
    if (home->broken != CUDA_SUCCESS && !home->primary->active) {
        return sim_leave(home->broken);
    }
    if (!home->primary->active) {
        sim_context_open(home->primary, home->primary_flags | CU_CTX_MAP_HOST, 3020);
    }
    home->retains++;
    *handle = sim_object_handle(home->primary);
    return sim_leave(CUDA_SUCCESS);
}

/* The handle outlives the context: it stays on threads' stacks, and is valid again after the next
 * retain. */
static void primary_shut(struct sim_context *context)
{
    if (context->active) {
        sim_context_shut(context);
    }
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    CUresult result = primary_enter(CALL_cuDevicePrimaryCtxRelease_v2, device);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (sim.devices[device].retains == 0) {
        return sim_leave(CUDA_ERROR_INVALID_CONTEXT);
    }
    sim.devices[device].retains--;
    if (sim.devices[device].retains == 0) {
        primary_shut(sim.devices[device].primary);
    }
    return sim_leave(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags)
{
    CUresult result = primary_enter(CALL_cuDevicePrimaryCtxSetFlags_v2, device);
    struct sim_device *home;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!sim_context_flags_are_valid(flags)) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    home = &sim.devices[device];
    home->primary_flags = flags;
    if (home->primary != NULL && home->primary->active) {
        home->primary->flags = flags | CU_CTX_MAP_HOST;
    }
    return sim_leave(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active)
{
    CUresult result = primary_enter(CALL_cuDevicePrimaryCtxGetState, device);
    struct sim_device *home;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (flags == NULL || active == NULL) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    home = &sim.devices[device];
    *flags = home->primary_flags;
    *active = home->primary != NULL && home->primary->active;
    return sim_leave(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    CUresult result = primary_enter(CALL_cuDevicePrimaryCtxReset_v2, device);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    /* Those who retained it must still release it. */
    sim.devices[device].primary_flags = 0;
    if (sim.devices[device].primary != NULL) {
        primary_shut(sim.devices[device].primary);
    }
    return sim_leave(CUDA_SUCCESS);
}
