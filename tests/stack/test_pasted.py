"""What `cudriver explain` says of the pasted line itself."""

import json
import re
import string
from pathlib import Path

import pytest
from test_cli import run

import casekit
from cudriver.stack import pasted, rulebook
from cudriver.stack.tables import table

HERE = Path(__file__).parent
KNOWN = table("rules/answers")
NO_FILE = "cannot open shared object file: No such file or directory"


def said(line: str, lang: str = "en") -> str:
    return " ".join(pasted.answer(line, lang))


@pytest.mark.parametrize(
    ("symbol", "words"),
    [
        ("ncclCommWindowRegister", ["libnccl", "nvidia-nccl-cu12 and nvidia-nccl-cu13"]),
        ("cuptiActivityEnableDriverApi", ["libcupti", "nvidia-cuda-cupti-cu12"]),
        ("cublasLtGetEnvironmentMode", ["libcublasLt", "nvidia-cublas"]),
        ("cudnnGetVersion", ["libcudnn", "nvidia-cudnn-cu12 and nvidia-cudnn-cu13"]),
        ("__nvJitLinkCreate_12_8", ["libnvJitLink", "from CUDA 12.8 on"]),
        ("__nvJitLinkComplete_12_4", ["libnvJitLink", "from CUDA 12.4 on"]),
        ("_ZN3c104cuda9SetDeviceEa", ["PyTorch's own", "x.so was compiled for another release"]),
        ("_ZN2at4_ops5zeros4callEN3c108ArrayRef", ["PyTorch's own"]),
        ("torch_library_impl", ["PyTorch's own"]),
        ("_PyThreadState_UncheckedGet", ["Python's own"]),
        ("iJIT_NotifyEvent", ["mkl<2024.1"]),
        ("GOMP_parallel", ["OpenMP"]),
        ("cuModuleGetFunction", ["is the driver's"]),
    ],
)
def test_whose_a_symbol_is(symbol, words):
    told = said(f"ImportError: /env/lib/x.so: undefined symbol: {symbol}")
    assert told.startswith(symbol)
    for word in words:
        assert word in told


def test_a_symbol_of_nobody_known_is_left_alone():
    assert said("/env/lib/x.so: undefined symbol: somebodys_function") == ""


def test_both_owners_of_one_file_are_named_with_how_to_look():
    told = said("libtorch_cuda.so: undefined symbol: ncclCommResume")
    assert "own the same file" in told
    assert told.endswith("pip list | grep nvidia-nccl")


@pytest.mark.parametrize(
    ("here", "words"),
    [
        ("2.28", ["This machine has glibc 2.28.", "older release"]),
        ("2.39", ["This machine has glibc 2.39, which is enough"]),
        (None, []),
    ],
)
def test_which_glibc_is_needed_and_which_is_here(monkeypatch, here, words):
    monkeypatch.setattr(pasted, "glibc", lambda: here)
    told = said("libc.so.6: version `GLIBC_2.32' not found (required by /env/flash.so)")
    assert told.startswith("flash.so needs glibc 2.32 or newer, as in RHEL 9, Ubuntu 22.04")
    assert ("This machine" in told) == bool(words)
    assert all(word in told for word in words)


def test_a_glibc_that_no_listed_distribution_has(monkeypatch):
    monkeypatch.setattr(pasted, "glibc", lambda: None)
    assert said("version `GLIBC_2.99' not found") == "the library needs glibc 2.99 or newer."


def test_another_c_library_has_no_release_of_glibc(monkeypatch):
    monkeypatch.setattr("platform.libc_ver", lambda: ("", ""))
    assert pasted.glibc() is None


def test_which_gcc_has_a_version_of_libstdcxx():
    assert "GCC 13.2" in said("libstdc++.so.6: version `GLIBCXX_3.4.32' not found")
    assert said("libx.so: version `SOMEBODY_1.0' not found") == ""


@pytest.mark.parametrize(
    ("library", "words"),
    [
        ("libcudart.so.13", ["of CUDA 13", "pip's nvidia-cuda-runtime,", "conda's cuda-cudart"]),
        ("libcudart.so.12", ["of CUDA 12", "nvidia-cuda-runtime-cu12"]),
        ("libcuda.so.1", ["comes with the driver"]),
        ("libnvidia-ml.so.1", ["comes with the driver"]),
        ("libcudnn.so.9", ["nvidia-cudnn-cu12"]),
        ("libtorch_cuda_cu.so", ["of PyTorch 1"]),
        ("libc10.so", ["PyTorch's own"]),
        ("libpython3.10.so.1.0", ["Python 3.10 as a library"]),
        ("libmpi.so.40", ["not of CUDA", "an MPI"]),
        ("libavutil.so.59", ["FFmpeg"]),
    ],
)
def test_what_is_missing_and_who_brings_it(library, words):
    told = said(f"ImportError: {library}: {NO_FILE}")
    assert told.startswith(library)
    for word in words:
        assert word in told


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("No module named 'flash_attn'", "flash_attn comes with the package flash-attn."),
        ("No module named 'cuda.cudart'", "cuda-python below 13"),
        ("No module named 'torch'", "--no-build-isolation"),
        ("No module named 'cuda.core'; 'cuda' is not a package", "A file cuda.py"),
        ("cannot import name 'a' from 'vllm.b' (x.py)", "vllm.b has no a in the release"),
        ("module 'torch.cuda' has no attribute 'a'", "pip show torch"),
        ("Unable to load cuSPARSE. Is it installed?", "nvidia-cusparse-cu12"),
        ("Unsupported .version 8.8; current version is '8.4'", "PTX 8.8 is of CUDA 12.9"),
        ("with CUDA capability sm_120 is not compatible", "Compute capability 12.0"),
        ("driver on your system is too old (found version 12060)", "offers CUDA 12.6"),
        ("unsatisfied condition: cuda>=12.8, please update", "asks for a driver of CUDA 12.8"),
        ("numpy.core.multiarray failed to import", "another NumPy"),
        ("TypeError: Descriptors cannot be created directly.", "pip show protobuf"),
        ("ImportError: bad magic number in 'x'", "__pycache__"),
        ("nothing provides __cuda >=12 needed by x", "CONDA_OVERRIDE_CUDA"),
        ("unresolvable CDI devices nvidia.com/gpu=all", "nvidia-ctk cdi generate"),
        ("PJRT API version 0.54 is not compatible", "jax[cuda12]"),
    ],
)
def test_what_a_line_says_by_itself(line, words):
    assert words in said(line)


def test_what_says_nothing_by_itself():
    for line in (
        "CUDA error: out of memory",
        "libGL.so.1: " + NO_FILE,
        "",
        "No module named 'x.y'",
    ):
        assert pasted.answer(line) == []


def test_every_sentence_is_in_both_languages_with_the_same_values():
    for key, texts in KNOWN["sentences"].items():
        assert {*texts} == {"en", "zh"}, key
        values = [{name for _, name, _, _ in string.Formatter().parse(text) if name is not None}
                  for text in texts.values()]  # fmt: skip
        assert values[0] == values[1], key
        assert re.search("[一-鿿]", texts["zh"]), key


def test_a_chinese_answer_is_of_the_same_length_as_the_english_one():
    for case in casekit.read(HERE / "pasted.txt")[1].values():
        for line in case.text.splitlines():
            assert len(pasted.answer(line, "zh")) == len(pasted.answer(line))


@pytest.mark.parametrize("piece", ["lib", "a.so: ", "undefined symbol: ", "version `", "sm_", "_Z"])
def test_a_long_line_ends(piece):
    pasted.answer((piece * 4096)[: rulebook.LINE_LIMIT])


def test_two_that_match_are_both_answered_the_likelier_first():
    text = "ImportError: cannot import name 'x' from 'vllm.y' (/env/vllm/y.py)"
    head = run("explain", text).stdout.partition("\n\n")[0].split("\n")
    rules = [line[:5] for line in head if line[:1] != " "]
    assert rules == ["CU402", "CU404"]
    second = head.index(next(line for line in head if line.startswith("CU404")))
    assert "vllm.y has no x in the release" in head[2] + head[3]
    assert len(head) > second + 2
    data = json.loads(run("explain", text, "--json").stdout)
    assert [match["rule"] for match in data["matches"]] == rules
    assert all(match["answer"] for match in data["matches"])


def test_the_answer_is_in_the_language_that_is_asked_for():
    text = "x.so: undefined symbol: _ZN3c104cuda9SetDeviceEa"
    assert "属于 PyTorch" in run("explain", text, "--lang", "zh").stdout
