"""Environments broken with small libraries compiled here, so that no download is needed.

The oracle is glibc's own loader: a real import in a real interpreter, `ldd -r`, /proc/self/maps.
A package `fastnet` plays the framework: its extension needs libraries under the names of NVIDIA's.
"""

import base64
import hashlib
import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import real

from cudriver.stack.load import frameworks, libraries
from cudriver.stack.load.recipes import listed
from elfkit import compile_c

SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
MODULE = """
#include <Python.h>
extern int {needs}(void);
static struct PyModuleDef module = {{PyModuleDef_HEAD_INIT, "_C", NULL, -1, NULL}};
PyMODINIT_FUNC PyInit__C(void)
{{
    PyObject *made = {needs}() == 0 ? PyModule_Create(&module) : NULL;
#ifdef Py_GIL_DISABLED /* else its import switches the GIL on, and Python warns */
    if (made != NULL) {{
        PyUnstable_Module_SetGIL(made, Py_MOD_GIL_NOT_USED);
    }}
#endif
    return made;
}}
"""
MAPPED = """
import json, fastnet._C
with open("/proc/self/maps") as maps:
    rows = (line.rstrip("\\n").split(None, 5) for line in maps)
    print(json.dumps(sorted({row[5] for row in rows if len(row) == 6 and ".so" in row[5]})))
"""

pytestmark = pytest.mark.skipif(
    shutil.which("gcc") is None or not Path(sysconfig.get_paths()["include"], "Python.h").exists(),
    reason="needs gcc and Python's headers",
)


class Venv:
    """A real venv of the running Python, without pip, with packages made by hand."""

    def __init__(self, path: Path) -> None:
        self.path = path
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(path)], check=True)
        self.site = path / "lib" / Path(sysconfig.get_path("stdlib")).name / "site-packages"

    def distribution(self, name: str, version: str, *requires: str, files: list[Path] = ()) -> None:
        """The record of an installed wheel that owns `files`."""
        info = self.site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        lines += [f"Requires-Dist: {requirement}" for requirement in requires]
        (info / "METADATA").write_text("\n".join(lines) + "\n")
        (info / "INSTALLER").write_text("pip\n")
        record = [f"{info.name}/RECORD,,"]
        for file in files:
            data = file.read_bytes()
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{file.relative_to(self.site)},sha256={digest},{len(data)}")
        (info / "RECORD").write_text("\n".join(record) + "\n")

    def library(self, folder: str, soname: str, source: str, *flags: str, versions=None) -> Path:
        """A library of NVIDIA's by name: nvidia/FOLDER/lib/SONAME."""
        return library(
            self.site / "nvidia" / folder / "lib", soname, source, *flags, versions=versions
        )

    def fastnet(
        self, needs: str, *flags: str, requires: tuple[str, ...] = ("nvidia-ml-py",)
    ) -> None:
        """The framework: an extension module that calls `needs` when it is imported."""
        folder = self.site / "fastnet"
        target = folder / f"_C{SUFFIX}"
        compile_c(
            target, MODULE.format(needs=needs), f"-I{sysconfig.get_paths()['include']}", *flags
        )
        target.with_name(target.name + ".c").unlink()
        (folder / "__init__.py").write_text("")
        self.distribution("fastnet", "1.0", *requires, files=[target, folder / "__init__.py"])
        for requirement in requires:
            self.distribution(requirement, "13.0")

    def error(self, **variables: str) -> str | None:
        """The real import's; a crash of the loader itself is told as one."""
        return real.import_error(self.path, "fastnet._C", **variables)

    def mapped(self, **variables: str) -> list[str]:
        found = real.ask(self.path, MAPPED, **variables)
        assert isinstance(found, list)
        return found

    def check(self, **variables: str):
        return real.check(self.path, environ=real.clean_environ(**variables), probe_driver=False)


def library(folder: Path, soname: str, source: str, *flags: str, versions=None) -> Path:
    target = compile_c(folder / soname, source, f"-Wl,-soname,{soname}", *flags, versions=versions)
    for leftover in (".c", ".map"):
        target.with_name(target.name + leftover).unlink(missing_ok=True)
    return target


def rpath(entry: str) -> tuple[str, str]:
    """Before LD_LIBRARY_PATH, and inherited."""
    return ("-Wl,--disable-new-dtags", f"-Wl,-rpath,{entry}")


def runpath(entry: str) -> tuple[str, str]:
    """After LD_LIBRARY_PATH."""
    return ("-Wl,--enable-new-dtags", f"-Wl,-rpath,{entry}")


RECIPE = {
    "name": "fastnet",
    "distributions": ["fastnet"],
    "module": "fastnet._C",
    "package": "fastnet",
    "source": "Venv.fastnet",
    "steps": [{"load": ["fastnet/_C{so}"]}],
}


@pytest.fixture
def venv(tmp_path, monkeypatch) -> Venv:
    """fastnet is modelled: this recipe is all that a new framework needs."""
    known = [*listed(), RECIPE]
    monkeypatch.setattr(frameworks, "listed", lambda: known)
    return Venv(tmp_path / "env")


def link_library(
    folder: Path, symbol: str = "__nvJitLinkCreate_12_8", version: str = "libnvJitLink.so.12"
) -> Path:
    """An nvJitLink that exports one symbol under one version."""
    source = f"int {symbol}(void) {{ return 0; }}"
    return library(folder, "libnvJitLink.so.12", source, versions=f"{version} {{ global: *; }};")


def chain(venv: Venv, *hop: str, version: str = "libnvJitLink.so.12") -> tuple[Path, Path]:
    """fastnet needs cuSPARSE by RPATH; cuSPARSE needs a versioned nvJitLink by `hop`."""
    link = link_library(venv.site / "nvidia" / "nvjitlink" / "lib", version=version)
    sparse = venv.library(
        "cusparse",
        "libcusparse.so.12",
        "extern int __nvJitLinkCreate_12_8(void);\n"
        "int cusparseCreate(void) { return __nvJitLinkCreate_12_8(); }",
        str(link),
        *hop,
    )
    venv.fastnet("cusparseCreate", str(sparse), *rpath("$ORIGIN/../nvidia/cusparse/lib"))
    venv.distribution("nvidia-nvjitlink-cu12", "12.8.93", files=[link])
    venv.distribution("nvidia-cusparse-cu12", "12.5.8.93", files=[sparse])
    return link, sparse


def predictions(report) -> list[str]:
    """Error texts as Python's import would show them.

    A package that the check does not know may never load all of its libraries: such a finding can
    be a warning.
    """
    found = [f.predicts for f in real.findings(report) if f.severity in ("error", "warning")]
    return [f"ImportError: {text}" for text in found if text]


SECOND_HOP = "$ORIGIN/../../nvjitlink/lib"


def test_a_sound_chain_is_silent_and_where_the_loader_puts_it(venv):
    link, sparse = chain(venv, *runpath(SECOND_HOP))
    assert venv.error() is None
    report = venv.check()
    assert real.rules_of_environment(report) == set()
    predicted = {lib.soname: lib.real_path for lib in report.libraries}
    assert predicted["libcusparse.so.12"] == str(sparse)
    assert predicted["libnvJitLink.so.12"] == str(link)
    assert {str(link), str(sparse)} <= set(venv.mapped())


def test_an_older_library_without_the_symbol(venv):
    """As pytorch#134929: the SONAME fits, the symbol is not there."""
    link, _ = chain(venv, *runpath(SECOND_HOP))
    link_library(link.parent, "__nvJitLinkCreate_12_1")
    seen = venv.error()
    assert seen.endswith("undefined symbol: __nvJitLinkCreate_12_8, version libnvJitLink.so.12")
    found = real.finding(venv.check(), "CU303")
    assert f"ImportError: {found.predicts}" == seen
    assert found.severity == "error"
    assert found.because == str(link)  # without the ".." by which the loader got there


SCRIPT = "#!/bin/sh\n{setting} exec '{python}' \"$@\"\n"
PROGRAM = """
#include <stdlib.h>
#include <unistd.h>
int main(int argc, char **argv)
{{
    char setting[] = "{setting}";
    argv[0] = "{python}";
    if (*setting)
        putenv(setting);
    return execv(argv[0], argv);
}}
"""


def wrap(venv: Venv, kind: str, setting: str = "") -> None:
    """Puts a program in the place of bin/python that sets a variable and starts the real one."""
    python = venv.path / "bin/python"
    python.rename(venv.path / "bin/wrapped")
    words = {"setting": setting, "python": venv.path / "bin/wrapped"}
    if kind == "script":
        python.write_text(SCRIPT.format(**words))
        python.chmod(0o755)
    else:
        compile_c(python, PROGRAM.format(**words), shared=False)


@pytest.mark.parametrize("kind", ["script", "program"])
class TestWrapper:
    """bin/python is not Python but starts one, as those of Nix and of module systems."""

    def test_all_is_well(self, venv, kind):
        chain(venv, *runpath(SECOND_HOP))
        wrap(venv, kind)
        assert venv.error() is None
        report = venv.check()
        assert real.rules_of_environment(report) == set()
        assert report.verdict == "consistent"

    def test_it_sets_what_the_loader_needs(self, venv, kind):
        """Then there is no proof that a library is not found."""
        link, _ = chain(venv)
        assert "libnvJitLink.so.12: cannot open shared object file" in venv.error()
        assert real.finding(venv.check(), "CU305").severity == "error"
        wrap(venv, kind, f"LD_LIBRARY_PATH={link.parent}")
        assert venv.error() is None
        report = venv.check()
        assert real.rules(report, "error") <= {"CU101"}
        found = real.finding(report, "CU305")
        assert found.severity == "warning"
        assert found.evidence[-1].file == str(venv.path / "bin/python")
        why = "is a script: " if kind == "script" else "is not Python itself"
        assert found.evidence[-1].value.startswith(why)
        assert report.verdict == "unknown"

    def test_no_python_of_this_machine_can_stand_in(self, venv, kind, monkeypatch):
        """What stands in has none of Python's symbols."""
        monkeypatch.setattr(libraries, "STAND_INS", ("/bin/sh",))
        chain(venv, *runpath(SECOND_HOP))
        wrap(venv, kind)
        assert real.rules_of_environment(venv.check()) == set()

    def test_nothing_at_all_can_stand_in(self, venv, kind, monkeypatch):
        """Of the environment's own program alone a problem is told."""
        monkeypatch.setattr(libraries, "STAND_INS", ("/absent", ""))
        chain(venv, *runpath(SECOND_HOP))
        wrap(venv, kind)
        python = str(venv.path / "bin/python")
        files = {p.file for p in venv.check().facts.problems} & {python, "/absent", ""}
        assert files == ({python} if kind == "script" else set())

    def test_a_python_of_another_version_stands_in(self, venv, kind, monkeypatch, tmp_path):
        """It lacks symbols that the environment's own has, or had before that was removed."""
        other = tmp_path / "python3"
        source = "int _Py_NoneStruct;\nint main(void) { return 0; }"
        compile_c(other, source, "-rdynamic", shared=False)
        monkeypatch.setattr(libraries, "STAND_INS", (str(other),))
        chain(venv, *runpath(SECOND_HOP))
        wrap(venv, kind)
        assert real.rules_of_environment(venv.check()) == set()


def test_a_package_nobody_heard_of(venv):
    """Neither its name nor what it requires tells that it uses CUDA: its library does."""
    runtime = venv.library("cuda_runtime", "libcudart.so.12", "int cudaFree(void) { return 0; }")
    venv.fastnet(
        "cudaFree", str(runtime), *rpath("$ORIGIN/../nvidia/cuda_runtime/lib"), requires=()
    )
    report = venv.check()
    assert [framework.name for framework in report.frameworks] == ["fastnet"]
    assert [lib.real_path for lib in report.libraries] == [str(runtime)]
    assert str(runtime) in venv.mapped()


def test_ldd_says_the_same(venv):
    link, sparse = chain(venv, *runpath(SECOND_HOP))
    link_library(link.parent, "other")
    done = real.run("ldd", "-r", sparse)
    assert "undefined symbol: __nvJitLinkCreate_12_8" in done.stdout + done.stderr
    (told,) = [f for f in venv.check().findings if f.severity == "error"]
    assert "__nvJitLinkCreate_12_8" in (told.predicts or "")


def test_a_library_without_the_version(venv):
    """The loader checks versions before symbols, and says so in other words."""
    link, _ = chain(venv, *runpath(SECOND_HOP), version="NVJITLINK_12.8")
    link_library(link.parent, version="NVJITLINK_12.1")
    seen = venv.error()
    assert "version `NVJITLINK_12.8' not found (required by" in seen
    found = real.finding(venv.check(), "CU303")
    assert f"ImportError: {found.predicts}" == seen


def test_a_library_that_is_not_found(venv):
    link, _ = chain(venv, *runpath(SECOND_HOP))
    link.unlink()
    seen = venv.error()
    report = venv.check()
    assert seen in predictions(report)
    assert {"CU404", "CU305"} & real.rules(report)
    assert any("nvidia-nvjitlink-cu12==12.8.93" in fix for f in report.findings for fix in f.fix)


@pytest.mark.parametrize(("hop", "leaks"), [(runpath, True), (rpath, False)])
def test_the_second_hop_leaks_through_runpath_alone(venv, tmp_path, hop, leaks):
    """LD_LIBRARY_PATH comes between RPATH and RUNPATH."""
    chain(venv, *hop(SECOND_HOP))
    outside = tmp_path / "cuda-12.9" / "lib64"
    link_library(outside)
    variables = {"LD_LIBRARY_PATH": str(outside)}
    assert (str(outside / "libnvJitLink.so.12") in venv.mapped(**variables)) == leaks
    report = venv.check(**variables)
    (predicted,) = [lib for lib in report.libraries if lib.soname == "libnvJitLink.so.12"]
    assert predicted.real_path.startswith(str(outside)) == leaks
    assert ("CU302" in real.rules(report)) == leaks
    if leaks:
        assert predicted.found_by.startswith("LD_LIBRARY_PATH")
        assert not any("export LD_LIBRARY_PATH=/" in fix for f in report.findings for fix in f.fix)
    assert "CU302" not in real.rules(venv.check())


def test_a_folder_of_pythonpath_with_the_environment_and_a_toolkit(venv, tmp_path):
    """What lies beside the environment in it is not the environment's."""
    chain(venv, *runpath(SECOND_HOP))
    outside = tmp_path / "cuda-12.9" / "lib64"
    link_library(outside)
    parent = {"PYTHONPATH": str(tmp_path), "LD_LIBRARY_PATH": str(outside)}
    assert real.rules_of_environment(venv.check(**parent)) == {"CU302"}


def test_a_leaked_library_that_lacks_the_symbol(venv, tmp_path):
    chain(venv, *runpath(SECOND_HOP))
    outside = tmp_path / "cuda-12.1" / "lib64"
    link_library(outside, "__nvJitLinkCreate_12_1")
    variables = {"LD_LIBRARY_PATH": str(outside)}
    seen = venv.error(**variables)
    report = venv.check(**variables)
    assert f"ImportError: {real.finding(report, 'CU303').predicts}" == seen
    # The fix is in the variable, not in the packages.
    assert any("LD_LIBRARY_PATH" in fix for f in report.findings for fix in f.fix)
    assert not any("pip install" in fix for fix in real.finding(report, "CU303").fix)
    assert real.rules_of_environment(venv.check()) == set()


def test_a_family_from_two_installs(venv, tmp_path):
    """cuBLAS of the environment with cuBLASLt from outside (onnxruntime#8594)."""
    lt = venv.library("cublas", "libcublasLt.so.12", "int cublasLtCreate(void) { return 0; }")
    blas = venv.library(
        "cublas",
        "libcublas.so.12",
        "extern int cublasLtCreate(void);\nint cublasCreate_v2(void) { return cublasLtCreate(); }",
        str(lt),
        *runpath("$ORIGIN"),
    )
    venv.fastnet("cublasCreate_v2", str(blas), *rpath("$ORIGIN/../nvidia/cublas/lib"))
    venv.distribution("nvidia-cublas-cu12", "12.8.4.1", files=[lt, blas])
    assert real.rules_of_environment(venv.check()) == set()
    outside = tmp_path / "cuda-12.1" / "lib64"
    library(
        outside,
        "libcublasLt.so.12.1.3.1",
        "int cublasLtCreate(void) { return 0; }",
        "-Wl,-soname,libcublasLt.so.12",
    )
    (outside / "libcublasLt.so.12").symlink_to("libcublasLt.so.12.1.3.1")
    variables = {"LD_LIBRARY_PATH": str(outside)}
    mapped = venv.mapped(**variables)
    assert str(outside / "libcublasLt.so.12.1.3.1") in mapped
    assert str(blas) in mapped
    report = venv.check(**variables)
    found = real.finding(report, "CU304")
    told = found.title + " ".join(f"{e.file} {e.value}" for e in found.evidence)
    assert "12.1.3.1" in told
    assert "12.8.4.1" in told


def test_two_majors_for_one_framework(venv):
    """vllm#36099: the extension wants libcudart.so.12, the environment has 13."""
    old = library(
        venv.path / "build", "libcudart.so.12", "int cudaGetDeviceCount(void) { return 0; }"
    )
    venv.fastnet("cudaGetDeviceCount", str(old), *rpath("$ORIGIN/../nvidia/cu13/lib"))
    old.unlink()
    new = venv.library("cu13", "libcudart.so.13", "int cudaGetDeviceCount(void) { return 0; }")
    venv.distribution("nvidia-cuda-runtime", "13.0.96", files=[new])
    seen = venv.error()
    assert seen == (
        "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory"
    )
    report = venv.check()
    assert {"CU403", "CU305"} & real.rules(report)
    assert seen in predictions(report)


def test_a_stub_of_the_driver_on_the_library_path(venv, tmp_path):
    """libcuda from a toolkit's stubs folder (warp#219)."""
    stubs = tmp_path / "cuda-12.8" / "lib64" / "stubs"
    library(
        stubs, "libcuda.so", "int cuInit(unsigned flags) { return 34; }", "-Wl,-soname,libcuda.so.1"
    )
    (stubs / "libcuda.so.1").symlink_to("libcuda.so")
    venv.fastnet("cuInit", str(stubs / "libcuda.so"))
    variables = {"LD_LIBRARY_PATH": str(stubs)}
    done = real.run(
        venv.path / "bin/python",
        "-c",
        "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))",
        **variables,
    )
    assert done.stdout.strip() == "34"
    report = venv.check(**variables)
    found = real.finding(report, "CU102")
    assert found.severity == "error"
    assert report.driver.path.startswith(str(stubs))


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: b"!<arch>\n" + data,
        lambda data: data[:18] + b"\xb7\x00" + data[20:],  # e_machine: aarch64
        lambda data: data[:4] + b"\x01" + data[5:],  # 32-bit class
        lambda data: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
    ],
    ids=["empty", "archive", "other machine", "other class", "lfs pointer"],
)
def test_a_damaged_library_is_told_as_the_loader_tells_it(venv, damage):
    link, _ = chain(venv, *runpath(SECOND_HOP))
    data = link.read_bytes()
    link.unlink()
    link.write_bytes(damage(data))
    seen = venv.error()
    assert seen is not None
    assert seen in predictions(venv.check())


def test_a_file_cut_short_kills_the_loader_and_not_the_check(venv):
    """A copy that ended early: glibc maps it and dies of SIGBUS."""
    link, _ = chain(venv, *runpath(SECOND_HOP))
    data = link.read_bytes()
    link.unlink()
    link.write_bytes(data[: len(data) // 3])
    assert venv.error() == "killed by signal 7"
    report = venv.check()
    assert report.exit_code == 1
    told = [f for f in report.findings if f.severity == "error" and "truncated" in str(f.to_dict())]
    assert [f.predicts for f in told] == ["Bus error"]
    assert told[0].fix[0].endswith("nvidia-nvjitlink-cu12==12.8.93")


def test_no_verdict_on_a_package_without_a_recipe(venv, monkeypatch):
    """Its library may be one that nothing loads: a note, and the verdict stays open."""
    link, _ = chain(venv, *runpath(SECOND_HOP))
    link_library(link.parent, "__nvJitLinkCreate_12_1")
    monkeypatch.setattr(frameworks, "listed", listed)
    report = venv.check()
    assert real.rules(report, "error", "warning") <= {"CU404"}
    assert real.finding(report, "CU303").severity == "note"
    assert (report.verdict, report.exit_code) == ("unknown", 3)
    assert "not modelled" in report.to_text()


def test_json_of_a_broken_environment_follows_the_schema(venv):
    import jsonschema
    from test_report import strict_schema

    link, _ = chain(venv, *runpath(SECOND_HOP))
    link.write_bytes(b"\x7fELF")
    jsonschema.validate(json.loads(venv.check().to_json()), strict_schema())


def test_which_names_the_file_that_is_really_mapped(venv, tmp_path):
    chain(venv, *runpath(SECOND_HOP))
    outside = tmp_path / "other"
    link_library(outside)
    from test_cli import run

    def of_12(rows: list[dict]) -> list[dict]:  # the system may have one of another major
        return [row for row in rows if row["soname"] == "libnvJitLink.so.12"]

    def which(*words: str) -> dict:
        done = run("which", "--prefix", str(venv.path), "--json", "--no-probe", *words)
        return json.loads(done.stdout)

    (row,) = of_12(which("nvJitLink")["libraries"])
    assert row["path"] in venv.mapped()
    (row,) = of_12(which("--ld-library-path", str(outside))["libraries"])
    assert row["path"] in venv.mapped(LD_LIBRARY_PATH=str(outside))
    assert row["instead_of"] in venv.mapped()
    assert of_12(which("--ld-library-path", "/nowhere")["libraries"]) == []


def test_a_program_that_cannot_start_says_what_the_loader_says(tmp_path):
    from cudriver.stack.loader.process import Process
    from cudriver.stack.loader.search import Loader

    needed = compile_c(tmp_path / "lib/libneeded.so.1", "int f(void) { return 0; }")
    source = "extern int f(void); int main(void) { return f(); }"
    paths = f"-Wl,-rpath,{needed.parent}"
    host = compile_c(tmp_path / "host", source, str(needed), paths, shared=False)
    needed.write_text("no library " * 20)
    done = subprocess.run([str(host)], capture_output=True, text=True, check=False)
    assert done.returncode == 127
    error = Process(Loader(), str(host)).start.error
    assert error is not None
    assert done.stderr.strip().endswith(error)
