"""Frameworks by the files in which they say what they are, and versions by what libraries say."""

import fnmatch
import struct

import pytest
from facts import but, wheel
from synth import Prefix

from cudriver.stack.collect import ask, collect
from cudriver.stack.elf import parts
from cudriver.stack.environment.debian import DebianOwners
from cudriver.stack.environment.records import is_library
from cudriver.stack.facts import Library
from cudriver.stack.load import file_version
from cudriver.stack.load.frameworks import Finder
from cudriver.stack.load.runtime_versions import _first
from cudriver.stack.names import is_cuda_library, matches
from cudriver.stack.roots.rootfs import Root
from elfkit import compile_c


@pytest.fixture
def venv(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    return Prefix(root / "env", root=root).venv()


def facts(prefix, **variables):
    return collect(ask(prefix.inside, root=str(prefix.root), environ=variables))


@pytest.mark.parametrize(
    ("name", "cuda", "library"),
    [
        ("libcudart.so.13", True, True),
        ("libcudart.so", True, True),
        ("libcudnn_engines_precompiled.so.9", True, True),
        ("libnvrtc-builtins.so.13.0", True, True),
        ("libnppc.so.12.4.1.87", True, True),
        ("libcudnn-x.so.9", False, True),
        ("libcudart-1a2b3c4d.so.11.0", True, True),
        ("libnvjpeg-1a359ba7.so.13.0.1.86", True, True),
        ("libcudart-1a2b3c4x.so.11.0", False, True),
        ("libcudart.so.13a", False, False),
        ("libcudart.so.", False, False),
        ("libcuda.sos", False, False),
        ("libm.so.6", False, True),
        ("cudart.so.13", False, True),
        ("libcudart.a", False, False),
        ("", False, False),
    ],
)
def test_names_of_libraries(name, cuda, library):
    assert (is_cuda_library(name), is_library(name)) == (cuda, library)


@pytest.mark.parametrize("name", ["libnccl.so.2", "libnccl.so.", "libnccl.so.x", "libnccl.so", "a"])
@pytest.mark.parametrize(
    "pattern",
    [
        *("libnccl.so.*[0-9]", "libnccl.so.2", "lib*.so.?", "libncc[l].so.*[0-9]", "*", ""),
        *("*.so.2", "libnccl.so*", "lib*cl.so.2", "libnccl.so.2*2", "lib*.so.*", "lib[m-o]*"),
    ],
)
def test_patterns_are_globs(name, pattern):
    assert matches(name, pattern) is fnmatch.fnmatchcase(name, pattern)


class TestPyTorch:
    def test_one_that_cannot_be_read_leaves_the_others(self, venv, monkeypatch):
        venv.torch()
        venv.dist("mine", "1.0", ["nvidia-cublas-cu12"])
        of = Finder.of

        def broken(self, recipe, dists):
            if recipe.name == "torch":
                raise ValueError("damaged")
            return of(self, recipe, dists)

        monkeypatch.setattr(Finder, "of", broken)
        found = facts(venv)
        assert found.framework("mine") is not None
        assert ("torch", "could not be read: damaged") in [(p.file, p.text) for p in found.problems]


class TestVersions:
    """A library's own version: its name, its code, its package, in the order of trust."""

    def library(self, tmp_path, soname, source, name=None):
        path = tmp_path / (name or soname)
        return str(compile_c(path, source, f"-Wl,-soname,{soname}"))

    def version(self, path, soname, owner=None):
        return file_version.own_version(Root("/"), path, soname, owner)

    def test_by_name(self, tmp_path):
        target = self.library(tmp_path, "libcudnn.so.9", "int x;", "libcudnn.so.9.14.0")
        (tmp_path / "libcudnn.so.9").symlink_to("libcudnn.so.9.14.0")
        owner = wheel("nvidia-cudnn-cu12", "9.10.2.21")  # its RECORD lists what another overwrote
        version, evidence = self.version(str(tmp_path / "libcudnn.so.9"), "libcudnn.so.9", owner)
        assert version == "9.14.0"
        assert evidence.value == "libcudnn.so.9.14.0"
        assert target

    @pytest.mark.parametrize(
        ("soname", "source", "version"),
        [
            ("libnccl.so.2", "int ncclGetVersion(int *v) { return v ? (*v = 22703, 0) : 4; }",
             "2.27.3"),
            ("libnvrtc.so.12",
             "int nvrtcVersion(int *a, int *b) { if (!a) return 3; *a = 12; *b = 8; return 0; }",
             "12.8"),
            ("libcurand.so.10", "int curandGetVersion(int *v) { *v = 10310; return 0; }",
             "10.3.10"),
            ("libcufft.so.11", "int cufftGetVersion(int *v) { *v = 11303; return 0; }", "11.3.3"),
            ("libcudnn_graph.so.9", "const unsigned cudnn_graph_version = 0x090a02;", "9.10.2"),
            ("libcudnn_ops.so.9", "const unsigned cudnn_ops_infer_version = 0x091700;", "9.23.0"),
            ("libcudnn_ops_infer.so.8", "const int cudnn_ops_infer_version = 8907;", "8.9.7"),
            ("libcublasLt.so.12", "unsigned long cublasLtGetVersion(void) { return 120804; }",
             "12.8.4"),
        ],
    )  # fmt: skip
    def test_by_its_code(self, tmp_path, soname, source, version):
        path = self.library(tmp_path, soname, source)
        found, evidence = self.version(path, soname)
        assert found == version
        assert evidence.file == path

    @pytest.mark.parametrize(
        ("soname", "version", "package", "build", "cuda"),
        [
            ("libnccl.so.2", "2.27.3", "nvidia-nccl-cu12", None, "12"),
            ("libnccl.so.2", "2.27.3", "nccl", "h4d09622_cuda129_0", "12.9"),
            ("libnccl.so.2", "2.27.3", "nccl", "cuda_118_0", "11.8"),
            ("libnccl.so.2", "2.27.3", "nccl", "cuda12_0", "12"),
            ("libnccl.so.2", "2.27.3", "nccl", None, None),
            ("libcudart.so.12", "12.8.90", None, None, "12.8"),
            ("libcudart.so.12", "12", None, None, "12"),
            ("libcublas.so.12", "12.8.4.1", None, None, "12.8.1"),
            ("libcufft.so.12", None, None, None, "13"),
            ("libcusparse.so.12", None, None, None, None),  # CUDA 12 and 13 have it
            ("libm.so.6", None, None, None, None),
        ],
    )
    def test_the_cuda_that_a_library_belongs_to(self, soname, version, package, build, cuda):
        owner = but(wheel(package, "2.27.3"), build=build) if package else None
        assert file_version.cuda_of(soname, version, owner) == cuda

    def test_the_version_of_a_framework_s_library(self):
        """The first stem that has one, and three numbers of it."""
        found = [
            Library(name, f"/{name}", version)
            for name, version in (
                ("libnccl.so.2", "2.27.3"), ("libcudnn.so.9", "9.1.0"),
                ("libcudnn_graph.so.9", None), ("libcudnn_graph.so.9", "9.10.2.21"),
            )
        ]  # fmt: skip
        assert _first(found, "libcudnn_graph.so", "libcudnn.so") == "9.10.2"
        assert _first(found[:3], "libcudnn_graph.so", "libcudnn.so") == "9.1.0"
        assert _first(found[:1], "libcudnn_graph.so", "libcudnn.so") is None

    def test_the_code_wins_over_a_package_that_contradicts(self, tmp_path):
        """Another wheel wrote over the file: its owner says one thing, the file another."""
        source = "int ncclGetVersion(int *v) { *v = 22809; return 0; }"
        path = self.library(tmp_path, "libnccl.so.2", source)
        owner = wheel("nvidia-nccl-cu12", "2.27.3")
        assert self.version(path, "libnccl.so.2", owner)[0] == "2.28.9"

    def test_the_package_adds_what_the_code_leaves_out(self, tmp_path):
        source = "int nvrtcVersion(int *a, int *b) { *a = 12; *b = 8; return 0; }"
        path = self.library(tmp_path, "libnvrtc.so.12", source)
        owner = wheel("nvidia-cuda-nvrtc-cu12", "12.8.93")
        assert self.version(path, "libnvrtc.so.12", owner)[0] == "12.8.93"
        version, evidence = self.version(
            path, "libcublas.so.12", wheel("nvidia-cublas-cu12", "12.8.4.1")
        )
        assert version == "12.8.4.1"
        assert evidence.file.endswith("METADATA")

    def test_pytorchs_own_number_is_not_that_of_nccl(self, tmp_path):
        """Debian's libtorch: a link to a file with PyTorch's number, and no NCCL in it."""
        prefix = Prefix(tmp_path / "env", root=tmp_path).venv()
        library = prefix.torch("2.6.0", "12.4", pins={}).parent / "torch/lib/libtorch_cuda.so"
        compile_c(library.with_name("libtorch_cuda.so.2.6"), "int x;")
        library.symlink_to("libtorch_cuda.so.2.6")
        found = collect(ask("/env", root=str(tmp_path), environ={}, probe=False))
        assert found.framework("torch").nccl is None

    @pytest.mark.parametrize(
        ("file", "version"),
        [("libcudart-d0da41ae.so.11.0", None), ("libnvjpeg-1a359ba7.so.13.0.1.86", "13.0.1.86")],
    )
    def test_a_sonames_number_is_no_version(self, tmp_path, file, version):
        """auditwheel puts its hash before the SONAME's number: CUDA 11.8 has libcudart.so.11.0."""
        path = self.library(tmp_path, file, "int x;")
        assert self.version(path, file)[0] == version

    def test_nobody_says_it(self, tmp_path):
        path = self.library(tmp_path, "libcublas.so.12", "int x;")
        assert self.version(path, "libcublas.so.12")[0] is None

    @pytest.mark.parametrize(
        ("number", "code", "version"),
        [
            (8907, "cudnn", "8.9.7"), (90000, "cudnn", "9.0.0"), (91002, "cudnn", "9.10.2"),
            (0x090A02, "cudnn", "9.10.2"),
            (2708, "nccl", "2.7.8"), (2804, "nccl", "2.8.4"), (20000, "nccl", "2.0.0"),
            (20906, "nccl", "2.9.6"), (23007, "nccl", "2.30.7"),
            (120804, "ten_thousand", "12.8.4"), (999_999, "ten_thousand", "99.99.99"),
            (100, "thousand", "0.1.0"), (800, "thousand", "0.8.0"), (12603, "thousand", "12.6.3"),
            (99, "nccl", None), (1_000_000, "ten_thousand", None), (1 << 31, "thousand", None),
            (12080, "other", None),
        ],
    )  # fmt: skip
    def test_decode(self, number, code, version):
        assert file_version.decode(number, code) == version

    def test_aarch64(self):
        """movz w1, #22703; str; movz w2, #0x0a02; movk w2, #9, lsl 16."""
        words = [
            0x52800000 | 22703 << 5 | 1,
            0xB9000001,
            0x52800000 | 0x0A02 << 5 | 2,
            0x72A00000 | 9 << 5 | 2,
        ]
        code = struct.pack("<4I", *words)
        assert file_version.constants(code, 183) == [22703, 0x090A02]
        assert file_version.constants(code, 8) == []

    @pytest.mark.parametrize("cut", [0, 4, 20, 63, 64, 100, 500, 3000])
    def test_a_truncated_file_has_no_version(self, tmp_path, cut):
        source = "int ncclGetVersion(int *v) { *v = 22809; return 0; }"
        path = self.library(tmp_path, "libnccl.so.2", source)
        with open(path, "rb+") as file:
            file.truncate(cut)
        assert self.version(path, "libnccl.so.2")[0] is None

    def test_sections_and_symbols_are_those_of_readelf(self, tmp_path):
        import subprocess

        path = self.library(
            tmp_path,
            "libx.so.1",
            'const char words[] = "some words"; char kept[] = "data"; int f(void) { return 7; }',
        )
        file = parts.opened(Root("/"), path)
        assert parts.symbol(file, "words", 64) == b"some words\0"
        assert parts.symbol(file, "kept", 64) == b"data\0"  # its address is not its place
        assert parts.symbol(file, "absent", 64) is None
        assert len(parts.symbol(file, "f", 3)) == 3
        assert parts.local_symbol(file, "words", 64)[0] == b"some words\0"
        assert parts.local_symbol(file, "ords", 64) is None
        rodata = parts.section(Root("/"), path, ".rodata", 1 << 20)
        assert parts.section(Root("/"), path, ".absent", 10) == b""
        shown = subprocess.run(
            ["readelf", "-SW", path], capture_output=True, text=True, check=True
        ).stdout
        line = next(row for row in shown.splitlines() if " .rodata " in row)
        assert len(rodata) == int(line.split("PROGBITS")[1].split()[2], 16)


@pytest.mark.parametrize("package", ["libcudnn9-cuda-12", "libnccl2"])
def test_debian_owners(tmp_path, package):
    info = tmp_path / "var/lib/dpkg/info"
    info.mkdir(parents=True)
    (info / f"{package}:amd64.list").write_text("/.\n/usr/lib/x86_64-linux-gnu/libcudnn.so.9\n")
    (info / "bash.list").write_text("/usr/lib/x86_64-linux-gnu/libcudnn.so.8\n")
    (tmp_path / "var/lib/dpkg/status").write_text(
        "Package: bash\nStatus: install ok installed\nVersion: 5\n\n"
        f"Package: {package}\nStatus: install ok installed\nArchitecture: amd64\n"
        "Version: 9.14.0.64-1\n\nPackage: cuda-old\nStatus: deinstall ok config-files\nVersion: 1\n"
    )
    owners = DebianOwners(Root(str(tmp_path)))
    owner = owners.owner("/usr/lib/x86_64-linux-gnu/libcudnn.so.9")
    assert owner == f"{package} 9.14.0.64-1"
    assert owners.owner("/usr/lib/x86_64-linux-gnu/libcudnn.so.8") is None
    assert owners.version(package) == "9.14.0.64-1"
    assert owners.version("cuda-old") == owners.version("cuda") == ""


@pytest.mark.parametrize(
    ("status", "version"),
    [
        ("Package: a\nStatus: install ok installed\nVersion: 1 2\n", "1"),
        ("Package: a\nStatus: install ok installed\nVersion: \nX: 2\n", ""),
        ("Package: a\nStatus: install ok installed\n\nPackage: b\nVersion: 2\n", ""),
        ("Package: a\nVersion: 2\n", ""),
        (
            "Package: a\nStatus: install ok installed\nVersion: 1\n\n"
            "Package: a\nStatus: install ok installed\nVersion: 2",
            "2",
        ),
        ("Package: a\nStatus: install ok installed\nVersion: 1\n\nPackage: a\n", "1"),
        ("X-Package: a\nStatus: install ok installed\nVersion: 1\n", ""),
    ],
)
def test_the_version_of_a_debian_package(tmp_path, status, version):
    (tmp_path / "var/lib/dpkg").mkdir(parents=True)
    (tmp_path / "var/lib/dpkg/status").write_text(status)
    assert DebianOwners(Root(str(tmp_path))).version("a") == version
