"""Toolkits of the system and of environments, and which nvcc a build would take."""

import os

import pytest
from synth import Prefix, toolkit

from cudriver.stack.collect import compilers, distributions, environment, toolkits
from cudriver.stack.rootfs import Root


@pytest.fixture
def tree(tmp_path):
    """A root with a system folder layout, seen as "/"."""
    (tmp_path / "usr/local/bin").mkdir(parents=True)
    (tmp_path / "usr/bin").mkdir()
    return tmp_path


def system(tree, **variables):
    problems = []
    found = toolkits.system(Root(str(tree)), variables, problems)
    return {t.path: t for t in found}, problems


def link(path, target):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


class TestSystem:
    def test_version_json_and_where_it_stands(self, tree):
        toolkit(tree / "usr/local/cuda-12.4", "12.4", json_version="12.4.1")
        link(tree / "usr/local/cuda", "/usr/local/cuda-12.4")
        found, problems = system(tree)
        only = found["/usr/local/cuda-12.4"]
        assert only.version == "12.4.1"
        assert (only.evidence.file, only.evidence.line) == ("/usr/local/cuda-12.4/version.json", 4)
        assert only.chosen_by == ["/usr/local/cuda"]
        assert only.nvcc_version == "12.4.77"
        assert "/usr/local/cuda-12.4/bin/nvcc" in {claim.file for claim in only.claims}
        assert only.host_compiler_limit == 14
        assert only.host_compiler_evidence.line == 2
        assert problems == []
        assert len(found) == 1

    def test_version_txt(self, tree):
        folder = tree / "usr/local/cuda-10.1"
        (folder / "bin").mkdir(parents=True)
        (folder / "version.txt").write_text("CUDA Version 10.1.243\n")
        assert system(tree)[0]["/usr/local/cuda-10.1"].version == "10.1.243"

    def test_cuda_h_alone(self, tree):
        toolkit(tree / "usr/local/cuda-13.0", "13.0", nvcc=False)
        found = system(tree)[0]["/usr/local/cuda-13.0"]
        assert found.version == "13.0"
        assert found.evidence.line == 2

    def test_nothing_but_libraries(self, tree):
        lib = tree / "usr/local/cuda-12.6/lib64"
        lib.mkdir(parents=True)
        (lib / "libcudart.so.12.6.77").write_bytes(b"")
        found = system(tree)[0]["/usr/local/cuda-12.6"]
        assert (found.version, found.nvcc, found.headers) == ("12.6", None, None)
        assert found.evidence.file.endswith("libcudart.so.12.6.77")

    def test_an_empty_folder_is_none(self, tree):
        (tree / "usr/local/cuda-12.6").mkdir()
        assert system(tree)[0] == {}

    def test_variables_path_and_links_lead_to_one(self, tree):
        toolkit(tree / "opt/cuda-12.8", "12.8")
        found, _ = system(
            tree,
            CUDA_HOME="/opt/cuda-12.8",
            CUDA_PATH="/opt/cuda-12.8/",
            PATH="/usr/bin:/opt/cuda-12.8/bin",
        )
        assert found["/opt/cuda-12.8"].chosen_by == ["CUDA_HOME", "CUDA_PATH", "PATH"]

    def test_a_wrapper_script_is_followed(self, tree):
        toolkit(tree / "usr/local/cuda-13.0", "13.0")
        wrapper = tree / "usr/local/bin/nvcc"
        wrapper.write_text('#!/bin/sh\nexec /usr/local/cuda-13.0/bin/nvcc "$@"\n')
        wrapper.chmod(0o755)
        found, _ = system(tree)
        assert found["/usr/local/cuda-13.0"].chosen_by == ["PATH"]

    def test_debians_own_package(self, tree):
        folder = toolkit(tree / "usr/lib/nvidia-cuda-toolkit", "11.8")
        script = tree / "usr/bin/nvcc"
        script.write_text("#!/bin/sh\nexec /usr/lib/nvidia-cuda-toolkit/bin/nvcc\n")
        script.chmod(0o755)
        assert folder.is_dir()
        assert system(tree)[0]["/usr/lib/nvidia-cuda-toolkit"].chosen_by == ["PATH"]

    def test_the_loaders_configuration(self, tree):
        toolkit(tree / "srv/cuda", "12.2", nvcc=False)
        conf = tree / "etc/ld.so.conf.d"
        conf.mkdir(parents=True)
        (conf / "cuda.conf").write_text("# words\n/srv/cuda/lib64\n")
        assert system(tree)[0]["/srv/cuda"].version == "12.2"

    def test_a_conda_environment_in_cuda_home_is_not_the_systems(self, tree):
        toolkit(tree / "opt/env", "12.2")
        (tree / "opt/env/conda-meta").mkdir()
        assert system(tree, CUDA_HOME="/opt/env")[0] == {}

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"{",
            b"[]",
            b'{"cuda": 3}',
            b'{"cuda": {"version": 12}}',
            b"[" * 100000,
            b"\xff\xfe",
        ],
    )
    def test_a_broken_version_json(self, tree, content):
        toolkit(tree / "usr/local/cuda-12.4", "12.4", nvcc=False)
        (tree / "usr/local/cuda-12.4/version.json").write_bytes(content)
        found, problems = system(tree)
        assert found["/usr/local/cuda-12.4"].version == "12.4"
        assert [p.file for p in problems] == ["/usr/local/cuda-12.4/version.json"]

    def test_a_broken_header_and_a_fifo(self, tree):
        folder = tree / "usr/local/cuda-12.4"
        toolkit(folder, "12.4", nvcc=False)
        (folder / "include/cuda.h").write_text("#define CUDA_VERSION many\n")
        os.mkfifo(folder / "version.txt")
        os.mkfifo(folder / "version.json")
        found, problems = system(tree)
        assert found["/usr/local/cuda-12.4"].version == "12.4"  # libcudart's name
        files = [p.file for p in problems]
        assert "/usr/local/cuda-12.4/include/cuda.h" in files
        assert "/usr/local/cuda-12.4/version.json" in files

    def test_a_header_that_cannot_be_read_hides_no_other(self, tree, monkeypatch):
        """root may read any file, so the test refuses it."""
        folder = tree / "usr/local/cuda-12.4"
        toolkit(folder, "12.4", nvcc=False)
        (folder / "include/cuda_runtime_api.h").write_text("#define CUDART_VERSION 12040\n")
        usual = Root.text

        def text(root, path, *limit):
            return None if path.endswith("/cuda.h") else usual(root, path, *limit)

        monkeypatch.setattr(Root, "text", text)
        files = {claim.file for claim in system(tree)[0]["/usr/local/cuda-12.4"].claims}
        assert "/usr/local/cuda-12.4/include/cuda_runtime_api.h" in files

    def test_links_do_not_lead_out_of_the_root(self, tree, tmp_path_factory):
        outside = tmp_path_factory.mktemp("outside")
        toolkit(outside / "cuda", "12.9", nvcc=False)
        link(tree / "usr/local/cuda-12.9", str(outside / "cuda"))
        up = "/".join([".."] * 30)
        link(tree / "usr/local/cuda-12.8", f"{up}{outside}/cuda")
        link(tree / "usr/local/cuda", "/usr/local/cuda")
        assert system(tree)[0] == {}


class TestEnvironment:
    def of(self, prefix):
        problems = []
        root = Root("/")
        env = environment.describe(root, str(prefix.path), {}, problems)
        found = distributions.collect(root, env, problems)
        return toolkits.environment(root, env, found, problems)

    def test_wheels_of_12(self, tmp_path):
        prefix = Prefix(tmp_path / "env").venv()
        prefix.dist(
            "nvidia-cuda-runtime-cu12",
            "12.8.90",
            files={"nvidia/cuda_runtime/lib/libcudart.so.12": b""},
        )
        (only,) = self.of(prefix)
        # 12.8.1 and 12.8.2 share this runtime.
        assert (only.origin, only.kind, only.version) == ("environment", "wheels", "12.8")
        assert only.evidence.line == 3

    def test_wheels_of_13_by_the_metapackage(self, tmp_path):
        prefix = Prefix(tmp_path / "env").venv()
        prefix.dist(
            "nvidia-cuda-runtime", "13.0.96", files={"nvidia/cu13/lib/libcudart.so.13": b""}
        )
        prefix.dist("cuda-toolkit", "13.0.2")
        (only,) = self.of(prefix)
        assert only.version == "13.0.2"
        assert only.path.endswith("nvidia/cu13")

    def test_the_placeholder_wheel_is_none(self, tmp_path):
        prefix = Prefix(tmp_path / "env").venv()
        prefix.dist("nvidia-cuda-runtime-cu13", "0.0.0a0")
        assert self.of(prefix) == []

    @pytest.mark.parametrize(
        ("packages", "version"),
        [
            ({"cudatoolkit": "11.8.0"}, "11.8.0"),
            ({"cuda-cudart": "12.4.127", "cuda-version": "12.4"}, "12.4.1"),
            ({"cuda-nvcc": "12.6.85"}, "12.6.3"),
            ({"cuda-version": "12.4"}, None),
        ],
    )
    def test_conda(self, tmp_path, packages, version):
        prefix = Prefix(tmp_path / "env").conda()
        for name, number in packages.items():
            prefix.conda_package(name, number)
        (prefix.path / "bin/nvcc").touch()  # tells nothing itself
        found = self.of(prefix)
        assert [t.version for t in found] == ([version] if version else [])
        assert [t.nvcc_version for t in found] == [packages.get("cuda-nvcc")] * len(found)


class TestChoice:
    """The order of torch.utils.cpp_extension."""

    def choose(self, tree, prefix=None, **variables):
        root = Root(str(tree))
        prefix = prefix or Prefix(tree / "env", root=tree).venv()
        env = environment.describe(root, prefix.inside, variables, [])
        return toolkits.choice(root, variables, env, toolkits.system(root, variables, []))

    def test_cuda_home_then_cuda_path_then_path_then_default(self, tree):
        for name in ("home", "path", "onpath"):
            toolkit(tree / f"opt/{name}", "12.4")
        toolkit(tree / "usr/local/cuda", "12.8")
        every = {"CUDA_HOME": "/opt/home", "CUDA_PATH": "/opt/path", "PATH": "/opt/onpath/bin"}
        prefix = Prefix(tree / "env", root=tree).venv()
        for name, home in (
            ("CUDA_HOME", "/opt/home"),
            ("CUDA_PATH", "/opt/path"),
            ("PATH", "/opt/onpath"),
        ):
            chosen = self.choose(tree, prefix, **every)
            assert (chosen.home, chosen.exists, chosen.version) == (home, True, "12.4.77")
            every.pop(name)
        chosen = self.choose(tree, prefix, PATH="/usr/bin")
        assert (chosen.home, chosen.chosen_by, chosen.version) == (
            "/usr/local/cuda",
            "default",
            "12.8.77",
        )

    def test_none(self, tree):
        found = self.choose(tree)
        assert (found.home, found.exists) == (None, False)

    def test_a_home_without_nvcc(self, tree):
        chosen = self.choose(tree, CUDA_HOME="/nowhere")
        assert (chosen.nvcc, chosen.exists) == ("/nowhere/bin/nvcc", False)

    def test_the_environments_own_nvcc_is_on_path(self, tree):
        prefix = Prefix(tree / "env", root=tree).venv()
        program = toolkit(tree / "x", "12.9") / "bin/nvcc"
        program.rename(prefix.path / "bin/nvcc")
        chosen = self.choose(tree, prefix, PATH="/usr/bin")
        assert (chosen.home, chosen.version) == ("/env", "12.9.77")

    def test_an_nvcc_that_cannot_be_run_is_passed_over(self, tmp_path):
        for name, mode in (("one", 0o644), ("two", 0o755), ("three", 0o755)):
            (tmp_path / name).mkdir()
            (tmp_path / name / "nvcc").write_text("")
            (tmp_path / name / "nvcc").chmod(mode)
        (tmp_path / "folder/nvcc").mkdir(parents=True)
        folders = ["/absent", "/folder", "/one", "/two", "/three"]
        assert compilers.which(Root(str(tmp_path)), "nvcc", folders) == "/two/nvcc"
        assert compilers.which(Root(str(tmp_path)), "nvcc", folders[:3]) is None


class TestCompiler:
    def of(self, tree, **variables):
        root = Root(str(tree))
        if not (tree / "env").exists():
            Prefix(tree / "env", root=tree).venv()
        env = environment.describe(root, "/env", variables, [])
        return compilers.host_compiler(root, variables, env)

    def program(self, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\x7fELF")
        path.chmod(0o755)

    def test_debian(self, tree):
        self.program(tree / "usr/bin/x86_64-linux-gnu-gcc-13")
        link(tree / "usr/bin/gcc-13", "x86_64-linux-gnu-gcc-13")
        link(tree / "usr/bin/gcc", "gcc-13")
        found = self.of(tree)
        assert (found.path, found.version, found.kind, found.chosen_by) == (
            "/usr/bin/gcc",
            "13",
            "gcc",
            "PATH",
        )

    def test_red_hat(self, tree):
        self.program(tree / "usr/bin/gcc")
        (tree / "usr/lib/gcc/x86_64-redhat-linux/11").mkdir(parents=True)
        assert self.of(tree).version == "11"
        self.program(tree / "usr/bin/x86_64-redhat-linux-g++")  # of that target alone
        (tree / "usr/lib/gcc/aarch64-linux-gnu/14").mkdir(parents=True)
        found = self.of(tree, NVCC_CCBIN="/usr/bin/x86_64-redhat-linux-g++")
        assert found.version == "11"

    def test_ccbin(self, tree):
        self.program(tree / "usr/bin/gcc-13")
        self.program(tree / "opt/gcc/bin/g++-12")
        found = self.of(tree, NVCC_CCBIN="/opt/gcc/bin/g++-12")
        assert (found.version, found.chosen_by) == ("12", "NVCC_CCBIN")

    def test_clang(self, tree):
        self.program(tree / "usr/lib/llvm-18/bin/clang")
        link(tree / "usr/bin/clang++", "../lib/llvm-18/bin/clang")
        found = self.of(tree, NVCC_CCBIN="clang++")
        assert (found.version, found.kind) == ("18", "clang")

    def test_none(self, tree):
        assert self.of(tree) is None

    def test_condas(self, tree):
        """CXX as its activation sets it, else the only one that is there."""
        prefix = Prefix(tree / "env", root=tree).conda()
        name = "x86_64-conda-linux-gnu-g++"
        self.program(prefix.path / "bin" / name)
        self.program(tree / f"opt/{name}")
        for variables, path, why in (
            ({}, f"/env/bin/{name}", "conda"),
            ({"CXX": f"/opt/{name}"}, f"/opt/{name}", "CXX"),
            ({"CXX": name, "PATH": "/opt"}, f"/env/bin/{name}", "CXX"),
            ({"CXX": "/opt/g++"}, f"/env/bin/{name}", "conda"),
        ):
            found = self.of(tree, **variables)
            assert (found.path, found.chosen_by) == (path, why)

    @pytest.mark.parametrize(
        ("line", "limit"),
        [
            (
                "#if defined(__clang__) && ((__clang_major__ >= 20) || (__clang_major__ < 3) || 0)",
                19,
            ),
            ("#if defined(__clang__) && (__clang_major__ > 16)", 16),
            ("#if defined(__clang__)", None),
        ],
    )
    def test_the_newest_clang_that_a_header_takes(self, tmp_path, line, limit):
        folder = toolkit(tmp_path / "usr/local/cuda-12.8", "12.8", nvcc=False)
        header = folder / "include/crt/host_config.h"
        header.write_text(header.read_text() + line + "\n#error no\n#endif\n")
        (found,) = toolkits.system(Root(str(tmp_path)), {}, [])
        assert (found.clang_limit, found.host_compiler_limit) == (limit, 14)
