"""CU305 and CU306: what is not found."""

import pytest
from facts import (
    PREFIX,
    PYTHON,
    SITE,
    WHEELS,
    environment,
    facts,
    fault,
    fired,
    library,
    one,
    pip,
    used,
    wheel,
)

from cudriver.stack.model import (
    FEATURE,
    IMPORT,
    SPARE,
    UNMODELLED,
    USE,
    Evidence,
    Facts,
    FileFault,
    Framework,
    Resolution,
)
from cudriver.stack.rules import judge
from cudriver.stack.rules.library_fixes import back_to_pin, library_fix, pinned, symbol_fix


class TestNotFound:
    TEXT = "libcusparseLt.so.0: cannot open shared object file: No such file or directory"

    def test_needed_and_not_found(self):
        problem = fault(
            "not found", "libcusparseLt.so.0", f"{SITE}/torch/lib/libtorch_cuda.so", self.TEXT
        )
        searched = Resolution(
            "libcusparseLt.so.0",
            problem.library,
            None,
            "none",
            searched=[f"{SITE}/nvidia/cusparselt/lib", "/lib"],
        )
        of = used(load_faults=[problem], resolutions=[searched])
        of.distributions = [
            wheel("torch", "2.8.0", "nvidia-cusparselt-cu12==0.7.1"),
            wheel("nvidia-cusparselt-cu12", "0.7.1"),
        ]
        found = one(of, "CU305", "error")
        assert found.predicts == self.TEXT
        assert found.fix == [pip("nvidia-cusparselt-cu12==0.7.1")]
        assert [(e.file, e.value) for e in found.evidence[1:3]] == [
            (f"{SITE}/nvidia/cusparselt/lib", "does not have it"),
            ("/lib", "does not have it"),
        ]

    CTK = "[ctk]cuda-toolkit{cublas,cusparse}==13.*"

    @pytest.mark.parametrize(
        ("requires", "finds", "fixes"),
        [
            ([CTK], True, f"{PYTHON} -m pip install 'cupy-cuda13x[ctk]==14.2.0'"),
            ([], True, f"{PYTHON} -m pip install nvidia-cublas"),
            ([], False, "leaves libcublas.so.13 to the system"),
            (["nvidia-cublas==13.0.0.19"], True, "--force-reinstall cupy-cuda13x==14.2.0"),
        ],
    )
    def test_what_its_package_does_not_bring(self, requires, finds, fixes):
        """To install the same package again would bring nothing."""
        file = f"{SITE}/cupy_backends/cuda/libs/cublas.cpython-312.so"
        cupy = Framework("cupy", "14.2.0", "13", variant="cuda", distribution="cupy-cuda13x")
        cupy.path, cupy.finds_wheels = f"{SITE}/cupy", finds
        of = facts(
            frameworks=[cupy],
            distributions=[wheel("cupy-cuda13x", "14.2.0", *requires)],
            load_faults=[
                fault("not found", "libcublas.so.13", file, "x", framework="cupy", means=FEATURE)
            ],
        )
        (told,) = one(of, "CU305", "warning").fix
        assert fixes in told

    @pytest.mark.parametrize(
        ("soname", "path", "searched", "finds"),
        [
            ("libcublas.so.13", None, f"{SITE}/nvidia/cu13/lib", True),
            ("libcublas.so.13", None, "/usr/lib", False),
            ("libcublas.so.13", "/usr/lib/libcublas.so.13", f"{SITE}/nvidia/cu13/lib", False),
            ("libcublas.so.12", None, f"{SITE}/nvidia/cublas/lib", False),
            ("libcufft.so.12", None, f"{SITE}/nvidia/cu13/lib", False),
        ],
    )
    def test_who_looked_into_the_wheels(self, soname, path, searched, finds):
        """Its own search tells, not that of another framework or for another library."""
        of = self.cupy(finds=False)
        of.frameworks[:0] = [Framework(name, "1", finds_wheels=True) for name in ("a", "z")]
        of.load_faults = of.load_faults[:1]
        searched = ["/lib", searched]
        of.resolutions = [Resolution(soname, "/x.so", path, "none", searched=searched)]
        (told,) = one(of, "CU305", "warning").fix
        install = f"{PYTHON} -m pip install nvidia-cublas"
        assert (told == install) is finds
        assert ("leaves libcublas.so.13 to the system" in told) is not finds

    def test_whether_it_finds_wheels_is_its_own_matter(self):
        of = self.cupy()
        of.load_faults, of.resolutions = of.load_faults[:1], []
        of.frameworks.insert(0, Framework("other", "1"))
        install = f"{PYTHON} -m pip install nvidia-cublas"
        assert one(of, "CU305", "warning").fix == [install]
        of.frameworks[0].finds_wheels, of.frameworks[1].finds_wheels = True, False
        assert "to the system" in one(of, "CU305", "warning").fix[0]

    def test_the_extra_of_its_own_package(self):
        of = self.cupy()
        of.frameworks[0].extra = "ctk"
        of.load_faults = of.load_faults[:1]
        of.distributions.append(wheel("jax", "0.7.2"))
        fixes = [f"{PYTHON} -m pip install 'cupy-cuda13x[ctk]==14.2.0'"]
        assert one(of, "CU305", "warning").fix == fixes
        of.environment = environment("conda", "conda")  # where pip installed that one
        assert one(of, "CU305", "warning").fix == fixes

    @pytest.mark.parametrize(
        ("cuda", "bindings", "extra"),
        [("12.8", "13.0.1", 12), ("10.2", "12.9.0", 12), (None, "14.0.0", 13)],
    )
    def test_the_extra_of_a_cuda_that_has_one(self, cuda, bindings, extra):
        """The framework's own, that of NVIDIA's bindings, the driver's."""
        of = self.cupy()
        of.frameworks[0].extra, of.frameworks[0].cuda = "cuda{major}", cuda
        of.load_faults = of.load_faults[:1]
        of.distributions.append(wheel("cuda-bindings", bindings))
        fixes = f"{PYTHON} -m pip install 'cupy-cuda13x[cuda{extra}]==14.2.0'"
        assert one(of, "CU305").fix == [fixes]

    def test_the_owner_of_the_file_brings_it_anew(self):
        nccl = library("libnccl.so.2", "2.18.1", "nccl", provided_by="nvidia-nccl-cu12 2.18.1")
        of = used(nccl, load_faults=[fault("not found", "libfoo.so.1", nccl.path, "x")])
        fixes = f"{PYTHON} -m pip install --force-reinstall nvidia-nccl-cu12==2.18.1"
        assert one(of, "CU305", "error").fix == [fixes]

    def test_one_that_its_record_tells_hides_no_other(self):
        """Of the first CU404 speaks."""
        of = self.cupy()
        of.load_faults = of.load_faults[:2]
        of.file_faults = [
            FileFault("nvidia-cublas", f"{SITE}/nvidia/cu13/lib/libcublas.so.13", "missing",
                      Evidence("RECORD"))
        ]  # fmt: skip
        assert one(of, "CU305").title.startswith("libcufft.so.12")

    PARTS = ("cublas.so.13", "cufft.so.12", "curand.so.10", "cusolver.so.12", "cusparse.so.12")

    def cupy(self, *requires: str, finds: bool = True) -> Facts:
        """CuPy, and none of its libraries."""
        folder = f"{SITE}/cupy_backends/cuda/libs"
        cupy = Framework("cupy", "14.2.0", "13", variant="cuda", distribution="cupy-cuda13x")
        cupy.path, cupy.finds_wheels = f"{SITE}/cupy", finds
        faults = [
            fault("not found", f"lib{part}", f"{folder}/{part[:-6]}.so", f"lib{part}: no",
                  framework="cupy", means=FEATURE)
            for part in self.PARTS
        ]  # fmt: skip
        return facts(
            frameworks=[cupy],
            distributions=[wheel("cupy-cuda13x", "14.2.0", *requires)],
            load_faults=faults,
            resolutions=[
                Resolution(f.name, f.library, None, "none", searched=["/etc/ld.so.cache", own, own])
                for f in faults
                for own in ("/lib" if f.name < "libcus" else "/usr/lib",)
            ],
        )

    def test_libraries_with_one_fix_are_one_finding(self):
        of = self.cupy("[ctk]cuda-toolkit{cublas,cufft,curand,cusolver,cusparse}==13.*")
        found = one(of, "CU305", "warning")
        names = [f"lib{part}" for part in self.PARTS]
        assert found.title == f"5 libraries that cupy needs are not found: {', '.join(names)}"
        assert found.fix == [f"{PYTHON} -m pip install 'cupy-cuda13x[ctk]==14.2.0'"]
        assert found.predicts == "libcublas.so.13: no"
        assert [(e.file, e.value) for e in found.evidence] == [
            *((f.library, f"needs {f.name}") for f in of.load_faults),
            ("/etc/ld.so.cache", "has none of them"),
            ("/lib", "does not have libcublas.so.13, libcufft.so.12, libcurand.so.10"),
            ("/usr/lib", "does not have libcusolver.so.12, libcusparse.so.12"),
        ]

    def test_libraries_that_are_left_to_the_system_are_one_finding(self):
        found = one(self.cupy(finds=False), "CU305", "warning")
        assert found.fix[0].startswith(
            "cupy-cuda13x leaves libcublas.so.13, libcufft.so.12, libcurand.so.10, "
            "libcusolver.so.12, libcusparse.so.12 to the system: "
        )

    def test_another_fix_and_another_package_are_another_finding(self):
        fixes = [f.fix[0] for f in fired(self.cupy(), "CU305")]
        assert [m.rpartition(" ")[2] for m in fixes if "leaves" not in m] == [
            "nvidia-cublas", "nvidia-cufft", "nvidia-cusolver",
        ]  # fmt: skip
        assert len(fixes) == 4  # the other two SONAMEs do not tell their wheel
        of = self.cupy("[ctk]cuda-toolkit{cublas,cufft,curand,cusolver,cusparse}==13.*")
        of.load_faults[1].framework, of.load_faults[1].means = "torch", "import"
        of.distributions.append(wheel("torch", "2.8.0"))
        several, other = sorted(fired(of, "CU305"), key=lambda f: f.severity, reverse=True)
        assert (several.severity, several.title[:11]) == ("warning", "4 libraries")
        assert (other.severity, other.title[:14]) == ("error", "libcufft.so.12")

    def test_three_folders_are_named(self):
        of = self.cupy()
        of.load_faults, of.resolutions = of.load_faults[:1], of.resolutions[:1]
        of.resolutions[0].searched = ["/a", "", "/b", "/a", "/c", "/d"]
        shown = [e.file for e in one(of, "CU305").evidence if e.value == "does not have it"]
        assert shown == ["/a", "/b", "/c"]

    def test_one_library_that_two_files_need_is_one_finding(self):
        needs = [fault("not found", "libcufft.so.11", f"/{name}.so", self.TEXT) for name in "ab"]
        found = one(used(load_faults=needs), "CU305", "error")
        assert found.title == "libcufft.so.11, which a.so needs, is not found"

    def test_a_framework_s_own_file_is_the_framework(self):
        need = fault("not found", "libcufft.so.11", f"{SITE}/torch", self.TEXT)
        title = one(used(load_faults=[need]), "CU305").title
        assert title == "libcufft.so.11, which torch needs, is not found"

    def test_the_first_search_that_looked_anywhere_is_told(self):
        need = fault("not found", "libcufft.so.11", "/a.so", self.TEXT)
        looked = [
            Resolution("libcufft.so.11", "/a.so", "/x/libcufft.so.11", "cache", searched=["/0"]),
            Resolution("libcufft.so.11", "/a.so", None, "none"),
            Resolution("libcufft.so.11", "/a.so", None, "none", searched=["/1"]),
            Resolution("libcufft.so.11", "/b.so", None, "none", searched=["/2"]),
        ]
        evidence = one(used(load_faults=[need], resolutions=looked), "CU305").evidence
        assert [e.file for e in evidence if e.value == "does not have it"] == ["/1"]

    @pytest.mark.parametrize("name", ["libcudnn_ops.so.9", "libnvrtc-builtins.so.12.8"])
    def test_what_is_opened_by_soname_is_another_rules(self, name):
        assert fired(used(load_faults=[fault("not found", name, "/a.so", "x")]), "CU305") == []

    @pytest.mark.parametrize("name", ["libcuda.so.1", "libnvidia-ml.so.1"])
    def test_the_driver_is_cu101s(self, name):
        assert fired(used(load_faults=[fault("not found", name, "/a.so", "x")]), "CU305") == []

    def test_what_does_without_is_silent(self):
        """A part of which nothing is asked is not taken for a fault by libraries.py; of a package
        whose loading is not known, and of one that serves the CPU too, there is a note.
        """
        for means in (UNMODELLED, SPARE):
            problem = fault("not found", "libcublas.so.12", "/a", "x", framework="x", means=means)
            one(used(load_faults=[problem]), "CU305", "note")
        other = fault("not found", "libavutil.so.56", "/a", "x", framework="x", means=UNMODELLED)
        assert fired(used(load_faults=[other]), "CU305") == []

    def test_the_wheel_of_another_major_has_it_not(self):
        """onnxruntime-gpu for CUDA 13 beside a PyTorch for CUDA 12."""
        ort = Framework("onnxruntime", "1.31.1", "13.0", distribution="onnxruntime-gpu")
        ort.extra = "cuda,cudnn"
        text = "libcublasLt.so.13: cannot open shared object file"
        problem = fault("not found", "libcublasLt.so.13", "/a", text, means=FEATURE)
        problem.framework = "onnxruntime"
        of = used(load_faults=[problem])
        of.frameworks.append(ort)
        of.distributions = [*WHEELS, wheel("onnxruntime-gpu", "1.31.1")]
        assert one(of, "CU305", "warning").fix == [
            f"{PYTHON} -m pip install 'onnxruntime-gpu[cuda,cudnn]==1.31.1'"
        ]

    def test_what_a_program_can_do_before(self):
        say = "import torch before onnxruntime."
        problem = fault("not found", "libcublasLt.so.12", "/a", "x", means=FEATURE, rescue=say)
        assert one(used(load_faults=[problem]), "CU305", "note").fix == [say]

    def test_what_the_framework_says_then(self):
        text = "Unable to load cuDNN. Is it installed?"
        problem = fault("not found", "libcudnn.so.9", "/a", "x", means=USE, says=text)
        assert one(used(load_faults=[problem]), "CU305", "error").predicts == text

    @pytest.mark.parametrize(("means", "ends"), [(IMPORT, True), (USE, False), (FEATURE, False)])
    def test_whose_import_ends_with_it(self, means, ends):
        """One cause, one error: what is built on PyTorch is evidence."""
        problem = fault("not found", "libcusparseLt.so.0", "/a", self.TEXT, means=means)
        of = used(load_faults=[problem])
        kin = Framework("torchvision", "0.23.0", path=f"{SITE}/torchvision", module="torchvision")
        kin.blocked = "torch"
        of.frameworks.append(kin)
        found = one(of, "CU305")
        told = [(e.file, e.value) for e in found.evidence]
        assert ((kin.path, "import torchvision fails, too") in told) is ends
        kin.path = ""
        told = [(e.file, e.value) for e in one(of, "CU305").evidence]
        assert (("torchvision", "import torchvision fails, too") in told) is ends

    def test_torchvision_without_a_pytorch(self):
        problem = fault("not found", "libcudart.so.12", "/a.so", "x", framework="torchvision")
        kin = Framework("torchvision", "0.23.0", "12.8")
        of = facts(frameworks=[kin], load_faults=[problem], distributions=[WHEELS[1]])
        assert [f.rule for f in judge(of) if f.severity == "error"] == ["CU305"]


def test_nobody_s_library_has_no_fix():
    lost = fault("not found", "libcublas.so.12", "/x/a.so", "gone", framework="net")
    of = facts(load_faults=[lost], frameworks=[Framework("net", "1.0")], distributions=[])
    assert library_fix(of, lost) == []


class TestMends:
    def test_the_pin_that_counts(self):
        """Exact, of no extra, and of a wheel that is there."""
        nccl = wheel("nvidia-nccl-cu12", "2.0")
        asks = [
            wheel("a", "1", "[x]nvidia-nccl-cu12==1.0"),
            wheel("b", "1", "nvidia-nccl-cu12>=2"),
            wheel("c", "1", "nvidia-nccl-cu13==3.0"),
            wheel("d", "1", "nvidia-nccl-cu12==2.5.*"),
            wheel("e", "1", "nvidia-nccl-cu12==2.6"),
        ]
        assert pinned(facts(distributions=[*asks, nccl]), "nccl") == (nccl, "2.5")
        assert pinned(facts(distributions=asks), "nccl") is None

    @pytest.mark.parametrize("major", ["11", "12"])
    def test_a_wheel_that_nothing_pins(self, major):
        both = [wheel(f"nvidia-cublas-cu{n}", f"{n}.1") for n in ("11", "12")]
        of = facts(distributions=[wheel("nvidia-nccl-cu12", "2.0"), *both])
        fixes = pip(f"nvidia-cublas-cu{major}=={major}.1")
        assert back_to_pin(of, f"libcublas.so.{major}") == [fixes]

    @pytest.mark.parametrize(
        ("kind", "soname", "fixes"),
        [
            ("conda", "libnccl.so.2", [f"conda install -p {PREFIX} nccl"]),
            ("conda", "libfoo.so.2", []),
            ("venv", "libnccl.so.2", []),
        ],
    )
    def test_where_there_is_no_wheel(self, kind, soname, fixes):
        env = environment(kind, "conda" if kind == "conda" else "pip")
        assert back_to_pin(facts(environment=env, distributions=[]), soname) == fixes

    def test_the_owners_of_the_file_before_a_wheel_of_the_name(self):
        nccl = library("libnccl.so.2", "2.18.1", "nccl", provided_by="net 1.0")
        nccl.real_path = "/store/libnccl.so.2"
        of = facts(
            libraries=[nccl], distributions=[wheel("nvidia-nccl-cu12", "2"), wheel("net", "1.0")]
        )
        for path in (nccl.path, nccl.real_path):
            assert back_to_pin(of, "libnccl.so.2", path) == [pip("net==1.0")]
        assert back_to_pin(of, "libnccl.so.2", "/x") == [pip("nvidia-nccl-cu12==2")]

    def test_a_provider_that_nothing_fixes(self):
        """Then whoever asks is brought anew."""
        alien = library("libalien.so.1", "1", "", path="/opt/libalien.so.1")
        ours = library("libnccl.so.2", "2.0", "nccl", provided_by="nvidia-nccl-cu12 2.0")
        lost = fault("symbol", "alien_new", ours.path, "x", provider=alien.path)
        of = facts(libraries=[ours, alien], distributions=[wheel("nvidia-nccl-cu12", "2.0")])
        of.load_faults = [lost]
        assert symbol_fix(of, lost, alien) == [pip("nvidia-nccl-cu12==2.0")]

    def test_condas_framework_has_no_extra(self):
        net = Framework("net", "1.0", "12.8", distribution="net", extra="gpu")
        lost = fault("not found", "libcublas.so.12", "/a.so", "x", framework="net")
        of = facts(
            environment=environment("conda", "mamba"),
            frameworks=[net],
            distributions=[wheel("net", "1.0", installer="conda")],
        )
        assert library_fix(of, lost) == [f"mamba install -p {PREFIX} libcublas"]

    @pytest.mark.parametrize(
        ("name", "version", "index"),
        [
            ("torchvision", "0.23.0+cu128", "https://download.pytorch.org/whl/cu128"),
            ("torchvision", "0.23.0", None),
            ("net", "1.0+cu128", None),
        ],
    )
    def test_the_index_of_a_build_that_lost_a_library(self, name, version, index):
        file = f"{SITE}/{name}/_C.so"
        lost = fault("not found", "libother.so.1", file, "x", framework=name)
        net = Framework(name, version, "12.8", path=f"{SITE}/{name}", distribution=name)
        of = facts(frameworks=[net], distributions=[wheel(name, version)])
        expected = f"{PYTHON} -m pip install --force-reinstall {name}=={version}"
        assert library_fix(of, lost) == [expected + (f" --index-url {index}" if index else "")]


class TestBuiltins:
    @pytest.mark.parametrize("stated", [Evidence("METADATA", 3, "12.8.93"), None])
    def test_missing(self, stated):
        nvrtc = library("libnvrtc.so.12", "12.8.93", "nvrtc", version_evidence=stated)
        gone = Resolution("libnvrtc-builtins.so.12.8", nvrtc.path, None, "none", how="dlopen")
        driver = Resolution("libcuda.so.1", nvrtc.path, None, "none", how="dlopen")
        name = "libnvrtc-builtins.so.12.4"
        there = Resolution(name, "/x/libnvrtc.so.12", f"/x/{name}", "runpath", how="dlopen")
        found = one(used(nvrtc, resolutions=[driver, there, gone]), "CU306", "error")
        assert found.predicts == "nvrtc: error: failed to open libnvrtc-builtins.so.12.8."
        assert found.fix == [pip("nvidia-cuda-nvrtc-cu12==12.8.93")]
        assert found.evidence == [
            Evidence(nvrtc.path, None, "opens libnvrtc-builtins.so.12.8"),
            stated or Evidence(nvrtc.path, None, "12.8.93"),
        ]

    def test_the_first_that_loads_it_is_named(self):
        nvrtc = library("libnvrtc.so.12", "12.8.93", "nvrtc")
        gone = Resolution("libnvrtc-builtins.so.12.8", nvrtc.path, None, "none", how="dlopen")
        of = used(nvrtc, resolutions=[gone])
        of.frameworks.append(Framework("cupy", "13.6.0", "12.8", loads=[nvrtc.path]))
        assert one(of, "CU306", "error").subject == "torch"

    def test_an_nvrtc_that_is_not_known(self):
        gone = Resolution("libnvrtc-builtins.so.12.8", "/x/nvrtc.so", None, "none", how="dlopen")
        of = used(resolutions=[gone])
        found = one(of, "CU306", "error")
        assert found.title == "nvrtc has no libnvrtc-builtins.so.12.8"
        assert found.evidence == [Evidence("/x/nvrtc.so", None, "opens libnvrtc-builtins.so.12.8")]
        gone.optional = True
        assert fired(of, "CU306") == []
        gone.optional, gone.how = False, "needed"
        assert fired(of, "CU306") == []

    def test_there(self):
        nvrtc = library("libnvrtc.so.12", "12.8.93", "nvrtc")
        there = Resolution(
            "libnvrtc-builtins.so.12.8",
            nvrtc.path,
            "/x/libnvrtc-builtins.so.12.8",
            "runpath",
            how="dlopen",
        )
        assert fired(used(nvrtc, resolutions=[there]), "CU306") == []
