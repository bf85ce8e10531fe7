"""CU402 and CU407, what commands call packages, and what becomes of a rule that fails."""

import itertools
import re

import pytest
from facts import (
    PREFIX,
    PYTHON,
    SITE,
    driver,
    environment,
    facts,
    fired,
    one,
    torch,
    wheel,
)

from cudriver.stack.model import Device, Driver, Evidence, FileFault, Framework
from cudriver.stack.rules import cu4_clashes, fix, judge, registry, verdict

LIB64 = f"{PREFIX}/lib64/python3.11/site-packages"


def toolkit_of_extras(*asks):
    """A package that asks for these, and cuda-toolkit, of whose three wheels one is installed."""
    wheels = [f"[{name}]nvidia-{name}==13.0.*" for name in ("cublas", "cufft", "curand")]
    return facts(
        distributions=[
            wheel("net", "1.0", *asks),
            wheel("cuda-toolkit", "13.0", *wheels),
            wheel("nvidia-cublas", "13.0.1"),
            wheel("nvidia-nccl-cu13", "2.28.1"),
        ]
    )


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
            ("nvidia-cublas-cu12", "==12.8.4.1", "12.9.1.4", "warning"),
            ("nvidia-cudnn-cu12", "==9.10.2.21", "9.10.3.1", "note"),
            ("nvidia-cudnn-cu12", "==9.10.2.21", "9.1.0.70", "warning"),
            ("nvidia-cudnn-cu12", "==9.10.2.21", "8.9.7.29", "warning"),
            ("nvidia-nvjitlink-cu12", "==12.8.93", "12.9.86", "note"),
            ("nvidia-nvjitlink-cu12", "==12.8.93", "12.1.105", "warning"),
            ("nvidia-cublas-cu12", "<13,>=12.8.4.1", "12.8.3.14", "note"),  # by the clause unmet
        ],
    )
    def test_gravity(self, name, pin, installed, severity):
        found = one(self.of(installed, pin, name), "CU402", severity)
        assert f"{name}{pin} (installed: {installed})" in found.title
        assert [e.line for e in found.evidence] == [5, 3]
        quote = "'" if "<" in pin else ""
        assert found.fix == [f"{PYTHON} -m pip install {quote}{name}{pin}{quote}"]

    def test_not_installed(self):
        assert "installed: none" in one(self.of(None), "CU402", "warning").title
        assert fired(self.of(None, "==3.4.0", "triton"), "CU402") == []
        assert one(self.of(None, "==13.0.2", "cuda-toolkit"), "CU402", "warning")

    def test_a_range_as_one_types_it(self):
        fixes = f"{PYTHON} -m pip install 'nvidia-cudnn-cu12>=9.8,<10'"
        assert one(self.of("9.1.0.70", ">=9.8, <10"), "CU402").fix == [fixes]

    def test_of_two_extras_the_one_counts_that_is_met(self):
        asks = [f"[cu{n}]nvidia-x-cu12=={n}.0" for n in (1, 2)]
        for installed, told in (("2.0", False), ("3.0", True)):
            of = [wheel("net", "1.0", *asks), wheel("nvidia-x-cu12", installed)]
            assert bool(fired(facts(distributions=of), "CU402")) is told

    def test_what_an_extra_brings_is_not_missed(self):
        """That it was asked for is a guess; the loader tells what is not there."""
        of = toolkit_of_extras("[gpu]nvidia-nccl-cu13", "[gpu]cuda-toolkit{cublas,cufft}")
        assert fired(of, "CU402") == []
        of.distributions[2].version = "12.0"
        assert one(of, "CU402").title.startswith("net requires nvidia-cublas==13.0.* ")

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
        title = one(facts(distributions=[wheel("torch", "2.8.0", *names[:4])]), "CU402").title
        assert title.endswith("nvidia-c-cu12==1.0 (installed: none) and 1 more")
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

    def test_a_wheel_of_an_extra_that_is_asked_for_is_missed(self):
        for extra, missed in (("", True), ("[gpu]", False)):
            of = facts(
                distributions=[
                    wheel("torch", "2.11.0", f"{extra}cuda-toolkit{{cublas}}"),
                    wheel("cuda-toolkit", "13.0.2", "[cublas]nvidia-cublas==13.1.*"),
                ]
            )
            assert bool(fired(of, "CU402")) is missed

    def test_one_wheel_of_many_does_not_tell_of_an_extra(self):
        extra = [f"[gpu]nvidia-{name}-cu12==12.8.*" for name in ("cufft", "curand", "cublas")]
        of = [wheel("net", "1.0", *extra), wheel("nvidia-cufft-cu12", "11.0")]
        assert fired(facts(distributions=of), "CU402") == []
        of.append(wheel("nvidia-curand-cu12", "12.8.1"))
        assert "nvidia-cufft-cu12==12.8.*" in one(facts(distributions=of), "CU402").title
        half = [wheel("net", "1.0", *extra[:2]), of[1]]
        assert fired(facts(distributions=half), "CU402") == [], "one of two are not most"

    def test_what_is_not_cudas_does_not_tell_of_an_extra(self):
        of = [wheel("net", "1.0", "[gpu]nvidia-cufft-cu12==12.8.*", "[gpu]numpy>=1", "[gpu]tqdm")]
        of += [wheel("numpy", "2.0"), wheel("tqdm", "4.0")]
        assert fired(facts(distributions=of), "CU402") == []

    def test_conda_keeps_to_its_own_grammar(self):
        asks = wheel("pytorch", "2.8.0", "cudnn==9.10", "nvidia-x==1.0")
        asks.kind = "conda"
        assert fired(facts(distributions=[asks, wheel("cudnn", "9.1")]), "CU402") == []

    def test_of_a_package_of_extras_those_count_that_are_asked_for(self):
        of = toolkit_of_extras("[gpu]nvidia-nccl-cu13==2.27.3", "[gpu]cuda-toolkit{cublas}")
        assert one(of, "CU402").title.startswith("net requires nvidia-nccl-cu13==2.27.3")

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
        """TensorFlow without its extra, beside a PyTorch that brought two of its three wheels."""
        extra = ["[and-cuda]nvidia-cudnn-cu12>=9.19", "[and-cuda]nvidia-nccl-cu12>=2.18"]
        brought = "nvidia-cudnn-cu12==9.10.2.21", "nvidia-nccl-cu12==2.27.3"
        of = facts(
            distributions=[
                wheel("torch", "2.8.0", *brought),
                wheel("tensorflow", "2.21.0", *extra, "[and-cuda]nvidia-cuda-nvcc-cu12>=12.5"),
                *(wheel(*pin.split("==")) for pin in brought),
            ]
        )
        assert fired(of, "CU402") == []

    @pytest.mark.parametrize(
        ("name", "frameworks", "words"),
        [
            ("torchvision", [torch()], "torch==2.8.0 'torchvision==0.23.*'"),
            ("xformers", [torch()], "torch==2.8.0 xformers"),
            ("xformers", [], "xformers"),
        ],
        ids=["kin", "other", "unread"],
    )
    def test_a_package_for_another_torch(self, name, frameworks, words):
        of = facts(
            frameworks=frameworks,
            distributions=[wheel("torch", "2.8.0+cu128"), wheel(name, "0.0.20", "torch==2.5.0")],
        )
        found = one(of, "CU402", "warning")  # that it does not load is CU303's to prove
        index = " --index-url https://download.pytorch.org/whl/cu128" if frameworks else ""
        assert found.fix == [f"{PYTHON} -m pip install {words}{index}"]

    def test_condas_package_for_another_torch(self):
        asks = wheel("torchvision", "0.20.1", "torch==2.5.0", installer="conda")
        of = facts(
            environment=environment("conda", "mamba"),
            distributions=[wheel("torch", "2.8.0", installer="conda"), asks],
        )
        fixes = f"mamba install -p {PREFIX} --force-reinstall torchvision"
        assert one(of, "CU402", "warning").fix == [fixes]

    @pytest.mark.parametrize(
        ("stated", "makes", "expected"),
        [
            ("pip", "uv", "uv"), ("pip", "pipx", "pipx"), ("pip", "conda", "pip"),
            ("uv", "pipx", "uv"), ("conda", "mamba", "conda"), ("", "uv", "uv"),
        ],
    )  # fmt: skip
    def test_who_fixes_a_package(self, stated, makes, expected):
        """uv and pipx install as pip does, and say "pip" in INSTALLER where pip itself ran."""
        assert fix.installer(environment("venv", makes), wheel("x", "1", installer=stated)) == (
            expected
        )

    CUDNN = "nvidia-cudnn-cu12==9.10.2.21"

    @pytest.mark.parametrize(
        ("installer", "executable", "install", "uninstall"),
        [
            ("pip", "/opt/py", f"/opt/py -m pip install {CUDNN}", "/opt/py -m pip uninstall -y x"),
            ("pip", None, f"{PYTHON} -m pip install {CUDNN}", f"{PYTHON} -m pip uninstall -y x"),
            (
                "uv",
                "/opt/py",
                f"uv pip install --python /opt/py {CUDNN}",
                "uv pip uninstall --python /opt/py x",
            ),
            (
                "uv",
                None,
                f"uv pip install --python {PREFIX} {CUDNN}",
                f"uv pip uninstall --python {PYTHON} x",
            ),
            (
                "pipx",
                None,
                f"pipx runpip train install {CUDNN}",
                "pipx runpip train uninstall -y x",
            ),
            (
                "conda",
                None,
                f"conda install -p {PREFIX} --force-reinstall pytorch=2.8.0",
                f"conda remove -p {PREFIX} x",
            ),
        ],
        ids=["pip", "pip-prefix", "uv", "uv-prefix", "pipx", "conda"],
    )
    def test_installers(self, installer, executable, install, uninstall):
        of = self.of("9.1.0.70")
        of.environment = environment("conda" if installer == "conda" else "venv", installer)
        of.environment.executable = executable
        for dist in of.distributions:
            dist.installer = installer
        assert fix.uninstall(of.environment, wheel("x", "1", installer=installer)) == uninstall
        upgrade = fix.install(of.environment, "x", upgrade=True)
        words = {"uv": f"--python {executable or PREFIX} --upgrade x", "conda": f"-p {PREFIX} x"}
        assert upgrade.endswith(f" install {words.get(installer, '--upgrade x')}")
        again = fix.install(of.environment, "x", again=True, alone=True)
        words = {
            "uv": f"--python {executable or PREFIX} --reinstall-package x --no-deps x",
            "conda": f"-p {PREFIX} --force-reinstall x",
        }
        usual = "--force-reinstall --no-deps x"
        assert again.endswith(f" install {words.get(installer, usual)}")
        assert one(of, "CU402").fix == [install]

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

    @pytest.mark.parametrize(("offers", "extra"), [(None, 12), ("12.4", 12), ("14.0", 13)])
    def test_the_extra_is_for_the_driver_s_cuda(self, offers, extra):
        cpu = Framework("jax", "0.7.2", variant="cpu", distribution="jaxlib")
        dists = [wheel("jaxlib", "0.7.2")]
        of = facts(driver=driver("580.95.05", offers), frameworks=[cpu], distributions=dists)
        assert one(of, "CU401").fix == [f"{PYTHON} -m pip install 'jax[cuda{extra}]'"]

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
        ("gpu", "floor", "branch"),
        [(None, None, 580), (None, "525.60.13", 580), (None, 610, 610), ("9.0", "450.80.02", 580),
         ("3.7", "450.80.02", 470), ("7.0", "580", 580), ("10.7", "580", 615)],
    )  # fmt: skip
    def test_a_driver_that_lasts_and_knows_the_gpu(self, gpu, floor, branch):
        devices = [Device(0, compute_capability=gpu)] if gpu else []
        told = fix.driver_package(Driver(devices=devices), floor)
        assert re.match(rf"sudo apt-get install nvidia-driver-{branch}(-open)?  # ", told)

    @pytest.mark.parametrize(("gpu", "floor"), [("3.7", "525.60.13"), ("7.0", 590)])
    def test_no_driver_is_named_where_none_knows_the_gpu_any_more(self, gpu, floor):
        told = fix.driver_package(Driver(devices=[Device(0, compute_capability=gpu)]), floor)
        assert told.startswith(f"no driver from R{str(floor)[:3]} on serves this machine's GPUs")

    @pytest.mark.parametrize(
        ("release", "oldest", "usual"),
        [("2.8.0+cu126", "12.6", "12.8"), ("2.6.0", "11.8", "12.4"), ("99.9", None, None)],
    )
    def test_the_variants_of_a_release(self, release, oldest, usual):
        assert fix.variants(release)[:1] == ([oldest] if oldest else [])
        assert fix.usual_variant(release) == usual

    def test_the_tag_of_a_cuda(self):
        assert [fix.tag(cuda) for cuda in ("12.8", "12.8.1", "13.0")] == ["cu128", "cu128", "cu130"]

    @pytest.mark.parametrize(
        ("name", "version", "index"),
        [("torch", "2.8.0+cu128", "cu128"), ("torch", "2.8.0+cpu", "cpu"),
         ("torchvision", "0.23.0+cu126", "cu126"), ("torch", "2.8.0", None),
         ("torch", "2.8.0+cu128.x", None), ("flash-attn", "2.7.0+cu128", None)],
    )  # fmt: skip
    def test_a_local_version_is_on_pytorchs_index(self, name, version, index):
        fixes = fix.reinstall(facts(), wheel(name, version))
        start = f"{PYTHON} -m pip install --force-reinstall --no-deps {name}=={version}"
        more = f" --index-url https://download.pytorch.org/whl/{index}" if index else ""
        assert fixes == start + more

    def test_kin_without_a_pytorch(self):
        of = facts(frameworks=[], distributions=[wheel("torchvision", "0.20.0")])
        assert fix.kin(of, "torchvision") == f"{PYTHON} -m pip install torchvision"
        fixes = f"{PYTHON} -m pip install --force-reinstall torch torchvision --index-url "
        assert fix.torch_from(of, "12.8") == f"{fixes}https://download.pytorch.org/whl/cu128"

    def test_a_version_with_four_numbers_is_asked_for_by_three(self):
        of = facts(frameworks=[torch("2.8.0.1+cu126", "12.6")])
        assert " torch==2.8.0 " in fix.torch_from(of, "12.8")

    def test_titles_are_sentences(self):
        one_file = self.of("conda")
        assert one(one_file, "CU404").title == "libtorch.so is missing: torch 2.7.1 brought it"
        one_file.file_faults *= 3
        title = "libtorch.so and 2 more files are missing: torch 2.7.1 brought them"
        assert one(one_file, "CU404").title == title


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
        fixes = "mamba create -n tensorflow python=3.11 tensorflow"
        assert one(of, "CU407", "warning").fix[0] == fixes
        of.environment = environment("uv", "uv")
        fixes = "uv venv tensorflow-env && uv pip install --python tensorflow-env "
        fixes += "'tensorflow[and-cuda]==2.21.0'"
        assert one(of, "CU407", "warning").fix[0] == fixes
        assert fired(of, "CU402") == []  # one finding for one clash
        of.environment = environment()
        for dist, pin in zip(of.distributions, ("2.27.3", "2.20.1"), strict=False):
            dist.requires += wheel("x", "1", f"nvidia-nccl-cu12=={pin}").requires
        found = one(of, "CU407")
        assert found.title.endswith(" ==9.3.0.75 and 1 more")
        assert len(found.evidence) == 5
        for n in range(6):
            for dist in of.distributions[:2]:
                dist.requires += wheel("x", "1", f"nvidia-p{n}=={dist.version}").requires
        assert len(one(of, "CU407").evidence) == 11, "five pairs and what is installed"

    @pytest.mark.parametrize("asked", [True, False])
    def test_an_extra_that_nobody_asked_for(self, asked):
        """flashinfer's b12x wants its own release of what another requires anyway."""
        extra = ("[b12x]nvidia-libs-base==4.7.1", "[b12x]nvidia-libs-core==4.7.1")
        of = facts(
            distributions=[
                wheel("flashinfer-python", "0.7.2", "nvidia-ml-py", *extra),
                wheel("vllm", "0.32.0", "nvidia-libs-base==4.6.2"),
                wheel("nvidia-libs-base", "4.6.2"),
                wheel("nvidia-libs-core", "4.7.1" if asked else "4.6.2"),
            ]
        )
        assert len(fired(of, "CU407")) == asked

    def test_pairs_that_agree_hide_no_clash(self):
        """A second of one framework and a range that fits come before the one that clashes."""
        of = facts(
            distributions=[
                wheel("torch", "2.8.0", "nvidia-cudnn-cu12==9.10.2.21"),
                wheel("jax-cuda12-plugin", "0.7.0", "nvidia-cudnn-cu12>=9.8"),
                wheel("tensorflow", "2.18.0", "nvidia-cudnn-cu12==9.3.0.75"),
            ]
        )
        subjects = [found.subject for found in fired(of, "CU407")]
        assert subjects == ["tensorflow", "tensorflow"]

    def test_every_pair_with_an_exact_version_is_compared(self):
        stated = [object() for _ in range(5)]
        for chosen in itertools.product([False, True], repeat=5):
            exact = [pin for pin, one in zip(stated, chosen, strict=True) if one]
            wanted = [p for p in itertools.combinations(stated, 2) if {*p} & {*exact}]
            assert list(cu4_clashes._pairs(stated, exact)) == wanted

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
        assert found.fix[0].startswith("python3 -m venv cupy-env ")
        for name in ("tensorflow", "onnxruntime"):
            jax.name = name
            assert one(facts(frameworks=[torch(), jax]), "CU407", "warning").subject == name
        same = [Framework("jax", "0.7.0", "12"), Framework("vllm", "0.12.0", "13.0")]
        cpu = Framework("onnxruntime", "1.22.0", "13.0", variant="unknown")
        assert fired(facts(frameworks=[torch(), *same, cpu]), "CU407") == []

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
        assert crash.evidence[0].value == "ZeroDivisionError: by hand"
        assert verdict([crash], of) == "unknown"

    def test_every_rule_survives_empty_facts(self):
        from cudriver.stack.model import Environment, Facts

        of = Facts(Environment("/x", "unknown"))
        assert {f.severity for f in judge(of)} <= {"note"}
        assert verdict(judge(of), of) == "unknown"

    def test_a_healthy_environment_is_consistent_and_quiet(self):
        assert judge(facts()) == []
        assert verdict([], facts()) == "consistent"

    def test_an_error_is_a_mismatch_whatever_else_could_not_be_told(self):
        of = facts(frameworks=[torch("2.8.0+cpu", None)], unsure=["torch: unread"])
        assert verdict(judge(of), of) == "mismatch"

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
