"""Every rule has a page, and a pasted error finds its rule."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import cases
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from test_cli import SOURCES, here, run

import casekit
from cudriver import stack
from cudriver.cli.explain import folder, render_page, rule_names, wrap
from cudriver.fleet.rules import registry as fleet_rules
from cudriver.stack import pasted, rulebook
from cudriver.stack.report.text import Style
from cudriver.stack.rules import registry
from cudriver.stack.tables import table
from cudriver.stack.text import columns

re._MAXCACHE = 1 << 12  # all patterns, which hundreds of texts are searched for
TEXTS = [f"EX{n}" for n in range(101, 116) if n != 105]  # texts without a rule; CU208 was EX105
# Errors, tracebacks and logs as people paste them, and the rule that each belongs to.
_, PASTED = casekit.read(Path(__file__).with_name("pasted.txt"))
MESSAGES = {
    rule: [case.text for case in PASTED.values() if case.told == rule]
    for rule in {case.told for case in PASTED.values()}
}


def test_pages_and_rules_are_the_same_set():
    assert rulebook.rule_names() == [*registry(), *TEXTS]


@pytest.mark.parametrize("rule", rulebook.rule_names())
def test_a_page_has_what_seen_fixed_and_an_example(rule):
    text = rulebook.page(rule)
    assert rule in text.partition("\n")[0]
    assert len(rulebook.title(rule)) > 3
    headings = [line.lstrip("# ").lower() for line in text.splitlines() if line.startswith("## ")]
    assert len(headings) >= 3, headings
    assert "```" in text or "\n    " in text
    assert not re.search(r"add .{0,40}to LD_LIBRARY_PATH", text, re.IGNORECASE)


@pytest.mark.parametrize("rule", rulebook.rule_names())
def test_a_page_fits_the_terminal(rule):
    done = here("explain", rule)
    assert done.returncode == 0
    assert done.stderr == ""
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "```" not in done.stdout


PAGE = """\
# The `title`

words **of** a paragraph
that goes on
- a point with words
  and more
* next
| a | b |
```
$ command --with words

  indented
```
last"""


def test_a_page_is_laid_out_for_the_terminal():
    lines = [
        *("The `title`", "", "words of a paragraph", "that goes on"),
        *("- a point with words", "  and more", "* next", "| a | b |"),
        *("    $ command --with words", "", "      indented", "last"),
    ]
    assert render_page(PAGE, Style(width=20)) == lines
    assert render_page(PAGE, Style(width=80))[2] == "words of a paragraph that goes on"
    assert render_page(PAGE, Style(width=80, colour=True))[0] == "\x1b[1mThe `title`\x1b[0m"


# A title, then headings and blocks of code.
SKELETON = re.compile(r"^#+ |^```.*?^```$", re.MULTILINE | re.DOTALL)
LITERAL = re.compile(r"`[^`]+`|(?:CU|EX|FL)\d{3}")
SECTIONS = {
    "What it means": "含义",
    "How it is detected": "怎样发现",
    "How it is fixed": "怎样修复",
    "Example": "示例",
}


@pytest.mark.parametrize("rule", rule_names())
def test_a_page_is_the_same_in_chinese(rule):
    """Its sections, its code, what stands in backticks, and the rules that it names."""
    english, chinese = (rulebook.page(rule, lang, folder(rule)) for lang in ("en", "zh"))
    assert english != chinese
    assert chinese.startswith(f"# {rule} ")
    assert SKELETON.findall(chinese) == SKELETON.findall(english)
    prose = [" ".join(SKELETON.sub("", page).split()) for page in (english, chinese)]
    assert set(LITERAL.findall(prose[0])) == set(LITERAL.findall(prose[1]))
    headings = [re.findall(r"^## (.+)$", page, re.MULTILINE) for page in (english, chinese)]
    assert [SECTIONS[heading] for heading in headings[0]] == headings[1]
    assert max(map(columns, render_page(chinese, Style(width=80)))) <= 80


def test_chinese_is_broken_between_characters_but_no_mark_begins_a_line():
    text = "驱动太旧，见 `CU103`（下限）。"
    lines = ["驱动太", "旧，见", "`CU103`", "（下", "限）。"]
    assert wrap(text, 7) == lines
    assert [columns(line) for line in lines] == [6, 6, 7, 4, 6]
    assert wrap("- 一二三四", 6, 4) == ["- 一二", "三四"]
    assert wrap("ab cd efg", 5) == ["ab cd", "efg"]


@pytest.mark.parametrize(
    ("variables", "chinese"),
    [
        ({"LC_ALL": "zh_CN.UTF-8"}, True),
        ({"LC_ALL": "", "LC_MESSAGES": "zh_TW.UTF-8", "LANG": "C.UTF-8"}, True),
        ({"LC_ALL": "", "LC_MESSAGES": "", "LANG": "zh_CN"}, True),
        ({"LC_ALL": "C.UTF-8", "LANG": "zh_CN.UTF-8"}, False),
        ({"LC_ALL": "de_DE.UTF-8"}, False),
        ({"LC_ALL": "zh_CN.UTF-8", "PYTHONIOENCODING": "ascii"}, False),
    ],
)
def test_the_environment_chooses_the_language(variables, chinese):
    variables = {"PYTHONIOENCODING": "utf-8", **variables}
    assert ("驱动太旧" in run("explain", "CU103", **variables).stdout) is chinese
    assert ("驱动太旧" in run("explain", "--list", **variables).stdout) is chinese


def test_lang_overrides_the_environment():
    chinese = {"LC_ALL": "zh_CN.UTF-8", "PYTHONIOENCODING": "utf-8"}
    assert "驱动太旧" in run("explain", "CU103", "--lang", "zh").stdout
    assert (
        "驱动太旧"
        in run(
            "explain",
            MESSAGES["CU103"][0],
            "--lang",
            "zh",
        ).stdout.split("\n")[0]
    )
    assert "driver too old" in run("explain", "CU103", "--lang", "en", **chinese).stdout
    assert run("explain", "CU103", "--lang", "de").returncode == 2
    for words, title in (((), "driver too old"), (("--lang", "zh"), "驱动太旧")):
        done = run("explain", "CU103", "--json", *words, **chinese)
        (rule,) = json.loads(done.stdout)["rules"]
        assert rule["title"] == title
        assert title in rule["page"].partition("\n")[0]


@pytest.mark.parametrize("name", PASTED, ids=lambda name: name[:60])
def test_a_pasted_text_finds_its_rule_first(name):
    found = rulebook.match(PASTED[name].text)
    assert [match.rule for match in found[:1]] == [PASTED[name].told], found


@pytest.mark.parametrize(
    ("error", "rule"),
    [
        ("34: CUDA driver is a stub library", "CU102"),
        ("803: system has unsupported display driver / cuda driver combination", "CU105"),
        ("804: forward compatibility was attempted on non supported HW", "CU106"),
    ],
)
def test_an_error_with_a_rule_of_its_own_has_no_other(error, rule):
    text = f"Unexpected error from cudaGetDeviceCount(). Did you? Error {error}"
    assert [found.rule for found in rulebook.match(text)] == [rule]


# CUDA's errors: number, the runtime's name, the driver's, the rule, what cudaGetErrorString says.
CUDA_ERRORS = """
1 InvalidValue INVALID_VALUE EX115 invalid argument
2 MemoryAllocation OUT_OF_MEMORY EX103 out of memory
3 InitializationError NOT_INITIALIZED CU110 initialization error
36 CallRequiresNewerDriver - CU103 API call is not supported in the installed CUDA driver
46 DevicesUnavailable DEVICE_UNAVAILABLE CU110 CUDA-capable device(s) is/are busy or unavailable
98 InvalidDeviceFunction - CU501 invalid device function
100 NoDevice NO_DEVICE CU101 no CUDA-capable device is detected
101 InvalidDevice INVALID_DEVICE CU502 invalid device ordinal
200 InvalidKernelImage INVALID_IMAGE CU501 device kernel image is invalid
209 NoKernelImageForDevice NO_BINARY_FOR_GPU CU501 no kernel image is available for execution on the device
214 ECCUncorrectable ECC_UNCORRECTABLE EX110 uncorrectable ECC error encountered
217 PeerAccessUnsupported PEER_ACCESS_UNSUPPORTED EX108 peer access is not supported between these two devices
221 JitCompilerNotFound JIT_COMPILER_NOT_FOUND CU101 PTX JIT compiler library not found
302 SharedObjectSymbolNotFound SHARED_OBJECT_SYMBOL_NOT_FOUND CU303 shared object symbol not found
304 OperatingSystem OPERATING_SYSTEM CU110 OS call failed or operation not supported on this OS
500 SymbolNotFound NOT_FOUND EX115 named symbol not found
700 IllegalAddress ILLEGAL_ADDRESS EX103 an illegal memory access was encountered
701 LaunchOutOfResources LAUNCH_OUT_OF_RESOURCES EX115 too many resources requested for launch
702 LaunchTimeout LAUNCH_TIMEOUT EX103 the launch timed out and was terminated
717 InvalidAddressSpace INVALID_ADDRESS_SPACE EX103 operation not supported on global/shared address space
719 LaunchFailure LAUNCH_FAILED EX103 unspecified launch failure
801 NotSupported NOT_SUPPORTED EX108 operation not supported
802 SystemNotReady SYSTEM_NOT_READY CU110 system not yet initialized
803 SystemDriverMismatch SYSTEM_DRIVER_MISMATCH CU105 system has unsupported display driver / cuda driver combination
804 CompatNotSupportedOnDevice COMPAT_NOT_SUPPORTED_ON_DEVICE CU106 forward compatibility was attempted on non supported HW
805 MpsConnectionFailed MPS_CONNECTION_FAILED CU110 MPS client failed to connect to the MPS control daemon or the MPS server
900 StreamCaptureUnsupported STREAM_CAPTURE_UNSUPPORTED EX114 operation not permitted when stream is capturing
999 Unknown UNKNOWN CU110 unknown error
"""  # noqa: E501
# How programs write one: PyTorch, Paddle, NCCL, vLLM, Thrust, ONNX Runtime, CuPy, Numba.
FORMS = (
    "RuntimeError: CUDA error: {text}",
    "RuntimeError: CUDA driver error: {text}",
    "OSError: (External) CUDA error({number}), {text}. ",
    "Cuda failure '{text}'",
    "Failed: Cuda error /workspace/csrc/x.cuh:432 '{text}'",
    "what():  parallel_for failed: cudaError{runtime}: {text}",
    "CUDA failure {number}: {text} ; GPU=0",
    "CUDADriverError: CUDA_ERROR_{driver}: {text}",
    "CudaAPIError: [{number}] Call to cuX results in CUDA_ERROR_{driver}",
)


@pytest.mark.parametrize("row", CUDA_ERRORS.strip().splitlines())
def test_an_error_of_cuda_s_is_known_however_a_program_writes_it(row):
    number, runtime, driver, rule, text = row.split(" ", 4)
    for form in FORMS:
        if driver != "-" or "{driver}" not in form:
            line = form.format(number=number, runtime=runtime, driver=driver, text=text)
            assert [found.rule for found in rulebook.match(line)][:1] == [rule], line


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("CUDNN_STATUS_NOT_SUPPORTED", "CU301"),
        ("RuntimeError: cuFFT error: CUFFT_INTERNAL_ERROR", "EX103"),
        ("pynvml.NVMLError_NoPermission: Insufficient Permissions", "CU107"),
        ("RuntimeError: No GPU found. Please run on a machine with a GPU", "CU101"),
        ("Using 4-bit quantization requires bitsandbytes: `pip install -U bitsandbytes`", "CU402"),
        ("Disabling PyTorch because PyTorch >= 2.4 is required but found 2.1.0", "CU402"),
        ("subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero", "EX113"),
        ("libgomp.so.1: cannot allocate memory in static TLS block", "EX109"),
        ("ModuleNotFoundError: No module named '_turbomind'", "CU402"),
        ("error: command 'gcc' failed: No such file or directory", "CU208"),
        ("error: command '/usr/bin/x86_64-linux-gnu-g++' failed: No such file", "CU208"),
        ("error: command '/usr/bin/gcc' failed with exit code 1", "EX113"),
    ],
)
def test_families_of_errors_are_known(text, rule):
    assert [found.rule for found in rulebook.match(text)][:1] == [rule]


@pytest.mark.parametrize(
    "line",
    [
        "error: command 'gcc' failed: No such file or directory",
        "nvcc fatal   : Unsupported gpu architecture 'compute_120'",
        "ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'",
    ],
)
def test_what_names_its_cause_does_not_send_further_up(line):
    assert "EX113" not in [found.rule for found in rulebook.match(line)]


@pytest.mark.parametrize("module", ["filelock", "decord", "cgi_more"])
def test_a_package_that_is_not_installed_gets_that_as_an_answer(module):
    """The example of CU603's page, whose advice is to ask here."""
    text = f"ModuleNotFoundError: No module named '{module}'"
    assert [found.rule for found in rulebook.match(text)] == ["CU402"]
    assert f"{module} is not installed" in " ".join(pasted.answer(text))


@pytest.mark.parametrize("module", ["myproject.models.net", "tkinter", "distutils", "cgi"])
def test_a_module_that_has_nothing_to_do_with_cuda_finds_none(module):
    """The standard library's is Python's own: no package brings it."""
    assert rulebook.match(f"ModuleNotFoundError: No module named '{module}'") == []
    assert rulebook.match(f"AttributeError: module '{module}' has no attribute 'Net'") == []


def test_what_is_no_fault_of_cuda_s_finds_none():
    for text in (
        "ImportError: libGL.so.1: cannot open shared object file: No such file or directory",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x3 and 4x2)",
        "FileNotFoundError: [Errno 2] No such file or directory: 'data/python/train.csv'",
        "KeyError: 'cudnn'",
        # Python 3.10 took it away, and no package has it
        "ImportError: cannot import name 'Mapping' from 'collections' (/l/collections/__init__.py)",
        "ImportError: cannot import name 'Self' from 'typing' (/usr/lib/python3.10/typing.py)",
        "ImportError: cannot import name 'x' from 'importlib.metadata' (/l/metadata/__init__.py)",
        "node1:4521:4521 [0] NCCL INFO NCCL version 2.27.3+cuda12.9",
        "ERROR: Unexpected bus error encountered in worker.",
        "DistributionNotFound: version '2.0' not found",
    ):
        assert rulebook.match(text) == [], text


def said():
    """What recipes, pairs and rules say that a user reads, with the rule where one says it."""
    data = Path(rulebook.FOLDER).parent
    for file in [*(data / "loading").glob("*.json"), data / "pairs.json", data / "compiling.json"]:
        for text in re.findall(r'"says": ("(?:[^"\\]|\\.)*")', file.read_text()):
            yield file.stem, json.loads(text)
    for file in cases.FOLDER.iterdir():
        yield from (
            (file.stem, text) for text in re.findall(r"(?m)^  says (.+)$", file.read_text())
        )


MADE_UP = re.compile(
    r"(ImportError: )?x|a|(x: )?undefined symbol|.*: no|.*'plain.*|No such file or directory"
)
ANYBODY_S = {  # what any program may end in, and only the check can tell why
    "Segmentation fault",
    "'NoneType' object has no attribute 'partition'",
    "not enough values to unpack",
    "TypeError: expected str, bytes or os.PathLike object, not NoneType",
}
SHARED = {
    "CU108": "CU101",
    "CU208": "CU204|CU501",
    "CU404": "CU30[356]",
    "CU410": "CU402",
}  # with others' words


@pytest.mark.parametrize(("by", "text"), sorted({*said()}))
def test_what_the_check_says_leads_back_to_its_rule(by, text):
    if text in ANYBODY_S:
        assert rulebook.match(text) == []
    elif not MADE_UP.fullmatch(text):
        found = [match.rule for match in rulebook.match(text)]
        assert found
        if by.startswith("CU"):
            assert by in found or re.fullmatch(SHARED.get(by, by), found[0])


def test_what_any_program_may_end_in_is_claimed_with_its_context():
    ends = "TypeError: expected str, bytes or os.PathLike object, not NoneType"
    text = (
        '  File "/env/jax/_src/lib/__init__.py", line 98, in _try_cuda_nvcc_import\n'
        "    cuda_nvcc_path = pathlib.Path(cuda_nvcc.__file__).parent\n" + ends
    )
    assert [found.rule for found in rulebook.match(text)] == ["CU402"]
    assert rulebook.match("    open(None)\n" + ends) == []
    assert [found.rule for found in rulebook.match("Bus error (core dumped)")] == ["CU404"]


def test_a_traceback_on_standard_input():
    text = (
        "Traceback (most recent call last):\n"
        '  File "train.py", line 1, in <module>\n'
        "    import torch\n" + MESSAGES["CU303"][0] + "\n"
    )
    done = run("explain", text=text)
    assert done.returncode == 0
    assert done.stdout.startswith("CU303")
    assert "line 4" in done.stdout
    data = json.loads(run("explain", "--json", text=text).stdout)
    assert data["matches"][0]["rule"] == "CU303"
    assert data["matches"][0]["line"] == 4
    assert data["rules"][0]["page"].startswith("#")


def test_the_last_line_of_a_traceback_wins():
    text = "\n".join([MESSAGES["CU101"][0], "noise", MESSAGES["CU306"][0]])
    assert [found.rule for found in rulebook.match(text)] == ["CU306", "CU101"]


def test_only_the_last_line_s_page_is_shown_and_all_that_are_asked_for():
    text = "\n".join([MESSAGES["CU101"][0], MESSAGES["CU306"][0]])
    assert "## " not in (shown := run("explain", text=text).stdout)
    assert shown.count("How it is fixed") == 1
    assert run("explain", "CU101", "CU306").stdout.count("How it is fixed") == 2


def test_words_that_begin_like_a_rule_are_a_text():
    assert run("explain", "CUDA", "driver", "is", "a", "stub").returncode == 3
    assert run("explain", "CUDA_ERROR_STUB_LIBRARY").stdout.startswith("CU102")


def test_the_line_that_was_found_fits_the_terminal():
    text = f"ImportError: {'/a/quite/long/folder' * 2} {MESSAGES['CU104'][0]}"
    for width in range(50, 60):
        shown = run("explain", text=text, COLUMNS=str(width)).stdout.partition("\n\n")[0]
        assert max(map(len, shown.splitlines())) <= width


def test_an_error_as_an_argument():
    assert run("explain", MESSAGES["CU104"][0]).stdout.startswith("CU104")


def test_an_unknown_text_is_told_apart_from_a_wrong_rule():
    assert run("explain", text="KeyError: 'x'\n").returncode == 3
    assert run("explain", text="").returncode == 3
    assert run("explain", "CU999").returncode == 2


def test_lower_case_is_fine():
    assert run("explain", "cu303").returncode == 0
    assert "no rule 999; " in run("explain", "999").stderr


def test_list_names_every_rule():
    names = [*registry(), *TEXTS, *fleet_rules()]
    assert [line.split()[0] for line in run("explain", "--list").stdout.splitlines()] == names
    assert [*json.loads(run("explain", "--list", "--json").stdout)] == names
    assert "# FL301" in json.loads(run("explain", "fl301", "--json").stdout)["rules"][0]["page"]


def test_a_huge_paste_ends():
    """Its end is what counts, and the line is counted from its start."""
    text = ("x" * 2000 + "\n") * 2500 + MESSAGES["CU306"][0]
    done = run("explain", "--json", text=text)
    assert done.returncode == 0
    assert [(m["rule"], m["line"]) for m in json.loads(done.stdout)["matches"]] == [("CU306", 2501)]
    assert "only the last 4 MiB" in done.stderr
    assert run("explain", text=text[-(4 << 20) :]).stderr == ""


@pytest.mark.parametrize(
    "line",
    [
        "x",
        "undefined symbol: ",
        "Found unsuitable version  required is at least " * 85,
        "failed call to cuInit: " * 170,
        "Unable to initialize backend 'cuda'" * 110,
        "libnvidialib" * 340,
        "libculibcu-" * 370,
        "version `" * 450,
        "requires nvidia-" * 250,
        "libbitsandbytes_" * 250,
        "symbol version " * 270,
    ],
    ids=lambda line: line[:20],
)
def test_a_text_that_no_pattern_is_made_for_ends(line):
    """Those with `.*` took minutes, and a million lines half a minute: each is a hang."""
    text = (line[:4095] + "\n") * ((1 << 18) // len(line))
    done = run("explain", "--json", text=text + MESSAGES["CU306"][0] + "\n")
    assert json.loads(done.stdout)["matches"][0]["rule"] == "CU306"


PATTERNS = table("rules/patterns")
WORDS = sorted({word for kind in rulebook.KINDS for group in PATTERNS[kind].values()
                for pattern in group for part in pattern.split(".*")
                for word in (re.sub(r"\\(.)|[][(){}|?*+^!]", r"\1", part), part)})  # fmt: skip
WORDS += [case.text for case in PASTED.values() if "\n" not in case.text]
WORDS += [
    "CUDA",
    "NO_DEVICE",
    "'",
    ",",
    "lib",
    ".so",
    ".so.1",
    "1",
    "12",
    " not found (required by",
]


@example(["/stubs/ before libcuda.so", "libcuda.so/stubs/", "/stubs/ and libcuda.so"])
@given(st.lists(st.lists(st.sampled_from(WORDS), max_size=5).map("".join), max_size=6))
def test_what_is_found_is_what_the_expressions_say_of_each_line(lines):
    """Put together from their own words. Line by line, with Python's own `.*` and IGNORECASE."""
    wanted: dict[str, int] = {}
    for kind in rulebook.KINDS:
        last = {
            rule: max((n for n, line in enumerate(lines, 1)
                       if any(re.search(pattern, line, re.IGNORECASE) for pattern in group)),
                      default=0)
            for rule, group in PATTERNS[kind].items() if rule not in wanted
        }  # fmt: skip
        here = sorted(last, key=lambda rule: (rule.startswith("EX"), -last[rule]))
        wanted.update((rule, last[rule]) for rule in here if last[rule])
    found = rulebook.match("\n".join(lines))
    assert [(match.rule, match.line) for match in found] == [*wanted.items()]
    assert [match.text for match in found] == [lines[n - 1].strip() for n in wanted.values()]


def test_a_dash_is_standard_input():
    done = run("explain", "-", text=MESSAGES["CU104"][0])
    assert done.returncode == 0
    assert done.stdout.startswith("CU104")


@pytest.mark.parametrize("encoding", ["gb18030", "latin-1", "utf-16"])
def test_a_log_in_any_encoding(encoding):
    """What says nothing is not a traceback of ours; ASCII in it is found."""
    words = "é" if encoding == "latin-1" else "错误"
    text = f"{words}: {MESSAGES['CU104'][0]}\n".encode(encoding)
    done = subprocess.run(
        [sys.executable, "-m", "cudriver", "explain"],
        env={**os.environ, "PYTHONPATH": SOURCES, "PYTHONIOENCODING": "utf-8:strict"},
        input=text, capture_output=True, check=False,
    )  # fmt: skip
    assert b"Traceback" not in done.stderr
    assert done.returncode == (3 if encoding == "utf-16" else 0)


def test_the_drivers_own_libraries_are_no_wheels():
    for name in ("libnvidia-ml.so.1", "libnvcuvid.so.1", "libnvidia-encode.so.1"):
        text = f"OSError: {name}: cannot open shared object file: No such file or directory"
        assert [found.rule for found in rulebook.match(text)] == ["CU101"]


def test_only_the_start_of_a_line_is_looked_at():
    """A line without end must not make a pattern backtrack for ever."""
    for piece, rules in (
        ("a", []),
        (" ", []),
        ("undefined symbol: ", ["CU303"]),
        ("lib", []),
        ("(", []),
        ("CUDA ", []),
    ):
        assert [found.rule for found in rulebook.match(piece * 50_000)] == rules, piece
    known = MESSAGES["CU104"][0]
    assert [found.rule for found in rulebook.match("x" * (4096 - len(known)) + known)] == ["CU104"]
    assert rulebook.match("x" * (4097 - len(known)) + known) == []


DRAWN = {name: casekit.read(Path(__file__).with_name(f"drawn_{name}.txt"))[1].values()
         for name in ("learn", "measure")}  # fmt: skip


def outcome(case):
    """Of an error of a public report: named first, second, rightly left alone, missed, wrong."""
    found = [match.rule for match in rulebook.match(case.words)]
    if case.told in ("none", "unknown"):
        nothing = "alone" if case.told == "none" else "missed"
        return "wrong" if found else nothing
    if case.told in found:
        return "first" if found[0] == case.told else "second"
    return "wrong" if found else "missed"


@pytest.mark.parametrize(
    ("name", "count", "right", "wrong"), [("learn", 42, 41, 1), ("measure", 131, 118, 3)]
)
def test_what_public_reports_say_is_known_as_well_as_it_was(name, count, right, wrong):
    """What was measured with texts that no pattern had seen is in docs/accuracy-tables.md."""
    outcomes = [outcome(case) for case in DRAWN[name]]
    assert len(outcomes) == count
    assert len([o for o in outcomes if o in ("first", "second", "alone")]) >= right
    assert outcomes.count("wrong") <= wrong


def test_the_drawn_texts_have_rules_that_exist_and_nobody_s_folders():
    for case in [*DRAWN["learn"], *DRAWN["measure"]]:
        assert case.told in ("none", "unknown") or case.told in rule_names()
        assert len(case.words.splitlines()) <= 4
        assert {*re.findall(r"/home/(\w+)", case.words)} <= {"user"}


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_program_is_told_what_the_command_says(lang):
    text = "OSError: libcudnn.so.9: cannot open shared object file\nundefined symbol: ncclX"
    told = json.loads(run("explain", "--json", "--lang", lang, text).stdout)
    found = stack.explain(text, lang=lang)
    assert len(found) > 1
    names = ("rule", "line", "text", "answer")
    assert [{name: getattr(one, name) for name in names} for one in found] == told["matches"]
    shown = [{"rule": one.rule, "title": one.title, "page": one.page} for one in found]
    assert shown == told["rules"]
    (named,) = stack.explain(" cu303\n", lang=lang)
    assert (named.rule, named.line, named.text, named.answer) == ("CU303", None, None, [])
    assert stack.explain("all is well", lang=lang) == []


def test_a_rule_on_standard_input_is_explained_as_one_that_is_named():
    assert run("explain", text="CU303\n").stdout == run("explain", "CU303").stdout


def test_another_language_is_refused():
    with pytest.raises(ValueError, match="lang='de': it is one of en, zh"):
        stack.explain("CU303", lang="de")
