"""Whole tracebacks and logs as people paste them, and the rule that the last word of each is."""

import pytest

from cudriver.stack import explain

JAX_CUDNN = """\
E1103 10:21:43.120045   18342 cuda_dnn.cc:522] Loaded cuDNN version 90100
2026-11-03 10:21:44.713250: E external/xla/xla/cuda_dnn.cc:466] Memory usage: 712 bytes
Traceback (most recent call last):
  File "/home/ana/fit.py", line 8, in <module>
    y = jax.lax.conv(x, k, (1, 1), "SAME")
  File "/envs/jax/lib/python3.12/site-packages/jax/_src/lax/convolution.py", line 166, in conv
    return conv_general_dilated(lhs, rhs, window_strides, padding)
jaxlib.xla_extension.XlaRuntimeError: FAILED_PRECONDITION: DNN library is not found.
--------------------
For simplicity, JAX has removed its internal frames from the traceback of the following exception.
"""
JAX_BACKEND = """\
Traceback (most recent call last):
  File "/envs/jax/lib/python3.12/site-packages/jax/_src/xla_bridge.py", line 885, in backends
    backend = _init_backend(platform)
  File "/envs/jax/lib/python3.12/site-packages/jax/_src/xla_bridge.py", line 976, in _init_backend
    backend = registration.factory()
jaxlib.xla_extension.XlaRuntimeError: INTERNAL: {cause}

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "<stdin>", line 1, in <module>
  File "/envs/jax/lib/python3.12/site-packages/jax/_src/xla_bridge.py", line 901, in backends
    raise RuntimeError(err_msg)
RuntimeError: Unable to initialize backend 'cuda': {cause} (you may need to uninstall the failing \
plugin package, or set JAX_PLATFORMS=cpu to skip this backend.)
"""
JAX_PLUGIN = """\
ERROR:2026-11-03 09:02:11,410:jax._src.xla_bridge:444: Jax plugin configuration error: Exception \
when calling jax_plugins.xla_cuda12.initialize()
Traceback (most recent call last):
  File "/envs/jax/lib/python3.12/site-packages/jax/_src/xla_bridge.py", line 442, in \
discover_pjrt_plugins
    plugin_module.initialize()
  File "/envs/jax/lib/python3.12/site-packages/jax_plugins/xla_cuda12/__init__.py", line 328, in \
initialize
    _check_cuda_versions(raise_on_first_error=True)
  File "/envs/jax/lib/python3.12/site-packages/jax_plugins/xla_cuda12/__init__.py", line 285, in \
_check_cuda_versions
    _version_check("cuDNN", cuda_versions.cudnn_get_version,
  File "/envs/jax/lib/python3.12/site-packages/jax_plugins/xla_cuda12/__init__.py", line 198, in \
_version_check
    raise RuntimeError(err_msg) from e
RuntimeError: Unable to load {name}. Is it installed?
"""
JAX_OLD_CUDNN = JAX_PLUGIN.partition("RuntimeError")[0] + (
    "RuntimeError: Found cuDNN version 8902, but JAX was built against version 9100, which is "
    "newer. The copy of cuDNN that is installed must be at least as new as the version against "
    "which JAX was built.\n"
)
TENSORFLOW = """\
2026-11-03 08:15:02.330541: I tensorflow/core/util/port.cc:153] oneDNN custom operations are on.
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
W0000 00:00:1762157703.118390   20071 gpu_device.cc:2344] Cannot dlopen some GPU libraries. Please \
make sure the missing libraries mentioned above are installed properly if you would like to use \
GPU. Follow the guide at https://www.tensorflow.org/install/gpu for how to download and setup the \
required libraries for your platform.
Skipping registering GPU devices...
[]
"""
TENSORFLOW_OLD = """\
2021-03-04 14:01:02.154000: W tensorflow/stream_executor/platform/default/dso_loader.cc:60] Could \
not load dynamic library 'libcusolver.so.10'; dlerror: libcusolver.so.10: cannot open shared \
object file: No such file or directory; LD_LIBRARY_PATH: /usr/local/cuda-11.0/lib64
"""
TORCH_PATH = """\
Traceback (most recent call last):
  File "/envs/train/lib/python3.10/site-packages/torch/__init__.py", line 176, in _load_global_deps
    ctypes.CDLL(lib_path, mode=ctypes.RTLD_GLOBAL)
  File "/usr/lib/python3.10/ctypes/__init__.py", line 374, in __init__
    self._handle = _dlopen(self._name, mode)
OSError: libcublasX: no such thing

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "<stdin>", line 1, in <module>
  File "/envs/train/lib/python3.10/site-packages/torch/__init__.py", line 156, in _preload_cuda_deps
    raise ValueError(f"{lib_name} not found in the system path {sys.path}")
ValueError: libcublas.so.*[0-9] not found in the system path ['', '/usr/lib/python310.zip', \
'/usr/lib/python3.10']
"""
BITSANDBYTES = """\
===================================BUG REPORT===================================
Welcome to bitsandbytes. For bug reports, please run

python -m bitsandbytes
================================================================================
CUDA SETUP: Required library version not found: libbitsandbytes_cuda123.so. Maybe you need to \
compile it from source?
CUDA SETUP: Defaulting to libbitsandbytes_cpu.so...
Traceback (most recent call last):
  File "/envs/q/lib/python3.10/site-packages/bitsandbytes/cextension.py", line 20, in <module>
    raise RuntimeError('''
RuntimeError:
        CUDA Setup failed despite GPU being available. Please run the following command to get \
more information:

        python -m bitsandbytes
"""
CUDNN_NVRTC = """\
/envs/sd/bin/python: line 1
Could not load library libcudnn_cnn_infer.so.8. Error: libnvrtc.so: cannot open shared object \
file: No such file or directory
Aborted (core dumped)
"""
CUDNN_PARTS = """\
Could not load library libcudnn_ops_infer.so.8. Error: libcudnn_ops_infer.so.8: cannot open shared \
object file: No such file or directory
Please make sure libcudnn_ops_infer.so.8 is in your library path!
Aborted (core dumped)
"""
NCCL = """\
node1:4521:4521 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.4<0>
node1:4521:4598 [0] init.cc:1021 NCCL WARN Mismatched NCCL version detected : rank 0 version 22703 \
rank 4 version 22105
node1:4521:4598 [0] NCCL INFO init.cc:1387 -> 5
Traceback (most recent call last):
  File "/home/ana/ddp.py", line 31, in <module>
    dist.barrier()
torch.distributed.DistBackendError: NCCL error in: /pytorch/NCCLUtils.cpp:77, invalid usage (run \
with NCCL_DEBUG=WARN for details)
"""
CUDNN_HANDLE = """\
Traceback (most recent call last):
  File "/home/ana/train.py", line 40, in <module>
    out = model(images)
  File "/envs/train/lib/python3.11/torch/nn/modules/conv.py", line 549, in _conv_forward
    return F.conv2d(
RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED
"""
KERNEL = """\
Traceback (most recent call last):
  File "/home/ana/train.py", line 12, in <module>
    x = torch.randn(8, device="cuda") + 1
torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace \
below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""
CUPY_KERNEL = """\
Traceback (most recent call last):
  File "cupy/_core/core.pyx", line 1733, in cupy._core.core._ndarray_base.__add__
  File "cupy_backends/cuda/api/driver.pyx", line 234, in driver.moduleLoadData
cupy_backends.cuda.api.driver.CUDADriverError: CUDA_ERROR_NO_BINARY_FOR_GPU: no kernel image is \
available for execution on the device
"""
TRITON_ARCH = """\
  File "/envs/t/lib/python3.11/triton/backends/nvidia/compiler.py", line 417, in make_cubin
    raise PTXASError(error)
triton.runtime.errors.PTXASError: PTXAS error: Internal Triton PTX codegen error
`ptxas` stderr:
ptxas fatal   : Value 'sm_120a' is not defined for option 'gpu-name'
"""
TRITON_PTXAS = """\
  File "/envs/t/lib/python3.11/site-packages/triton/backends/nvidia/compiler.py", line 34, in _path
    raise RuntimeError(f"Cannot find {binary}")
RuntimeError: Cannot find ptxas
"""
TRITON_LIBCUDA = """\
  File "/envs/t/lib/python3.10/site-packages/triton/common/build.py", line 30, in libcuda_dirs
    assert any(os.path.exists(os.path.join(path, 'libcuda.so')) for path in dirs), msg
AssertionError: libcuda.so cannot found!
"""
NUMBA_NVVM = """\
Traceback (most recent call last):
  File "/envs/n/lib/python3.11/site-packages/numba/cuda/cudadrv/nvvm.py", line 139, in __new__
    inst.driver = open_cudalib('nvvm')
  File "/envs/n/lib/python3.11/ctypes/__init__.py", line 376, in __init__
    self._handle = _dlopen(self._name, mode)
OSError: library nvvm not found

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/home/ana/kernel.py", line 9, in <module>
    add[1, 32](a, b)
numba.cuda.cudadrv.error.NvvmSupportError: libNVVM cannot be found. Do `conda install cudatoolkit`:
library nvvm not found
"""
NUMBA_DRIVER = """\
  File "/envs/n/lib/python3.11/site-packages/numba/cuda/cudadrv/driver.py", line 295, in __getattr__
    raise CudaSupportError("Error at driver init: \\n%s:" %
numba.cuda.cudadrv.error.CudaSupportError: Error at driver init:

CUDA driver library cannot be found.
If you are sure that a CUDA driver is installed,
try setting environment variable NUMBA_CUDA_DRIVER
with the file path of the CUDA driver shared library.
:
"""
LIBDEVICE = """\
2026-11-03 11:11:11.010101: W external/local_xla/xla/service/gpu/nvptx_compiler.cc:109] Can't find \
libdevice directory ${CUDA_DIR}/nvvm/libdevice. This may result in compilation or runtime failures
2026-11-03 11:11:12.020202: W tensorflow/core/framework/op_kernel.cc:1830] INTERNAL: libdevice not \
found at ./libdevice.10.bc
"""
NVRTC = """\
  File "cupy_backends/cuda/libs/nvrtc.pyx", line 57, in cupy_backends.cuda.libs.nvrtc.initialize
ImportError: libnvrtc.so.12: cannot open shared object file: No such file or directory

The above exception was the direct cause of the following exception:

RuntimeError: CuPy failed to load libnvrtc.so.12: OSError: libnvrtc.so.12: cannot open shared \
object file: No such file or directory
"""
EXEC_STACK = """\
Traceback (most recent call last):
  File "/envs/w/lib/python3.12/site-packages/faster_whisper/transcribe.py", line 13, in <module>
    import ctranslate2
  File "/envs/w/lib/python3.12/site-packages/ctranslate2/__init__.py", line 21, in <module>
    from ctranslate2._ext import (
ImportError: libctranslate2-d3638643.so.4.4.0: cannot enable executable stack as shared object \
requires: Invalid argument
"""

PASTED = [
    ("JAX without cuDNN", JAX_CUDNN, "CU305"),
    (
        "JAX without devices",
        JAX_BACKEND.format(cause="no supported devices found for platform CUDA"),
        "CU101",
    ),
    ("JAX, driver broken", JAX_BACKEND.format(cause="CUDA initialization: unknown"), "CU110"),
    ("JAX, hidden", JAX_BACKEND.format(cause="No visible GPU devices."), "CU502"),
    ("JAX plugin, cuDNN", JAX_PLUGIN.format(name="cuDNN"), "CU305"),
    ("JAX plugin, cuSPARSE", JAX_PLUGIN.format(name="cuSPARSE"), "CU305"),
    ("JAX, old cuDNN", JAX_OLD_CUDNN, "CU301"),
    ("TensorFlow", TENSORFLOW, "CU305"),
    ("TensorFlow 2.4", TENSORFLOW_OLD, "CU305"),
    ("PyTorch's own search", TORCH_PATH, "CU305"),
    ("bitsandbytes", BITSANDBYTES, "CU305"),
    ("cuDNN for want of nvrtc", CUDNN_NVRTC, "CU305"),
    ("cuDNN's parts", CUDNN_PARTS, "CU304"),
    ("NCCL", NCCL, "CU302"),
    ("cuDNN's handle", CUDNN_HANDLE, "CU301"),
    ("no kernel image", KERNEL, "CU501"),
    ("no kernel image in CuPy", CUPY_KERNEL, "CU501"),
    ("Triton, GPU too new", TRITON_ARCH, "CU501"),
    ("Triton, ptxas", TRITON_PTXAS, "CU204"),
    ("Triton, libcuda", TRITON_LIBCUDA, "CU101"),
    ("Numba, NVVM", NUMBA_NVVM, "CU305"),
    ("Numba, driver", NUMBA_DRIVER, "CU101"),
    ("XLA, libdevice", LIBDEVICE, "CU305"),
    ("CuPy, nvrtc", NVRTC, "CU305"),
    ("an executable stack", EXEC_STACK, "CU404"),
    ("a file cut short", "$ python train.py\nBus error (core dumped)\n", "CU404"),
    ("a venv without Python", "bash: /envs/a/bin/python: No such file or directory\n", "CU503"),
    ("pip without Python", "bash: ./bin/pip: cannot execute: required file not found\n", "CU503"),
]


@pytest.mark.parametrize(
    ("text", "rule"), [row[1:] for row in PASTED], ids=[row[0] for row in PASTED]
)
def test_a_pasted_log_finds_its_rule_first(text, rule):
    found = explain.match(text)
    assert found, text
    assert found[0].rule == rule, found


def test_what_is_no_fault_of_cuda_s_finds_none():
    for text in (
        "ModuleNotFoundError: No module named 'torch'",
        "ImportError: libGL.so.1: cannot open shared object file: No such file or directory",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x3 and 4x2)",
        "FileNotFoundError: [Errno 2] No such file or directory: 'data/python/train.csv'",
        "KeyError: 'cudnn'",
        "node1:4521:4521 [0] NCCL INFO NCCL version 2.27.3+cuda12.9",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    ):
        assert explain.match(text) == [], text
