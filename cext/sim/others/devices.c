/* Devices, contexts, and what a program asks of modules before it has any. */
#include "others.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- devices ---- */

static int attribute(int number, CUdevice device)
{
    int value = 0;

    (void)cuDeviceGetAttribute(&value, (CUdevice_attribute)number, device);
    return value;
}

/* SUCCESS for a device that there is. */
static CUresult enter_device(enum sim_call call, CUdevice device)
{
    CUresult result = sim_enter(call);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    return sim_device_is_valid(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device)
{
    CUresult result = enter_device(CALL_cuDeviceComputeCapability, device);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (major == NULL || minor == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *major = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    *minor = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetProperties(CUdevprop *properties, CUdevice device)
{
    enum { /* CU_DEVICE_ATTRIBUTE_... */
           MAX_THREADS_PER_BLOCK = 1,
           MAX_BLOCK_DIM_X = 2,
           MAX_GRID_DIM_X = 5,
           MAX_SHARED_MEMORY_PER_BLOCK = 8,
           TOTAL_CONSTANT_MEMORY = 9,
           WARP_SIZE = 10,
           MAX_PITCH = 11,
           MAX_REGISTERS_PER_BLOCK = 12,
           CLOCK_RATE = 13,
           TEXTURE_ALIGNMENT = 14
    };
    CUresult result = enter_device(CALL_cuDeviceGetProperties, device);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (properties == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *properties = (CUdevprop){
        .maxThreadsPerBlock = attribute(MAX_THREADS_PER_BLOCK, device),
        .sharedMemPerBlock = attribute(MAX_SHARED_MEMORY_PER_BLOCK, device),
        .totalConstantMemory = attribute(TOTAL_CONSTANT_MEMORY, device),
        .SIMDWidth = attribute(WARP_SIZE, device),
        .memPitch = attribute(MAX_PITCH, device),
        .regsPerBlock = attribute(MAX_REGISTERS_PER_BLOCK, device),
        .clockRate = attribute(CLOCK_RATE, device),
        .textureAlign = attribute(TEXTURE_ALIGNMENT, device),
    };
    for (int i = 0; i < 3; i++) {
        properties->maxThreadsDim[i] = attribute(MAX_BLOCK_DIM_X + i, device);
        properties->maxGridSize[i] = attribute(MAX_GRID_DIM_X + i, device);
    }
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute name, CUdevice device,
                                 CUdevice peer)
{
    CUresult result = enter_device(CALL_cuDeviceGetP2PAttribute, device);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!sim_device_is_valid(peer) || device == peer) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (value == NULL || name < CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK ||
        name > CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *value = name != CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK; /* all links alike */
    return CUDA_SUCCESS;
}

/* ---- contexts ---- */

/* Execution affinity is not modelled: the list must be empty. */
SIM_MADE_OF(cuCtxCreate_v3,
            (CUcontext * context, CUexecAffinityParam *affinity, int count, unsigned int flags,
             CUdevice device),
            affinity != NULL || count != 0 ? CUDA_ERROR_NOT_SUPPORTED
                                           : cuCtxCreate_v2(context, flags, device))

/* Makes a context current, does nothing more for NULL, which means the current one. */
static CUresult visit(CUcontext context)
{
    return context == NULL ? CUDA_SUCCESS : cuCtxPushCurrent_v2(context);
}

static CUresult visited(CUcontext context, CUresult result)
{
    CUresult popped = context == NULL ? CUDA_SUCCESS : cuCtxPopCurrent_v2(NULL);

    return result != CUDA_SUCCESS ? result : popped;
}

CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context)
{
    CUresult result = sim_enter(CALL_cuCtxGetDevice_v2);

    if (result == CUDA_SUCCESS) {
        result = visit(context);
    }
    return result != CUDA_SUCCESS ? result : visited(context, cuCtxGetDevice(device));
}

CUresult cuCtxSynchronize_v2(CUcontext context)
{
    CUresult result = sim_enter(CALL_cuCtxSynchronize_v2);

    if (result == CUDA_SUCCESS) {
        result = visit(context);
    }
    return result != CUDA_SUCCESS ? result : visited(context, cuCtxSynchronize());
}

CUresult cuCtxDisablePeerAccess(CUcontext handle)
{
    struct sim_context *context, *peer;
    CUresult result = sim_enter_current(CALL_cuCtxDisablePeerAccess, &context);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = sim_context_of(handle, &peer);
    if (result != CUDA_SUCCESS) {
        return sim_leave(result);
    }
    if ((context->peers & 1u << peer->device) == 0) {
        return sim_leave(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    }
    context->peers &= ~(1u << peer->device);
    return sim_leave(CUDA_SUCCESS);
}

CUresult cuCtxAttach(CUcontext *handle, unsigned int flags)
{
    struct sim_context *context;
    CUresult result = sim_enter_current(CALL_cuCtxAttach, &context);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (handle == NULL || flags != 0) {
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    }
    context->attached++;
    *handle = sim_object_handle(context);
    return sim_leave(CUDA_SUCCESS);
}

/* The last detachment destroys the context, which must be current here. */
CUresult cuCtxDetach(CUcontext handle)
{
    struct sim_context *context;
    CUresult result = sim_enter_current(CALL_cuCtxDetach, &context);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (handle != sim_object_handle(context)) {
        return sim_leave(CUDA_ERROR_INVALID_CONTEXT);
    }
    if (context->attached > 0) {
        context->attached--;
        return sim_leave(CUDA_SUCCESS);
    }
    sim_unlock();
    return cuCtxDestroy_v2(handle);
}

/* Begins and ends a call that needs a context and does nothing that can be seen. */
static CUresult current_only(enum sim_call call)
{
    struct sim_context *context;
    CUresult result = sim_enter_current(call, &context);

    return result != CUDA_SUCCESS ? result : sim_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetSharedMemConfig(CUsharedconfig *config)
{
    CUresult result = current_only(CALL_cuCtxGetSharedMemConfig);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (config == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *config = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE; /* not to be changed, as on hardware */
    return CUDA_SUCCESS;
}

CUresult cuCtxSetSharedMemConfig(CUsharedconfig config)
{
    CUresult result = current_only(CALL_cuCtxSetSharedMemConfig);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    return (unsigned)config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE ? CUDA_ERROR_INVALID_VALUE
                                                                        : CUDA_SUCCESS;
}

CUresult cuCtxResetPersistingL2Cache(void)
{
    return current_only(CALL_cuCtxResetPersistingL2Cache);
}

/* No profiler is there to start. */

CUresult cuProfilerStart(void)
{
    return current_only(CALL_cuProfilerStart);
}

CUresult cuProfilerStop(void)
{
    return current_only(CALL_cuProfilerStop);
}

/* ---- modules ---- */

SIM_MADE_OF(cuModuleLoadData, (CUmodule * module, const void *image),
            cuModuleLoadDataEx(module, image, 0, NULL, NULL))

/* The whole file with a 0 behind it; NULL if it cannot be read. */
static char *file_read(const char *path)
{
    FILE *file = fopen(path, "rbe");
    char *text = NULL;
    long bytes;

    if (file == NULL) {
        return NULL;
    }
    if (fseek(file, 0, SEEK_END) == 0 && (bytes = ftell(file)) >= 0 &&
        fseek(file, 0, SEEK_SET) == 0) {
        text = calloc(1, (size_t)bytes + 4);
        if (text != NULL && fread(text, 1, (size_t)bytes, file) != (size_t)bytes) {
            free(text);
            text = NULL;
        }
    }
    fclose(file);
    return text;
}

CUresult cuModuleLoad(CUmodule *module, const char *path)
{
    CUresult result = sim_enter(CALL_cuModuleLoad);
    char *text;

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (path == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    text = file_read(path);
    if (text == NULL) {
        return CUDA_ERROR_FILE_NOT_FOUND;
    }
    result = cuModuleLoadDataEx(module, text, 0, NULL, NULL);
    free(text);
    return result;
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
    CUresult result = sim_enter(CALL_cuModuleGetLoadingMode);

    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (mode == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *mode = CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
}
