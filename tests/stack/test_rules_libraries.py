"""CU301 to CU304 and CU307: which file is used, and whether they fit together."""

import pytest
from facts import (
    PREFIX,
    PYTHON,
    SITE,
    WHEELS,
    driver,
    environment,
    facts,
    fault,
    fired,
    library,
    one,
    pip,
    torch,
    used,
    wheel,
)

from cudriver.stack.model import (
    GONE,
    Evidence,
    FileFault,
    Framework,
    Shadowed,
)
from cudriver.stack.rules import registry

OUTSIDE = "/usr/local/cuda-12.1/lib64"


def outside(soname, version, family, own="9.10.2"):
    return library(
        soname,
        version,
        family,
        path=f"{OUTSIDE}/{soname}",
        origin="system",
        found_by="LD_LIBRARY_PATH",
        own_copy=Shadowed(f"{SITE}/nvidia/x/lib/{soname}", "environment", own),
    )


class TestCudnn:
    def test_older_than_built_with(self):
        old = library("libcudnn_graph.so.9", "9.1.0", "cudnn")
        found = one(used(old, torch={"cudnn": "9.1.0"}), "CU301", "error")
        assert found.predicts == (
            "cuDNN version incompatibility: PyTorch was compiled  against (9, 10, 2) "
            "but found runtime version (9, 1, 0)."
        )
        assert found.evidence[0] == Evidence(old.path, None, "9.1.0, by rpath")
        assert found.evidence[1].line == 47
        assert found.fix == [pip("nvidia-cudnn-cu12==9.10.2.21")]

    def test_others_say_it_in_words_of_their_own(self):
        of = used(library("libcudnn_graph.so.9", "9.1.0", "cudnn"), torch={"cudnn": "9.1.0"})
        of.frameworks[0].name = "jax"
        assert one(of, "CU301", "error").predicts is None

    def test_from_outside_the_variable_goes(self):
        leak = outside("libcudnn_graph.so.9", "9.1.0", "cudnn")
        found = one(
            used(leak, torch={"cudnn": "9.1.0"}, environment=environment(LD_LIBRARY_PATH=OUTSIDE)),
            "CU301",
        )
        assert found.fix == ["unset LD_LIBRARY_PATH"]

    @pytest.mark.parametrize("version", ["9.10.2", "9.10.5", "9.10.0", "9.20.0", None])
    def test_patch_levels_and_newer_minors_are_fine(self, version):
        assert fired(used(torch={"cudnn": version}), "CU301") == []

    def test_a_pin_is_no_build(self):
        """What was pinned is not what PyTorch compares at its import."""
        old = library("libcudnn_graph.so.9", "9.1.0", "cudnn")
        found = one(used(old, torch={"cudnn": "9.1.0", "cudnn_by_pin": True}), "CU301", "warning")
        assert found.title == "torch pins cuDNN 9.10.2 and gets 9.1.0"
        assert found.predicts is None

    def test_the_file_of_cudnn_is_not_known(self):
        of = used(library("libcudnn_graph.so.9", "9.3.0", "cudnn"), torch={"cudnn": "9.1.0"})
        (found,) = registry()["CU301"](of)
        assert (found.evidence, found.fix) == ([of.frameworks[0].cudnn_evidence], [])
        of.frameworks[0].variant = "cpu"
        assert fired(of, "CU301") == []

    @pytest.mark.parametrize("version", ["8.9.7", "10.0.0"])
    def test_another_major(self, version):
        assert fired(
            used(library("libcudnn.so.9", version, "cudnn"), torch={"cudnn": version}), "CU301"
        )


class TestOutside:
    def test_with_a_copy_of_its_own(self):
        leak = outside("libnvJitLink.so.12", "12.1.105", "nvjitlink", own="12.8.93")
        found = one(
            used(leak, environment=environment(LD_LIBRARY_PATH=f"/opt/x:{OUTSIDE}")),
            "CU302",
            "warning",
        )
        assert found.fix == ["export LD_LIBRARY_PATH=/opt/x"]
        assert [e.file for e in found.evidence] == [leak.path, leak.own_copy.path]
        assert "12.1.105 instead of its own 12.8.93" in found.title

    def test_the_same_version_is_a_note(self):
        leak = outside("libnvJitLink.so.12", "12.8.93", "nvjitlink", own="12.8.93")
        found = one(used(leak, environment=environment(LD_LIBRARY_PATH=OUTSIDE)), "CU302", "note")
        assert found.title.endswith(": 12.8.93, the same version as its own copy")

    @pytest.mark.parametrize(("modelled", "severity"), [(True, "warning"), (False, "note")])
    def test_what_is_not_modelled_may_load_its_own_before(self, modelled, severity):
        leak = outside("libnvJitLink.so.12", "12.1.105", "nvjitlink", own="12.8.93")
        leak.found_by = "ld.so.cache"
        one(used(leak, torch={"modelled": modelled}), "CU302", severity)

    def test_preload(self):
        leak = outside("libnccl.so.2", "2.18.1", "nccl")
        found = one(used(leak, environment=environment(LD_PRELOAD=leak.path)), "CU302")
        assert found.fix == ["unset LD_PRELOAD"]

    def test_the_systems_steps_in_for_one_that_is_gone(self):
        """CU404 says that the file is missing; that another is used is worth a warning."""
        other = outside("libnccl.so.2", "2.28.3", "nccl")
        other.own_copy = Shadowed(f"{SITE}/nvidia/nccl/lib/libnccl.so.2", GONE, "2.28.3")
        found = one(used(other), "CU302", "warning")
        assert "which is gone" in found.title
        assert "2.28.3" in found.title

    def test_a_system_library_without_a_copy_inside_is_the_only_one_there_is(self):
        alone = library(
            "libcudnn.so.9", "9.14.0", "cudnn", path="/usr/lib/x/libcudnn.so.9", origin="system"
        )
        assert fired(used(alone), "CU302") == []

    @pytest.mark.parametrize(
        ("theirs", "own", "severity"),
        [
            ("12.85", "12.8", "warning"),
            ("12.8.93", "12.8", "note"),
            ("12.8", "12.8", "note"),
            ("12.8", "12.8.93", "warning"),
            (None, "12.8", "warning"),
            ("12.8", None, "warning"),
            (None, None, "warning"),
        ],
    )
    def test_the_same_version_as_far_as_it_is_told(self, theirs, own, severity):
        leaked = library(
            "libnvJitLink.so.12",
            theirs,
            "nvjitlink",
            path="/usr/local/cuda/lib64/libnvJitLink.so.12",
            origin="system",
            found_by="LD_LIBRARY_PATH",
            version_evidence=Evidence("/usr/local/cuda/lib64/libnvJitLink.so.12"),
            own_copy=Shadowed(
                f"{SITE}/nvidia/nvjitlink/lib/libnvJitLink.so.12", "environment", own
            ),
        )
        variables = environment(LD_LIBRARY_PATH="/usr/local/cuda/lib64")
        assert one(facts(libraries=[leaked], environment=variables), "CU302").severity == severity


class TestSymbols:
    TEXT = (
        f"{SITE}/nvidia/cusparse/lib/libcusparse.so.12: undefined symbol: "
        "__nvJitLinkComplete_12_4, version libnvJitLink.so.12"
    )

    def test_the_provider_is_too_old(self):
        old = library("libnvJitLink.so.12", "12.1.105", "nvjitlink")
        problem = fault(
            "symbol",
            "__nvJitLinkComplete_12_4",
            f"{SITE}/nvidia/cusparse/lib/libcusparse.so.12",
            self.TEXT,
            provider=old.path,
        )
        found = one(used(old, load_faults=[problem]), "CU303", "error")
        assert found.predicts == self.TEXT
        assert found.fix == [pip("nvidia-nvjitlink-cu12==12.8.93")]
        assert [e.file for e in found.evidence] == [problem.library, old.path, f"{SITE}/torch"]
        assert found.evidence[-1].value == "import torch fails"
        assert (found.subject, found.because) == ("torch", old.path)

    def test_the_provider_leaks_in(self):
        leak = outside("libnvJitLink.so.12", "12.1.105", "nvjitlink")
        problem = fault(
            "symbol",
            "__nvJitLinkComplete_12_4",
            "/a/libcusparse.so.12",
            self.TEXT,
            provider=leak.path,
        )
        found = one(
            used(leak, load_faults=[problem], environment=environment(LD_LIBRARY_PATH=OUTSIDE)),
            "CU303",
        )
        assert found.fix == ["unset LD_LIBRARY_PATH"]

    @pytest.mark.parametrize(
        ("variable", "value", "rest"),
        [
            ("LD_PRELOAD", "/other/nvidia/nvjitlink/lib/libnvJitLink.so.12", None),
            ("LD_PRELOAD", "/a.so /other/nvidia/nvjitlink/lib/libnvJitLink.so.12", "/a.so"),
            ("PYTHONPATH", "/other:/mine", "/mine"),
            ("LD_LIBRARY_PATH", "/other/nvidia/nvjitlink/lib/", None),
        ],
    )
    def test_what_a_variable_lets_in_is_taken_out_of_it(self, variable, value, rest):
        """To install the environment's own again would change nothing."""
        path = "/other/nvidia/nvjitlink/lib/libnvJitLink.so.12"
        leaked = library("libnvJitLink.so.12", "12.1.105", "nvjitlink", path=path)
        problem = fault(
            "symbol", "__nvJitLinkComplete_12_4", "/a/libcusparse.so.12", "x", provider=path
        )
        of = used(leaked, load_faults=[problem], environment=environment(**{variable: value}))
        fixes = f"export {variable}={rest}" if rest else f"unset {variable}"
        assert one(of, "CU303").fix == [fixes]

    def test_no_pin_and_the_version_that_is_there_is_the_one_that_was_installed(self):
        old = library("libnvJitLink.so.12", "12.1.105", "nvjitlink")
        old.provided_by = "nvidia-nvjitlink-cu12 12.1.105"
        sparse = library("libcusparse.so.12", "12.5.10.65", "cusparse", cuda="12.9.1")
        problem = fault(
            "symbol", "__nvJitLinkGetErrorLogSize_12_9", sparse.path, "x", provider=old.path
        )
        of = used(old, sparse, load_faults=[problem])
        of.distributions = [wheel("nvidia-nvjitlink-cu12", "12.1.105")]
        assert one(of, "CU303").fix == [
            f"{PYTHON} -m pip install --no-deps 'nvidia-nvjitlink-cu12>=12.9'"
        ]
        for sparse.cuda in ("12", None):  # a major alone asks for no release
            assert one(of, "CU303").fix == [
                f"{PYTHON} -m pip install --no-deps --upgrade nvidia-nvjitlink-cu12"
            ]

    def test_the_pin_before_what_is_newer(self):
        old = library("libnvJitLink.so.12", "12.1.105", "nvjitlink")
        old.provided_by = "nvidia-nvjitlink-cu12 12.1.105"
        problem = fault("symbol", "__nvJitLinkCreate_12_8", "/a.so", "x", provider=old.path)
        fixes = pip("nvidia-nvjitlink-cu12==12.8.93")
        assert one(used(old, load_faults=[problem]), "CU303").fix == [fixes]

    def test_a_newer_one_of_what_nothing_pins(self):
        """Only some families are numbered as CUDA is."""
        old = library("libfoo.so.2", "2.18.1", "nccl", provided_by="nvidia-nccl-cu12 2.18.1")
        asking = library("libbar.so.12", "12.5.10.65", "cusparse", cuda="12.9.1")
        problem = fault("symbol", "f", asking.path, "x", provider=old.path)
        of = used(old, asking, load_faults=[problem])
        of.distributions = [wheel("nvidia-nccl-cu12", "2.18.1")]
        fixes = f"{PYTHON} -m pip install --no-deps --upgrade nvidia-nccl-cu12"
        assert one(of, "CU303").fix == [fixes]
        of.environment = environment("conda", "conda")
        of.distributions[0].kind = of.distributions[0].installer = "conda"
        fixes = f"conda install -p {PREFIX} --force-reinstall nvidia-nccl-cu12=2.18.1"
        assert one(of, "CU303").fix == [fixes]

    @pytest.mark.parametrize("owner", ["nvidia-cusparse-cu12", "fastnet"])
    def test_whose_file_it_is(self, owner):
        """By the list of libraries, or by the folder of a framework."""
        nccl = library("libnccl.so.2", "2.27.3", "nccl", provided_by="nvidia-nccl-cu12 2.27.3")
        sparse = library("libcusparse.so.12", "12.5", "cusparse")
        sparse.provided_by = "nvidia-cusparse-cu12 12.5"
        file = sparse.path if owner != "fastnet" else f"{SITE}/fastnet/_C.so"
        of = used(nccl, sparse, load_faults=[fault("symbol", "f", file, "x", framework=None)])
        of.frameworks.append(
            Framework("net", "12.5", path=f"{SITE}/fastnet", distribution="fastnet")
        )
        of.distributions = [wheel("torch", "2.8.0"), wheel(owner, "12.5"), WHEELS[-1]]
        assert one(of, "CU303").fix == [pip(f"{owner}==12.5")]

    @pytest.mark.parametrize(
        ("what", "told"),
        [("size", False), ("missing", True), ("owners", False), ("shared", True)],
    )
    def test_a_file_that_is_not_as_it_was_brought_is_the_cause(self, what, told):
        """Then CU404 speaks of it, and of the next symbol this rule."""
        old = library("libnvJitLink.so.12", "12.1.105", "nvjitlink")
        problems = [
            fault("not found", "libz.so.9", "/a.so", "x"),  # CU305's
            fault("symbol", "f", "/a.so", "x", provider=old.path),
            fault("symbol", "g", "/b.so", "x", provider="/c.so"),
        ]
        of = used(old, load_faults=problems)
        of.file_faults = [FileFault("nvidia-nvjitlink-cu12", old.path, what, Evidence("RECORD"))]
        titles = [found.title for found in registry()["CU303"](of)]
        assert [title[:15] for title in titles] == ["a.so needs f, w"] * told + ["b.so needs g, w"]

    def test_one_cause_is_told_once(self):
        """Of two frameworks that load the same file."""
        faults = [
            fault("symbol", name, "/a/libnccl.so.2", "x", framework=framework)
            for name in ("ncclA", "ncclB")
            for framework in ("torch", "jax")
        ]
        titles = [f.title for f in fired(used(load_faults=faults), "CU303")]
        assert [title.split()[2] for title in titles] == ["ncclA,", "ncclB,"]

    def test_a_driver_that_lacks_what_is_called_later(self):
        problem = fault("symbol", "cuModuleLoadData", "/a/libcudnn_ops.so.9", "x", lazy=True)
        assert fired(used(load_faults=[problem]), "CU303") == []
        later = fault("symbol", "cuFileDriverOpen", "/a/libcudnn_ops.so.9", "x", lazy=True)
        # of a library that a wheel brings
        assert list(registry()["CU303"](used(load_faults=[problem, later])))

    def test_what_the_driver_lacks_no_package_brings(self):
        problem = fault("symbol", "cuTensorMapEncodeTiled", f"{SITE}/torch/lib/x.so", "x")
        old = driver("535.104.05", "12.2")
        (fixes,) = one(used(load_faults=[problem], driver=old), "CU303", "error").fix
        assert fixes.startswith("sudo apt-get install nvidia-driver-580 ")
        of = used(load_faults=[problem], driver=old)
        problem.provider = "/old/libcuda.so.1"
        of.environment.variables["LD_LIBRARY_PATH"] = "/old"
        assert one(of, "CU303").fix == ["unset LD_LIBRARY_PATH"]

    def test_a_driver_that_is_new_enough_is_not_asked_to_be_newer(self):
        """The function is not the driver's, though it is called like one."""
        problem = fault("symbol", "cuSZp_compress", f"{SITE}/torch/lib/libtorch_cuda.so", "x")
        for fixes in one(used(load_faults=[problem]), "CU303", "error").fix:
            assert "nvidia-driver" not in fixes

    def test_no_provider_is_known_and_the_name_tells(self):
        problem = fault(
            "symbol",
            "ncclCommRegister",
            f"{SITE}/torch/lib/libtorch_cuda.so",
            "x: undefined symbol: ncclCommRegister",
        )
        assert one(used(load_faults=[problem]), "CU303").fix == [pip("nvidia-nccl-cu12==2.27.3")]

    def test_the_name_tells_of_a_library_that_leaks_in(self):
        """The symbol has no version that would name its library; the preloaded one lacks it."""
        leaked = outside("libnccl.so.2", "2.18.1", "nccl")
        problem = fault("symbol", "ncclMemFree", f"{SITE}/torch/lib/libtorch_cuda.so", "x")
        of = used(leaked, load_faults=[problem], environment=environment(LD_PRELOAD=leaked.path))
        assert one(of, "CU303").fix == ["unset LD_PRELOAD"]

    @pytest.mark.parametrize(
        ("symbol", "wheel_of"),
        [
            ("cusparseLtInit", "cusparselt"), ("cusparseCreate", "cusparse"),
            ("curandCreateGenerator", "curand"), ("cufftExecC2C", "cufft"),
            ("cusolverDnCreate", "cusolver"), ("cudnnCreate", "cudnn"), ("nvrtcGet", "cuda-nvrtc"),
            ("cuptiSubscribe", "cuda-cupti"), ("cudaMalloc", "cuda-runtime"),
            ("cublasLtMatmul", "cublas"), ("cublasSgemm", "cublas"),
            ("__nvJitLinkCreate_12_8", "nvjitlink"), ("nvJitLinkCreate", "nvjitlink"),
            ("nvshmem_init", "nvshmem"),
        ],
    )  # fmt: skip
    def test_the_library_by_the_name_of_its_function(self, symbol, wheel_of):
        lost = fault("symbol", symbol, "/x/y.so", f"undefined symbol: {symbol}")
        of = facts(load_faults=[lost], distributions=[wheel(f"nvidia-{wheel_of}-cu12", "1.0")])
        assert one(of, "CU303").fix == [pip(f"nvidia-{wheel_of}-cu12==1.0")]

    def test_kin_for_another_pytorch(self):
        file = f"{SITE}/torchvision/_C.so"
        symbol = "_ZN3c105ErrorC2ENS_14SourceLocationESs"
        lost = fault("symbol", symbol, file, "x", framework="torchvision")
        kin = Framework(
            "torchvision", "0.23.0", None, variant="unknown", distribution="torchvision"
        )
        of = facts(frameworks=[torch(), kin], load_faults=[lost])
        of.distributions.append(wheel("torchvision", "0.20.0"))
        fixes = f"{PYTHON} -m pip install torch==2.8.0 'torchvision==0.23.*'"
        assert one(of, "CU303").fix == [fixes]

    @pytest.mark.parametrize("framework", ["torch", None])
    def test_pytorchs_own_library_lacks_its_own_symbol(self, framework):
        file = f"{SITE}/torch/lib/libtorch_cuda.so"
        lost = fault("symbol", "_ZN3c105ErrorE", file, "x", framework=framework)
        of = facts(load_faults=[lost])
        (fixes,) = one(of, "CU303").fix
        command = "install --force-reinstall --no-deps torch "
        assert fixes.removeprefix(f"{PYTHON} -m pip ").startswith(command)

    def test_an_extension_for_another_pytorch(self):
        problem = fault(
            "symbol",
            "_ZN3c105ErrorC2ENS_14SourceLocationESs",
            f"{SITE}/flash_attn_2_cuda.so",
            "x: undefined symbol",
            framework="flash-attn",
        )
        of = used(load_faults=[problem])
        of.distributions = [*WHEELS, wheel("flash-attn", "2.7.0")]
        found = one(of, "CU303", "error")
        assert found.fix == [
            f"{pip('flash-attn')} --no-cache-dir --no-build-isolation --no-binary flash-attn"
        ]
        of.distributions = [*WHEELS, wheel("flash-attn", "2.7.0", installer="uv")]
        assert one(of, "CU303", "error").fix == [
            f"uv pip install --python {PYTHON} --reinstall-package flash-attn --no-deps flash-attn"
        ]

    def test_a_lazy_one_is_met_later(self):
        problem = fault(
            "symbol", "ncclMemFree", "/a/b.so", "b.so: undefined symbol: ncclMemFree", lazy=True
        )
        assert (
            "when it is first called" in one(used(load_faults=[problem]), "CU303", "warning").title
        )

    def test_a_version_of_symbols(self):
        text = "libnvJitLink.so.12: version `libnvJitLink.so.12' not found (required by x)"
        problem = fault("version", "libnvJitLink.so.12", "/a/libcusparse.so.12", text)
        found = one(used(load_faults=[problem]), "CU303")
        assert found.predicts == text
        assert found.title.startswith("libcusparse.so.12 needs version libnvJitLink.so.12, which")
        assert found.fix == [pip("nvidia-nvjitlink-cu12==12.8.93")]
        problem.provider = "/x/libcublas.so.12"
        assert one(used(load_faults=[problem]), "CU303").fix == [
            pip("nvidia-cublas-cu12==12.8.4.1")
        ]

    @pytest.mark.parametrize(
        ("more", "severity"),
        [({}, "error"), ({"means": "feature"}, "warning"), ({"lazy": True}, "warning")],
    )
    def test_a_symbol_of_an_optional_part(self, more, severity):
        part = f"{SITE}/torch/lib/libtorch_cuda.so"
        problem = fault("symbol", "ncclCommRegister", part, "undefined symbol", **more)
        assert one(facts(load_faults=[problem]), "CU303").severity == severity


class TestParts:
    MISMATCH = "CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH"
    UNAVAILABLE = "CUDNN_STATUS_NOT_SUPPORTED_SUBLIBRARY_UNAVAILABLE"

    @pytest.mark.parametrize(
        ("part", "text"),
        [("ops", MISMATCH), ("adv", MISMATCH), ("heuristic", UNAVAILABLE),
         ("engines_precompiled", UNAVAILABLE),
         ("engines_runtime_compiled", "CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED"),
         ("cnn", None), ("engines_tensor_ir", None)],
    )  # fmt: skip
    def test_two_versions_of_cudnn(self, part, text):
        """As seen on an H200 with one part of 9.14.0 among those of 9.19.0."""
        main = library("libcudnn_graph.so.9", "9.10.2", "cudnn")
        name = f"libcudnn_{part}.so.9"
        other = library(name, "9.23.2", "cudnn", path=f"/usr/lib/x/{name}", origin="system")
        found = one(used(main, other), "CU304", "error" if text else "note")
        assert found.predicts == text
        assert {e.file for e in found.evidence} == {main.path, other.path}
        assert found.fix == [pip("nvidia-cudnn-cu12==9.10.2.21")]

    def test_a_part_that_tells_a_fourth_number_is_of_the_same_version(self):
        versions = {"graph": "9.10.2", "adv": "9.10.2.21", "cnn": "9.14.0"}
        parts = [library(f"libcudnn_{n}.so.9", v, "cudnn") for n, v in versions.items()]
        assert "libcudnn_cnn.so.9 9.14.0" in one(used(*parts), "CU304", "note").title

    def test_the_front_library_alone_may_differ(self):
        front = library("libcudnn.so.9", "9.19.0", "cudnn")
        names = ("graph", "ops", "adv", "cnn")
        parts = [library(f"libcudnn_{name}.so.9", "9.14.0", "cudnn") for name in names]
        one(used(front, *parts), "CU304", "note")

    def test_the_parts_of_cudnn_8_are_two_versions_too(self):
        names = ("libcudnn_ops_infer.so.8", "libcudnn_cnn_infer.so.8")
        both = [library(n, v, "cudnn") for n, v in zip(names, ("8.9.7", "8.9.2"), strict=True)]
        assert one(used(*both), "CU304", "warning").predicts is None

    def test_other_libraries_are_no_parts_of_cudnn(self):
        parts = [
            library("libcudnn_graph.so.9", "9.10.2", "cudnn"),
            library("libcudnn_ops.so.9", None, "cudnn"),
            library("libcublas.so.12", "12.8.4.1", "cublas"),
        ]
        of = used(*parts)
        idle = library("libcudnn_adv.so.9", "9.1.0", "cudnn")
        of.libraries.append(idle)
        assert fired(of, "CU304") == []
        of.frameworks[0].loads.append(idle.path)
        of.frameworks[0].modelled = False
        assert fired(of, "CU304") == []

    def test_one_version(self):
        parts = [
            library(f"libcudnn_{n}.so.9", v, "cudnn")
            for n, v in (("graph", "9.10.2"), ("ops", "9.10.2.21"), ("adv", None))
        ]
        assert fired(used(*parts), "CU304") == []

    def test_two_processes_are_two_matters(self):
        a = library("libcudnn_graph.so.9", "9.10.2", "cudnn")
        b = library("libcudnn_graph.so.9", "9.3.0", "cudnn", path="/x/libcudnn_graph.so.9")
        tensorflow = Framework("tensorflow", "2.18.0", "12.5", loads=[b.path])
        assert (
            fired(facts(libraries=[a, b], frameworks=[torch(loads=[a.path]), tensorflow]), "CU304")
            == []
        )

    def test_cublas_and_cublaslt(self):
        a = library("libcublas.so.12", "12.8.4.1", "cublas")
        b = outside("libcublasLt.so.12", "12.1.3.1", "cublas", own="12.8.4.1")
        found = one(
            used(a, b, environment=environment(LD_LIBRARY_PATH=OUTSIDE)), "CU307", "warning"
        )
        assert found.fix == ["unset LD_LIBRARY_PATH"]

    def test_two_majors_side_by_side_do_not_work_together(self):
        """cu12 wheels that lie beside a cu13 PyTorch: each finds its own."""
        both = [
            library(f"lib{name}.so.{number}", version, "cublas")
            for number, version in (("12", "12.8.4.1"), ("13", "13.0.0.19"))
            for name in ("cublas", "cublasLt")
        ]
        assert fired(used(*both), "CU307") == []

    def test_what_does_not_work_together_or_does_not_tell(self):
        a = library("libcublas.so.12", "12.8.4.1", "cublas")
        silent = library("libcublasLt.so.12", None, "cublas")
        idle = library("libcublasLt.so.12", "12.1.3.1", "cublas", path="/x/libcublasLt.so.12")
        of = used(a, silent)
        of.libraries.append(idle)
        assert fired(of, "CU307") == []
        idle.soname = "libcublasLt.so.12.1"
        of.frameworks[0].loads.append(idle.path)
        one(of, "CU307", "warning")
        of.frameworks[0].modelled = False
        assert fired(of, "CU307") == []

    def test_patch_levels_of_cublas(self):
        a = library("libcublas.so.12", "12.8.4.1", "cublas")
        b = library("libcublasLt.so.12", "12.8.3.14", "cublas")
        assert one(used(a, b), "CU307", "warning").fix == [pip("nvidia-cublas-cu12==12.8.4.1")]

    def test_a_newer_nvjitlink_is_normal(self):
        assert (
            fired(
                used(
                    library("libcusparse.so.12", "12.5.8.93", "cusparse"),
                    library("libnvJitLink.so.12", "12.9.86", "nvjitlink"),
                ),
                "CU307",
            )
            == []
        )
