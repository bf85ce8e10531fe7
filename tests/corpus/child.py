"""Runs in an environment of the corpus, by its own Python (3.8 and newer), without cudriver.

Imports modules, makes the calls by which they load their libraries, writes down what came of it.

    python child.py ANSWER.json MODULE [MODULE ...] [-- CODE ...]
    python child.py ANSWER.json --submodules PACKAGE [NAME ...]
"""

import ctypes
import importlib
import importlib.util
import json
import os
import re
import sys
import traceback
import zlib

# What a program does first with the package, as far as it goes without a GPU. An exception counts
# as a failure unless its text has one of NO_GPU.
USES = {
    "torch": ["torch.backends.cudnn.version()", "torch.cuda.is_available()"],
    "torchvision": ["torchvision.extension._has_ops() or 1/0"],
    "torchaudio": ["torchaudio.functional"],
    "jax": ["jax.devices()"],
    "tensorflow": ["tensorflow.config.list_physical_devices('GPU')"],
    "cupy": [
        "cupy.cuda.runtime.runtimeGetVersion()",
        "__import__('cupy.cuda.compiler').cuda.compiler._get_nvrtc_version()",
        "__import__('cupy.cublas')",
        "__import__('cupyx.cusolver')",
        "bool(__import__('cupyx').get_runtime_info())",
    ],
    "onnxruntime": ["ort_session()"],
    "numba.cuda": ["numba_libraries()"],
    "ctranslate2": ["ctranslate2.get_cuda_device_count()"],
    "bitsandbytes": ["bitsandbytes.cextension.lib"],
    "faiss": ["faiss.get_num_gpus()"],
    "xgboost": ["xgboost.build_info()"],
    "tensorrt": ["tensorrt.Logger()"],
    "spacy": ["spacy.prefer_gpu()"],
    "triton": ["__import__('triton.backends.nvidia.driver')"],
    "cuda.bindings.nvrtc": ["cuda_nvrtc()"],
    "cuda.core": ["cuda_core()"],
}
NO_GPU = (
    "no cuda-capable device", "cudaErrorNoDevice", "CUDA_ERROR_NO_DEVICE", "insufficient driver",
    "driver version is insufficient", "cudaErrorInsufficientDriver", "Found no NVIDIA driver",
    "libcuda.so", "no CUDA device", "CUDA driver library cannot be found", "CUDA_ERROR_NOT_FOUND",
    "cudaErrorStubLibrary", "No visible GPU devices", "cudaErrorUnknown", "no device is available",
    "Failed to infer device type", "CUDA_ERROR_STUB_LIBRARY", "0 active drivers",
    "CUDA initialization", "CUDA error", "CUDA unknown error", "NVIDIA driver on your system",
    "cuInit(0) failed", "is an NVIDIA driver library", "Could not find cuda drivers",
)  # fmt: skip

# What is only written to standard error: the package goes on without the GPU, or without that part.
LOGGED = {
    "jax": [
        "configuration error: Exception when calling jax_plugins",
        "Unable to load cu",
        "not compatible with the installed jaxlib",
    ],
    "tensorflow": ["Cannot dlopen some GPU libraries", "Could not load dynamic library"],
    "onnxruntime": ["Failed to load library", "cannot open shared object file"],
    "bitsandbytes": ["cannot open shared object file", "Library not found"],
}

# Libraries that tell their version without a GPU: the call, and how its answer reads.
VERSIONS = {
    "libcudart": ("cudaRuntimeGetVersion", "pointer", lambda n: (n // 1000, n % 1000 // 10)),
    "libcudnn": ("cudnnGetVersion", "result", lambda n: (
        (n // 10000, n % 10000 // 100, n % 100) if n >= 90000
        else (n // 1000, n % 1000 // 100, n % 100))),
    "libnccl": ("ncclGetVersion", "pointer", lambda n: (
        (n // 10000, n % 10000 // 100, n % 100) if n >= 10000
        else (n // 1000, n % 1000 // 100, n % 100))),
    "libnvrtc": ("nvrtcVersion", "two", None),
    "libnvJitLink": ("nvJitLinkVersion", "two", None),
    "libcublasLt": ("cublasLtGetVersion", "result", lambda n: (
        (n // 10000, n % 10000 // 100, n % 100) if n >= 100000
        else (n // 1000, n % 1000 // 100, n % 100))),
    "libcufft": ("cufftGetVersion", "pointer", lambda n: (n // 1000, n % 1000 // 100, n % 100)),
    "libcurand": ("curandGetVersion", "pointer", lambda n: (n // 1000, n % 1000 // 100, n % 100)),
    "libcusolver": ("cusolverGetVersion", "pointer", lambda n: (
        n // 1000, n % 1000 // 100, n % 100)),
    "libnvinfer": ("getInferLibVersion", "result", lambda n: (
        (n // 10000, n % 10000 // 100, n % 100) if n >= 10000
        else (n // 1000, n % 1000 // 100, n % 100))),
}  # fmt: skip


def ort_session():
    """A session on the CUDA provider, with the smallest model there is: one Identity node."""
    import onnxruntime

    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        return "no CUDA provider"

    def number(tag, value):
        return bytes([tag << 3, value])

    def part(tag, content):
        return bytes([tag << 3 | 2, len(content)]) + content

    def tensor(name):
        shape = part(2, part(1, number(1, 1)))
        return part(1, name) + part(2, part(1, number(1, 1) + shape))

    node = part(1, b"x") + part(2, b"y") + part(4, b"Identity")
    graph = part(1, node) + part(2, b"g") + part(11, tensor(b"x")) + part(12, tensor(b"y"))
    model = number(1, 8) + part(7, graph) + part(8, number(2, 13))
    session = onnxruntime.InferenceSession(model, providers=["CUDAExecutionProvider"])
    return ",".join(session.get_providers())


def numba_libraries():
    """What @cuda.jit needs before it needs a GPU: NVVM (or NVRTC) and libdevice."""
    from numba import cuda, types

    def kernel(x):
        x[0] = 1.0

    ptx, _ = cuda.compile_ptx(kernel, (types.float32[:],), cc=(7, 5))
    return len(ptx)


def cuda_nvrtc():
    from cuda.bindings import nvrtc

    code = b'extern "C" __global__ void f() {}'
    _, program = nvrtc.nvrtcCreateProgram(code, b"f.cu", 0, [], [])
    (status,) = nvrtc.nvrtcCompileProgram(program, 1, [b"--gpu-architecture=compute_80"])
    if status != 0:
        _, size = nvrtc.nvrtcGetProgramLogSize(program)
        log = b" " * size
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(log.decode())
    return str(nvrtc.nvrtcVersion())


def cuda_core():
    from cuda.core import Program, ProgramOptions

    code = 'extern "C" __global__ void f() {}'
    return type(Program(code, "c++", ProgramOptions(arch="sm_80")).compile("ptx")).__name__


class StandardError:
    """Keeps what is written to descriptor 2 meanwhile, in a file that is left there by a process
    that dies: C++ logs what Python does not raise.
    """

    def __init__(self, path):
        self.path = path

    def __enter__(self):
        sys.stderr.flush()
        self.file, self.saved = open(self.path, "w+b"), os.dup(2)
        os.dup2(self.file.fileno(), 2)
        return self

    def __exit__(self, *_):
        sys.stderr.flush()
        os.dup2(self.saved, 2)
        os.close(self.saved)
        self.file.seek(0)
        self.text = self.file.read().decode("utf-8", "replace")
        self.file.close()
        os.remove(self.path)
        os.write(2, self.text.encode("utf-8", "replace"))

    def failure(self, words):
        """What was raised and only written, or the line with one of these words; None without."""
        if not any(word in self.text for word in words):
            return None
        lines = self.text.strip().splitlines()
        raised = [line for line in lines if re.match(r"[\w.]*(Error|Exception): ", line)]
        return (raised or [line for line in lines if any(word in line for word in words)])[-1]


def main(out, modules, code):
    answer = {"steps": [], "mapped": [], "versions": {}, "values": {}}
    top = ""

    def save():
        with open(out + ".new", "w") as file:
            json.dump(answer, file)
        os.replace(out + ".new", out)

    def step(name, run):
        answer["steps"].append({"name": name, "module": top, "error": "died"})
        save()
        logged = StandardError(out + ".written")
        text = value = None
        try:
            with logged:
                value = run()
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
            # All that a user reads: what led to it stands above it.
            answer["steps"][-1]["shown"] = (logged.text + traceback.format_exc())[-20000:]
        if text is None and not name.startswith("import "):
            failure = logged.failure(LOGGED.get(top, []))
            text = failure and "logged: " + failure
        if text is not None:
            no_gpu = any(word in text for word in NO_GPU) and not name.startswith("import ")
            answer["steps"][-1]["error"] = None if no_gpu else text
            if no_gpu:
                answer["steps"][-1]["no_gpu"] = text
            save()
            return value if no_gpu else None
        answer["steps"][-1]["error"] = None
        save()
        return value

    for name in modules:
        top = name.partition(".")[0]
        if step("import " + name, lambda name=name: importlib.import_module(name)) is None:
            if name == modules[0]:
                break  # the others build on it
            continue
        scope = dict(globals(), **{top: sys.modules[top]})
        for use in USES.get(name, []):
            value = step(use, lambda use=use, scope=scope: eval(use, scope))
            if isinstance(value, (int, str, tuple)) and not isinstance(value, bool):
                answer["values"][use] = str(value)
        if name == "torch":
            torch = sys.modules["torch"]
            answer["values"]["torch.version.cuda"] = torch.version.cuda
            answer["values"]["archs"] = getattr(torch._C, "_cuda_getArchFlags", str)()
            try:
                nccl = torch.cuda.nccl.version()
                answer["values"]["torch.cuda.nccl.version()"] = ".".join(map(str, nccl))
            except Exception:
                answer["values"]["torch.cuda.nccl.version()"] = None
    else:
        for use in code:
            step(use, lambda use=use: exec(use, globals()))
    answer["mapped"] = mapped()
    save()
    for path in answer["mapped"]:
        version = own_version(path)
        if version:
            answer["versions"][path] = version
    save()


def mapped():
    """The shared libraries of this process, in the order of the map."""
    paths = []
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            fields = line.rstrip("\n").split(None, 5)
            if len(fields) == 6 and ".so" in fields[5] and fields[5] not in paths:
                paths.append(fields[5])
    return paths


def own_version(path):
    """What a library that is loaded already says of its version."""
    stem = os.path.basename(path).partition(".so")[0].partition("-")[0]
    if stem not in VERSIONS:
        return None
    function, how, split = VERSIONS[stem]
    try:
        library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        call = getattr(library, function)
        if how == "two":
            first, second = ctypes.c_int(), ctypes.c_int()
            call(ctypes.byref(first), ctypes.byref(second))
            return f"{first.value}.{second.value}"
        if how == "pointer":
            value = ctypes.c_int()
            if call(ctypes.byref(value)) != 0:
                return None
            return ".".join(map(str, split(value.value)))
        call.restype = ctypes.c_size_t
        return ".".join(map(str, split(call())))
    except (OSError, AttributeError):
        return None


ALL = 200  # public submodules of a package; of more than these about a tenth is imported
ASIDE = ("test", "tests", "testing", "conftest", "setup", "benchmarks", "examples")


def submodules(package):
    """The public submodules, found as files: nothing but the package is imported for that."""
    spec = importlib.util.find_spec(package)
    found = set()
    for top in (spec and spec.submodule_search_locations) or ():
        for folder, folders, files in os.walk(top):
            inner = [package, *os.path.relpath(folder, top).split(os.sep)]
            inner = [name for name in inner if name != "."]
            folders[:] = [name for name in folders if public(name)]
            names = {file.partition(".")[0] for file in files if file.endswith((".py", ".so"))}
            found.update(".".join([*inner, name]) for name in names if public(name))
            if "__init__" in names and len(inner) > 1:
                found.add(".".join(inner))
    every = sorted(found)
    drawn = [name for name in every if zlib.crc32(name.encode()) % 10 == 0]
    return every if len(every) <= ALL else drawn


def public(name):
    return name.isidentifier() and not name.startswith("_") and name not in ASIDE


def wide(out, package, names):
    """Imports submodules, writes what came of each, goes on after one that a process died of."""
    answer = {}
    if os.path.exists(out):
        with open(out) as file:
            answer = json.load(file)
    for name in [name for name in names or submodules(package) if name not in answer]:
        for text in ("died", None):
            try:
                if text is None:
                    importlib.import_module(name)
            except BaseException as error:
                text = f"{type(error).__name__}: {error}"
            answer[name] = text
            with open(out + ".new", "w") as file:
                json.dump(answer, file)
            os.replace(out + ".new", out)


if __name__ == "__main__" and sys.argv[2:3] == ["--submodules"]:
    wide(sys.argv[1], sys.argv[3], sys.argv[4:])
elif __name__ == "__main__":
    words = sys.argv[2:]
    cut = words.index("--") if "--" in words else len(words)
    main(sys.argv[1], words[:cut], words[cut + 1 :])
