"""Predicted failures against the words of the machine's own loader."""

from __future__ import annotations

import itertools
import os
import struct
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from test_dlopen_cases import compare

import elfkit
from cudriver.stack.loader.process import Process
from cudriver.stack.loader.search import Loader
from elfkit import DT_NEEDED, Patch, clean_environment, compile_c, run_host

LAZY = "-Wl,-z,lazy"
DT_PLTRELSZ, DT_SYMTAB, DT_RELA, DT_RELASZ, DT_JMPREL = 2, 6, 7, 8, 23
DT_VERSYM, DT_VERNEED = 0x6FFFFFF0, 0x6FFFFFFE


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("host")
    return compile_c(folder / "host", elfkit.HOST_SOURCE, "-ldl", LAZY, shared=False)


PROVIDERS = {
    "plain": ("int f(void) { return 1; } int g(void) { return 2; }", None, []),
    "bare": ("int f(void) { return 1; } int g(void) { return 2; }", None, ["-nostdlib"]),
    "v1": ("int f(void) { return 1; } int g(void) { return 2; }", "V1 { f; g; };", []),
    "v1v2": ("int f(void) { return 1; } int g(void) { return 2; }", "V1 { f; }; V2 { g; } V1;", []),
    "v2": ("int f(void) { return 1; } int g(void) { return 2; }", "V2 { f; g; };", []),
    "v2only-f": ("int f(void) { return 1; }", "V2 { f; }; V1 { none; };", []),
    "base": ("int f(void) { return 1; } int g(void) { return 2; }", "V1 { f; };", []),
    "named": (  # the base version has the SONAME's name
        "int f(void) { return 1; } int g(void) { return 2; }",
        "V2 { f; g; };",
        ["-Wl,-soname,V1"],
    ),
    "twice": (
        "int f1(void) { return 1; } int f2(void) { return 2; } int g(void) { return 3; }"
        '__asm__(".symver f1,f@V1"); __asm__(".symver f2,f@@V2");',
        "V1 { g; }; V2 { } V1;",
        [],
    ),
    "later": (  # f in neither the base version nor the oldest
        "int f1(void) { return 1; } int f2(void) { return 2; } int g(void) { return 3; }"
        '__asm__(".symver f1,f@V2"); __asm__(".symver f2,f@@V3");',
        "V1 { g; }; V2 { } V1; V3 { } V2;",
        [],
    ),
    "old": (
        'int f1(void) { return 1; } int g(void) { return 3; } __asm__(".symver f1,f@V1");',
        "V1 { g; };",
        [],
    ),
    "hidden": (
        'int f(void) { return 1; } __attribute__((visibility("hidden"))) int g(void) { return 2; }',
        None,
        [],
    ),
    "weak": ("__attribute__((weak)) int f(void) { return 1; } int g(void) { return 1; }", None, []),
    "kinds": (
        "static int one(void) { return 1; } static void *pick(void) { return one; }"
        'int f(void) __attribute__((ifunc("pick"))); __asm__(".globl g; g = 4096");',
        None,
        [],
    ),
    "sysv": (
        "int f(void) { return 1; } int g(void) { return 2; }",
        "V1 { f; }; V2 { g; };",
        ["-Wl,--hash-style=sysv"],
    ),
}
USER = "int f(void); extern int g(void); void *keep = (void *)g; int use(void) { return f(); }"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PROVIDER/libprov.so and users/libPROVIDER-{lazy,now}.so, each linked with that provider."""
    folder = tmp_path_factory.mktemp("made")
    for name, (source, versions, flags) in PROVIDERS.items():
        provider = compile_c(
            folder / name / "libprov.so",
            source,
            "-Wl,-soname,libprov.so",
            *flags,
            versions=versions,
        )
        for binding in ("lazy", "now"):
            compile_c(
                folder / "users" / f"lib{name}-{binding}.so",
                USER,
                "-Wl,--no-as-needed",
                str(provider),
                f"-Wl,-z,{binding}",
            )
    return folder


@pytest.mark.parametrize("built_with", list(PROVIDERS))
def test_every_user_with_every_provider(host: Path, made: Path, built_with: str) -> None:
    for provider, binding, mode in itertools.product(PROVIDERS, ("lazy", "now"), "NL"):
        user = made / "users" / f"lib{built_with}-{binding}.so"
        variables = {"LD_LIBRARY_PATH": str(made / provider)}
        case = f"{built_with} with {provider}, {binding}, {mode}"
        steps, stderr, code = run_host(
            host, [f"{mode}L:{user}"], clean_environment(**variables), Path("/")
        )
        load = Process(Loader(environ=variables), str(host)).dlopen(str(user), now=mode == "N")
        if code == 127:  # ld.so before 2.41 aborts where a library has lost its versions
            assert "Assertion `version->filename == NULL" in stderr, case
        else:
            assert code == 0, case + stderr
            assert load.error == steps[1].error, case


def test_the_matrix_holds_all_kinds_of_failure(host: Path, made: Path) -> None:
    """Else the test above would prove little."""

    def fault(user: str, provider: str, mode: str = "N") -> str | None:
        loader = Loader(environ={"LD_LIBRARY_PATH": str(made / provider)})
        path = str(made / "users" / f"lib{user}-lazy.so")
        faults = Process(loader, str(host)).dlopen(path, now=mode == "N").faults
        return faults[0].kind if faults else None

    assert fault("v1", "v1") is None
    assert fault("v1", "v2") == "version"
    assert fault("v2", "v2only-f") == "symbol"
    assert fault("v1", "named") == "symbol"
    assert fault("v1", "bare") is None
    assert fault("plain", "hidden") == "symbol"
    assert fault("plain", "v1") is None


def place_of(patch: Patch, tag: int) -> int:
    """Where in the file the table of a dynamic tag begins."""
    ((_, address),) = patch.find(tag)
    return next(o + address - a for a, o, s in patch.segments if a <= address < a + s)


@pytest.mark.parametrize(("hidden", "fails"), [(False, False), (True, True)])
def test_a_hidden_need_is_not_met_without_a_version(
    host: Path, made: Path, tmp_path: Path, hidden: bool, fails: bool
) -> None:
    """`base` has g in its base version, which serves whoever needs g@V1 by an ordinary entry."""
    patch = Patch((made / "users" / "libv1-now.so").read_bytes())
    at = place_of(patch, DT_VERNEED)
    file_count = len(patch.find(DT_NEEDED))
    for _ in range(file_count):
        count, _, first, following = struct.unpack_from("<HIII", patch.data, at + 2)
        if patch.string(struct.unpack_from("<I", patch.data, at + 4)[0]) == "libprov.so":
            assert count == 1
            (other,) = struct.unpack_from("<H", patch.data, at + first + 6)
            struct.pack_into("<H", patch.data, at + first + 6, other | hidden << 15)
        at += following
    user = tmp_path / "libuser.so"
    user.write_bytes(patch.data)
    (load,) = compare(host, [f"NL:{user}"], LD_LIBRARY_PATH=str(made / "base"))
    assert (load.error is not None) is fails


@pytest.mark.parametrize("defaults", [1, 2])
def test_two_default_versions_serve_no_reference_without_one(
    host: Path, made: Path, tmp_path: Path, defaults: int
) -> None:
    patch = Patch((made / "later" / "libprov.so").read_bytes())
    ((_, symbols),), ((_, strings),) = patch.find(DT_SYMTAB), patch.find(elfkit.DT_STRTAB)
    symbol, version, hidden = place_of(patch, DT_SYMTAB), place_of(patch, DT_VERSYM), []
    for index in range((strings - symbols) // 24):  # the string table follows the symbols
        (name,) = struct.unpack_from("<I", patch.data, symbol + 24 * index)
        (number,) = struct.unpack_from("<H", patch.data, version + 2 * index)
        if patch.string(name) == "f" and number & 0x8000:
            hidden.append((number, version + 2 * index))
    ((number, at),) = hidden
    if defaults == 2:
        struct.pack_into("<H", patch.data, at, number & 0x7FFF)
    (tmp_path / "libprov.so").write_bytes(patch.data)
    user = made / "users" / "libplain-now.so"
    (load,) = compare(host, [f"NL:{user}"], LD_LIBRARY_PATH=str(tmp_path))
    assert (load.error is not None) is (defaults == 2)


@pytest.mark.parametrize("within", [False, True])
def test_relocations_of_the_plt_may_be_counted_twice(
    host: Path, tmp_path: Path, within: bool
) -> None:
    """DT_RELASZ may include them, where they come last; they are bound late all the same."""
    source = "int no(void); void *known = &known; int use(void) { return no(); }"
    user = compile_c(tmp_path / "libuser.so", source, LAZY)
    patch = Patch(user.read_bytes())
    ((_, start),), ((where, size),) = patch.find(DT_RELA), patch.find(DT_RELASZ)
    ((_, plt),), ((_, plt_size),) = patch.find(DT_JMPREL), patch.find(DT_PLTRELSZ)
    assert start + size == plt
    if within:
        struct.pack_into("<Q", patch.data, where + 8, size + plt_size)
        user.write_bytes(patch.data)
    (load,) = compare(host, [f"LL:{user}"])
    assert load.error is None
    assert [(fault.name, fault.lazy) for fault in load.later] == [("no", True)]


def test_of_a_tag_given_twice_the_last_counts(host: Path, tmp_path: Path) -> None:
    for folder in ("first", "last"):
        compile_c(tmp_path / folder / "libleaf.so", "int leaf;", "-Wl,-soname,libleaf.so")
    user = compile_c(
        tmp_path / "libuser.so", "extern int leaf; int *p = &leaf;",
        str(tmp_path / "last/libleaf.so"), f"-Wl,-soname,{tmp_path}/first",
        f"-Wl,-rpath,{tmp_path}/last", "-Wl,--enable-new-dtags",
    )  # fmt: skip
    patch = Patch(user.read_bytes())
    ((where, _),) = patch.find(elfkit.DT_SONAME)
    patch.retag(where, elfkit.DT_RUNPATH)
    user.write_bytes(patch.data)
    (load,) = compare(host, [f"NL:{user}"])
    assert [o.path for o in load.objects][1:] == [f"{tmp_path}/last/libleaf.so"]


def test_a_python_s_stand_in_is_not_asked_for_python_s_symbols(host: Path, tmp_path: Path) -> None:
    source = "int PyNone(void); int other(void); int use(void) { return PyNone() + other(); }"
    path = str(compile_c(tmp_path / "libmodule.so", source, LAZY))
    for stand_in, names in ((False, {"PyNone", "other"}), (True, {"other"})):
        process = Process(Loader(environ={}, cwd=str(host.parent)), host.name)
        assert process.main.path == str(host)
        process.stand_in = stand_in
        assert {fault.name for fault in process.dlopen(path, now=False).later} == names
        assert {fault.name for fault in process.dlopen(path, now=True).faults} <= names


@pytest.mark.parametrize("flag", ["-Wl,--disable-new-dtags", "-Wl,--enable-new-dtags"])
def test_a_caller_s_path_finds_its_parts_but_not_their_needs(tmp_path: Path, flag: str) -> None:
    """As cuDNN opens its sub-libraries: by SONAME, through its own $ORIGIN."""
    leaf = compile_c(tmp_path / "parts/libleaf.so", "int leaf;", "-Wl,-soname,libleaf.so")
    compile_c(tmp_path / "parts/libpart.so", "int part;", "-Wl,-soname,libpart.so")
    compile_c(
        tmp_path / "parts/libneedy.so", "int needy;", "-Wl,-soname,libneedy.so",
        "-Wl,--no-as-needed", str(leaf),
    )  # fmt: skip
    source = (
        "#include <dlfcn.h>\n#include <stdio.h>\n"
        'void go(const char *n) { void *h = dlopen(n, RTLD_NOW); puts(h ? "ok" : dlerror()); }'
    )
    caller = compile_c(tmp_path / "libcaller.so", source, flag, "-Wl,-rpath,$ORIGIN/parts", "-ldl")
    program = compile_c(
        tmp_path / "program", "void go(const char *); int main(int n, char **v) { go(v[1]); }",
        str(caller), f"-Wl,-rpath,{tmp_path}", "-Wl,--enable-new-dtags", shared=False,
    )  # fmt: skip
    for name in ("libpart.so", "libneedy.so"):
        real = subprocess.run(
            [program, name], capture_output=True, text=True, check=True, env=clean_environment()
        ).stdout.strip()
        process = Process(Loader(environ={}), str(program))
        mapped = process.find(str(caller))
        assert mapped is not None
        load = process.dlopen(name, mapped)
        assert (load.error or "ok") == real
        assert load.search.entry == "$ORIGIN/parts"
        assert load.search.owner == str(caller)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("int no_such(void); PyObject *PyInit_made(void) { no_such(); return 0; }", "no_such"),
        ("void *PyNo_Such(void); void *PyInit_made(void) { return PyNo_Such(); }", "PyNo_Such"),
    ],
)
def test_import_error_of_python(tmp_path: Path, source: str, words: str) -> None:
    include = sysconfig.get_paths()["include"]
    path = compile_c(tmp_path / "made.so", f"#include <Python.h>\n{source}", f"-I{include}", LAZY)
    real = subprocess.run(
        [sys.executable, "-c", "import made"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=clean_environment(PYTHONPATH=str(tmp_path)),
    )
    load = Process(Loader(environ={}), sys.executable).dlopen(str(path))
    assert real.stderr.splitlines()[-1] == f"ImportError: {load.error}"
    assert load.error == f"{path}: undefined symbol: {words}"


IMPORTER = """
import importlib.util, sys
for path in sys.argv[1:]:
    spec = importlib.util.spec_from_file_location(path.split("/")[-1].split(".")[0], path)
    try:
        importlib.util.module_from_spec(spec)
        print(None)
    except ImportError as error:
        print(error)
"""


def test_python_s_own_extensions_are_whole() -> None:
    """What imports here has no fault in the model: no false alarm."""
    paths = sorted(Path(sysconfig.get_config_var("DESTSHARED")).glob("*.so"))
    assert paths
    real = subprocess.run(
        [sys.executable, "-c", IMPORTER, *map(str, paths)],
        capture_output=True, text=True, check=True, env=clean_environment(),
    ).stdout.splitlines()  # fmt: skip
    process = Process(Loader(environ={}), sys.executable)
    assert process.start.faults == []
    assert [str(process.dlopen(str(path)).error) for path in paths] == real


def test_system_libraries_as_ldd_sees_them() -> None:
    """ldd -r binds everything at once: same files, same undefined symbols."""
    folder = Path(f"/usr/lib/{os.uname().machine}-linux-gnu")
    if not folder.is_dir():
        folder = Path("/usr/lib64")
    libraries = sorted(p for p in folder.glob("*.so.*") if not p.is_symlink())[::12][:30]
    assert len(libraries) > 5
    for path in libraries:
        out = subprocess.run(
            ["ldd", "-r", path], capture_output=True, text=True, env=clean_environment()
        ).stdout
        files = [
            line.split("=>")[1].split(" (")[0].strip() for line in out.splitlines() if "=>" in line
        ]
        undefined = [
            line.split("undefined symbol: ")[1].split("\t")[0].split(" (")[0]
            for line in out.splitlines()
            if line.startswith("undefined symbol: ")
        ]
        try:
            process = Process(Loader(environ={"LD_BIND_NOW": "1"}), str(path))
        except Exception as error:  # pragma: no cover - says which
            raise AssertionError(path) from error
        interpreter = process.main.elf.interpreter
        mapped = [o.path for o in process.objects[1:] if o.elf.soname not in LOADERS]
        if interpreter is None:
            assert [f for f in files if os.path.basename(f) not in LOADERS] == mapped, path
        told = (fault.message for fault in process.start.faults)
        predicted = [message.partition("undefined symbol: ")[2] for message in told]
        assert predicted == undefined, path


LOADERS = ("ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1")
