"""CU401 to CU408 but CU404, and what becomes of a rule that fails."""

import itertools

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

from cudriver.stack.model import Driver, Evidence, FileFault, Framework
from cudriver.stack.rules import cu4_pins, fix, judge, registry, verdict

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


class TestPins:
    def of(self, installed, pin="==9.10.2.21", name="nvidia-cudnn-cu12"):
        parts = [wheel("torch", "2.8.0", f"{name}{pin}")]
        if installed:
            parts.append(wheel(name, installed))
        return facts(distributions=parts)

    @pytest.mark.parametrize(
        ("name", "pin", "installed", "severity"),
        [
            ("nvidia-cublas-cu12", "==12.8.4.1", "12.1.3.1", "warning"),
            ("nvidia-cublas-cu12", "==12.8.4.1", "12.8.3.14", "note"),
            ("nvidia-cudnn-cu12", "==9.10.2.21", "9.10.3.1", "note"),
            ("nvidia-cudnn-cu12", "==9.10.2.21", "9.1.0.70", "warning"),
            ("nvidia-cudnn-cu12", "==9.10.2.21", "8.9.7.29", "warning"),
            ("nvidia-nvjitlink-cu12", "==12.8.93", "12.9.86", "note"),
            ("nvidia-nvjitlink-cu12", "==12.8.93", "12.1.105", "warning"),
        ],
    )
    def test_gravity(self, name, pin, installed, severity):
        found = one(self.of(installed, pin, name), "CU402", severity)
        assert f"{name}{pin} (installed: {installed})" in found.title
        assert [e.line for e in found.evidence] == [5, 3]
        assert found.fix == [f"{PYTHON} -m pip install {name}{pin}"]

    def test_not_installed(self):
        assert "installed: none" in one(self.of(None), "CU402", "warning").title

    def test_all_in_one_command(self):
        of = facts(
            distributions=[
                wheel("torch", "2.8.0", "nvidia-cublas-cu12==12.8.4.1", "nvidia-nccl-cu12==2.27.3"),
                wheel("nvidia-cublas-cu12", "12.1.3.1"),
                wheel("nvidia-nccl-cu12", "2.18.1"),
            ]
        )
        assert one(of, "CU402").fix == [
            f"{PYTHON} -m pip install nvidia-cublas-cu12==12.8.4.1 nvidia-nccl-cu12==2.27.3"
        ]

    def test_three_are_shown(self):
        names = [f"nvidia-{name}-cu12==1.0" for name in ("a", "b", "c", "d", "e")]
        title = one(facts(distributions=[wheel("torch", "2.8.0", *names)]), "CU402").title
        assert "nvidia-c-cu12==1.0 (installed: none) and 2 more" in title
        title = one(facts(distributions=[wheel("torch", "2.8.0", *names[:3])]), "CU402").title
        assert title.endswith("nvidia-c-cu12==1.0 (installed: none)")

    @pytest.mark.parametrize("kind", ["conda", "wheel"])
    def test_a_library_under_condas_name(self, kind):
        """conda's nccl serves a wheel of PyTorch; what pip knows as nccl is another thing."""
        other = wheel("nccl", "2.27.3.1")
        other.kind = kind
        of = facts(
            environment=environment("conda", "conda"),
            distributions=[wheel("torch", "2.8.0", "nvidia-nccl-cu12==2.27.3"), other],
        )
        assert bool(fired(of, "CU402")) is (kind == "wheel")

    def test_an_extra_with_a_specifier_that_is_none(self):
        """What cannot be compared is nobody's fault."""
        of = facts(
            distributions=[
                wheel("tensorflow", "2.21.0", "[and-cuda]nvidia-cudnn-cu12>=x"),
                wheel("nvidia-cudnn-cu12", "9.1"),
            ]
        )
        assert fired(of, "CU402") == []

    def test_through_the_extras_of_cuda_toolkit(self):
        of = facts(
            distributions=[
                wheel("torch", "2.11.0", "cuda-toolkit{cublas}==13.0.2"),
                wheel(
                    "cuda-toolkit",
                    "13.0.2",
                    "[cublas]nvidia-cublas==13.1.0.3.*",
                    "[cufft]nvidia-cufft==12.0.0.61.*",
                ),
                wheel("nvidia-cublas", "13.0.0.19"),
                wheel("nvidia-cufft", "12.9.0.1"),
            ]
        )
        found = one(of, "CU402", "warning")
        assert found.title.startswith(
            "torch requires nvidia-cublas==13.1.0.3.* (installed: 13.0.0.19)"
        )
        assert "cufft" not in found.title

    JAX = ("[cuda12]jax-cuda12-plugin{with-cuda}==0.10.2",)
    PLUGIN = ("[with-cuda]nvidia-cudnn-cu12<10.0,>=9.8", "[with-cuda]nvidia-nccl-cu12>=2.18")

    def test_through_an_extra_that_must_have_been_asked_for(self):
        """jax[cuda12]: nothing but the plugin tells that it was."""
        of = facts(
            distributions=[
                wheel("jax", "0.10.2", *self.JAX),
                wheel("jax-cuda12-plugin", "0.10.2", *self.PLUGIN),
                wheel("nvidia-cudnn-cu12", "9.1.0.70"),
                wheel("nvidia-nccl-cu12", "2.27.3"),
            ]
        )
        found = one(of, "CU402", "warning")
        assert found.title == ("jax requires nvidia-cudnn-cu12<10.0,>=9.8 (installed: 9.1.0.70)")
        assert found.subject == "jax"

    def test_a_plugin_of_another_release(self):
        plugin = wheel("jax-cuda12-plugin", "0.7.2", "jax-cuda12-pjrt==0.7.2")
        pjrt = wheel("jax-cuda12-pjrt", "0.10.2")
        of = facts(distributions=[wheel("jax", "0.10.2", *self.JAX), plugin, pjrt])
        found = one(of, "CU402", "warning")
        assert found.fix == [f"{PYTHON} -m pip install jax-cuda12-plugin==0.10.2"]

    def test_a_plugin_of_another_patch_level_is_passed_over_too(self):
        plugin = wheel("jax-cuda12-plugin", "0.10.1", "jax-cuda12-pjrt==0.10.1")
        pjrt = wheel("jax-cuda12-pjrt", "0.10.1")
        of = facts(distributions=[wheel("jax", "0.10.2", *self.JAX), plugin, pjrt])
        assert one(of, "CU402", "warning").title.startswith(
            "jax requires jax-cuda12-plugin==0.10.2"
        )

    def test_an_extra_tells_nothing_of_pytorch(self):
        """flashinfer-python[b12x] wants a newer one; its packages are there for other reasons."""
        asks = ("torch", "[b12x]torch>=2.12.0", "[b12x]nvidia-cutlass-dsl-libs-core==4.7.1")
        of = facts(
            distributions=[
                wheel("torch", "2.8.0"),
                wheel("flashinfer-python", "0.7.2", *asks),
                wheel("nvidia-cutlass-dsl-libs-core", "4.7.1"),
            ]
        )
        assert fired(of, "CU402") == []

    def test_an_extra_that_others_explain(self):
        """TensorFlow without its extra, beside a PyTorch whose wheels are others'."""
        extra = "[and-cuda]nvidia-cudnn-cu12>=9.19"
        of = facts(
            distributions=[
                wheel("torch", "2.8.0", "nvidia-cudnn-cu12==9.10.2.21"),
                wheel("tensorflow", "2.21.0", extra, "[and-cuda]nvidia-cuda-nvcc-cu12>=12.5"),
                wheel("nvidia-cudnn-cu12", "9.10.2.21"),
            ]
        )
        assert fired(of, "CU402") == []

    def test_torchvision_for_another_torch(self):
        of = facts(
            distributions=[
                wheel("torch", "2.8.0+cu128"),
                wheel("torchvision", "0.20.0", "torch==2.5.0"),
            ]
        )
        found = one(of, "CU402", "warning")  # that it does not load is CU303's to prove
        assert found.fix == [
            f"{PYTHON} -m pip install torch==2.8.0 'torchvision==0.23.*' --index-url "
            "https://download.pytorch.org/whl/cu128"
        ]

    @pytest.mark.parametrize("installer", ["uv", "pipx"])
    def test_other_installers(self, installer):
        of = self.of("9.1.0.70")
        of.environment = environment("uv", installer)
        assert (
            fix.uninstall(of.environment, wheel("x", "1"))
            == {
                "uv": f"uv pip uninstall --python {PYTHON} x",
                "pipx": "pipx runpip train uninstall -y x",
            }[installer]
        )
        command = one(of, "CU402").fix[0]
        assert command.startswith(
            {"uv": "uv pip install --python", "pipx": "pipx runpip train install"}[installer]
        )

    def test_met(self):
        assert fired(self.of("9.10.2.21"), "CU402") == []

    def test_what_is_not_cudas_is_pips_business(self):
        assert (
            fired(
                facts(distributions=[wheel("torch", "2.8.0", "sympy>=9"), wheel("sympy", "1.0")]),
                "CU402",
            )
            == []
        )


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
        mend = f"{PYTHON} -m pip install --force-reinstall vllm  # a build for CUDA 12"
        assert found.fix == [mend]
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


class TestNames:
    """What a command calls a package, for each installer."""

    def of(self, tool, **more):
        dist = wheel("torch", "2.7.1", installer="conda")
        dist.conda_name = "pytorch"
        env = environment("conda", tool)
        gone = FileFault("torch", f"{SITE}/torch/lib/libtorch.so", "missing", dist.evidence)
        return facts(environment=env, distributions=[dist], file_faults=[gone], **more)

    def test_conda_calls_torch_pytorch(self):
        found = one(self.of("mamba"), "CU404", "warning")
        assert found.fix == [f"mamba install -p {PREFIX} --force-reinstall pytorch=2.7.1"]
        assert one(self.of("pixi"), "CU404").fix == ["pixi reinstall pytorch"]
        dist = self.of("conda").distributions[0]
        assert fix.uninstall(environment("conda", "conda"), dist) == (
            f"conda remove -p {PREFIX} pytorch"
        )

    def test_conda_is_asked_for_a_build_of_any_release(self):
        """Which release a channel built for which CUDA is not known; a guess may not exist."""
        built = [torch("2.7.1", "12.8")]
        of = self.of("conda", driver=driver("450.80.02", "11.0"), frameworks=built)
        of.file_faults = []
        assert one(of, "CU103").fix[0] == f"conda install -p {PREFIX} 'pytorch=*=*cuda11*'"

    @pytest.mark.parametrize("tool", ["conda", "mamba", "micromamba"])
    def test_extras_are_pips(self, tool):
        cpu = Framework("jax", "0.7.2", variant="cpu", distribution="jaxlib")
        of = facts(
            environment=environment("conda", tool),
            frameworks=[cpu],
            distributions=[wheel("jaxlib", "0.7.2", installer="conda")],
        )
        assert one(of, "CU401").fix == [f"{PYTHON} -m pip install 'jax[cuda13]'"]

    @pytest.mark.parametrize(
        ("tool", "start"),
        [
            ("pip", f"{PYTHON} -m pip install --break-system-packages "),
            ("uv", f"uv pip install --python {PYTHON} --break-system-packages "),
        ],
    )
    def test_a_systems_own_python_wants_to_hear_it(self, tool, start):
        env = environment("system", tool)
        env.managed = True
        assert fix.install(env, "torch") == f"{start}torch"
        assert " --break-system-packages torch" in fix.uninstall(env, wheel("torch", "2.8.0"))

    @pytest.mark.parametrize(
        ("cuda", "branch"), [("11.8", 470), ("12.4", 535), ("13.0", 580), (None, 580)]
    )
    def test_the_first_driver_of_a_major(self, cuda, branch):
        start = f"sudo apt-get install nvidia-driver-{branch}  # "
        assert fix.driver_package(cuda).startswith(start)

    def test_titles_are_sentences(self):
        one_file = self.of("conda")
        assert one(one_file, "CU404").title == "libtorch.so is missing: torch 2.7.1 brought it"
        one_file.file_faults *= 3
        title = "libtorch.so and 2 more files are missing: torch 2.7.1 brought them"
        assert one(one_file, "CU404").title == title


class TestTensorRT:
    def of(self, cuda, torch_cuda="12.8", **more):
        name = f"tensorrt-cu{cuda}"
        trt = Framework(
            "tensorrt",
            "10.13.3.9",
            cuda,
            variant="cuda",
            distribution=name,
            cuda_evidence=Evidence(f"{SITE}/{name}/METADATA", 3, name),
        )
        return facts(
            frameworks=[torch(cuda=torch_cuda), trt],
            distributions=[wheel(name, "10.13.3.9")],
            **more,
        )

    def test_another_major_than_pytorch(self):
        found = one(self.of("13"), "CU406", "error")
        assert found.predicts == "CUDA initialization failure with error: 35"
        assert found.fix == [
            f"{PYTHON} -m pip uninstall -y tensorrt-cu13",
            f"{PYTHON} -m pip install tensorrt-cu12==10.13.3.9",
        ]

    def test_newer_than_the_driver(self):
        made = driver("535.104.05", "12.2")
        found = one(self.of("13", driver=made), "CU406", "error")
        assert found.evidence[-1] == Evidence(made.path, None, "535.104.05")

    def test_older_than_the_second_framework_s(self):
        """What that ends in, nobody has seen."""
        of = self.of("12")
        of.frameworks.append(Framework("onnxruntime", "1.31.1", "13.0", variant="cuda"))
        found = one(of, "CU406", "error")
        assert found.title == "TensorRT 10.13.3.9 is for CUDA 12, onnxruntime for CUDA 13"
        assert found.predicts is None

    def test_fits(self):
        assert fired(self.of("12"), "CU406") == []


class TestTogether:
    def test_pins_that_clash(self):
        of = facts(
            distributions=[
                wheel("torch", "2.8.0", "nvidia-cudnn-cu12==9.10.2.21"),
                wheel("tensorflow", "2.18.0", "nvidia-cudnn-cu12==9.3.0.75"),
                wheel("nvidia-cudnn-cu12", "9.3.0.75"),
            ]
        )
        found = one(of, "CU407", "warning")
        assert "torch wants nvidia-cudnn-cu12==9.10.2.21, tensorflow ==9.3.0.75" in found.title
        assert found.fix[0].startswith("python3 -m venv tensorflow-env")
        of.environment = environment("conda", "mamba")
        mend = "mamba create -n tensorflow python=3.11 tensorflow"
        assert one(of, "CU407", "warning").fix[0] == mend
        assert fired(of, "CU402") == []  # one finding for one clash

    def test_every_pair_with_an_exact_version_is_compared(self):
        stated = [object() for _ in range(5)]
        for chosen in itertools.product([False, True], repeat=5):
            exact = [pin for pin, one in zip(stated, chosen, strict=True) if one]
            wanted = [p for p in itertools.combinations(stated, 2) if {*p} & {*exact}]
            assert list(cu4_pins._pairs(stated, exact)) == wanted

    def test_ranges_that_agree(self):
        of = facts(
            distributions=[
                wheel("torch", "2.8.0", "nvidia-cudnn-cu12==9.10.2.21"),
                wheel("jax-cuda12-plugin", "0.7.0", "nvidia-cudnn-cu12>=9.8,<10"),
                wheel("nvidia-cudnn-cu12", "9.10.2.21"),
            ]
        )
        assert fired(of, "CU407") == []

    def test_two_majors(self):
        jax = Framework(
            "jax",
            "0.7.0",
            "13",
            variant="cuda",
            cuda_evidence=Evidence(f"{SITE}/jax"),
            distribution="jax-cuda13-plugin",
        )
        found = one(facts(frameworks=[torch(), jax]), "CU407", "warning")
        assert "torch for CUDA 12.8, jax for CUDA 13" in found.title
        assert found.subject == "jax"
        assert found.fix[0].startswith("python3 -m venv jax-cuda13-plugin-env ")
        jax.distribution = None
        found = one(facts(frameworks=[torch(), jax]), "CU407", "warning")
        assert found.fix[0].startswith("python3 -m venv jax-env ")
        third = Framework("cupy", "13.6.0", "11.8", cuda_evidence=jax.cuda_evidence)
        found = one(facts(frameworks=[torch(), jax, third]), "CU407", "warning")
        assert found.title.endswith("torch for CUDA 12.8, jax for CUDA 13, cupy for CUDA 11.8")
        assert found.subject == "cupy"

    def test_two_pins_of_one_framework_contest_nothing(self):
        """torch and what it pulls in speak with one voice: what is not met of it is told."""
        made = facts(
            distributions=[
                wheel("torch", "2.11.0", "cuda-toolkit{cudart}==13.0.2", "nvidia-cudnn-cu13==9.1"),
                wheel("cuda-toolkit", "13.0.2", "[cudart]nvidia-cudnn-cu13==9.10"),
                wheel("nvidia-cudnn-cu13", "9.10"),
            ]
        )
        found = one(made, "CU402")
        assert found.title.startswith("torch requires nvidia-cudnn-cu13==9.1 ")
        assert fired(made, "CU407") == []

    @pytest.mark.parametrize("pins", [(">=2", "==1.0"), ("==1.0", ">=2")])
    def test_an_exact_version_against_a_range_from_either_side(self, pins):
        def of(first, second):
            return facts(
                distributions=[
                    wheel("torch", "2.8.0", f"nvidia-nccl-cu12{first}"),
                    wheel("jax-cuda12-plugin", "0.7.0", f"nvidia-nccl-cu12{second}"),
                ]
            )

        title = one(of(*pins), "CU407", "warning").title
        wanted = f"torch wants nvidia-nccl-cu12{pins[0]}, jax-cuda12-plugin {pins[1]}"
        assert title == wanted
        assert fired(of(">=2", "==2.1"), "CU407") == fired(of("==2.1", ">=2"), "CU407") == []


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

    def test_together(self):
        pair = [wheel("torch", "2.8.0", "nvidia-nccl-cu12"), wheel("nvidia-nccl-cu12", "2")]
        assert fired(facts(distributions=pair), "CU408") == []

    @pytest.mark.parametrize("name", ["jax-cuda12-plugin", "vllm"])
    def test_what_another_requires_may_lie_elsewhere(self, name):
        """Only PyTorch's own wheels are looked for beside it."""
        of = self.of()
        of.distributions[0].requires = []
        of.distributions.append(wheel(name, "0.10", "nvidia-nccl-cu12==2.27.3"))
        assert fired(of, "CU408") == []


class TestJudge:
    def test_a_rule_that_fails_is_a_finding_and_the_others_run(self):
        def broken(_):
            raise ZeroDivisionError("by hand")

        rules = {"CU101": broken, "CU401": registry()["CU401"]}
        of = facts(frameworks=[torch("2.8.0+cpu", None)])
        found = judge(of, rules)
        assert [(f.rule, f.severity) for f in found] == [("CU401", "error"), ("CU101", "warning")]
        crash = found[1]
        assert "by hand" in crash.title
        assert crash.evidence[0].file == __file__
        assert verdict([crash], of) == "unknown"

    def test_every_rule_survives_empty_facts(self):
        from cudriver.stack.model import Environment, Facts

        of = Facts(Environment("/x", "unknown"))
        assert {f.severity for f in judge(of)} <= {"note"}
        assert verdict(judge(of), of) == "unknown"

    def test_a_healthy_environment_is_consistent_and_quiet(self):
        assert judge(facts()) == []
        assert verdict([], facts()) == "consistent"

    def test_what_failed_on_the_way_makes_it_unknown(self):
        assert (
            verdict([], facts(unsure=["torch: its libraries could not be resolved"])) == "unknown"
        )

    def test_numbers_are_those_of_the_list(self):
        expected = (
            [f"CU1{n:02}" for n in range(1, 11)]
            + [f"CU2{n:02}" for n in range(1, 8)]
            + [f"CU3{n:02}" for n in range(1, 8)]
            + [f"CU4{n:02}" for n in range(1, 9)]
            + ["CU501", "CU502", "CU503"]
        )
        assert list(registry()) == expected
