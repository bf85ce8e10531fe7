/*
 * The part of the CUDA driver's ABI that this package uses, declared here so that the build needs
 * no toolkit. Names, types and values are those of cuda.h; a test compiles this file beside the
 * official header and fails on any difference.
 *
 * CUDRIVER_FUNCTIONS is the one list of driver functions: X(exported name, arguments, since).
 * `since` is the driver API version (1000 * major + 10 * minor) that first exported the name.
 * Exported names carry the ABI: cuMemAlloc is the 32-bit function, cuMemAlloc_v2 the one that is
 * meant.
 */
#ifndef CUDRIVER_CUDA_ABI_H
#define CUDRIVER_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUarray_st *CUarray;
typedef struct CUevent_st *CUevent;
typedef struct CUstream_st *CUstream;
typedef struct CUgreenCtx_st *CUgreenCtx;
typedef struct CUmemPoolHandle_st *CUmemoryPool;
typedef uint32_t cuuint32_t;
typedef uint64_t cuuint64_t;

/* The codes that C names; cudriver/memory/failures.py has all, and their texts. */
typedef enum cudaError_enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_DEINITIALIZED = 4,
    CUDA_ERROR_STUB_LIBRARY = 34,
    CUDA_ERROR_INVALID_IMAGE = 200,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_INVALID_PTX = 218,
    CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222,
    CUDA_ERROR_OPERATING_SYSTEM = 304,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
    CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
    CUDA_ERROR_LAUNCH_FAILED = 719,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
    CUDA_ERROR_UNKNOWN = 999
} CUresult;

/* The attributes are listed in cudriver/memory/attributes.py. */
typedef enum CUdevice_attribute_enum {
    CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS = 88,
    CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES = 100,
    CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED = 113,
} CUdevice_attribute;

enum { CU_STREAM_DEFAULT = 0x0, CU_STREAM_NON_BLOCKING = 0x1 };

typedef enum CUstreamCaptureMode_enum {
    CU_STREAM_CAPTURE_MODE_GLOBAL = 0,
    CU_STREAM_CAPTURE_MODE_RELAXED = 2
} CUstreamCaptureMode;

typedef enum CUstreamCaptureStatus_enum {
    CU_STREAM_CAPTURE_STATUS_NONE = 0,
    CU_STREAM_CAPTURE_STATUS_ACTIVE = 1,
    CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2
} CUstreamCaptureStatus;

enum { CU_EVENT_DEFAULT = 0x0, CU_EVENT_BLOCKING_SYNC = 0x1, CU_EVENT_DISABLE_TIMING = 0x2 };

enum { CU_STREAM_WAIT_VALUE_GEQ = 0x0, CU_STREAM_WAIT_VALUE_EQ = 0x1 };

typedef enum CUstreamBatchMemOpType_enum {
    CU_STREAM_MEM_OP_WAIT_VALUE_32 = 1,
    CU_STREAM_MEM_OP_WRITE_VALUE_32 = 2
} CUstreamBatchMemOpType;

typedef union CUstreamBatchMemOpParams_union {
    CUstreamBatchMemOpType operation;
    struct CUstreamMemOpWaitValueParams_st {
        CUstreamBatchMemOpType operation;
        CUdeviceptr address;
        union {
            cuuint32_t value;
            cuuint64_t value64;
        };
        unsigned int flags;
        CUdeviceptr alias;
    } waitValue;
    struct CUstreamMemOpWriteValueParams_st {
        CUstreamBatchMemOpType operation;
        CUdeviceptr address;
        union {
            cuuint32_t value;
            cuuint64_t value64;
        };
        unsigned int flags;
        CUdeviceptr alias;
    } writeValue;
    cuuint64_t pad[6];
} CUstreamBatchMemOpParams;

#define CU_MEMHOSTREGISTER_PORTABLE 0x01
#define CU_MEMHOSTREGISTER_DEVICEMAP 0x02
#define CU_MEMHOSTREGISTER_READ_ONLY 0x08

typedef enum CUmemorytype_enum {
    CU_MEMORYTYPE_HOST = 1,
    CU_MEMORYTYPE_DEVICE = 2,
    CU_MEMORYTYPE_ARRAY = 3,
    CU_MEMORYTYPE_UNIFIED = 4
} CUmemorytype;

typedef enum CUpointer_attribute_enum {
    CU_POINTER_ATTRIBUTE_CONTEXT = 1,
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
    CU_POINTER_ATTRIBUTE_DEVICE_POINTER = 3,
    CU_POINTER_ATTRIBUTE_HOST_POINTER = 4,
    CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
    CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,
    CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12
} CUpointer_attribute;

typedef enum CUmemLocationType_enum {
    CU_MEM_LOCATION_TYPE_INVALID = 0,
    CU_MEM_LOCATION_TYPE_DEVICE = 1,
} CUmemLocationType;

typedef struct CUmemLocation_st {
    CUmemLocationType type;
    int id;
} CUmemLocation;

typedef enum CUmemcpySrcAccessOrder_enum {
    CU_MEMCPY_SRC_ACCESS_ORDER_STREAM = 0x1,
} CUmemcpySrcAccessOrder;

typedef struct CUmemcpyAttributes_st {
    CUmemcpySrcAccessOrder srcAccessOrder;
    CUmemLocation srcLocHint;
    CUmemLocation dstLocHint;
    unsigned int flags;
} CUmemcpyAttributes;

/* Passed as NULL only, so its members are not declared. */
typedef struct CUctxCreateParams_st CUctxCreateParams;

/* The same: an enumeration has to have members. */
typedef enum CUjit_option_enum {
    CU_JIT_ERROR_LOG_BUFFER = 5,
    CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6
} CUjit_option;

typedef struct CUDA_MEMCPY3D_st {
    size_t srcXInBytes;
    size_t srcY;
    size_t srcZ;
    size_t srcLOD;
    CUmemorytype srcMemoryType;
    const void *srcHost;
    CUdeviceptr srcDevice;
    CUarray srcArray;
    void *reserved0;
    size_t srcPitch;
    size_t srcHeight;
    size_t dstXInBytes;
    size_t dstY;
    size_t dstZ;
    size_t dstLOD;
    CUmemorytype dstMemoryType;
    void *dstHost;
    CUdeviceptr dstDevice;
    CUarray dstArray;
    void *reserved1;
    size_t dstPitch;
    size_t dstHeight;
    size_t WidthInBytes;
    size_t Height;
    size_t Depth;
} CUDA_MEMCPY3D;

/* The oldest driver API that the package supports: every function up to it must exist. */
#define CUDRIVER_OLDEST_API 11000

/* clang-format off */
/* Those that C calls. */
#define CUDRIVER_CALLED(X) \
    /* the driver itself */ \
    X(cuInit, (unsigned int flags), 2000) \
    X(cuDriverGetVersion, (int *version), 2020) \
    X(cuGetErrorName, (CUresult error, const char **text), 6000) \
    X(cuGetErrorString, (CUresult error, const char **text), 6000) \
    /* devices */ \
    X(cuDeviceGet, (CUdevice *device, int ordinal), 2000) \
    X(cuDeviceGetAttribute, (int *value, CUdevice_attribute attribute, CUdevice device), 2000) \
    /* primary contexts */ \
    X(cuDevicePrimaryCtxRetain, (CUcontext *context, CUdevice device), 7000) \
    X(cuDevicePrimaryCtxRelease_v2, (CUdevice device), 11000) \
    X(cuDevicePrimaryCtxGetState, (CUdevice device, unsigned int *flags, int *active), 7000) \
    X(cuDevicePrimaryCtxReset_v2, (CUdevice device), 11000) \
    /* contexts */ \
    X(cuCtxCreate_v2, (CUcontext *context, unsigned int flags, CUdevice device), 3020) \
    X(cuCtxCreate_v4, (CUcontext *context, CUctxCreateParams *params, unsigned int flags, CUdevice device), 12050) \
    X(cuCtxDestroy_v2, (CUcontext context), 4000) \
    X(cuCtxPushCurrent_v2, (CUcontext context), 4000) \
    X(cuCtxPopCurrent_v2, (CUcontext *context), 4000) \
    X(cuCtxSetCurrent, (CUcontext context), 4000) \
    X(cuCtxGetCurrent, (CUcontext *context), 4000) \
    X(cuCtxGetDevice, (CUdevice *device), 2000) \
    X(cuCtxGetId, (CUcontext context, unsigned long long *id), 12000) \
    X(cuCtxSynchronize, (void), 2000) \
    X(cuCtxGetApiVersion, (CUcontext context, unsigned int *version), 3020) \
    /* device memory */ \
    X(cuMemAlloc_v2, (CUdeviceptr *address, size_t bytes), 3020) \
    X(cuMemFree_v2, (CUdeviceptr address), 3020) \
    X(cuMemAllocFromPoolAsync, (CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream), 11020) \
    X(cuMemFreeAsync, (CUdeviceptr address, CUstream stream), 11020) \
    X(cuMemPoolTrimTo, (CUmemoryPool pool, size_t keep), 11020) \
    /* host memory */ \
    X(cuMemHostRegister_v2, (void *address, size_t bytes, unsigned int flags), 6050) \
    X(cuMemHostUnregister, (void *address), 4000) \
    X(cuMemHostGetDevicePointer_v2, (CUdeviceptr *device, void *address, unsigned int flags), 3020) \
    X(cuMemHostGetFlags, (unsigned int *flags, void *address), 2030) \
    X(cuPointerGetAttribute, (void *value, CUpointer_attribute attribute, CUdeviceptr address), 4000) \
    X(cuPointerGetAttributes, (unsigned int count, CUpointer_attribute *attributes, void **values, CUdeviceptr address), 7000) \
    /* copies and fills */ \
    X(cuMemcpyHtoD_v2, (CUdeviceptr dst, const void *src, size_t bytes), 3020) \
    X(cuMemcpyDtoH_v2, (void *dst, CUdeviceptr src, size_t bytes), 3020) \
    X(cuMemcpyHtoDAsync_v2, (CUdeviceptr dst, const void *src, size_t bytes, CUstream stream), 3020) \
    X(cuMemcpyDtoHAsync_v2, (void *dst, CUdeviceptr src, size_t bytes, CUstream stream), 3020) \
    X(cuMemcpyDtoDAsync_v2, (CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream), 3020) \
    X(cuMemcpyPeerAsync, (CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context, size_t bytes, CUstream stream), 4000) \
    X(cuMemcpy3DAsync_v2, (const CUDA_MEMCPY3D *copy, CUstream stream), 3020) \
    X(cuMemcpyBatchAsync_v2, (CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count, CUmemcpyAttributes *attributes, size_t *firsts, size_t kinds, CUstream stream), 13000) \
    X(cuMemsetD8Async, (CUdeviceptr dst, unsigned char value, size_t count, CUstream stream), 3020) \
    X(cuMemsetD16Async, (CUdeviceptr dst, unsigned short value, size_t count, CUstream stream), 3020) \
    X(cuMemsetD32Async, (CUdeviceptr dst, unsigned int value, size_t count, CUstream stream), 3020) \
    /* streams */ \
    X(cuStreamCreateWithPriority, (CUstream *stream, unsigned int flags, int priority), 5050) \
    X(cuStreamDestroy_v2, (CUstream stream), 4000) \
    X(cuStreamQuery, (CUstream stream), 2000) \
    X(cuStreamSynchronize, (CUstream stream), 2000) \
    X(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned int flags), 3020) \
    X(cuStreamGetPriority, (CUstream stream, int *priority), 5050) \
    X(cuStreamGetFlags, (CUstream stream, unsigned int *flags), 5050) \
    X(cuStreamGetId, (CUstream stream, unsigned long long *id), 12000) \
    X(cuStreamGetCtx, (CUstream stream, CUcontext *context), 9020) \
    X(cuStreamGetCtx_v2, (CUstream stream, CUcontext *context, CUgreenCtx *green), 12050) \
    X(cuStreamWriteValue32_v2, (CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags), 11070) \
    X(cuStreamBatchMemOp_v2, (CUstream stream, unsigned int count, CUstreamBatchMemOpParams *params, unsigned int flags), 11070) \
    /* graphs */ \
    X(cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus *status), 10000) \
    X(cuThreadExchangeStreamCaptureMode, (CUstreamCaptureMode *mode), 10010) \
    /* events */ \
    X(cuEventCreate, (CUevent *event, unsigned int flags), 2000) \
    X(cuEventDestroy_v2, (CUevent event), 4000) \
    X(cuEventRecord, (CUevent event, CUstream stream), 2000) \
    X(cuEventQuery, (CUevent event), 2000) \
    X(cuEventElapsedTime, (float *milliseconds, CUevent start, CUevent end), 2000) \
    /* kernels, given as PTX */ \
    X(cuModuleLoadDataEx, (CUmodule *module, const void *image, unsigned int count, CUjit_option *options, void **values), 2010) \
    X(cuModuleUnload, (CUmodule module), 2000) \
    X(cuModuleGetFunction, (CUfunction *function, CUmodule module, const char *name), 2000) \
    X(cuLaunchKernel, (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, CUstream stream, void **params, void **extra), 4000)

/* Those that only Python calls, by their names (contexts/query.c): their types are in
 * sim/cuda_types.h, and no structure of them is known here. */
#define CUDRIVER_ASKED(X) \
    X(cuDeviceGetCount, (int *count), 2000) \
    X(cuDeviceGetName, (char *name, int size, CUdevice device), 2000) \
    X(cuDeviceGetUuid, (CUuuid *uuid, CUdevice device), 9020) \
    X(cuDeviceGetUuid_v2, (CUuuid *uuid, CUdevice device), 11040) \
    X(cuDeviceTotalMem_v2, (size_t *bytes, CUdevice device), 3020) \
    X(cuDeviceGetByPCIBusId, (CUdevice *device, const char *id), 4010) \
    X(cuDeviceGetPCIBusId, (char *id, int size, CUdevice device), 4010) \
    X(cuDeviceCanAccessPeer, (int *can, CUdevice device, CUdevice peer), 4000) \
    X(cuDevicePrimaryCtxSetFlags_v2, (CUdevice device, unsigned int flags), 11000) \
    X(cuCtxGetFlags, (unsigned int *flags), 7000) \
    X(cuCtxSetLimit, (CUlimit limit, size_t value), 3010) \
    X(cuCtxGetLimit, (size_t *value, CUlimit limit), 3010) \
    X(cuCtxGetCacheConfig, (CUfunc_cache *config), 3020) \
    X(cuCtxSetCacheConfig, (CUfunc_cache config), 3020) \
    X(cuCtxGetStreamPriorityRange, (int *least, int *greatest), 5050) \
    X(cuMemGetInfo_v2, (size_t *available, size_t *total), 3020) \
    X(cuMemPoolCreate, (CUmemoryPool *pool, const CUmemPoolProps *props), 11020) \
    X(cuMemPoolDestroy, (CUmemoryPool pool), 11020) \
    X(cuMemPoolSetAttribute, (CUmemoryPool pool, CUmemPool_attribute attribute, void *value), 11020) \
    X(cuMemPoolSetAccess, (CUmemoryPool pool, const CUmemAccessDesc *map, size_t count), 11020)
/* clang-format on */

#define CUDRIVER_FUNCTIONS(X) CUDRIVER_CALLED(X) CUDRIVER_ASKED(X)

#endif
