"""CU401, CU403, CU405, CU406 and CU408: for which CUDA packages are, and where they lie."""

import pytest
from facts import (
    PREFIX,
    PYTHON,
    SITE,
    driver,
    environment,
    facts,
    fault,
    fired,
    gpu,
    library,
    one,
    torch,
    wheel,
)

from cudriver.stack.model import Driver, Evidence, Framework
from cudriver.stack.rules import fix, judge

LIB64 = f"{PREFIX}/lib64/python3.11/site-packages"


class TestCpuBuild:
    CPU = torch("2.8.0+cpu", None, archs=[], cudnn=None)

    def test_on_a_machine_with_a_gpu(self):
        found = one(facts(frameworks=[self.CPU]), "CU401", "error")
        assert found.predicts == "torch.cuda.is_available() is False"
        assert found.evidence[0].file == f"{SITE}/torch/version.py"
        assert found.fix[0].startswith(f"{PYTHON} -m pip install --force-reinstall torch==2.8.0")
        assert "--index-url https://download.pytorch.org/whl/cu129" in found.fix[0]

    def test_the_index_suits_the_driver(self):
        found = one(
            facts(frameworks=[self.CPU], driver=driver("535.104.05", "12.2", devices=[gpu()])),
            "CU401",
        )
        assert found.fix[0].endswith("/cu126")

    def test_its_companions_come_along(self):
        found = one(
            facts(
                frameworks=[self.CPU],
                distributions=[wheel("torch", "2.8.0+cpu"), wheel("torchvision", "0.23.0")],
            ),
            "CU401",
        )
        assert " torchvision " in found.fix[0]

    def test_conda(self):
        dist = wheel("torch", "2.7.1", installer="conda")
        dist.build = "cpu_mkl_py311"
        found = one(
            facts(
                environment=environment("conda", "mamba"),
                frameworks=[self.CPU],
                distributions=[dist],
            ),
            "CU401",
        )
        assert found.fix == [f"mamba install -p {PREFIX} pytorch-gpu"]
        assert "cpu_mkl" in found.evidence[1].value

    def test_uv(self):
        of = facts(
            environment=environment("uv", "uv"),
            frameworks=[self.CPU],
            distributions=[wheel("torch", "2.8.0", installer="uv")],
        )
        assert (
            one(of, "CU401")
            .fix[0]
            .startswith(f"uv pip install --python {PYTHON} --reinstall-package torch torch==2.8.0")
        )

    def test_a_machine_without_a_gpu_is_its_place(self):
        one(facts(frameworks=[self.CPU], driver=Driver()), "CU401", "note")

    def test_a_cuda_build(self):
        assert fired(facts(), "CU401") == []
        other = Framework("cupy", "13.6.0", None, variant="cpu")
        assert fired(facts(frameworks=[other]), "CU401") == []

    def test_the_distribution_by_the_framework_s_own_name(self):
        bare = torch("2.8.0+cpu", None, distribution=None, cuda_evidence=None)
        of = facts(frameworks=[bare], distributions=[wheel("torch", "2.8.0+cpu")])
        assert [e.value for e in one(of, "CU401").evidence] == ["torch 2.8.0+cpu"]
        of.distributions, bare.cuda_evidence = [], Evidence("version.py")
        assert one(of, "CU401").evidence == [Evidence("version.py")]


class TestMajors:
    @pytest.mark.parametrize(
        ("theirs", "ours"), [("12", "13.0"), ("13", "12.8"), ("12", "12.8"), ("13", "13.0")]
    )
    def test_an_extension_for_another_major(self, theirs, ours):
        problem = fault(
            "not found",
            f"libcudart.so.{theirs}",
            f"{SITE}/vllm/_C.abi3.so",
            f"libcudart.so.{theirs}: cannot open shared object file: No such file or directory",
            framework="vllm",
        )
        of = facts(
            frameworks=[torch("2.9.0", ours), Framework("vllm", "0.12.0", after=["torch"])],
            load_faults=[problem],
            distributions=[wheel("torch", "2.9.0"), wheel("vllm", "0.12.0")],
        )
        found = one(of, "CU305" if ours.startswith(theirs) else "CU403", "error")
        assert found.predicts == problem.message
        if found.rule == "CU403":
            assert f"/whl/cu{theirs}" in found.fix[0]
            assert fired(of, "CU305") == []
            of.frameworks[0].cuda_evidence = None
            assert len(one(of, "CU403").evidence) == len(found.evidence) - 1
            of.distributions.pop()
            assert one(of, "CU403").fix == found.fix[:1]

    @pytest.mark.parametrize("name", ["libnccl.so.2", "libcusparse.so.12", "libcublas.so"])
    def test_a_number_that_is_not_cuda_s_tells_no_major(self, name):
        problem = fault("not found", name, f"{SITE}/vllm/_C.abi3.so", name, framework="vllm")
        of = facts(
            frameworks=[torch(cuda="13.0"), Framework("vllm", "0.12.0", after=["torch"])],
            load_faults=[problem],
        )
        assert fired(of, "CU403") == []

    def test_two_runtimes_in_one_process(self):
        a, b = (
            library("libcudart.so.12", "12.8.90", "cudart", needed_by=["/x/_C.so"]),
            library("libcudart.so.13", "13.0.96", "cudart", needed_by=["/x/libtorch_cuda.so"]),
        )
        both = Framework("vllm", "0.12.0", loads=[a.path, b.path])
        of = facts(libraries=[a, b], frameworks=[both, torch()])
        of.distributions.append(wheel("vllm", "0.12.0"))
        found = one(of, "CU403", "warning")
        assert found.title.startswith("vllm loads libcudart.so.12 and libcudart.so.13 into one")
        fixes = f"{PYTHON} -m pip install --force-reinstall vllm  # a build for CUDA 12"
        assert found.fix == [fixes]
        of.distributions.append(wheel("vllm-nightly", "0.13"))
        both.distribution = "vllm-nightly"
        assert one(of, "CU403").fix == [fixes.replace("vllm ", "vllm-nightly ")]
        a.needed_by = []  # of a wheel that lies there: PyTorch preloads it, and nobody asks for it
        assert fired(of, "CU403") == []

    def test_wheels_of_another_major_that_are_used(self):
        """libcusparse.so.12 is of CUDA 12 and of CUDA 13."""
        ours = library("libcublas.so.13", "13.0.0.19", "cublas", cuda="13.0")
        ours.provided_by = "nvidia-cublas 13.0.0.19"
        left = library("libcusparse.so.12", "12.5.10.65", "cusparse", cuda="12.9.1")
        left.provided_by = "nvidia-cusparse-cu12 12.5.10.65"
        of = facts(
            libraries=[ours, left],
            frameworks=[torch("2.13.0+cu130", "13.0", loads=[ours.path, left.path])],
            distributions=[
                wheel("torch", "2.13.0", "nvidia-cublas==13.0.0.19"),
                wheel("nvidia-cublas", "13.0.0.19"),
                wheel("nvidia-cusparse-cu12", "12.5.10.65"),
            ],
        )
        found = one(of, "CU403", "warning")
        assert found.fix == [f"{PYTHON} -m pip uninstall -y nvidia-cusparse-cu12"]
        other = Framework("jax", "0.7.2", "13.0", variant="cuda", loads=[left.path])
        of.frameworks.append(other)
        assert fired(of, "CU403") == [found], "one wheel is told of once"
        of.frameworks.pop()
        of.distributions[0].requires.append(wheel("x", "1", "nvidia-cusparse-cu12>=12").requires[0])
        assert fired(of, "CU403") == []

    def test_requirements_of_both(self):
        of = facts(distributions=[wheel("oops", "1", "nvidia-nccl-cu12", "nvidia-nccl-cu13")])
        one(of, "CU403", "warning")

    def test_unused_wheels_of_another_major(self):
        of = facts(
            distributions=[
                wheel("torch", "2.8.0", "nvidia-nccl-cu12==2.27.3"),
                wheel("nvidia-nccl-cu12", "2.27.3"),
                wheel("nvidia-cublas-cu11", "11.11.3.6"),
                wheel("nvidia-cudnn-cu11", "8.7.0.84"),
            ]
        )
        assert [f for f in judge(of) if f.severity != "note"] == []


class TestCompanions:
    def kin(self, name, version, cuda, variant="cuda"):
        evidence = Evidence(f"{SITE}/{name}/version.py", 1, f"__version__ = '{version}'")
        return Framework(name, version, cuda, variant=variant, cuda_evidence=evidence)

    def test_another_major(self):
        of = facts(
            frameworks=[torch(), self.kin("torchvision", "0.20.0+cu118", "11.8")],
            distributions=[wheel("torchvision", "0.20.0+cu118")],
        )
        found = one(of, "CU405", "error")
        assert (
            "PyTorch has CUDA Version=12.8 and torchvision has CUDA Version=11.8" in found.predicts
        )
        # 0.20 goes with torch 2.5 and is not on that index.
        assert found.fix == [
            f"{PYTHON} -m pip install torch==2.8.0 'torchvision==0.23.*' "
            "--index-url https://download.pytorch.org/whl/cu128"
        ]
        assert found.evidence[1].file == f"{SITE}/torchvision/version.py"

    def test_the_same_release_keeps_its_version(self):
        of = facts(
            frameworks=[torch(), self.kin("torchvision", "0.23.0+cu118", "11.8")],
            distributions=[wheel("torchvision", "0.23.0+cu118")],
        )
        assert one(of, "CU405", "error").fix == [
            f"{PYTHON} -m pip install --force-reinstall --no-deps torchvision==0.23.0 "
            "--index-url https://download.pytorch.org/whl/cu128"
        ]

    def test_condas(self):
        of = facts(
            environment=environment("conda", "conda"),
            frameworks=[torch(), self.kin("torchvision", "0.23.0", "11.8")],
            distributions=[wheel("torchvision", "0.23.0", installer="conda")],
        )
        (fixes,) = one(of, "CU405").fix
        assert fixes == f"conda install -p {PREFIX} --force-reinstall torchvision"

    def test_another_minor(self):
        one(
            facts(frameworks=[torch(), self.kin("torchvision", "0.23.0+cu126", "12.6")]),
            "CU405",
            "note",
        )
        one(
            facts(frameworks=[torch(), self.kin("torchaudio", "2.8.0+cu126", "12.6")]),
            "CU405",
            "error",
        )

    @pytest.mark.parametrize(
        ("means", "told"), [("import", False), ("use", True), ("feature", True)]
    )
    def test_versions_are_compared_where_the_import_gets_so_far(self, means, told):
        of = facts(frameworks=[torch(), self.kin("torchaudio", "2.8.0+cu126", "12.6")])
        of.load_faults = [fault("symbol", "f", "/a.so", "x", framework="torchaudio", means=means)]
        assert bool(fired(of, "CU405")) is told
        of.load_faults[0].framework = "torchvision"
        assert fired(of, "CU405")

    def test_a_cpu_build_beside_a_cuda_one_is_imported(self):
        of = facts(frameworks=[torch(), self.kin("torchvision", "0.23.0+cpu", None, "cpu")])
        found = one(of, "CU405", "warning")
        assert "'torchvision::nms'" in found.predicts
        of = facts(frameworks=[torch(), self.kin("torchaudio", "2.8.0+cpu", None, "cpu")])
        assert one(of, "CU405", "warning").predicts is None

    def test_torchaudio_compares_from_0_13_on(self):
        old = self.kin("torchaudio", "0.12.1+cu113", "11.3")
        one(facts(frameworks=[torch("1.12.1", "11.6"), old]), "CU405", "note")
        one(
            facts(
                frameworks=[torch("1.13.1", "11.6"), self.kin("torchaudio", "0.13.1+cu117", "11.7")]
            ),
            "CU405",
            "error",
        )

    @pytest.mark.parametrize("torch_cuda", ["12.1", None])
    def test_an_old_torchvision_goes_on_without_its_operators(self, torch_cuda):
        """Before 0.16 the import does not need them, and without them compares nothing."""
        kin = self.kin("torchvision", "0.15.2+cu117", "11.7")
        of = facts(frameworks=[torch("2.1.2", torch_cuda), kin])
        of.load_faults = [
            fault(
                "not found",
                "libcudart.so.11.0",
                f"{SITE}/torchvision/_C.so",
                "libcudart.so.11.0: cannot open shared object file",
                framework="torchvision",
                means="feature",
                says="Couldn't load custom C++ ops.",
            )
        ]
        assert one(of, "CU405", "warning").predicts == "Couldn't load custom C++ ops."
        of.load_faults[0].library = f"{SITE}/torchvision/image.so"  # which compares nothing
        assert one(of, "CU405").severity == ("error" if torch_cuda else "warning")

    @pytest.mark.parametrize("library", ["_C.so", "image.so"])
    @pytest.mark.parametrize(
        ("kind", "name"),
        [
            ("not found", "libcudart.so.11.0"),
            ("not found", "libcufft.so.10"),
            ("symbol", "_ZN2at1f"),
        ],
    )
    def test_one_cause_is_one_finding(self, library, kind, name):
        """That the libraries of another build do not load is not a finding of its own."""
        kin = self.kin("torchvision", "0.15.2+cu117", "11.7")
        kin.after = ["torch"]
        of = facts(frameworks=[torch("2.1.2", "12.1"), kin])
        problem = fault(
            kind, name, f"{SITE}/torchvision/{library}", "x", framework="torchvision",
            means="feature",
        )  # fmt: skip
        of.load_faults = [problem]
        of.distributions = [wheel("torchvision", "0.15.2+cu117")]
        assert [f.rule for f in judge(of)] == ["CU405"]
        kin.cuda, kin.version = "12.1", "0.15.2+cu121"
        assert "CU405" not in {f.rule for f in judge(of)}
        assert [f.severity for f in judge(of)] == ["warning"]

    @pytest.mark.parametrize(
        ("cuda", "variant"), [("12.8", "cuda"), ("12.8.1", "cuda"), (None, "unknown")]
    )
    def test_equal_or_unknown(self, cuda, variant):
        kin = self.kin("torchvision", "0.23.0", cuda, variant)
        assert fired(facts(frameworks=[torch(), kin]), "CU405") == []
        kin = self.kin("torchaudio", "2.8.0", cuda, variant)
        assert fired(facts(frameworks=[torch(), kin]), "CU405") == []

    @pytest.mark.parametrize(
        ("version", "cuda", "index"),
        [
            ("2.8.0", "12.8", None),  # PyPI's own
            ("2.8.0", "12.6", "cu126"),
            ("2.8.0", "12.9", "cu129"),
            ("2.8.0+cu128", "12.8", "cu128"),
            ("2.4.1", "12.1", None),
            ("2.4.1", "12.4", "cu124"),
            ("2.8.0", None, "cpu"),
        ],
    )
    def test_the_index_that_pytorch_came_from(self, version, cuda, index):
        of = facts(frameworks=[torch(version, cuda)], distributions=[wheel("torch", version)])
        assert fix.index_of(of) == (index and f"https://download.pytorch.org/whl/{index}")


class TestTensorRT:
    def of(self, cuda, torch_cuda="12.8", version="10.13.3.9", **more):
        name = f"tensorrt-cu{cuda}"
        trt = Framework(
            "tensorrt",
            version,
            cuda,
            variant="cuda",
            distribution=name,
            cuda_evidence=Evidence(f"{SITE}/{name}/METADATA", 3, name),
        )
        return facts(
            frameworks=[torch(cuda=torch_cuda), trt],
            distributions=[wheel(name, version)],
            **more,
        )

    @pytest.mark.parametrize("offers", [None, "13.0"])
    def test_another_major_than_pytorch(self, offers):
        """What the driver offers serves both, so that nothing fails."""
        of = self.of("13", driver=driver("580.95.05", offers) if offers else Driver())
        found = one(of, "CU406", "note")
        assert found.predicts is None
        assert found.fix == [
            f"{PYTHON} -m pip uninstall -y tensorrt-cu13",
            f"{PYTHON} -m pip install tensorrt-cu12==10.13.3.9",
        ]

    def test_newer_than_the_driver(self):
        made = driver("535.104.05", "12.2")
        found = one(self.of("13", driver=made), "CU406", "error")
        assert found.predicts == "CUDA initialization failure with error: 35"
        assert found.evidence[-1] == Evidence(made.path, None, "535.104.05")
        assert found.fix == [
            f"{PYTHON} -m pip uninstall -y tensorrt-cu13",
            f"{PYTHON} -m pip install tensorrt-cu12==10.13.3.9",
        ]

    def test_a_release_for_the_driver_that_no_framework_asks_for(self):
        of = self.of("13", None, driver=driver("535.104.05", "12.2"))
        of.frameworks[0].variant = "cpu"
        assert one(of, "CU406", "error").fix[-1].endswith(" tensorrt-cu12==10.13.3.9")

    def test_a_tensorrt_of_no_distribution(self):
        of = self.of("13")
        of.frameworks[1].distribution = None
        of.distributions = [wheel("tensorrt", "10.13.3.9")]
        assert one(of, "CU406", "note").fix[0] == f"{PYTHON} -m pip uninstall -y tensorrt"

    def test_the_first_framework_of_another_major_is_told(self):
        of = self.of("13")
        of.frameworks.insert(0, torch(cuda=None, variant="cuda"))
        of.frameworks.append(Framework("onnxruntime", "1.22.0", "12.8"))
        assert one(of, "CU406", "note").title.endswith("torch for CUDA 12")

    @pytest.mark.parametrize("torch_cuda", [None, "11.8"])
    def test_the_driver_is_older_than_every_build_of_this_release(self, torch_cuda):
        """The last TensorRT for CUDA 11 is 10.13.0: a newer driver, unless PyTorch needs CUDA 11,
        too.
        """
        of = self.of("12", torch_cuda, "10.14.1.48", driver=driver("470.82.01", "11.4"))
        if torch_cuda is None:
            of.frameworks[0].variant = "cpu"
        fixes = one(of, "CU406", "error").fix
        if torch_cuda:
            assert fixes[1:] == [f"{PYTHON} -m pip install tensorrt-cu11==10.13.0.35"]
        else:
            assert fixes == [fix.driver_package(of.driver, "525.60.13")]

    # What `pip index versions` lists of tensorrt-cu11, -cu12 and -cu13.
    @pytest.mark.parametrize(
        ("version", "cuda", "torch_cuda", "release"),
        [
            ("10.12.0.36", "12", "11.8", "tensorrt-cu11==10.12.0.36"),
            ("10.14.1.48", "12", "11.8", "tensorrt-cu11==10.13.0.35"),
            ("10.9.0.34", "12", "13.0", "tensorrt-cu13==10.13.3.9.post1"),
            ("10.13.3.9", "12", "13.0", "tensorrt-cu13==10.13.3.9.post1"),
            ("11.4.0.106", "13", "12.8", "tensorrt-cu12==11.4.0.106"),
            ("10.0.1", "11", "10.2", "--upgrade torch"),
        ],
    )
    def test_the_release_exists(self, version, cuda, torch_cuda, release):
        found = one(self.of(cuda, torch_cuda, version), "CU406", "note")
        assert found.fix[-1] == f"{PYTHON} -m pip install {release}"

    def test_a_framework_of_no_distribution(self):
        of = self.of("11", "10.2", "10.0.1")
        of.frameworks[0].distribution = None
        assert one(of, "CU406", "note").fix == [f"{PYTHON} -m pip install --upgrade torch"]

    def test_all_of_it_is_uninstalled_first(self):
        """The libraries are in a distribution of their own, which the first leaves behind."""
        of = self.of("13")
        names = ("tensorrt-cu13", "tensorrt", "tensorrt-cu13-libs", "tensorrt-cu13-bindings")
        of.distributions += [wheel(name, "10.13.3.9") for name in names[1:]]
        of.distributions.append(wheel("tensorrt-llm", "1.0"))
        assert one(of, "CU406").fix[:-1] == [
            f"{PYTHON} -m pip uninstall -y {name}" for name in names
        ]

    def test_a_driver_that_is_assumed_has_no_file(self):
        made = driver("535.104.05", "12.2", path=None)
        found = one(self.of("13", driver=made), "CU406", "error")
        assert found.evidence[-1] == Evidence("driver", None, "535.104.05")

    def test_older_than_the_second_framework_s(self):
        of = self.of("12")
        of.frameworks.append(Framework("onnxruntime", "1.31.1", "13.0", variant="cuda"))
        found = one(of, "CU406", "note")
        assert found.title == "TensorRT 10.13.3.9 is for CUDA 12, onnxruntime for CUDA 13"
        assert found.predicts is None

    def test_fits(self):
        assert fired(self.of("12"), "CU406") == []


class TestSplit:
    def of(self, *faults):
        return facts(
            distributions=[
                wheel("torch", "2.8.0", "nvidia-nccl-cu12==2.27.3", location=LIB64),
                wheel("nvidia-nccl-cu12", "2.27.3"),
            ],
            load_faults=list(faults),
        )

    def test_split(self):
        found = one(self.of(), "CU408", "warning")
        assert LIB64 in found.title
        assert [e.file for e in found.evidence] == [
            f"{LIB64}/torch-2.8.0.dist-info/METADATA",
            f"{SITE}/nvidia_nccl_cu12-2.27.3.dist-info/METADATA",
        ]

    def test_split_and_broken(self):
        text = "libnccl.so.2: cannot open shared object file: No such file or directory"
        assert (
            one(self.of(fault("not found", "libnccl.so.2", "/a", text)), "CU408", "error").predicts
            == text
        )

    def test_the_first_that_lies_elsewhere_is_shown(self):
        of = self.of()
        of.distributions[0].requires += wheel("x", "1", "nvidia-cudnn-cu12==9.1").requires
        of.distributions.append(wheel("nvidia-cudnn-cu12", "9.1", location="/other"))
        found = one(of, "CU408", "warning")
        assert found.evidence[1].file.startswith(f"{SITE}/nvidia_nccl_cu12")
        assert found.title.endswith(f"are in {SITE}")

    def test_the_first_that_is_missing_is_told(self):
        faults = [fault("not found", f"lib{name}.so.2", "/a", name) for name in "ab"]
        faults.insert(0, fault("symbol", "f", "/a", "other"))
        of = self.of(*faults)
        assert one(of, "CU408", "error").predicts == "a"
        for each in faults:
            each.means = "feature"
        assert one(of, "CU408", "warning").predicts is None
        for each in faults:
            each.means, each.framework = "import", "jax"
        assert one(of, "CU408", "warning").predicts is None

    def test_a_venv_of_its_own(self):
        fixes = "python3 -m venv torch-env && torch-env/bin/python -m pip install torch==2.8.0"
        of = self.of()
        index = "--index-url https://download.pytorch.org/whl/cu128"
        assert one(of, "CU408").fix == [f"{fixes} {index}"]
        of.frameworks = [torch("2.8.0", None)]
        assert one(of, "CU408").fix == [fixes]

    @pytest.mark.parametrize(("kind", "installer"), [("egg", "pip"), ("wheel", "conda")])
    def test_a_pytorch_that_pip_did_not_bring_as_a_wheel(self, kind, installer):
        of = self.of()
        of.distributions[0].kind, of.distributions[0].installer = kind, installer
        assert fired(of, "CU408") == []

    def test_together(self):
        pair = [wheel("torch", "2.8.0", "nvidia-nccl-cu12"), wheel("nvidia-nccl-cu12", "2")]
        assert fired(facts(distributions=pair), "CU408") == []

    def test_what_is_not_nvidia_s_may_lie_elsewhere(self):
        pair = [wheel("torch", "2.8.0", "triton==3.4.0", location=LIB64), wheel("triton", "3.4.0")]
        assert fired(facts(distributions=pair), "CU408") == []

    @pytest.mark.parametrize("name", ["jax-cuda12-plugin", "vllm"])
    def test_what_another_requires_may_lie_elsewhere(self, name):
        """Only PyTorch's own wheels are looked for beside it."""
        of = self.of()
        of.distributions[0].requires = []
        of.distributions.append(wheel(name, "0.10", "nvidia-nccl-cu12==2.27.3"))
        assert fired(of, "CU408") == []
