"""The peers' own tests: which are run, and each that is left out, with the reason.

A test that is left out must fail, unless the reason is one of NOT_TRIED; one that has come to pass,
or is no longer there, fails the run: so neither list can become untrue.
"""

from __future__ import annotations

KERNEL = "it compiles and launches a kernel"
COMPILER = "it compiles a kernel: NVVM or NVRTC, which are not installed"
MANAGED = "managed memory is not simulated"
NVCC = "it compiles a kernel with nvcc and launches it"
NOT_TRIED = {NVCC}

# numba-cuda has its tests in its wheel, below numba.cuda.tests.cudadrv; modules without "test_".
NUMBA_MODULES = (
    *("array_attr", "context_stack", "cuda_array_slicing", "cuda_auto_context"),
    *("cuda_devicerecord", "cuda_memory", "cuda_ndarray", "deallocations", "emm_plugins"),
    *("events", "host_alloc", "init", "is_fp16", "pinned", "profiler", "reset_device"),
    *("select_device", "streams"),
)
NUMBA_MODULES_LEFT_OUT = {
    "cuda_driver": KERNEL,
    "detect": COMPILER,
    "inline_ptx": COMPILER,
    "linkable_code": COMPILER,
    "linker": COMPILER,
    "managed_alloc": MANAGED,
    "module_callbacks": COMPILER,
    "nvjitlink": "it needs nvJitLink",
    "nvrtc": COMPILER,
    "nvvm_driver": COMPILER,
    "runtime": "it needs the CUDA runtime",
}

# Single tests of the files that are run.
LEFT_OUT = {
    "test_numba_context_stack::Test3rdPartyContext"
    "::test_cudajit_in_attached_primary_context": KERNEL,
    "test_numba_cuda_array_slicing::CudaArraySetting::test_array_assign_all": KERNEL,
    "test_numba_cuda_array_slicing::CudaArraySetting::test_array_assign_column": KERNEL,
    "test_numba_cuda_array_slicing::CudaArraySetting::test_array_assign_deep_subarray": KERNEL,
    "test_numba_cuda_array_slicing::CudaArraySetting::test_array_assign_row": KERNEL,
    "test_numba_cuda_array_slicing::CudaArraySetting::test_array_assign_subarray": KERNEL,
    "test_numba_cuda_array_slicing::CudaArraySetting::test_broadcast": KERNEL,
    "test_numba_cuda_array_slicing::CudaArraySetting::test_no_sync_default_stream": KERNEL,
    "test_numba_cuda_array_slicing::CudaArraySetting::test_no_sync_supplied_stream": KERNEL,
    "test_numba_cuda_array_slicing::CudaArraySetting::test_rank": KERNEL,
    "test_numba_cuda_array_slicing::CudaArraySetting::test_scalar": KERNEL,
    "test_numba_cuda_array_slicing::CudaArraySetting::test_strides": KERNEL,
    "test_numba_cuda_array_slicing::CudaArraySetting::test_sync": KERNEL,
    "test_numba_cuda_devicerecord::TestRecordDtypeWithStructArrays::test_structured_array2": KERNEL,
    "test_numba_cuda_devicerecord::TestRecordDtypeWithStructArrays::test_structured_array3": KERNEL,
    "test_numba_cuda_devicerecord::TestRecordDtypeWithStructArrays::test_structured_array4": KERNEL,
    "test_numba_cuda_ndarray::TestCudaNDArray::test_devicearray_transpose_T": KERNEL,
    "test_numba_cuda_ndarray::TestCudaNDArray::test_devicearray_transpose_ok": KERNEL,
    "test_numba_cuda_ndarray::TestRecarray::test_recarray": KERNEL,
    "test_numba_cuda_ndarray::TestCoreContiguous::test_device_array_like_2d_f_transpose": KERNEL,
    "test_numba_cuda_ndarray::TestCoreContiguous::test_device_array_like_2d_transpose": KERNEL,
    "test_numba_cuda_memory::TestCudaMemory::test_managed_memory": MANAGED,
    "test_numba_deallocations::TestDeallocation::test_del_managed_memory": MANAGED,
    "test_pycuda_driver::TestDriver::test_simple_kernel": NVCC,
    "test_pycuda_driver::TestDriver::test_simple_kernel_2": NVCC,
    "test_pycuda_driver::TestDriver::test_vector_types": NVCC,
    "test_pycuda_driver::TestDriver::test_streamed_kernel": NVCC,
    "test_pycuda_driver::TestDriver::test_gpuarray": NVCC,
    "test_pycuda_driver::TestDriver::test_large_smem": NVCC,
    "test_pycuda_driver::TestDriver::test_prepared_invocation": NVCC,
    "test_pycuda_driver::TestDriver::test_prepared_with_vector": NVCC,
    "test_pycuda_driver::TestDriver::test_constant_memory": NVCC,
    "test_pycuda_driver::TestDriver::test_recursive_launch": NVCC,
    "test_pycuda_driver::TestDriver::test_jit_link_module": NVCC,
    "test_pycuda_driver::test_pass_cai_array": NVCC,
}
