"""What rules find in facts made by hand (cases.py), the list of them, and the verdict."""

import cases
import pytest
from facts import PREFIX, but, driver, facts, fault, library, toolkit, torch, used, wheel

import casekit
from cudriver.stack import rulebook
from cudriver.stack.facts import Environment, Evidence, Facts, FileFault
from cudriver.stack.fixes import pairs
from cudriver.stack.fixes.pairs import runs
from cudriver.stack.machine_facts import Toolkit
from cudriver.stack.record import put
from cudriver.stack.report import Report
from cudriver.stack.rules import cu5, judge, registry

OWN = Toolkit(
    "environment", "wheels", "12.8", f"{PREFIX}/nvidia", Evidence(f"{PREFIX}/METADATA", 3, "12.8")
)


@pytest.mark.parametrize(
    ("rule", "name"),
    [(rule, name) for rule in registry() for name in casekit.read(cases.path(rule))[1]],
)
def test_a_case(rule, name):
    cases.check(rule, name)


#: What a symbol that is missing tells by its name: the package that brings its library.
BRINGS = {
    "cusparseLtInit": "nvidia-cusparselt-cu12",
    "cusparseCreate": "nvidia-cusparse-cu12",
    "curandCreateGenerator": "nvidia-curand-cu12",
    "cufftExecC2C": "nvidia-cufft-cu12",
    "cusolverDnCreate": "nvidia-cusolver-cu12",
    "cudnnCreate": "nvidia-cudnn-cu12",
    "nvrtcGet": "nvidia-cuda-nvrtc-cu12",
    "cuptiSubscribe": "nvidia-cuda-cupti-cu12",
    "cudaMalloc": "nvidia-cuda-runtime-cu12",
    "cublasLtMatmul": "nvidia-cublas-cu12",
    "cublasSgemm": "nvidia-cublas-cu12",
    "__nvJitLinkCreate_12_8": "nvidia-nvjitlink-cu12",
    "nvJitLinkCreate": "nvidia-nvjitlink-cu12",
    "nvshmem_init": "nvidia-nvshmem-cu12",
}


@pytest.mark.parametrize("symbol", BRINGS)
def test_the_library_by_the_name_of_its_function(symbol):
    missing = fault("symbol", symbol, "/x/y.so", f"undefined symbol: {symbol}")
    of = facts(distributions=[wheel(BRINGS[symbol], "1.0")], load_faults=[missing])
    (found,) = registry()["CU303"](of)
    assert (found.severity, found.predicts) == ("error", f"undefined symbol: {symbol}")
    (fix,) = found.fix
    assert fix.endswith(f" install --force-reinstall --no-deps {BRINGS[symbol]}==1.0")


#: What cuDNN says where this part of it is of another version.
PARTS = {
    "libcudnn_ops": "CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH",
    "libcudnn_adv": "CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH",
    "libcudnn_heuristic": "CUDNN_STATUS_NOT_SUPPORTED_SUBLIBRARY_UNAVAILABLE",
    "libcudnn_engines_precompiled": "CUDNN_STATUS_NOT_SUPPORTED_SUBLIBRARY_UNAVAILABLE",
    "libcudnn_engines_runtime_compiled": "CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED",
}


@pytest.mark.parametrize("part", PARTS)
def test_what_cudnn_says_by_the_part_that_differs(part):
    other = f"/usr/lib/x/{part}.so.9"
    libraries = [
        library("libcudnn_graph.so.9", "9.10.2", "cudnn"),
        library(f"{part}.so.9", "9.23.2", "cudnn", path=other, origin="system"),
    ]
    of = facts(libraries=libraries, frameworks=[torch(loads=[each.path for each in libraries])])
    (found,) = registry()["CU304"](of)
    assert (found.severity, found.predicts, found.because) == ("error", PARTS[part], other)


def test_every_file_of_cases_is_a_rules():
    assert {path.stem for path in cases.FOLDER.iterdir()} == {*registry()}


def test_a_rule_that_fails_is_a_finding_and_the_others_run():
    def broken(_):
        raise ZeroDivisionError("by hand")

    rules = {"CU101": broken, "CU401": registry()["CU401"]}
    of = facts(frameworks=[torch("2.8.0+cpu", None)])
    found = judge(of, rules)
    assert [(f.rule, f.severity) for f in found] == [("CU401", "error"), ("CU101", "warning")]
    crash = found[1]
    assert "by hand" in crash.title
    assert crash.evidence[0].file == __file__
    assert crash.evidence[0].value == "ZeroDivisionError: by hand"
    assert Report(of, [crash]).verdict == "unknown"


def test_every_rule_survives_empty_facts():
    of = Facts(Environment("/x", "unknown"))
    assert {f.severity for f in judge(of)} <= {"note"}
    assert Report(of, judge(of)).verdict == "unknown"


def test_a_healthy_environment_is_consistent_and_quiet():
    assert judge(facts()) == []
    assert Report(facts(), []).verdict == "consistent"


def test_an_error_is_a_mismatch_whatever_else_could_not_be_told():
    of = facts(frameworks=[torch("2.8.0+cpu", None)], unsure=["torch: unread"])
    assert Report(of, judge(of)).verdict == "mismatch"


def test_what_failed_on_the_way_makes_it_unknown():
    made = facts(unsure=["torch: its libraries could not be resolved"])
    assert Report(made, []).verdict == "unknown"


def test_every_rule_has_a_page():
    pages = [name for name in rulebook.rule_names() if name.startswith("CU")]
    assert list(registry()) == pages


@pytest.mark.parametrize(
    ("level", "own", "system", "settled"),
    [
        ("major", "12.8", "12.4.1", True),
        ("major", "12.8", "13.0.1", True),
        ("major", "12.8.1", "12", True),
        ("minor", "12.8", "12.4.1", True),
        ("minor", "12.8.1", "12.8.1", True),
        ("minor", "12.8.1", "12.8", True),
        ("minor", "12.8.1", "12", False),
        ("exact", "12.8", "12.9.1", True),
        ("exact", "12.8.1", "12.8", False),
        ("exact", "12.8.1", "12.8.1", True),
    ],
)
def test_levels(level, own, system, settled):
    """What is told of both versions may be too little for the level."""
    kits = [
        but(toolkit("12.8.1", "PATH"), version=system),
        Toolkit("environment", "wheels", own, "/e", OWN.evidence),
    ]
    of = facts(toolkits=kits, match="system", match_level=level)
    assert settled is not any(found.doubt for found in judge(of))


def test_exact_is_not_settled_by_two_numbers():
    of = facts(toolkits=[toolkit("12.8.1", "PATH"), OWN], match="system", match_level="exact")
    (found,) = judge(of)
    assert (found.rule, found.severity) == ("CU201", "note")
    assert "12.8.1" in found.title
    assert Report(of, [found]).verdict == "unknown"
    of.toolkits[1] = Toolkit("environment", "conda", "12.8.1", PREFIX)
    assert Report(of, judge(of)).verdict == "consistent"


def test_nothing_to_match_cannot_be_told():
    of = facts(match="system")
    assert Report(of, judge(of)).verdict == "unknown"


def test_what_may_not_be_absent_is_compared_with_no_range(monkeypatch):
    """Such a word is no range: the library that parses ranges would be imported to tell so."""
    asked, satisfies = [], pairs.satisfies

    def ask(version, wanted):
        asked.append(wanted)
        return satisfies(version, wanted)

    monkeypatch.setattr(pairs, "satisfies", ask)
    pjrt, plugin = (wheel(f"jax-cuda12-{name}", "0.4.35") for name in ("pjrt", "plugin"))
    assert not list(pairs.broken(facts(distributions=[pjrt, plugin])))
    assert asked
    assert "absent" not in asked
    assert [dist for dist, _, _ in pairs.broken(facts(distributions=[pjrt]))] == [pjrt]


@pytest.mark.parametrize(
    ("rule", "kind", "code"),
    [("CU102", "native", 34), ("CU105", "compat", 803), ("CU106", "compat", 804)],
)
def test_a_library_whose_path_is_not_known(rule, kind, code):
    made = driver(path=None, kind=kind, init_code=code)
    (found,) = registry()[rule](facts(driver=made))
    assert "ld.so.conf.d" in found.fix[0]


def test_the_file_of_cudnn_is_not_known():
    of = used(library("libcudnn_graph.so.9", "9.3.0", "cudnn"), torch={"cudnn": "9.1.0"})
    (found,) = registry()["CU301"](of)
    assert (found.evidence, found.fix) == ([of.frameworks[0].cudnn_evidence], [])


@pytest.mark.parametrize(
    ("what", "told"),
    [("size", False), ("missing", True), ("owners", False), ("shared", True)],
)
def test_a_file_that_is_not_as_it_was_brought_is_the_cause(what, told):
    """Then CU404 speaks of it, and of the next symbol this rule."""
    old = library("libnvJitLink.so.12", "12.1.105", "nvjitlink")
    problems = [
        fault("not found", "libz.so.9", "/a.so", "x"),  # CU305's
        fault("symbol", "f", "/a.so", "x", provider=old.path),
        fault("symbol", "g", "/b.so", "x", provider="/c.so"),
    ]
    of = used(old, load_faults=problems)
    put(of, file_faults=[FileFault("nvidia-nvjitlink-cu12", old.path, what, Evidence("RECORD"))])
    titles = [found.title for found in registry()["CU303"](of)]
    assert [title[:15] for title in titles] == ["a.so needs f, w"] * told + ["b.so needs g, w"]


def test_a_driver_that_lacks_what_is_called_later():
    problem = fault("symbol", "cuModuleLoadData", "/a/libcudnn_ops.so.9", "x", lazy=True)
    later = fault("symbol", "cuFileDriverOpen", "/a/libcudnn_ops.so.9", "x", lazy=True)
    # of a library that a wheel brings
    assert list(registry()["CU303"](used(load_faults=[problem, later])))


@pytest.mark.parametrize(
    ("capability", "archs", "how"),
    [
        ("8.6", ["sm_80"], "cubin"),
        ("8.0", ["sm_86"], None),
        ("9.0", ["sm_80", "sm_86"], None),
        ("9.0", ["sm_80", "compute_80"], "ptx"),
        ("9.0", ["sm_90a"], "cubin"),
        ("9.1", ["sm_90a"], None),
        ("10.3", ["sm_100f"], "cubin"),
        ("12.0", ["sm_100f"], None),
        ("12.0", ["sm_120"], "cubin"),
        ("12.1", ["compute_120"], "ptx"),
        ("12.0", ["compute_120"], "ptx"),
        ("10.3", ["compute_100f"], "ptx"),
        ("10.0", ["compute_100f"], "ptx"),
        ("12.0", ["compute_100f"], None),
        ("10.3", ["compute_100a"], None),  # such PTX is for that GPU alone
        ("10.0", ["compute_103f"], None),
        ("7.0", ["compute_75"], None),
        ("9.0", ["nonsense", ""], None),
        ("?", ["sm_90"], None),
    ],
)
def test_fits(capability, archs, how):
    assert runs(capability, archs) == how


@pytest.mark.parametrize(
    ("version", "cuda", "ptx"),
    [
        ("2.8.0+cu129", "12.9", ["compute_120"]),
        ("2.8.0+cu128", "12.8", []),
        ("2.9.0+cu129", "12.9", []),  # that release has no such build
        ("2.13.0+cu130", "13.0", ["compute_120"]),
    ],
)
def test_ptx_that_a_build_has_beside_its_list(version, cuda, ptx):
    made = torch(version, cuda, archs=["sm_90"])
    assert cu5.with_ptx(made, "x86_64") == ["sm_90", *ptx]
    for name in ("cupy", "vllm"):
        assert cu5.with_ptx(but(made, name=name), "x86_64") == ["sm_90"]
    had = but(made, archs=["sm_90", "compute_90"])
    assert cu5.with_ptx(had, "x86_64") == had.archs
