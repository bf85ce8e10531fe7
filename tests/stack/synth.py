"""Environments made of small files, for tests of what is read from them."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from cudriver.stack.loader.search import Loader
from elfkit import compile_c

PYTHON = "3.11"

CU12 = {
    "nvidia-cuda-nvrtc-cu12": "12.8.93",
    "nvidia-cuda-runtime-cu12": "12.8.90",
    "nvidia-cudnn-cu12": "9.10.2.21",
    "nvidia-cublas-cu12": "12.8.4.1",
    "nvidia-nccl-cu12": "2.27.3",
    "nvidia-nvjitlink-cu12": "12.8.93",
}
LINUX = 'platform_system == "Linux" and platform_machine == "x86_64"'


def loader_for(
    root: Path | str,
    environ: Mapping[str, str] | None = None,
    *,
    machine: int | None = None,
) -> Loader:
    """A loader for another machine than the root tells."""
    loader = Loader(str(root), environ)
    if machine is not None:
        loader.machine = machine
    return loader


def recorded(path: str, data: bytes) -> str:
    """The line of a RECORD."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(data)}"


class Prefix:
    """A virtual environment that nothing runs in, below `root` (a whole file system's or "/")."""

    def __init__(self, path: Path, *, root: Path | None = None, python: str = PYTHON) -> None:
        self.root = root
        self.path = path
        self.python = python
        self.site = path / "lib" / f"python{python}" / "site-packages"
        (self.site / "pip").mkdir(parents=True)
        (self.site / "pip" / "__main__.py").write_text("")
        (path / "bin").mkdir()

    @property
    def inside(self) -> str:
        """The prefix as a path inside the root."""
        return "/" + str(self.path.relative_to(self.root)) if self.root else str(self.path)

    def venv(self, **settings: str) -> Prefix:
        keys = {"home": "/usr/bin", "include_system_site_packages": "false"}
        keys |= {"version": f"{self.python}.7", **settings}
        lines = "".join(f"{key.replace('_', '-')} = {value}\n" for key, value in keys.items())
        (self.path / "pyvenv.cfg").write_text(lines)
        self.interpreter()
        return self

    def conda(self) -> Prefix:
        (self.path / "conda-meta").mkdir()
        (self.path / "conda-meta" / "history").write_text(
            "==> 2026 <==\n# cmd: /opt/conda/bin/conda create\n"
        )
        self.conda_package("python", f"{self.python}.7", "h1_cpython")
        self.interpreter()
        return self

    def interpreter(self) -> None:
        """The test's own Python where the loader must run a program, else a file of the name."""
        target = self.path / "bin" / "python"
        if self.root is None and self.python.rstrip("t") == "{}.{}".format(*sys.version_info):
            target.symlink_to(os.path.realpath(sys.executable))
        elif self.root is None:  # a link would tell that it is of another release
            shutil.copy(os.path.realpath(sys.executable), target)
        else:
            source = "int _Py_NoneStruct;\nint main(void) { return 0; }"  # what a Python exports
            compile_c(target, source, "-rdynamic", shared=False)
            target.with_name("python.c").unlink()

    def conda_package(self, name: str, version: str, build: str = "0", **more: object) -> Path:
        file = self.path / "conda-meta" / f"{name}-{version}-{build}.json"
        record = {
            "name": name,
            "version": version,
            "build": build,
            "channel": "https://conda.anaconda.org/conda-forge/linux-64",
            "depends": [],
            "files": [],
            **more,
        }
        file.write_text(json.dumps(record, indent=2))
        return file

    def dist(
        self,
        name: str,
        version: str,
        requires: list[str] | tuple[str, ...] = (),
        files: dict[str, bytes | Path] | None = None,
        installer: str = "pip",
        site: Path | None = None,
    ) -> Path:
        """A wheel as pip would have put it there. files: content, or a file that is there."""
        site = site or self.site
        info = site / f"{re.sub(r'[-.]+', '_', name)}-{version}.dist-info"
        info.mkdir(parents=True)
        headers = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        headers += [f"Requires-Dist: {r}" for r in requires]
        (info / "METADATA").write_text("\n".join(headers) + "\n\nSome words.\n")
        (info / "INSTALLER").write_text(installer + "\n")
        record = []
        for path, content in (files or {}).items():
            file = site / path
            file.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                file.write_bytes(content)
            record.append(recorded(path, file.read_bytes()))
        (info / "RECORD").write_text("\n".join([*record, f"{info.name}/RECORD,,"]) + "\n")
        return info

    def torch(
        self,
        version: str = "2.8.0+cu128",
        cuda: str | None = "12.8",
        pins: dict[str, str] | None = None,
        archs: str = "sm_70 sm_75 sm_80 sm_86 sm_90 sm_100 sm_120",
        more: list[str] | tuple[str, ...] = (),
        libraries: bool = False,
    ) -> Path:
        """PyTorch's package without its gigabytes. libraries: small ones that can be loaded."""
        pins = CU12 if pins is None else pins
        package = self.site / "torch"
        (package / "lib").mkdir(parents=True)
        (package / "__init__.py").write_text("")
        stated = repr(cuda)
        (package / "version.py").write_text(
            "from typing import Optional\n\n"
            f"__version__ = '{version}'\ndebug = False\ncuda: Optional[str] = {stated}\n"
            "git_version = 'abc'\nhip: Optional[str] = None\n"
        )
        files: dict[str, bytes | Path] = {"torch/version.py": package / "version.py"}
        if libraries:
            source = f'const char arch_flags[] = "\\0{archs}\\0"; int torch_python;'
            compile_c(
                package / "lib" / "libtorch_python.so", source, "-Wl,-soname,libtorch_python.so"
            )
            files["torch/lib/libtorch_python.so"] = package / "lib" / "libtorch_python.so"
        requires = [f"{name}=={pin}; {LINUX}" for name, pin in pins.items()]
        return self.dist("torch", version, [*requires, *more], files)

    def wheels(self, versions: dict[str, str] | None = None) -> None:
        """NVIDIA's wheels, empty."""
        for name, version in (versions or CU12).items():
            self.dist(name, version)


def toolkit(
    folder: Path,
    version: str,
    *,
    json_version: str | None = None,
    header: bool = True,
    nvcc: bool = True,
    gcc_limit: int = 14,
) -> Path:
    """A system toolkit's folder."""
    major, minor = version.split(".")[:2]
    (folder / "bin").mkdir(parents=True)
    (folder / "lib64").mkdir()
    (folder / "lib64" / f"libcudart.so.{version}.1").write_bytes(b"")
    if json_version:
        (folder / "version.json").write_text(
            json.dumps({"cuda": {"name": "CUDA SDK", "version": json_version}}, indent=3)
        )
    if header:
        crt = folder / "include" / "crt"
        crt.mkdir(parents=True)
        (folder / "include" / "cuda.h").write_text(
            f"/* */\n#define CUDA_VERSION {major}0{minor}0\n"
        )
        (crt / "host_config.h").write_text(
            f"#if defined(__GNUC__)\n#if __GNUC__ > {gcc_limit}\n#error -- unsupported GNU "
            "version!\n#endif\n#endif\n"
        )
    if nvcc:
        program = folder / "bin" / "nvcc"
        compile_c(
            program,
            f'const char says[] = "Cuda compilation tools, release {major}.{minor}, '
            f'V{major}.{minor}.77"; int main(void) {{ return says[0]; }}',
            shared=False,
        )
        program.with_name("nvcc.c").unlink()
    return folder
