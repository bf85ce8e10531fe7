"""What RECORD says beside what lies there. The oracle is what was done to a file, and, where an
error names a text, the real import.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import py_compile
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)
from itertools import permutations
from pathlib import Path

import pytest
import real
from synth import Prefix
from test_breakage_built import MODULE, SUFFIX, Venv, library, pytestmark  # noqa: F401
from test_verify import faults

from cudriver.stack import inspect
from cudriver.stack.collect import ask, collect
from cudriver.stack.facts import DAMAGED, ERROR, HIDDEN, NOTE, WARNING, Finding
from cudriver.stack.integrity import byte_code, listed, look, whole
from cudriver.stack.machine import driver
from cudriver.stack.machine_facts import Driver
from elfkit import compile_c

VERSION = "__version__ = '2.8.0'\ncuda = None\nhip = None\n"
TEXT = "def add(a, b):\n    return a + b\n"
FILES = {
    "torch/__init__.py": "from .version import __version__\nfrom . import _C, nn\nimport outer\n",
    "torch/version.py": VERSION,
    "torch/nn/__init__.py": TEXT,
    "torch/nn/later.py": TEXT,
    "torch/nn/empty.py": "",
    "torch/data.json": '{"a": 1}\n',
    "torch/table.bin": "\0\1\2" * 99,
    "torch/README.md": "Words.\n",
    "torch/include/x.h": "int x;\n",
    "torch/include/generate.py": TEXT,
    "torch/lib/libx.a": "!<arch>\n",
    "torch/nn/tests/test_all.py": TEXT,
    "torch/types.pyi": "x: int\n",
    "outer/__init__.py": TEXT,
    "outer/part.py": TEXT,
    "other/__init__.py": TEXT,
}
EXTENSION = f"torch/_C{SUFFIX}"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Venv:
    """A venv with as much of PyTorch as can be imported, what it requires, and a package that has
    nothing to do with it.
    """
    venv = Venv(tmp_path_factory.mktemp("made") / "env")
    for name, text in FILES.items():
        (venv.site / name).parent.mkdir(parents=True, exist_ok=True)
        (venv.site / name).write_text(text)
    source = "static int nothing(void) { return 0; }\nconst char held[40000] = {1};\n"
    include = f"-I{sysconfig.get_paths()['include']}"
    text = source + MODULE.format(needs="nothing").replace("extern int nothing(void);", "")
    target = compile_c(venv.site / EXTENSION, text, include)
    target.with_name(target.name + ".c").unlink()
    own = [venv.site / name for name in (*FILES, EXTENSION) if name.startswith("torch/")]
    venv.distribution("torch", "2.8.0", "outer", files=own)
    venv.distribution("outer", "1.0", files=[*(venv.site / "outer").iterdir()])
    venv.distribution("other", "1.0", files=[*(venv.site / "other").iterdir()])
    return venv


@pytest.fixture(autouse=True)
def without_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine that runs this may have a driver and GPUs: then more is said of a CPU build."""
    monkeypatch.setattr(driver, "describe", lambda *_: Driver())


@pytest.fixture
def venv(made: Venv, tmp_path: Path) -> Venv:
    """A copy of it to break."""
    shutil.copytree(made.path, tmp_path / "env", symlinks=True)
    copy: Venv = object.__new__(Venv)
    copy.path = tmp_path / "env"
    copy.site = copy.path / made.site.relative_to(made.path)
    return copy


def report(venv: Venv, root: str = "/", **variables: str):
    if root != "/":
        return inspect(f"/{venv.path.name}", root=root, environ={}, probe_driver=False)
    return real.check(venv.path, environ=real.clean_environ(**variables), probe_driver=False)


def found(venv: Venv, **variables: str) -> list[Finding]:
    told = report(venv, **variables).findings
    return [each for each in told if each.rule in ("CU402", "CU404", "CU303", "CU305")]


def empty(file: Path) -> None:
    file.write_bytes(b"")


def cut(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])


def replace(content: bytes) -> Callable[[Path], None]:
    return lambda file: later(file, content) and None


def later(file: Path, content: bytes) -> int:
    """Writes, long after the installer did: what keeps its size is known by that."""
    count = file.write_bytes(content)
    time = file.stat().st_mtime + 60
    os.utime(file, (time, time))
    return count


def zero(file: Path) -> None:
    later(file, bytes(file.stat().st_size))


def foreign(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[18:20] = (183 if os.uname().machine == "x86_64" else 62).to_bytes(2, "little")
    later(file, bytes(data))


def folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    later(file, bytes(data))


DAMAGE: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "empty module": ("torch/nn/later.py", empty, "later.py is empty"),
    "zeroed module": ("torch/nn/later.py", zero, "later.py has null bytes"),
    "cut module": ("torch/nn/later.py", replace(TEXT[:11].encode()), "later.py does not compile"),
    "merged module": (
        "torch/nn/__init__.py",
        replace(TEXT.encode() + b"<<<<<<< HEAD\n"),
        "__init__.py does not compile: invalid syntax, line 3",
    ),
    "empty module of what it requires": ("outer/part.py", empty, "part.py is empty"),
    "empty extension": (EXTENSION, empty, "is empty"),
    "cut extension": (EXTENSION, cut, "_C"),
    "zeroed extension": (EXTENSION, zero, "is no library: invalid ELF header"),
    "pointer": (EXTENSION, replace(b"version https://git-lfs\n" * 9), "invalid ELF header"),
    "other machine": (EXTENSION, foreign, "is for another machine than"),
    "empty data": ("torch/table.bin", empty, "table.bin is empty"),
    "cut JSON": ("torch/data.json", replace(b'{"a": '), "data.json is not JSON"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_an_error_whoever_meets_it(venv: Venv, damage: str) -> None:
    name, do, title = DAMAGE[damage]
    do(venv.site / name)
    (told,) = found(venv)
    owner = "outer 1.0" if name.startswith("outer") else "torch 2.8.0"
    assert (told.rule, told.severity, told.proven) == ("CU404", ERROR, True)
    assert bool(told.doubt) == (owner == "outer 1.0")  # torch may do without that part
    assert told.title.startswith(f"{owner} is damaged: {os.path.basename(name)} ")
    assert title in told.title
    assert told.fix[0].endswith(f"--force-reinstall --no-deps {owner.replace(' ', '==')}")
    assert any(each.file.endswith("/RECORD") for each in told.evidence)
    module = name.removesuffix(".py").replace("/", ".") if name.endswith(".py") else "torch"
    error = real.import_error(venv.path, module)
    if told.predicts == "Bus error":
        assert error == f"killed by signal {signal.SIGBUS:d}"
    elif told.predicts is not None and name != "torch/data.json":
        assert told.predicts in (error or "")


GONE: dict[str, tuple[str, str | None, str]] = {
    "top module": ("torch/__init__.py", ERROR, "torch; torch.nn"),
    "version that a recipe reads": ("torch/version.py", ERROR, "torch"),
    "top module of what it requires": ("outer/__init__.py", ERROR, "outer; outer.add"),
    "module": ("torch/nn/later.py", WARNING, ""),
    "data": ("torch/table.bin", WARNING, ""),
    "extension": (EXTENSION, WARNING, ""),
    "stated empty": ("torch/nn/empty.py", None, ""),
    "document": ("torch/README.md", None, ""),
    "header": ("torch/include/x.h", None, ""),
    "static library": ("torch/lib/libx.a", None, ""),
    "type stub": ("torch/types.pyi", None, ""),
    "test": ("torch/nn/tests/test_all.py", None, ""),
    "of a package that nothing here requires": ("other/__init__.py", None, ""),
}


@pytest.mark.parametrize("what", GONE)
@pytest.mark.parametrize("how", ["gone", "folder"])
def test_what_is_gone(venv: Venv, what: str, how: str) -> None:
    """An error where its loading is proven; else nobody knows, and --observe tells."""
    name, severity, module = GONE[what]
    folder(venv.site / name) if how == "folder" else (venv.site / name).unlink()
    made = report(venv)
    told = found(venv)
    assert [each.severity for each in told] == [severity] * (severity is not None)
    if severity == ERROR:
        error = real.import_error(venv.path, module)
        assert told[0].predicts
        assert told[0].predicts in (error or "")
    if severity == WARNING:
        assert (made.verdict, made.exit_code) == ("unknown", 3)
        assert told[0].doubt in made.doubts
        assert os.path.basename(name) in told[0].doubt


@pytest.mark.parametrize("name", ["torch/include", "torch/nn/tests"])
def test_a_folder_that_images_leave_out(venv: Venv, name: str) -> None:
    """With all that is in it, sources too; what lies there of one that was not left out counts."""
    if name == "torch/include":
        (venv.site / "torch/include/generate.py").unlink()
        assert [each.severity for each in found(venv)] == [WARNING]
    shutil.rmtree(venv.site / name)
    assert found(venv) == []


def test_a_source_whose_byte_code_stays(venv: Venv) -> None:
    file = venv.site / "torch/nn/later.py"
    py_compile.compile(str(file), str(file.with_suffix(".pyc")))
    file.unlink()
    assert real.import_error(venv.path, "torch.nn.later") is None
    assert found(venv) == []


BYTE_CODE: dict[str, tuple[str, int | None, str, bool]] = {
    "cut": ("torch/__init__.py", 40, "", True),
    "cut behind its header": ("torch/version.py", 16, "", True),
    "made for another source": ("torch/__init__.py", 40, "source", False),
    "cut within its header": ("torch/__init__.py", 15, "", False),
    "of another Python": ("torch/__init__.py", 40, "magic", False),
    "of which a hash says that it is old": ("torch/__init__.py", 40, "CHECKED_HASH", False),
    "taken without a look": ("torch/__init__.py", 40, "UNCHECKED_HASH", True),
    "whole": ("torch/__init__.py", None, "", False),
    "of a part": ("torch/nn/__init__.py", 40, "", True),
}


@pytest.mark.parametrize("what", BYTE_CODE)
def test_byte_code_that_is_cut(venv: Venv, what: str) -> None:
    """What Python takes for a source, whose import then fails; that of a part --verify reads."""
    name, end, how, fails = BYTE_CODE[what]
    file = venv.site / name
    mode = py_compile.PycInvalidationMode[how if "HASH" in how else "TIMESTAMP"]
    code = Path(py_compile.compile(str(file), invalidation_mode=mode) or "")
    data = code.read_bytes()
    code.write_bytes((b"\0\0" if how == "magic" else data[:2]) + data[2:end])
    if how in ("source", "CHECKED_HASH"):
        later(file, file.read_bytes() + b"\n")
    error = real.import_error(venv.path, "torch.version")
    assert (error is not None) == fails
    told = [each for each in found(venv) if each.severity == ERROR]
    assert len(told) == (fails and what != "of a part")
    damaged = [each.says for each in faults(venv.path).values() if each.what == DAMAGED]
    assert [says in (error or "") for says in damaged] == [True] * fails
    for (fix,) in (each.fix for each in told):
        for name in ("PYTHONOPTIMIZE", "PYTHONPYCACHEPREFIX"):  # other byte code is read
            assert found(venv, **{name: "1"}) == []
        subprocess.run(fix, shell=True, check=True)
        assert real.import_error(venv.path, "torch") is None
        assert found(venv) == []


def test_byte_code_that_is_too_long_is_not_called_cut(
    venv: Venv, monkeypatch: pytest.MonkeyPatch
) -> None:
    py_compile.compile(str(venv.site / "torch/__init__.py"))
    monkeypatch.setattr(byte_code, "MOST", 40)
    assert found(venv) == []
    assert all(each.what != DAMAGED for each in faults(venv.path).values())


SOUND: dict[str, tuple[str, Callable[[Path], object]]] = {
    "comment": ("torch/nn/__init__.py", replace(TEXT.encode() + b"# mine\n")),
    "data": ("torch/data.json", replace(b'{"a": 1, "b": 2}\n')),
    "stripped": (EXTENSION, lambda file: subprocess.run(["strip", file], check=True)),
}


@pytest.mark.parametrize("what", SOUND)
def test_what_was_edited_and_is_sound(venv: Venv, what: str) -> None:
    name, do = SOUND[what]
    do(venv.site / name)
    assert real.import_error(venv.path, "torch") is None
    (told,) = found(venv)
    assert (told.severity, told.fix, report(venv).verdict) == (NOTE, [], "consistent")
    base = os.path.basename(name)
    assert told.title == f"{base} is not what was installed, and sound"


def test_one_note_for_all_that_was_edited(venv: Venv) -> None:
    for name in ("torch/nn/__init__.py", "torch/nn/later.py", "outer/part.py"):
        with open(venv.site / name, "a") as file:
            file.write("# mine\n")
    (told,) = found(venv)
    assert told.severity == NOTE
    assert told.title.endswith("and 2 more files are not what was installed, and sound")


@pytest.mark.parametrize("name", [EXTENSION, "torch/table.bin"])
def test_other_bytes_of_the_same_size(venv: Venv, name: str) -> None:
    """Whether they serve, nobody knows. The same bytes, written anew, are no change."""
    later(venv.site / name, (venv.site / name).read_bytes())
    assert found(venv) == []
    flip(venv.site / name)
    (told,) = found(venv)
    assert (told.severity, bool(told.doubt)) == (WARNING, True)
    assert report(venv).exit_code == 3


def test_another_build_over_a_framework_leaves_it_open(venv: Venv) -> None:
    """As a build for the CPU does, whose import works."""
    with open(venv.site / EXTENSION, "ab") as file:
        file.write(bytes(16))
    venv.distribution("torch-cpu", "2.8.0", files=[venv.site / EXTENSION])
    assert real.import_error(venv.path, "torch") is None
    (told,) = found(venv)
    assert "overwritten by torch-cpu 2.8.0" in told.title
    assert report(venv).exit_code == 3


@pytest.mark.parametrize("text", ["", "Metadata-Version: 2.4\nName: torch\n"])
def test_a_metadata_without_a_version(venv: Venv, text: str) -> None:
    """An import that asks for the version of what it needs fails; most ask for none."""
    (info,) = venv.site.glob("torch-*.dist-info")
    with open(info / "RECORD", "a") as record:
        record.write(f"{info.name}/METADATA,sha256=x,{(info / 'METADATA').stat().st_size}\n")
    (info / "METADATA").write_text(text)
    assert real.import_error(venv.path, "torch") is None
    (told,) = found(venv)
    assert (told.severity, bool(told.doubt), report(venv).exit_code) == (WARNING, True, 3)


def test_a_changed_library_is_resolved_like_any_other(venv: Venv, tmp_path: Path) -> None:
    """patchelf --add-needed: it is a library all the same, and its import ends. Where a recipe
    loads it, that is an error; else nobody knows who imports it.
    """
    needed = library(tmp_path, "libnobody.so.2", "int nobody(void) { return 0; }")
    own = venv.site / f"late/_C{SUFFIX}"
    own.parent.mkdir()
    shutil.copy(venv.site / EXTENSION, own)
    venv.distribution("late", "1.0", files=[own])
    assert found(venv) == []
    include = f"-I{sysconfig.get_paths()['include']}"
    compile_c(own, MODULE.format(needs="nobody"), include, str(needed))
    needed.unlink()
    assert "libnobody.so.2" in (real.import_error(venv.path, "late._C") or "")
    (told,) = found(venv)
    assert (told.rule, told.severity, report(venv).exit_code) == ("CU404", WARNING, 3)
    assert "libnobody.so.2: cannot open shared object file" in (told.predicts or "")
    shutil.copy(own, venv.site / EXTENSION)
    assert "libnobody.so.2" in (real.import_error(venv.path, "torch") or "")
    assert report(venv).exit_code == 1


def test_what_a_newer_python_may_take_is_not_known(tmp_path: Path) -> None:
    newer = f"3.{sys.version_info[1] + 1}"
    for python, exit_code in ((newer, 3), ("{}.{}".format(*sys.version_info), 1)):
        prefix = Prefix(tmp_path / python, python=python).venv()
        prefix.dist("torch", "2.8.0", files={"torch/__init__.py": b"x = 1\n"})
        (prefix.site / "torch/__init__.py").write_bytes(b"x = 1 +*\n")
        made = inspect(prefix.inside, environ={}, probe_driver=False)
        assert made.exit_code == exit_code


@pytest.mark.parametrize(
    ("content", "severity"),
    [(b"", ERROR), (b"not byte code at all", ERROR), (b"cut", ERROR), (None, NOTE)],
)
def test_byte_code_without_a_source(tmp_path: Path, content: bytes | None, severity: str) -> None:
    prefix = Prefix(tmp_path / "env").venv()
    (tmp_path / "m.py").write_text("x = 1\n")
    code = Path(py_compile.compile(str(tmp_path / "m.py"), str(tmp_path / "m.pyc"))).read_bytes()
    prefix.dist("torch", "2.8.0", files={"torch/m.pyc": code, "torch/__init__.py": b"x = 1\n"})
    content = code[:-9] if content == b"cut" else content
    (prefix.site / "torch/m.pyc").write_bytes(code + b"N" if content is None else content)
    made = inspect(prefix.inside, environ={}, probe_driver=False)
    assert [f.severity for f in made.findings if f.rule == "CU404"] == [severity]
    (prefix.site / "torch/m.pyc").unlink()
    made = inspect(prefix.inside, environ={}, probe_driver=False)
    assert [f for f in made.findings if f.rule == "CU404"] == [], "byte code is made anew"


def test_another_root_is_looked_at_alike(venv: Venv) -> None:
    """There links are followed inside it; files of the right size are known by their time."""
    assert report(venv, str(venv.path.parent)).facts.file_faults == []
    empty(venv.site / "torch/nn/later.py")
    flip(venv.site / "torch/table.bin")
    (venv.site / "torch/nn/__init__.py").unlink()
    faults = report(venv, str(venv.path.parent)).facts.file_faults
    assert {(os.path.basename(f.file), f.what) for f in faults} == {
        ("later.py", "damaged"),
        ("table.bin", "changed"),
        ("__init__.py", "missing"),
    }


def test_a_file_that_two_packages_bring(venv: Venv) -> None:
    """google/__init__.py of several: each has another, and one is there."""
    venv.distribution("mine", "1.0", files=[venv.site / "torch/nn/later.py"])
    empty(venv.site / "torch/nn/later.py")
    assert found(venv) == []


def test_what_conda_or_the_system_installed_is_theirs(venv: Venv, monkeypatch) -> None:
    empty(venv.site / "torch/nn/later.py")
    (info,) = venv.site.glob("torch*.dist-info")
    (info / "INSTALLER").write_text("conda\n")
    assert found(venv) == []
    (info / "INSTALLER").write_text("pip\n")
    assert [each.severity for each in found(venv)] == [ERROR]


NAMES = ["*", "[", "a(b", "(x+x+)+y", "\udc80", "\u00e9", "x" * 300, "a\tb"]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_no_name_in_a_record_ends_the_report(venv: Venv, name: str) -> None:
    """A name is no pattern, and need not be text. Each must be readable JSON as well."""
    (record,) = venv.site.glob("torch*.dist-info/RECORD")
    with open(record, "a", errors="surrogateescape") as file:
        file.write(f"torch/{name}.py,sha256=x,9\n")
    empty(venv.site / "torch/nn/later.py")
    made = report(venv)
    told = {each.severity for each in real.findings(made) if each.rule == "CU404"}
    assert told == {ERROR, WARNING}
    json.loads(made.to_json())
    assert "later.py is empty" in str(made)


class TestRequired:
    """What is required and not installed: METADATA does not say whether an import needs it."""

    def test_it_is_not_known(self, venv: Venv) -> None:
        shutil.rmtree(venv.site / "outer")
        shutil.rmtree(next(venv.site.glob("outer*.dist-info")))
        (told,) = found(venv)
        assert told.title == "torch requires outer (installed: none)"
        assert (told.rule, told.severity, told.proven) == ("CU402", WARNING, True)
        assert told.fix[0].endswith("install outer")
        assert report(venv).exit_code == 3

    def test_its_module_is_there_all_the_same(self, venv: Venv) -> None:
        shutil.rmtree(next(venv.site.glob("outer*.dist-info")))
        assert found(venv) == []

    def test_many_are_one_finding(self, tmp_path: Path) -> None:
        prefix = Prefix(tmp_path / "env").venv()
        prefix.dist("torch", "2.8.0", [f"p{n}" for n in range(500)])
        made = inspect(prefix.inside, environ={}, probe_driver=False)
        (told,) = [each for each in made.findings if each.rule == "CU402"]
        assert told.title.startswith("torch requires p0 (installed: none), p1 (installed: none)")
        assert told.title.endswith(" and 497 more")
        assert told.proven


class TestHidden:
    def test_half_of_a_package_that_comes_first(self, venv: Venv, tmp_path: Path) -> None:
        """A part without a first file joins the rest; one with it hides the rest."""
        side = tmp_path / "side" / "torch"
        side.mkdir(parents=True)
        (side / "version.py").write_text(VERSION)
        path = str(side.parent)
        assert found(venv, PYTHONPATH=path) == []
        assert real.import_error(venv.path, "torch", PYTHONPATH=path) is None
        shutil.copy(venv.site / "torch/__init__.py", side)
        assert real.import_error(venv.path, "torch", PYTHONPATH=path) is not None
        (told,) = found(venv, PYTHONPATH=path)
        assert (told.severity, bool(told.doubt)) == (WARNING, True)
        assert told.title.startswith(f"{side} hides torch 2.8.0")
        assert told.fix == ["unset PYTHONPATH"]

    @pytest.mark.parametrize("name", ["version/__init__.py", f"version{SUFFIX}", "version.so"])
    def test_what_comes_before_a_module_of_its_package(self, venv: Venv, name: str) -> None:
        file = venv.site / "torch" / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"")
        assert real.import_error(venv.path, "torch") is not None
        (told,) = found(venv)
        assert (told.severity, bool(told.doubt)) == (WARNING, True)
        assert told.title.endswith(f"{name.partition('/')[0]} hides version.py of torch 2.8.0")
        (record,) = venv.site.glob("torch-*.dist-info/RECORD")
        listed = record.read_text()
        record.write_text(f"{listed}torch/{name},,0\n")  # then its wheel brought both
        assert [each for each in found(venv) if "hides" in each.title] == []
        record.write_text(listed)
        file.rename(file.with_name("__main__.py"))  # without a first file a folder comes last
        assert real.import_error(venv.path, "torch") is None
        assert found(venv) == []

    @pytest.mark.skipif(
        sysconfig.get_config_var("Py_GIL_DISABLED"), reason="the venv is one with the GIL"
    )
    @pytest.mark.parametrize("libc", ["gnu", "musl"])
    def test_every_pair_two_folders_down(self, tmp_path: Path, libc: str) -> None:
        """One file that a wheel brought, and one of the same name: Python's own finder decides."""
        endings = [ending.replace("-gnu", f"-{libc}") for ending in EXTENSION_SUFFIXES]
        prefix = Prefix(tmp_path / "env", python="{}.{}".format(*sys.version_info)).venv()
        python = prefix.path / "bin/python"
        python.unlink()
        linked = f"-Wl,--dynamic-linker=/lib/{'ld-musl-x.so.1' if libc == 'musl' else 'ld.so'}"
        compile_c(python, "int main(void) { return 0; }", linked, shared=False)
        strange = {
            *endings,
            *EXTENSION_SUFFIXES,
            EXTENSION_SUFFIXES[0].replace("-gnu", "-musl"),
            ".cpython-39.so",
        }
        kinds = [*sorted(strange), ".py", ".pyc", "/__init__.py", "/part.py", ".json"]
        pairs = {f"m{n}": pair for n, pair in enumerate(permutations(kinds, 2))}
        folder, files = prefix.site / "torch/nn/deep", {"torch/__init__.py": b"", "top.py": b""}
        files |= {f"torch/nn/deep/{stem}{own}": b"x" for stem, (own, _) in pairs.items()}
        prefix.dist("torch", "2.8.0", files=files)
        others = [folder / f"{stem}{other}" for stem, (_, other) in pairs.items()]
        for file in (*others, top := prefix.site / "top/__init__.py"):
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(b"x")
        loaders = (ExtensionFileLoader, endings), (SourceFileLoader, [".py"])
        finder = FileFinder(str(folder), *loaders, (SourcelessFileLoader, [".pyc"]))
        taken = {stem: getattr(finder.find_spec(stem), "origin", None) for stem in pairs}
        usable = {*endings, ".py", ".pyc", "/__init__.py", "/part.py"}
        same = "/part.py", "__init__.py"  # of one folder, whose first file hides no other
        hiding = {
            str(file)
            for file, (stem, (own, _)) in zip(others, pairs.items(), strict=True)
            if own in usable and taken[stem] == str(file) and (own, file.name) != same
        }
        facts = collect(ask(prefix.inside, environ={}, probe=False))
        told = {f.evidence.file for f in facts.file_faults if f.what == HIDDEN}
        assert told == {*hiding, str(top)}


# ---- the budget ----


class Work:
    """What a check does: files that Python opens, and calls of functions, as instructions cannot be
    counted everywhere.
    """

    def __init__(self) -> None:
        self.opened, self.calls, self.bytes = 0, 0, 0


def work(venv: Prefix, monkeypatch: pytest.MonkeyPatch) -> tuple[Work, object]:
    from cudriver import _elf, _regular
    from cudriver.stack.roots import rootfs

    done = Work()
    opener, reader, elf = _regular.open_regular, os.read, _elf.ElfFile

    def opening(*words, **more):
        done.opened += 1
        return opener(*words, **more)

    def reading(descriptor, size):
        data = reader(descriptor, size)
        done.bytes += len(data)
        return data

    def parsing(*words, **more):
        done.opened += 1
        return elf(*words, **more)

    def count(*_):
        done.calls += 1

    with monkeypatch.context() as patch:
        patch.setattr(rootfs, "open_regular", opening)
        patch.setattr(os, "read", reading)
        patch.setattr(_elf, "ElfFile", parsing)
        before = sys.getprofile()
        sys.setprofile(count)
        try:
            made = inspect(venv.inside, environ={}, probe_driver=False)
        finally:
            sys.setprofile(before)
    return done, made


MANY = 500


@pytest.fixture
def large(tmp_path: Path) -> Prefix:
    """An environment with many modules and libraries."""
    prefix = Prefix(tmp_path / "env").venv()
    one = compile_c(tmp_path / "one.so", "int x;").read_bytes()
    modules = {f"torch/m{n}.py": TEXT.encode() * 9 for n in range(MANY)}
    libraries = {f"torch/lib/lib{n}.so.1": one + bytes(n) for n in range(MANY)}
    first = {"torch/__init__.py": b"x = 1\n", "torch/version.py": VERSION.encode()}
    prefix.dist("torch", "2.8.0", files={**first, **modules, **libraries})
    return prefix


def test_a_healthy_check_opens_no_file_of_a_package(large: Prefix, monkeypatch) -> None:
    done, made = work(large, monkeypatch)
    assert made.verdict == "consistent"
    assert done.opened < 60


PLANTS = {
    "one comment": (1, 10, 10_000),
    "renamed libraries": (0, 10, 400_000),
    "500 emptied files": (0, 10, 400_000),
    "500 stripped libraries": (3 * MANY, 20 << 20, 1_500_000),
    "500 edited modules": (MANY, 1 << 20, 500_000),
}


@pytest.mark.parametrize("plant", PLANTS)
def test_what_is_wrong_costs_little(large: Prefix, monkeypatch, plant: str) -> None:
    """Beyond a healthy check: so many files, bytes and calls. (10 million calls take 2 seconds.)"""
    inspect(large.inside, environ={}, probe_driver=False)  # imports
    healthy, _ = work(large, monkeypatch)
    site = large.site / "torch"
    if plant == "one comment":
        with open(site / "m7.py", "a") as file:
            file.write("# mine\n")
    elif plant == "500 edited modules":
        for n in range(MANY):
            with open(site / f"m{n}.py", "a") as file:
                file.write("# mine\n")
    elif plant == "500 emptied files":
        for n in range(MANY):
            empty(site / f"m{n}.py")
    else:
        for n in range(MANY):
            file = site / f"lib/lib{n}.so.1"
            if plant == "renamed libraries":
                file.rename(file.with_suffix(".2"))
            else:
                file.write_bytes(file.read_bytes() + bytes(1000))
    done, made = work(large, monkeypatch)
    files, _, calls = PLANTS[plant]
    assert done.opened - healthy.opened <= files + 5
    assert done.calls - healthy.calls <= calls
    told = [each for each in made.findings if each.rule == "CU404"]
    assert len(told) == 1


def test_what_there_is_no_time_for_is_not_known(large: Prefix, monkeypatch) -> None:
    monkeypatch.setattr(look, "SOURCES", 100)
    for n in range(9):
        with open(large.site / f"torch/m{n}.py", "a") as file:
            file.write("# mine\n")
    made = inspect(large.inside, environ={}, probe_driver=False)
    assert made.exit_code == 3
    assert any("so many files were changed that not all were looked at" in d for d in made.doubts)


@pytest.mark.parametrize(("more", "status"), [(5000, 3), (1000, 0), (-16, 0)])
def test_libraries_of_another_release(large: Prefix, more: int, status: int) -> None:
    """Some grow; strip makes libraries smaller, or larger by less than a page."""
    for n in range(2):
        file = large.site / f"torch/lib/lib{n + 40}.so.1"
        data = file.read_bytes()
        file.write_bytes(data + bytes(more) if more > 0 else data[:more])
    made = inspect(large.inside, environ={}, probe_driver=False)
    (told,) = [each for each in made.findings if each.rule == "CU404"]
    assert (told.severity, bool(told.fix)) == ((WARNING, True) if status else (NOTE, False))
    assert made.exit_code == status


def test_a_copy_whose_files_are_all_of_today_is_as_it_was(large: Prefix, monkeypatch) -> None:
    monkeypatch.setattr(look, "HASHED", 100)
    for n in range(9):
        later(large.site / f"torch/m{n}.py", TEXT.encode() * 9)
    assert inspect(large.inside, environ={}, probe_driver=False).verdict == "consistent"


def test_no_more_are_told_than_a_person_reads(large: Prefix, monkeypatch) -> None:
    monkeypatch.setattr(listed, "MOST", 7)
    for n in range(9):
        (large.site / f"torch/m{n}.py").unlink()
    made = inspect(large.inside, environ={}, probe_driver=False)
    assert len(made.facts.file_faults) == 7


def test_few_changed_libraries_are_loaded(large: Prefix, monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(
        "cudriver.stack.load.libraries.Resolver.tried", lambda *words: asked.append(words)
    )
    for n in range(2 * whole.TRIED):
        file = large.site / f"torch/lib/lib{n}.so.1"
        file.write_bytes(file.read_bytes() + bytes(1000))
    inspect(large.inside, environ={}, probe_driver=False)
    assert len(asked) == whole.TRIED


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("kind", ["sha256", "sha384", "sha512"])
def test_the_hashes_of_a_record(tmp_path: Path, kind: str, padded: bool) -> None:
    """Some tools leave base64's padding in."""
    from cudriver.stack.environment.records import differs
    from cudriver.stack.roots.rootfs import Root

    (tmp_path / "file").write_bytes(b"as it was")
    digest = base64.urlsafe_b64encode(hashlib.new(kind, b"as it was").digest()).decode()
    stated = f"{kind}={digest if padded else digest.rstrip('=')}"
    assert not differs(Root(), str(tmp_path / "file"), stated)
    (tmp_path / "file").write_bytes(b"as it is!")
    assert differs(Root(), str(tmp_path / "file"), stated)
