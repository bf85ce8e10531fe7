/*
 * What cudriver itself does not call, and other libraries or our tests do: cuda-bindings,
 * cuda-core, numba-cuda, PyCUDA. others/ has most of these functions. X(exported name, arguments,
 * since), as in cuda_abi.h; a test compares them with the official cuda.h.
 */
#ifndef CUDRIVER_SIM_FUNCTIONS_H
#define CUDRIVER_SIM_FUNCTIONS_H

#include "cuda_types.h"

enum {
    CU_CTX_SCHED_AUTO = 0x00,
    CU_CTX_SCHED_SPIN = 0x01,
    CU_CTX_SCHED_YIELD = 0x02,
    CU_CTX_SCHED_BLOCKING_SYNC = 0x04,
    CU_CTX_SCHED_MASK = 0x07,
    CU_CTX_MAP_HOST = 0x08,
    CU_CTX_LMEM_RESIZE_TO_MAX = 0x10,
    CU_CTX_SYNC_MEMOPS = 0x80
};

typedef struct CUDA_MEMCPY2D_st {
    size_t srcXInBytes;
    size_t srcY;
    CUmemorytype srcMemoryType;
    const void *srcHost;
    CUdeviceptr srcDevice;
    CUarray srcArray;
    size_t srcPitch;
    size_t dstXInBytes;
    size_t dstY;
    CUmemorytype dstMemoryType;
    void *dstHost;
    CUdeviceptr dstDevice;
    CUarray dstArray;
    size_t dstPitch;
    size_t WidthInBytes;
    size_t Height;
} CUDA_MEMCPY2D;

typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUuserObject_st *CUuserObject;

enum { CU_USER_OBJECT_NO_DESTRUCTOR_SYNC = 0x1, CU_GRAPH_USER_OBJECT_MOVE = 0x1 };

#define CU_MEMHOSTALLOC_PORTABLE 0x01
#define CU_MEMHOSTALLOC_DEVICEMAP 0x02
#define CU_MEMHOSTALLOC_WRITECOMBINED 0x04

typedef void (*CUstreamCallback)(CUstream hStream, CUresult status, void *userData);

typedef enum CUdriverProcAddressQueryResult_enum {
    CU_GET_PROC_ADDRESS_SUCCESS = 0,
    CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND = 1,
    CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT = 2
} CUdriverProcAddressQueryResult;

enum {
    CU_GET_PROC_ADDRESS_DEFAULT = 0x0,
    CU_GET_PROC_ADDRESS_LEGACY_STREAM = 0x1,
    CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM = 0x2
};

enum { CU_EVENT_RECORD_EXTERNAL = 0x1 };

typedef enum CUsharedconfig_enum {
    CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE = 0,
    CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE = 1,
    CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE = 2
} CUsharedconfig;

typedef enum CUdevice_P2PAttribute_enum {
    CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK = 1,
    CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED = 2,
    CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED = 3,
    CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED = 4
} CUdevice_P2PAttribute;

typedef struct CUdevprop_st {
    int maxThreadsPerBlock;
    int maxThreadsDim[3];
    int maxGridSize[3];
    int sharedMemPerBlock;
    int totalConstantMemory;
    int SIMDWidth;
    int memPitch;
    int regsPerBlock;
    int clockRate;
    int textureAlign;
} CUdevprop;

typedef enum CUmoduleLoadingMode_enum {
    CU_MODULE_EAGER_LOADING = 1,
    CU_MODULE_LAZY_LOADING = 2
} CUmoduleLoadingMode;

/* Passed as NULL only, so its members are not declared. */
typedef struct CUexecAffinityParam_st CUexecAffinityParam;

/* clang-format off */
/* Most are made of a few calls of the others. A fault for `*` then counts these too. */
#define SIM_OTHERS(X) \
    X(cuCtxEnablePeerAccess, (CUcontext peer, unsigned int flags), 4000) \
    X(cuMemPoolGetAttribute, (CUmemoryPool pool, CUmemPool_attribute attribute, void *value), 11020) \
    X(cuMemsetD2D8Async, (CUdeviceptr dst, size_t pitch, unsigned char value, size_t width, size_t height, CUstream stream), 3020) \
    X(cuMemsetD2D16Async, (CUdeviceptr dst, size_t pitch, unsigned short value, size_t width, size_t height, CUstream stream), 3020) \
    X(cuMemsetD2D32Async, (CUdeviceptr dst, size_t pitch, unsigned int value, size_t width, size_t height, CUstream stream), 3020) \
    X(cuLaunchHostFunc, (CUstream stream, CUhostFn function, void *data), 10000) \
    X(cuStreamWaitValue32_v2, (CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags), 11070) \
    X(cuMemHostAlloc, (void **address, size_t bytes, unsigned int flags), 2020) \
    X(cuMemFreeHost, (void *address), 2000) \
    X(cuMemcpyDtoD_v2, (CUdeviceptr dst, CUdeviceptr src, size_t bytes), 3020) \
    X(cuMemcpyPeer, (CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context, size_t bytes), 4000) \
    X(cuMemcpy2DUnaligned_v2, (const CUDA_MEMCPY2D *copy), 3020) \
    X(cuMemcpy3D_v2, (const CUDA_MEMCPY3D *copy), 3020) \
    X(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode), 10010) \
    X(cuStreamEndCapture, (CUstream stream, CUgraph *graph), 10000) \
    X(cuStreamGetCaptureInfo_v2, (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **dependencies, size_t *count), 11030) \
    X(cuGraphInstantiateWithFlags, (CUgraphExec *executable, CUgraph graph, unsigned long long flags), 11040) \
    X(cuGraphLaunch, (CUgraphExec executable, CUstream stream), 10000) \
    X(cuGraphDestroy, (CUgraph graph), 10000) \
    X(cuGraphExecDestroy, (CUgraphExec executable), 10000) \
    X(cuGraphGetNodes, (CUgraph graph, CUgraphNode *nodes, size_t *count), 10000) \
    X(cuGraphRetainUserObject, (CUgraph graph, CUuserObject object, unsigned int count, unsigned int flags), 11030) \
    X(cuUserObjectCreate, (CUuserObject *object, void *data, CUhostFn destroy, unsigned int count, unsigned int flags), 11030) \
    X(cuUserObjectRelease, (CUuserObject object, unsigned int count), 11030) \
    X(cuEventSynchronize, (CUevent event), 2000) \
    \
    X(cuGetProcAddress, (const char *symbol, void **function, int version, cuuint64_t flags), 11030) \
    X(cuGetProcAddress_v2, (const char *symbol, void **function, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status), 12000) \
    \
    X(cuDeviceComputeCapability, (int *major, int *minor, CUdevice device), 2000) \
    X(cuDeviceGetProperties, (CUdevprop *properties, CUdevice device), 2000) \
    X(cuDeviceGetP2PAttribute, (int *value, CUdevice_P2PAttribute attribute, CUdevice device, CUdevice peer), 8000) \
    X(cuDeviceGetDefaultMemPool, (CUmemoryPool *pool, CUdevice device), 11020) \
    X(cuDeviceGetMemPool, (CUmemoryPool *pool, CUdevice device), 11020) \
    X(cuDeviceSetMemPool, (CUdevice device, CUmemoryPool pool), 11020) \
    \
    X(cuCtxCreate_v3, (CUcontext *context, CUexecAffinityParam *affinity, int count, unsigned int flags, CUdevice device), 11040) \
    X(cuCtxGetDevice_v2, (CUdevice *device, CUcontext context), 13000) \
    X(cuCtxSynchronize_v2, (CUcontext context), 13000) \
    X(cuCtxDisablePeerAccess, (CUcontext peer), 4000) \
    X(cuCtxAttach, (CUcontext *context, unsigned int flags), 2000) \
    X(cuCtxDetach, (CUcontext context), 2000) \
    X(cuCtxGetSharedMemConfig, (CUsharedconfig *config), 4020) \
    X(cuCtxSetSharedMemConfig, (CUsharedconfig config), 4020) \
    X(cuCtxResetPersistingL2Cache, (void), 11000) \
    \
    X(cuMemAllocPitch_v2, (CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned int element), 3020) \
    X(cuMemAllocAsync, (CUdeviceptr *address, size_t bytes, CUstream stream), 11020) \
    X(cuMemAllocHost_v2, (void **address, size_t bytes), 3020) \
    X(cuMemGetAddressRange_v2, (CUdeviceptr *start, size_t *bytes, CUdeviceptr address), 3020) \
    X(cuMemPoolGetAccess, (CUmemAccess_flags *flags, CUmemoryPool pool, CUmemLocation *location), 11020) \
    \
    X(cuMemcpy, (CUdeviceptr dst, CUdeviceptr src, size_t bytes), 4000) \
    X(cuMemcpyAsync, (CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream), 4000) \
    X(cuMemcpy2D_v2, (const CUDA_MEMCPY2D *copy), 3020) \
    X(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *copy, CUstream stream), 3020) \
    X(cuMemsetD8_v2, (CUdeviceptr dst, unsigned char value, size_t count), 3020) \
    X(cuMemsetD16_v2, (CUdeviceptr dst, unsigned short value, size_t count), 3020) \
    X(cuMemsetD32_v2, (CUdeviceptr dst, unsigned int value, size_t count), 3020) \
    X(cuMemsetD2D8_v2, (CUdeviceptr dst, size_t pitch, unsigned char value, size_t width, size_t height), 3020) \
    X(cuMemsetD2D16_v2, (CUdeviceptr dst, size_t pitch, unsigned short value, size_t width, size_t height), 3020) \
    X(cuMemsetD2D32_v2, (CUdeviceptr dst, size_t pitch, unsigned int value, size_t width, size_t height), 3020) \
    \
    X(cuStreamCreate, (CUstream *stream, unsigned int flags), 2000) \
    X(cuStreamGetDevice, (CUstream stream, CUdevice *device), 12080) \
    X(cuStreamAddCallback, (CUstream stream, CUstreamCallback callback, void *data, unsigned int flags), 5000) \
    X(cuEventRecordWithFlags, (CUevent event, CUstream stream, unsigned int flags), 11010) \
    X(cuEventElapsedTime_v2, (float *milliseconds, CUevent start, CUevent end), 12080) \
    \
    X(cuModuleLoad, (CUmodule *module, const char *path), 2000) \
    X(cuModuleLoadData, (CUmodule *module, const void *image), 2000) \
    X(cuModuleGetLoadingMode, (CUmoduleLoadingMode *mode), 11070) \
    \
    X(cuProfilerStart, (void), 4000) \
    X(cuProfilerStop, (void), 4000)

/* With CU_STREAM_PER_THREAD instead of the NULL stream; they count as the functions without the
 * suffix. */
#define SIM_PER_THREAD(X) \
    X(cuMemAllocAsync_ptsz, (CUdeviceptr *address, size_t bytes, CUstream stream), 11020) \
    X(cuMemAllocFromPoolAsync_ptsz, (CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream), 11020) \
    X(cuMemFreeAsync_ptsz, (CUdeviceptr address, CUstream stream), 11020) \
    X(cuMemcpy_ptds, (CUdeviceptr dst, CUdeviceptr src, size_t bytes), 7000) \
    X(cuMemcpyAsync_ptsz, (CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream), 7000) \
    X(cuMemcpyHtoD_v2_ptds, (CUdeviceptr dst, const void *src, size_t bytes), 7000) \
    X(cuMemcpyDtoH_v2_ptds, (void *dst, CUdeviceptr src, size_t bytes), 7000) \
    X(cuMemcpyDtoD_v2_ptds, (CUdeviceptr dst, CUdeviceptr src, size_t bytes), 7000) \
    X(cuMemcpyHtoDAsync_v2_ptsz, (CUdeviceptr dst, const void *src, size_t bytes, CUstream stream), 7000) \
    X(cuMemcpyDtoHAsync_v2_ptsz, (void *dst, CUdeviceptr src, size_t bytes, CUstream stream), 7000) \
    X(cuMemcpyDtoDAsync_v2_ptsz, (CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream), 7000) \
    X(cuMemcpyBatchAsync_v2_ptsz, (CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count, CUmemcpyAttributes *attributes, size_t *firsts, size_t kinds, CUstream stream), 13000) \
    X(cuMemcpyPeer_ptds, (CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context, size_t bytes), 7000) \
    X(cuMemcpyPeerAsync_ptsz, (CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context, size_t bytes, CUstream stream), 7000) \
    X(cuMemcpy2D_v2_ptds, (const CUDA_MEMCPY2D *copy), 7000) \
    X(cuMemcpy2DUnaligned_v2_ptds, (const CUDA_MEMCPY2D *copy), 7000) \
    X(cuMemcpy2DAsync_v2_ptsz, (const CUDA_MEMCPY2D *copy, CUstream stream), 7000) \
    X(cuMemcpy3D_v2_ptds, (const CUDA_MEMCPY3D *copy), 7000) \
    X(cuMemcpy3DAsync_v2_ptsz, (const CUDA_MEMCPY3D *copy, CUstream stream), 7000) \
    X(cuMemsetD8_v2_ptds, (CUdeviceptr dst, unsigned char value, size_t count), 7000) \
    X(cuMemsetD16_v2_ptds, (CUdeviceptr dst, unsigned short value, size_t count), 7000) \
    X(cuMemsetD32_v2_ptds, (CUdeviceptr dst, unsigned int value, size_t count), 7000) \
    X(cuMemsetD2D8_v2_ptds, (CUdeviceptr dst, size_t pitch, unsigned char value, size_t width, size_t height), 7000) \
    X(cuMemsetD2D16_v2_ptds, (CUdeviceptr dst, size_t pitch, unsigned short value, size_t width, size_t height), 7000) \
    X(cuMemsetD2D32_v2_ptds, (CUdeviceptr dst, size_t pitch, unsigned int value, size_t width, size_t height), 7000) \
    X(cuMemsetD8Async_ptsz, (CUdeviceptr dst, unsigned char value, size_t count, CUstream stream), 7000) \
    X(cuMemsetD16Async_ptsz, (CUdeviceptr dst, unsigned short value, size_t count, CUstream stream), 7000) \
    X(cuMemsetD32Async_ptsz, (CUdeviceptr dst, unsigned int value, size_t count, CUstream stream), 7000) \
    X(cuMemsetD2D8Async_ptsz, (CUdeviceptr dst, size_t pitch, unsigned char value, size_t width, size_t height, CUstream stream), 7000) \
    X(cuMemsetD2D16Async_ptsz, (CUdeviceptr dst, size_t pitch, unsigned short value, size_t width, size_t height, CUstream stream), 7000) \
    X(cuMemsetD2D32Async_ptsz, (CUdeviceptr dst, size_t pitch, unsigned int value, size_t width, size_t height, CUstream stream), 7000) \
    X(cuStreamQuery_ptsz, (CUstream stream), 7000) \
    X(cuStreamSynchronize_ptsz, (CUstream stream), 7000) \
    X(cuStreamWaitEvent_ptsz, (CUstream stream, CUevent event, unsigned int flags), 7000) \
    X(cuStreamGetPriority_ptsz, (CUstream stream, int *priority), 7000) \
    X(cuStreamGetFlags_ptsz, (CUstream stream, unsigned int *flags), 7000) \
    X(cuStreamGetCtx_ptsz, (CUstream stream, CUcontext *context), 9020) \
    X(cuStreamGetCtx_v2_ptsz, (CUstream stream, CUcontext *context, CUgreenCtx *green), 12050) \
    X(cuStreamGetId_ptsz, (CUstream stream, unsigned long long *id), 12000) \
    X(cuStreamGetDevice_ptsz, (CUstream stream, CUdevice *device), 12080) \
    X(cuStreamBeginCapture_v2_ptsz, (CUstream stream, CUstreamCaptureMode mode), 10010) \
    X(cuStreamEndCapture_ptsz, (CUstream stream, CUgraph *graph), 10000) \
    X(cuStreamGetCaptureInfo_v2_ptsz, (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **dependencies, size_t *count), 11030) \
    X(cuGraphLaunch_ptsz, (CUgraphExec executable, CUstream stream), 10000) \
    X(cuStreamIsCapturing_ptsz, (CUstream stream, CUstreamCaptureStatus *status), 10000) \
    X(cuStreamAddCallback_ptsz, (CUstream stream, CUstreamCallback callback, void *data, unsigned int flags), 7000) \
    X(cuStreamWaitValue32_v2_ptsz, (CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags), 11070) \
    X(cuStreamWriteValue32_v2_ptsz, (CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags), 11070) \
    X(cuStreamBatchMemOp_v2_ptsz, (CUstream stream, unsigned int count, CUstreamBatchMemOpParams *params, unsigned int flags), 11070) \
    X(cuLaunchHostFunc_ptsz, (CUstream stream, CUhostFn function, void *data), 10000) \
    X(cuLaunchKernel_ptsz, (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, CUstream stream, void **params, void **extra), 7000) \
    X(cuEventRecord_ptsz, (CUevent event, CUstream stream), 7000) \
    X(cuEventRecordWithFlags_ptsz, (CUevent event, CUstream stream, unsigned int flags), 11010)
/* clang-format on */

#define SIM_FUNCTIONS(X) CUDRIVER_FUNCTIONS(X) SIM_OTHERS(X)

#endif
