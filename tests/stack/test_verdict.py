"""The state of each framework, and what follows from it: written by hand from the table of states
in docs/check.md.
"""

import json

import pytest
from facts import (
    PREFIX,
    PYTHON,
    SITE,
    Driver,
    Framework,
    driver,
    environment,
    facts,
    fault,
    torch,
    wheel,
)

from cudriver.stack.facts import Evidence, Finding, Requirement
from cudriver.stack.load.observe import Observation
from cudriver.stack.record import but
from cudriver.stack.report import Report
from cudriver.stack.report.list import one_line, standing
from cudriver.stack.report.text import Style
from cudriver.stack.rules import judge

WORKS, CPU_ONLY, FAILS, NOT_KNOWN = "works", "CPU only", "fails", "not known"
JAX = Framework("jax", "0.7.2", cuda="12", path=f"{SITE}/jaxlib", distribution="jax-cuda12-plugin")
MINE = Framework("mine", "1.0", modelled=False, path=f"{SITE}/mine")
TF = Framework("tensorflow", "2.20", cuda="12.5")
ORT = Framework("onnxruntime", "1.22.0", cuda="12.8", path=f"{SITE}/onnxruntime")


def lacking(framework, means, **more):
    """Its library is not found, and that ends this much."""
    text = "libx.so.1: cannot open shared object file: No such file or directory"
    return fault("not found", "libcublas.so.12", f"/{framework}.so", text, framework=framework,
                 means=means, **more)  # fmt: skip


def report(*frameworks, **parts):
    options = {key: parts.pop(key) for key in ("strict", "observation") if key in parts}
    of = facts(frameworks=list(frameworks), **parts)
    return Report(of, judge(of), **options)


def states(of):
    return {f.name: f.state for f in of.frameworks}


@pytest.mark.parametrize(
    ("of", "expected", "exit_code"),
    [
        (report(torch()), {"torch": WORKS}, 0),
        (report(torch(), load_faults=[lacking("torch", "import")]), {"torch": FAILS}, 1),
        (report(torch(), load_faults=[lacking("torch", "use")]), {"torch": FAILS}, 1),
        # JAX's plugin and ONNX Runtime's provider are passed over: what is left is the CPU
        (report(JAX, load_faults=[lacking("jax", "gpu")]), {"jax": CPU_ONLY}, 1),
        (
            report(torch(), ORT, load_faults=[lacking("onnxruntime", "gpu")]),
            {"torch": WORKS, "onnxruntime": CPU_ONLY},
            1,
        ),
        # unless the whole import ends
        (
            report(JAX, load_faults=[lacking("jax", "gpu"),
                                     but(lacking("jax", "import"), name="libcudart.so.12")]),
            {"jax": FAILS},
            1,
        ),
        # a part that was asked for is missing: a warning
        (report(torch(), load_faults=[lacking("torch", "feature")]), {"torch": WORKS}, 0),
        (report(MINE), {"mine": WORKS}, 0),
        (report(MINE, strict=True), {"mine": NOT_KNOWN}, 3),
        (report(MINE, load_faults=[lacking("mine", "unmodelled")]), {"mine": NOT_KNOWN}, 3),
        (
            report(torch(), MINE, load_faults=[lacking("mine", "unmodelled")]),
            {"torch": WORKS, "mine": NOT_KNOWN},
            3,
        ),
        # what is not asked to use CUDA has no state
        (report(but(ORT, variant="cpu", cuda=None)), {"onnxruntime": None}, 0),
        (report(TF, load_faults=[lacking("tensorflow", "spare")]), {"tensorflow": None}, 0),
        # a build without CUDA where there is a GPU
        (report(torch("2.8.0+cpu", None, variant="cpu")), {"torch": CPU_ONLY}, 1),
        # one for the GPUs of others is what somebody wants
        (report(torch("2.8.0+rocm6.4", None, variant="rocm")), {"torch": None}, 0),
        (report(torch("2.8.0+xpu", None, variant="xpu")), {"torch": None}, 0),
        (report(torch("2.8.0+cpu", None, variant="cpu"), driver=Driver()), {"torch": None}, 0),
        # one that could not be read, and all where nobody knows whose it is
        (report(torch(), JAX, unsure=[f"{SITE}/torch/version.py: cut"]),
         {"torch": NOT_KNOWN, "jax": WORKS}, 3),
        (report(torch(), JAX, unsure=["/env/lib: cannot be read"]),
         {"torch": NOT_KNOWN, "jax": NOT_KNOWN}, 3),
    ],
)  # fmt: skip
def test_states(of, expected, exit_code):
    assert states(of) == expected, of.to_text()
    assert of.exit_code == exit_code
    rows = json.loads(of.to_json())["frameworks"]
    assert {row["name"]: row["state"] for row in rows} == expected


@pytest.mark.parametrize("of", [
    report(torch()), report(JAX, load_faults=[lacking("jax", "gpu")]), report(),
    report(torch(), MINE, load_faults=[lacking("mine", "unmodelled")]),
    report(torch("2.8.0+cpu", None, variant="cpu"), driver=Driver()),
    report(torch(), load_faults=[lacking("torch", "feature")]),
])  # fmt: skip
def test_a_green_mark_and_consistent_stand_only_where_all_works(of):
    every = [state == WORKS for state in states(of).values() if state is not None]
    text = of.to_text(width=200)
    works = {f.name for f in of.frameworks if f.state == WORKS}
    green = {line.split()[1] for line in text.splitlines() if line.startswith("✓")}
    assert green <= works
    assert (text.splitlines()[-1].split(":")[0] == "consistent") == bool(every and all(every))
    assert (standing(of) == "ok") == (one_line(of, Style(width=200))[0] == "✓") <= bool(every)
    assert of.to_html().count('"mark good"') == len(green)
    assert ('verdict good"' in of.to_html()) <= all(every)


def test_a_machine_whose_driver_fails_is_every_frameworks():
    driver = but(facts().driver, init_code=999)
    of = report(torch(), JAX, but(ORT, variant="cpu", cuda=None), driver=driver)
    assert states(of) == {"torch": FAILS, "jax": FAILS, "onnxruntime": None}


def test_an_interpreter_that_does_not_start_is_every_frameworks():
    told = Finding("CU410", "error", "a.pth ends every start of Python")
    assert set(states(Report(facts(frameworks=[torch(), JAX]), [told])).values()) == {FAILS}


def test_a_driver_too_old_for_one_is_not_the_others():
    driver = Driver(release="535.104.05", kernel_release="535.104.05", cuda="12.2", path="/l")
    of = report(torch(), but(JAX, cuda="13"), driver=driver)
    assert states(of) == {"torch": WORKS, "jax": FAILS}


@pytest.mark.parametrize("order", [1, -1])
def test_an_import_that_needs_one_that_fails(order):
    first = torch(fails=True)
    kin = Framework("torchvision", "0.23", cuda="12.8", after=["torch"], blocked="torch")
    other = Framework("thing", "1", cuda="12.8", blocked="torchvision")
    of = report(*[first, kin, other][::order], load_faults=[lacking("torch", "import")])
    assert states(of) == {"torch": FAILS, "torchvision": FAILS, "thing": FAILS}
    ignored = of.restricted([], ["CU305"])  # states follow from findings alone, as the verdict does
    assert (set(states(ignored).values()), ignored.exit_code) == ({WORKS}, 0)


def test_one_library_of_two_frameworks_is_told_once_and_fails_both():
    """CU303 tells of a missing symbol once."""
    missing = fault("symbol", "f", f"{SITE}/nvidia/a.so", "a: undefined symbol: f", means="import")
    of = report(torch(), JAX, load_faults=[missing, but(missing, framework="jax")])
    assert [f.rule for f in of.findings] == ["CU303"]
    assert states(of) == {"torch": FAILS, "jax": FAILS}
    less = but(missing, framework="jax", means="feature")  # jax goes on without it
    of = report(torch(), JAX, load_faults=[missing, less])
    assert states(of) == {"torch": FAILS, "jax": WORKS}


def test_what_a_framework_requires_is_its_installation():
    needs = Requirement("nvidia-cudnn-cu12", "", Evidence("/m"))
    deep = Requirement("nvidia-cublas-cu12", "", Evidence("/m"))
    dists = [but(wheel("torch", "2.8.0"), requires=[needs]),
             but(wheel("nvidia-cudnn-cu12", "9"), requires=[deep])]  # fmt: skip
    of = facts(frameworks=[torch(), MINE], distributions=dists)
    damage = Finding("CU404", "error", "is damaged", subject="nvidia-cublas-cu12")
    assert states(Report(of, [damage])) == {"torch": FAILS, "mine": WORKS}
    doubt = Finding("CU404", "warning", "is gone", subject="nvidia-cublas-cu12", doubt="d")
    assert states(Report(of, [doubt])) == {"torch": NOT_KNOWN, "mine": WORKS}


def test_what_a_framework_requires_that_is_not_of_cuda():
    """An error about what it requires ends it; further down nobody knows, but a real import."""
    asks = [("sympy", ">=1.13", ""), ("tbb", "", "extra == 'tbb'"), ("six", "", "os_name == 'nt'")]
    dists = [but(wheel("torch", "2.8.0"), asks=asks),
             but(wheel("sympy", "1.13"), asks=[("mpmath", "", ""), ("sympy", "", "")])]  # fmt: skip
    of = facts(frameworks=[torch(), MINE], distributions=dists)
    for subject, severity, state in (
        ("sympy", "error", FAILS),
        ("sympy", "warning", WORKS),
        ("mpmath", "error", NOT_KNOWN),
        ("mpmath", "warning", WORKS),
        ("tbb", "error", WORKS),
        ("six", "error", WORKS),
    ):
        told = Finding("CU404", severity, "is damaged", subject=subject)
        assert states(Report(of, [told])) == {"torch": state, "mine": WORKS}, subject
    for rule, fails, state in (("CU305", True, FAILS), ("CU305", 0, WORKS), ("CU409", 0, FAILS)):
        told = Finding(rule, "error", "a framework's use may fail alone", subject="sympy")
        kin = Framework("sympy", "1.13", fails=fails)
        assert states(Report(but(of, frameworks=[torch(), kin]), [told]))["torch"] == state
    doubt = Finding("CU404", "warning", "is gone", subject="mpmath", doubt="d")
    assert states(Report(of, [doubt])) == {"torch": NOT_KNOWN, "mine": WORKS}
    part = Finding("CU404", "error", "is damaged", subject="sympy", doubt="d")
    assert states(Report(of, [part])) == {"torch": NOT_KNOWN, "mine": WORKS}
    damage = Finding("CU404", "error", "is damaged", subject="mpmath")
    needs = "whether torch works is not known: it needs mpmath, which has an error"
    assert needs in Report(of, [damage]).doubts
    assert states(Report(but(of, imports={"torch": None}), [damage])) == {
        "torch": WORKS,
        "mine": WORKS,
    }


def test_a_build_without_cuda_that_is_to_use_it():
    of = report(torch("2.8.0+cpu", None, variant="cpu"), driver=Driver(), needs=["torch"])
    assert (states(of), of.exit_code) == ({"torch": CPU_ONLY}, 1)
    of = report(torch(), needs=["torch", "vllm"])
    assert (states(of), of.exit_code) == ({"torch": WORKS}, 1)
    of = report(TF, needs=["tensorflow"], load_faults=[lacking("tensorflow", "spare")])
    assert (states(of), of.exit_code) == ({"tensorflow": CPU_ONLY}, 1)


def test_an_index_that_fell_back():
    """What is expected is not here; that says nothing of what is. Its fix is tried."""
    wanted = "torch==2.8.0+cu126"
    dists = [wheel("torch", "2.8.0+cu128")]
    of = report(torch(), distributions=dists, expects=[wanted])
    assert (states(of), of.exit_code) == ({"torch": WORKS}, 1)
    (told,) = of.findings
    assert (told.rule, told.proven) == ("CU602", True)
    index = "https://download.pytorch.org/whl/cu126"
    assert told.fix == [f"{PYTHON} -m pip install {wanted} --index-url {index}"]


def test_another_toolkit_than_asked_for_fails_nothing():
    of = facts(match="system")
    found = Report(of, [Finding("CU201", "error", "the system's toolkit is another")])
    assert (states(found), found.exit_code) == ({"torch": WORKS}, 1)


def test_an_import_that_ends_the_interpreter_leaves_nothing_known():
    """Which of them it was, and whether the others work, nobody saw."""
    cpu = but(ORT, variant="cpu", cuda=None)
    died = Observation({}, [], "the interpreter crashed (SIGSEGV)")
    of = report(torch(), JAX, cpu, load_faults=[lacking("jax", "import")], observation=died)
    assert states(of) == {"torch": NOT_KNOWN, "jax": FAILS, "onnxruntime": None}
    assert "? torch" in of.to_text()
    none = Observation({}, [], "no framework to import")
    assert states(report(torch(), observation=none)) == {"torch": WORKS}


def test_a_real_import_decides():
    of = facts(frameworks=[but(MINE, module="mine")], load_faults=[lacking("mine", "unmodelled")])
    for error, state, code in ((None, WORKS, 0), ("ImportError: no", FAILS, 1)):
        known = but(of, imports={"mine": error})
        seen = Report(known, judge(known), observation=Observation(known.imports, []))
        assert (states(seen), seen.exit_code) == ({"mine": state}, code)
    # by an error that is told of what it imports
    says = {"mine": "OSError: libx.so.1: cannot open shared object file: No such file or directory"}
    both = but(of, imports=says, frameworks=[torch(), *of.frameworks],
               load_faults=[lacking("torch", "import")])  # fmt: skip
    seen = Report(both, judge(both))
    assert [f.rule for f in seen.findings if f.severity == "error"] == ["CU305"]
    assert states(seen) == {"torch": FAILS, "mine": FAILS}
    other = but(of, imports={"torch": None})
    seen = Report(other, judge(other), observation=Observation(other.imports, []))
    assert (states(seen), seen.exit_code) == ({"mine": NOT_KNOWN}, 3)
    one = but(of, imports={"mine": None, "torch": "no"}, frameworks=[torch(), *of.frameworks])
    assert states(Report(one, judge(one))) == {"torch": FAILS, "mine": NOT_KNOWN}


@pytest.mark.parametrize(
    ("driver", "shown"),
    [
        (Driver(), "no driver: judged as if one were here"),
        (Driver(release="535.104.05", assumed=True), "judged for driver 535.104.05"),
    ],
)
def test_the_first_line_says_for_which_driver_all_is_judged(driver, shown):
    of = report(torch(), driver=driver)
    assert shown in of.to_text(width=200).splitlines()[0]
    assert shown in of.to_html()
    assert shown not in report(torch()).to_text(width=200)


def test_a_build_without_cuda_that_is_needed_has_its_command():
    """What it brings is not known here, so it is told untried."""
    jax = Framework("jax", "0.7.2", variant="cpu", distribution="jaxlib")
    ort = Framework("onnxruntime", "1.22.0", variant="cpu", distribution="onnxruntime")
    of = report(jax, needs=["jax"], distributions=[wheel("jax", "0.7.2"), wheel("jaxlib", "0.7.2")])
    pip = f"{PYTHON} -m pip"
    assert [f.fix for f in of.findings] == [[f"{pip} install 'jax[cuda13]'"]]
    assert not of.findings[0].proven
    # Both builds of ONNX Runtime write one folder.
    of = report(ort, needs=["onnxruntime"], distributions=[wheel("onnxruntime", "1.22.0")])
    assert [f.fix for f in of.findings] == [
        [f"{pip} uninstall -y onnxruntime", f"{pip} install onnxruntime-gpu"]
    ]


@pytest.mark.parametrize(
    ("cuda", "extras", "taken"),
    [
        ("13.0", ["cuda12", "cuda12-local", "cuda13"], "cuda13"),
        ("13.0", ["cuda12", "cuda12-local"], "cuda12"),  # jax before 0.7.2 has no other
        ("12.8", ["cuda12", "cuda13"], "cuda12"),
        ("13.0", ["k8s"], "cuda13"),
    ],
)
def test_an_extra_that_the_release_has(cuda, extras, taken):
    jax = Framework("jax", "0.4.30", variant="cpu", distribution="jaxlib")
    asks = [f"[{extra}]jax-{extra}-plugin" for extra in extras]
    dists = [wheel("jax", "0.4.30", *asks), wheel("jaxlib", "0.4.30")]
    of = report(jax, needs=["jax"], distributions=dists, driver=driver("580.95.05", cuda))
    assert [f.fix for f in of.findings] == [[f"{PYTHON} -m pip install 'jax[{taken}]'"]]


def test_conda_has_no_extras():
    conda = environment("conda", "conda")
    of = report(torch(), needs=["jax"], environment=conda)
    assert [f.fix for f in of.findings] == [[f"{PYTHON} -m pip install 'jax[cuda13]'"]]
    of = report(torch(), needs=["cupy"], environment=conda)
    assert [f.fix for f in of.findings] == [[f"conda install -p {PREFIX} cupy"]]
