/*
 * The functions with _ptsz and _ptds at their names' ends, which programs call that are built for
 * per-thread default streams. Where the others use the NULL stream, these use CU_STREAM_PER_THREAD.
 */
#include "others.h"

#define PER_THREAD ((CUstream)2)

static CUstream own(CUstream stream)
{
    return stream == NULL ? PER_THREAD : stream;
}

/* The end of a blocking call. */
static CUresult waited(CUresult result)
{
    return result != CUDA_SUCCESS ? result : cuStreamSynchronize(PER_THREAD);
}

#define FUNCTION(name, parameters, call) \
    CUresult name parameters             \
    {                                    \
        return call;                     \
    }

/* clang-format off */
FUNCTION(cuMemAllocAsync_ptsz, (CUdeviceptr *address, size_t bytes, CUstream stream),
         cuMemAllocAsync(address, bytes, own(stream)))
FUNCTION(cuMemAllocFromPoolAsync_ptsz, (CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream),
         cuMemAllocFromPoolAsync(address, bytes, pool, own(stream)))
FUNCTION(cuMemFreeAsync_ptsz, (CUdeviceptr address, CUstream stream),
         cuMemFreeAsync(address, own(stream)))

FUNCTION(cuMemcpy_ptds, (CUdeviceptr dst, CUdeviceptr src, size_t bytes),
         waited(cuMemcpyAsync(dst, src, bytes, PER_THREAD)))
FUNCTION(cuMemcpyAsync_ptsz, (CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream),
         cuMemcpyAsync(dst, src, bytes, own(stream)))
FUNCTION(cuMemcpyHtoD_v2_ptds, (CUdeviceptr dst, const void *src, size_t bytes),
         waited(cuMemcpyHtoDAsync_v2(dst, src, bytes, PER_THREAD)))
FUNCTION(cuMemcpyDtoH_v2_ptds, (void *dst, CUdeviceptr src, size_t bytes),
         waited(cuMemcpyDtoHAsync_v2(dst, src, bytes, PER_THREAD)))
FUNCTION(cuMemcpyDtoD_v2_ptds, (CUdeviceptr dst, CUdeviceptr src, size_t bytes),
         cuMemcpyDtoDAsync_v2(dst, src, bytes, PER_THREAD))
FUNCTION(cuMemcpyHtoDAsync_v2_ptsz, (CUdeviceptr dst, const void *src, size_t bytes, CUstream stream),
         cuMemcpyHtoDAsync_v2(dst, src, bytes, own(stream)))
FUNCTION(cuMemcpyDtoHAsync_v2_ptsz, (void *dst, CUdeviceptr src, size_t bytes, CUstream stream),
         cuMemcpyDtoHAsync_v2(dst, src, bytes, own(stream)))
FUNCTION(cuMemcpyDtoDAsync_v2_ptsz, (CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream),
         cuMemcpyDtoDAsync_v2(dst, src, bytes, own(stream)))
FUNCTION(cuMemcpyBatchAsync_v2_ptsz, (CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count, CUmemcpyAttributes *attributes, size_t *firsts, size_t kinds, CUstream stream),
         cuMemcpyBatchAsync_v2(dsts, srcs, sizes, count, attributes, firsts, kinds, own(stream)))
FUNCTION(cuMemcpyPeer_ptds, (CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context, size_t bytes),
         waited(cuMemcpyPeerAsync(dst, dst_context, src, src_context, bytes, PER_THREAD)))
FUNCTION(cuMemcpyPeerAsync_ptsz, (CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context, size_t bytes, CUstream stream),
         cuMemcpyPeerAsync(dst, dst_context, src, src_context, bytes, own(stream)))
FUNCTION(cuMemcpy2D_v2_ptds, (const CUDA_MEMCPY2D *copy),
         waited(cuMemcpy2DAsync_v2(copy, PER_THREAD)))
FUNCTION(cuMemcpy2DUnaligned_v2_ptds, (const CUDA_MEMCPY2D *copy),
         waited(cuMemcpy2DAsync_v2(copy, PER_THREAD)))
FUNCTION(cuMemcpy2DAsync_v2_ptsz, (const CUDA_MEMCPY2D *copy, CUstream stream),
         cuMemcpy2DAsync_v2(copy, own(stream)))
FUNCTION(cuMemcpy3D_v2_ptds, (const CUDA_MEMCPY3D *copy),
         waited(cuMemcpy3DAsync_v2(copy, PER_THREAD)))
FUNCTION(cuMemcpy3DAsync_v2_ptsz, (const CUDA_MEMCPY3D *copy, CUstream stream),
         cuMemcpy3DAsync_v2(copy, own(stream)))

FUNCTION(cuMemsetD8_v2_ptds, (CUdeviceptr dst, unsigned char value, size_t count),
         cuMemsetD8Async(dst, value, count, PER_THREAD))
FUNCTION(cuMemsetD16_v2_ptds, (CUdeviceptr dst, unsigned short value, size_t count),
         cuMemsetD16Async(dst, value, count, PER_THREAD))
FUNCTION(cuMemsetD32_v2_ptds, (CUdeviceptr dst, unsigned int value, size_t count),
         cuMemsetD32Async(dst, value, count, PER_THREAD))
FUNCTION(cuMemsetD2D8_v2_ptds, (CUdeviceptr dst, size_t pitch, unsigned char value, size_t width, size_t height),
         cuMemsetD2D8Async(dst, pitch, value, width, height, PER_THREAD))
FUNCTION(cuMemsetD2D16_v2_ptds, (CUdeviceptr dst, size_t pitch, unsigned short value, size_t width, size_t height),
         cuMemsetD2D16Async(dst, pitch, value, width, height, PER_THREAD))
FUNCTION(cuMemsetD2D32_v2_ptds, (CUdeviceptr dst, size_t pitch, unsigned int value, size_t width, size_t height),
         cuMemsetD2D32Async(dst, pitch, value, width, height, PER_THREAD))
FUNCTION(cuMemsetD8Async_ptsz, (CUdeviceptr dst, unsigned char value, size_t count, CUstream stream),
         cuMemsetD8Async(dst, value, count, own(stream)))
FUNCTION(cuMemsetD16Async_ptsz, (CUdeviceptr dst, unsigned short value, size_t count, CUstream stream),
         cuMemsetD16Async(dst, value, count, own(stream)))
FUNCTION(cuMemsetD32Async_ptsz, (CUdeviceptr dst, unsigned int value, size_t count, CUstream stream),
         cuMemsetD32Async(dst, value, count, own(stream)))
FUNCTION(cuMemsetD2D8Async_ptsz, (CUdeviceptr dst, size_t pitch, unsigned char value, size_t width, size_t height, CUstream stream),
         cuMemsetD2D8Async(dst, pitch, value, width, height, own(stream)))
FUNCTION(cuMemsetD2D16Async_ptsz, (CUdeviceptr dst, size_t pitch, unsigned short value, size_t width, size_t height, CUstream stream),
         cuMemsetD2D16Async(dst, pitch, value, width, height, own(stream)))
FUNCTION(cuMemsetD2D32Async_ptsz, (CUdeviceptr dst, size_t pitch, unsigned int value, size_t width, size_t height, CUstream stream),
         cuMemsetD2D32Async(dst, pitch, value, width, height, own(stream)))

FUNCTION(cuStreamQuery_ptsz, (CUstream stream),
         cuStreamQuery(own(stream)))
FUNCTION(cuStreamSynchronize_ptsz, (CUstream stream),
         cuStreamSynchronize(own(stream)))
FUNCTION(cuStreamWaitEvent_ptsz, (CUstream stream, CUevent event, unsigned int flags),
         cuStreamWaitEvent(own(stream), event, flags))
FUNCTION(cuStreamGetPriority_ptsz, (CUstream stream, int *priority),
         cuStreamGetPriority(own(stream), priority))
FUNCTION(cuStreamGetFlags_ptsz, (CUstream stream, unsigned int *flags),
         cuStreamGetFlags(own(stream), flags))
FUNCTION(cuStreamGetCtx_ptsz, (CUstream stream, CUcontext *context),
         cuStreamGetCtx(own(stream), context))
FUNCTION(cuStreamGetCtx_v2_ptsz, (CUstream stream, CUcontext *context, CUgreenCtx *green),
         cuStreamGetCtx_v2(own(stream), context, green))
FUNCTION(cuStreamGetId_ptsz, (CUstream stream, unsigned long long *id),
         cuStreamGetId(own(stream), id))
FUNCTION(cuStreamGetDevice_ptsz, (CUstream stream, CUdevice *device),
         cuStreamGetDevice(own(stream), device))
FUNCTION(cuStreamBeginCapture_v2_ptsz, (CUstream stream, CUstreamCaptureMode mode),
         cuStreamBeginCapture_v2(own(stream), mode))
FUNCTION(cuStreamEndCapture_ptsz, (CUstream stream, CUgraph *graph),
         cuStreamEndCapture(own(stream), graph))
FUNCTION(cuStreamGetCaptureInfo_v2_ptsz, (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **dependencies, size_t *count),
         cuStreamGetCaptureInfo_v2(own(stream), status, id, graph, dependencies, count))
FUNCTION(cuGraphLaunch_ptsz, (CUgraphExec executable, CUstream stream),
         cuGraphLaunch(executable, own(stream)))
FUNCTION(cuStreamIsCapturing_ptsz, (CUstream stream, CUstreamCaptureStatus *status),
         cuStreamIsCapturing(own(stream), status))
FUNCTION(cuStreamAddCallback_ptsz, (CUstream stream, CUstreamCallback callback, void *data, unsigned int flags),
         cuStreamAddCallback(own(stream), callback, data, flags))
FUNCTION(cuStreamWaitValue32_v2_ptsz, (CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags),
         cuStreamWaitValue32_v2(own(stream), address, value, flags))
FUNCTION(cuStreamWriteValue32_v2_ptsz, (CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags),
         cuStreamWriteValue32_v2(own(stream), address, value, flags))
FUNCTION(cuStreamBatchMemOp_v2_ptsz, (CUstream stream, unsigned int count, CUstreamBatchMemOpParams *params, unsigned int flags),
         cuStreamBatchMemOp_v2(own(stream), count, params, flags))
FUNCTION(cuLaunchHostFunc_ptsz, (CUstream stream, CUhostFn function, void *data),
         cuLaunchHostFunc(own(stream), function, data))
FUNCTION(cuLaunchKernel_ptsz, (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, CUstream stream, void **params, void **extra),
         cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, own(stream), params, extra))
FUNCTION(cuEventRecord_ptsz, (CUevent event, CUstream stream),
         cuEventRecord(event, own(stream)))
FUNCTION(cuEventRecordWithFlags_ptsz, (CUevent event, CUstream stream, unsigned int flags),
         cuEventRecordWithFlags(event, own(stream), flags))
/* clang-format on */
