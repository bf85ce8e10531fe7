"""Builds the extensions: cudriver._core, cudriver._elf and the simulated driver.

The docstrings of the extensions stand in their stubs, for editors. From there the build takes them.

CUDRIVER_DEBUG=1      -O0 -g, all warnings are errors
CUDRIVER_WERROR=1     optimised as usual, all warnings are errors
CUDRIVER_SANITIZE=... a value for -fsanitize= ("address,undefined", "thread")

Each kind of build has a folder of its own below build/, so that none takes the objects of another.
"""

import ast
import json
import os
import re
import runpy
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MethodType

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

CEXT = Path("cext")
SIM = "cudriver.libcudriver_sim"


def flags() -> tuple[list[str], list[str]]:
    # -iquote: our headers are found by quotes alone, so that none can stand in for a system's.
    compile_args = ["-std=c11", "-iquote", str(CEXT), "-fvisibility=hidden", "-pthread"]
    compile_args += ["-Wall", "-Wextra", "-Werror=implicit-function-declaration"]
    link_args = ["-pthread"]
    if os.environ.get("CUDRIVER_DEBUG"):
        compile_args += ["-O0", "-g", "-UNDEBUG"]
    else:
        compile_args += ["-O3", "-g1"]
    if os.environ.get("CUDRIVER_DEBUG") or os.environ.get("CUDRIVER_WERROR"):
        compile_args += ["-Werror"]
    sanitize = os.environ.get("CUDRIVER_SANITIZE")
    if sanitize:
        extra = [f"-fsanitize={sanitize}", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all"]
        compile_args += [*extra, "-g", "-O1", "-UNDEBUG"]
        link_args += extra
    return compile_args, link_args


def kind() -> str:
    sanitize = os.environ.get("CUDRIVER_SANITIZE")
    if sanitize:
        return "sanitize-" + sanitize.replace(",", "-")
    return "debug" if os.environ.get("CUDRIVER_DEBUG") else "release"


def sources(*folders: str, suffix: str = ".c") -> list[str]:
    return sorted(str(path) for folder in folders for path in CEXT.glob(f"{folder}/*{suffix}"))


def metadata() -> dict[str, object]:
    """The README, whose links lead to the repository; while that has no address, it has none."""
    text = Path("README.md").read_text(encoding="utf-8")
    about = {"long_description_content_type": "text/markdown"}
    version = Path("python", "cudriver", "_version.py").read_text(encoding="utf-8")
    (url,) = re.findall('^ADDRESS = "(.*?)/?"', version, re.MULTILINE)
    if not url:
        text = re.sub(r"!\[.*?\]\((?!\w+:).*?\)\n*", "", text)
        return {**about, "long_description": re.sub(r"\[(.*?)\]\((?!\w+:|#).*?\)", r"\1", text)}
    files = f"{url}/blob/HEAD/"
    text = re.sub(r"(!\[.*?\]\()(?!\w+:)", rf"\1{url}/raw/HEAD/", text)  # pictures as they are
    about["long_description"] = re.sub(r"\]\((?!\w+:|#)", f"]({files}", text)
    links = {"Source": url, "Documentation": f"{files}docs", "Issues": f"{url}/issues"}
    return {**about, "project_urls": {**links, "Changelog": f"{files}CHANGELOG.md"}}


def docstrings(stub: Path) -> Iterator[str]:
    """The docstrings of a stub for C: #define DOC_Type_name "...", and DOC_module for its own."""

    def define(name: str, node: ast.AST, signature: str) -> Iterator[str]:
        text = ast.get_docstring(node)
        if text:
            yield f"#define DOC_{name} {json.dumps(signature + text)}\n"

    tree = ast.parse(stub.read_text(encoding="utf-8"))
    yield from define("module", tree, "")
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield from define(node.name, node, text_signature(node.name, node))
        elif isinstance(node, ast.ClassDef):
            signature = ""
            for member in (m for m in node.body if isinstance(m, ast.FunctionDef)):
                how = [ast.unparse(decorator) for decorator in member.decorator_list]
                if member.name == "__new__":
                    signature = text_signature(node.name, member, "")
                elif "property" in how:
                    yield from define(f"{node.name}_{member.name}", member, "")
                else:
                    owner = "$type" if "classmethod" in how else "$self"
                    head = text_signature(member.name, member, owner)
                    yield from define(f"{node.name}_{member.name}", member, head)
            yield from define(node.name, node, signature)


def text_signature(name: str, function: ast.FunctionDef, owner: str | None = None) -> str:
    """The first lines of a docstring, from which CPython makes __text_signature__.

    owner: what a method's first parameter is called there; "" leaves it out.
    """
    args = function.args
    if owner is not None:
        (args.posonlyargs or args.args).pop(0)
    if owner:
        args.posonlyargs.insert(0, ast.arg(owner))
    for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg):
        if arg is not None:
            arg.annotation = None
    return f"{name}({ast.unparse(args)})\n--\n\n"


def header_write(header: Path, text: str) -> None:
    """Always in the same place, and only where it differs: ccache knows it again."""
    header.parent.mkdir(parents=True, exist_ok=True)
    if not header.exists() or header.read_text(encoding="utf-8") != text:
        header.write_text(text, encoding="utf-8")


def as_new(made: str, command: str) -> bool:
    """Whether this command made an object file, from files that are all older than it."""
    try:
        if Path(made).with_suffix(".command").read_text(encoding="utf-8") != command:
            return False
        listed = Path(made).with_suffix(".d").read_text(encoding="utf-8")  # by the compiler
        names = listed.replace("\\\n", " ").partition(": ")[2].split()
        return max(os.stat(name).st_mtime for name in names) < os.stat(made).st_mtime
    except OSError:
        return False  # not made yet, or a header is gone


def compile_changed(self, sources, output_dir=None, macros=None, include_dirs=None, debug=0,
                    extra_preargs=None, extra_postargs=None, depends=None):  # fmt: skip
    """CCompiler.compile(), but several files at once, and none whose object is as new."""
    made = self._setup_compile(output_dir, macros, include_dirs, sources, depends, extra_postargs)
    _, objects, after, defines, build = made
    before = self._get_cc_args(defines, debug, extra_preargs)

    def one(made: str) -> None:
        source, suffix = build[made]
        command = " ".join([*self.compiler_so, *before, *after, *defines])
        if not as_new(made, command):
            self._compile(made, source, suffix, before, ["-MMD", *after], defines)
            Path(made).with_suffix(".command").write_text(command, encoding="utf-8")

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(one, objects))  # raises what the first one raised
    return objects


class Build(build_ext):
    """Finds NumPy's headers late, writes headers, names the simulated driver as a library."""

    def build_extensions(self) -> None:
        command = self.compiler.compiler_so[0]
        if shutil.which(command) is None:
            sys.exit(
                f"cudriver's core is C, and its compiler was not found: {command} (CC, or what "
                "Python was built with). On Debian: apt-get install gcc libc6-dev; in a conda "
                "environment: conda install -c conda-forge c-compiler"
            )
        folders = [*self.compiler.include_dirs, *os.environ.get("CPATH", "").split(":")]
        if not any(os.path.exists(os.path.join(folder, "Python.h")) for folder in folders):
            sys.exit(
                "cudriver's core needs Python's headers: no Python.h in "
                f"{', '.join(self.compiler.include_dirs)}. On Debian: apt-get install python3-dev"
            )
        if self.editable_mode:  # setuptools gives it a temporary folder, new each time
            self.build_temp = os.path.join("build", kind(), "editable")
        self.compiler.compile = MethodType(compile_changed, self.compiler)
        super().build_extensions()

    def build_extension(self, ext: Extension) -> None:
        if ext.name == "cudriver._core":
            import numpy

            ext.include_dirs.append(numpy.get_include())
            kernels = runpy.run_path(str(CEXT / "engine" / "kernels_ptx.py"))
            header_write(Path("build", "generated", "_core", "kernels_ptx.h"), kernels["header"]())
        stub = Path("python", *ext.name.split(".")).with_suffix(".pyi")
        if stub.exists():
            folder = Path("build", "generated", stub.stem)
            header_write(folder / "docstrings.h", "".join(docstrings(stub)))
            ext.include_dirs.append(str(folder))
        super().build_extension(ext)

    def get_ext_filename(self, fullname: str) -> str:
        if fullname.endswith("libcudriver_sim"):
            return os.path.join(*fullname.split(".")) + ".so"
        return super().get_ext_filename(fullname)


if not sys.platform.startswith("linux"):
    sys.exit(f"cudriver builds on Linux (x86-64, aarch64, WSL); this is {sys.platform}.")

COMPILE, LINK = flags()
CORE = (".", "pinned", "arrays", "contexts", "python", "engine", "hostmem", "driver", "ladder")


def extension(name: str, files: list[str], **kwargs) -> Extension:
    return Extension(
        name,
        files,
        depends=[
            "setup.py",
            str(CEXT / "engine" / "kernels_ptx.py"),
            *sources("**", suffix=".h"),
            *map(str, Path("python").rglob("_*.pyi")),
        ],
        extra_compile_args=COMPILE,
        extra_link_args=LINK + kwargs.pop("link", []),
        **kwargs,
    )


setup(
    **metadata(),
    cmdclass={"build_ext": Build},
    options={"build": {"build_base": f"build/{kind()}"}},
    ext_modules=[
        extension("cudriver._core", sources(*CORE), libraries=["dl"]),
        extension("cudriver._elf", sources("elf")),
        # Its functions call one another, not those of another libcuda in the process.
        extension(
            SIM,
            sources("sim", "sim/others"),
            libraries=["rt"],
            link=["-Wl,-Bsymbolic"],
        ),
    ],
)
