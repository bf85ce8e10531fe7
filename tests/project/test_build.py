"""What is built and shipped: the source archive, the wheel, and an install of the one into a bare
environment from the other, in a copy of the tree so that nothing here is touched."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tarfile
import textwrap
import zipfile
from pathlib import Path

import pytest

from native_build import ROOT
from program import TWO

pytestmark = [pytest.mark.static, pytest.mark.apart]

PACKAGE = ROOT / "python" / "cudriver"
LEFT_OUT = {".git", "build", "dist", "__pycache__", ".probe"}


def run(*command: object, cwd: Path, **environ: str) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env={k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "LD_"))} | environ,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip()


def without_build_needs() -> str | None:
    try:
        import numpy
        import setuptools
    except ImportError as error:
        return f"building needs {error.name}"
    if int(setuptools.__version__.split(".")[0]) < 77 or int(numpy.__version__.split(".")[0]) < 2:
        here = f"setuptools {setuptools.__version__}, NumPy {numpy.__version__}"
        return f"building needs setuptools 77 and NumPy 2; here: {here}"
    if shutil.which(os.environ.get("CC", "cc").split()[0]) is None:
        return "no C compiler on this machine"
    return None


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not (ROOT / "setup.py").exists():
        pytest.skip("no source tree beside the tests")
    if reason := without_build_needs():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("sdist")
    tree = folder / "tree"

    def left_out(directory: str, names: list[str]) -> set[str]:
        top = Path(directory) == ROOT
        return {
            n
            for n in names
            if n in LEFT_OUT or n.endswith((".so", ".egg-info")) or (top and n.startswith(".venv"))
        }

    shutil.copytree(ROOT, tree, ignore=left_out, symlinks=True)
    code = f"from setuptools import build_meta; print(build_meta.build_sdist({str(folder)!r}))"
    name = run(sys.executable, "-c", code, cwd=tree).splitlines()[-1]
    return folder / name


@pytest.fixture(scope="module")
def tree(sdist: Path) -> Path:
    """What the archive holds and nothing else; tests build in it, without optimising."""
    return unpack(sdist, sdist.parent / "unpacked")


@pytest.fixture(scope="module")
def wheel(tree: Path) -> Path:
    folder = tree.parent
    code = f"from setuptools import build_meta; print(build_meta.build_wheel({str(folder)!r}))"
    made = run(sys.executable, "-c", code, cwd=tree, CUDRIVER_DEBUG="1")
    return folder / made.splitlines()[-1]


def unpack(sdist: Path, folder: Path) -> Path:
    with tarfile.open(sdist) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(folder, filter="data")
        else:
            archive.extractall(folder)
    (tree,) = folder.iterdir()
    return tree


def tracked() -> set[str]:
    """The files that git knows, or an empty set outside a clone."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        return set()
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    return {name for name in listed.stdout.splitlines() if (ROOT / name).exists()}


def test_the_archive_has_the_sources_and_no_more(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {n.split("/", 1)[1] for n in archive.getnames() if "/" in n}
        files = {m.name.split("/", 1)[1] for m in archive.getmembers() if m.isfile()}
    assert {"setup.py", "pyproject.toml", "LICENSE", "README.md", "Makefile"} <= names
    missing = {
        n for n in tracked() if n.startswith(("cext/", "python/", "tests/", "benchmarks/"))
    } - files
    assert missing == set()
    stray = [n for n in files if n.endswith((".so", ".o", ".pyc")) or "__pycache__" in n]
    assert stray == []


def test_an_editable_build_compiles_what_changed_and_no_more(tree: Path) -> None:
    code = f"from setuptools import build_meta; build_meta.build_editable({str(tree.parent)!r})"

    def build(**environ: str) -> set[str]:
        start = tree / "start"
        start.touch()
        run(sys.executable, "-c", code, cwd=tree, CUDRIVER_DEBUG="1", **environ)
        objects = (tree / "build" / "debug" / "editable").rglob("*.o")
        return {o.stem for o in objects if o.stat().st_mtime > start.stat().st_mtime}

    every = {source.stem for source in tree.glob("cext/**/*.c")}
    assert build() == every
    assert build() == set()
    (tree / "cext/elf/record.h").touch()
    assert build() == {"module", "record"}  # which include it
    assert build(CFLAGS="-DOTHER_FLAGS") == every


@pytest.mark.parametrize(
    ("compiler", "inc", "said"),
    [
        ("/no/such/gcc", None, ["compiler was not found: /no/such/gcc", "apt-get install gcc"]),
        (None, "/no/such", ["no Python.h in", "/no/such. On Debian: apt-get install python3-dev"]),
    ],
)
def test_what_a_build_misses_is_said(
    sdist: Path, tmp_path: Path, compiler: str | None, inc: str | None, said: list[str]
) -> None:
    """In a line, rather than in a compiler's words."""
    code = """if True:
        import runpy, sys
        from setuptools._distutils import sysconfig
        out, inc = sys.argv[1:]
        if inc:
            sysconfig.get_python_inc = lambda *_, **__: inc
        sys.argv[1:] = ["-q", "build_ext", "--build-temp", out, "--build-lib", out]
        runpy.run_path("setup.py", run_name="__main__")
    """
    environment = {k: v for k, v in os.environ.items() if k not in ("CC", "CPATH")}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "out"), inc or ""],
        cwd=unpack(sdist, tmp_path / "tree"),
        capture_output=True,
        text=True,
        env=environment | ({"CC": compiler} if compiler else {}),
    )
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert all(words in last for words in said), done.stderr
    assert not list(tmp_path.glob("out/**/*.o"))


def test_the_wheel_has_the_package_and_no_more(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    own = {n for n in names if ".dist-info/" not in n}
    built = {n for n in own if n.endswith(".so")}
    assert {n.split(".")[0] for n in built} >= {
        "cudriver/_core",
        "cudriver/_elf",
        "cudriver/libcudriver_sim",
    }
    wanted = {
        "cudriver/" + str(p.relative_to(PACKAGE))
        for p in PACKAGE.rglob("*")
        if p.is_file()
        and p.suffix in (".py", ".pyi", ".typed", ".json", ".md", ".html", ".css")
        and p.name != "README.md"  # for who reads the sources
    }
    assert own - built == wanted | {"cudriver/py.typed"}
    assert {"cudriver/_core.pyi", "cudriver/_elf.pyi"} <= own
    assert any(n.endswith("/licenses/LICENSE") for n in names)
    (entries,) = (n for n in names if n.endswith("/entry_points.txt"))
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(entries).decode()
    for group in ("console_scripts", "pytest11", "rapids_doctor_check", "conda"):
        assert f"[{group}]" in text


def test_the_simulated_driver_stands_alone(wheel: Path, tmp_path: Path) -> None:
    """It links to nothing of this package and exports the driver's names and its own, no other."""
    if shutil.which("nm") is None:
        pytest.skip("no nm on this machine")
    with zipfile.ZipFile(wheel) as archive:
        library = archive.extract("cudriver/libcudriver_sim.so", tmp_path)
    lines = run("nm", "-D", "--defined-only", library, cwd=tmp_path).splitlines()
    exported = {line.split()[-1].split("@")[0] for line in lines}
    assert {n for n in exported if not n.startswith(("cu", "cudriver_sim_"))} == set()


def test_installs_from_the_archive_into_a_bare_environment(wheel: Path, tmp_path: Path) -> None:
    """With nothing else in it: no NumPy. The package imports, and imports no NumPy of its own."""
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare", cwd=tmp_path)
    python = tmp_path / "bare" / "bin" / "python"
    site = Path(run(python, "-c", "import site; print(site.getsitepackages()[0])", cwd=tmp_path))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    version = run(python, "-c", "import cudriver; print(cudriver.__version__)", cwd=tmp_path)
    assert version == declared_version()
    run(python, "-c", "import cudriver._elf, cudriver.stack, cudriver.cli", cwd=tmp_path)
    # A name that no source defines shows only here: extensions are linked with names left open.
    run(python, "-c", "import cudriver._core", cwd=tmp_path)


def test_import_is_light(tmp_path: Path) -> None:
    """`import cudriver` loads neither NumPy nor rich, and no driver."""
    code = (
        "import sys, cudriver; heavy = {'numpy', 'rich', 'argparse', 'json'} & set(sys.modules);"
        "print(sorted(heavy), 'libcuda' in open('/proc/self/maps').read())"
    )
    assert run(sys.executable, "-c", code, cwd=tmp_path) == "[] False"


def declared_version() -> str:
    for line in (PACKAGE / "_version.py").read_text().splitlines():
        if line.startswith("__version__ = "):
            return str(ast.literal_eval(line.split("=", 1)[1].split("#")[0].strip()))
    raise AssertionError("the package has no version")


@pytest.mark.skipif(not PACKAGE.is_dir(), reason="no source tree beside the tests")
def test_one_version(tmp_path: Path) -> None:
    from importlib.metadata import version

    import cudriver

    assert cudriver.__version__ == version("cudriver") == declared_version()
    said = run(sys.executable, "-m", "cudriver", "--version", cwd=tmp_path)
    assert said == f"cudriver {cudriver.__version__}"


@pytest.mark.usefixtures("wheel")  # whose objects it takes
def test_editable_install(tree: Path, tmp_path: Path) -> None:
    """make editable: the extensions and the simulated driver lie beside the Python files. And this
    build works beside the installed one, which is optimised, in one process."""
    build = "setup.py", "--quiet", "build_ext", "--inplace"
    run(sys.executable, *build, cwd=tree, CUDRIVER_DEBUG="1")
    built = {p.name.split(".")[0] for p in (tree / "python" / "cudriver").glob("*.so")}
    assert built >= {"_core", "_elf", "libcudriver_sim"}
    code = "import cudriver; print(cudriver.__file__)"
    where = run(sys.executable, "-c", f"import sys; sys.path.insert(0, 'python'); {code}", cwd=tree)
    assert Path(where) == tree / "python" / "cudriver" / "__init__.py"
    driver = str(Path(where).with_name("libcudriver_sim.so"))
    two = [sys.executable, "-c", textwrap.dedent(TWO), tree / "python"]
    assert run(*two, cwd=tmp_path, CUDRIVER_LIBRARY=driver) == "the end"
