"""What is printed is run: in a real environment, by its own pip, from a folder of small wheels that
bear the names of real ones. The oracle is the import; afterwards the check is as it was before.
"""

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile

import pytest

from cudriver.stack import inspect

pytestmark = pytest.mark.apart

VERSION = "def parts(text):\n    return [int(part) for part in text.split('.')]\n"
JAX = VERSION + (
    "import jaxlib\nif parts(jaxlib.__version__) < [0, 7, 2]:\n"
    "    raise RuntimeError(f'jaxlib is version {jaxlib.__version__}, but this version of jax "
    "requires version >= 0.7.2.')\n"
)
NUMBA = VERSION + (
    "import llvmlite\nif parts(llvmlite.__version__) < [0, 49]:\n"
    "    raise ImportError('Numba requires at least version 0.49.0 of llvmlite.')\n"
)
TORCH = "from typing_extensions import TypeIs\n"
WHEELS = [
    ("jax", "0.7.2", ["jaxlib<=0.7.2,>=0.7.2"], {"jax/__init__.py": JAX}),
    ("numba", "0.67.0", ["llvmlite<0.50,>=0.49.0"], {"numba/__init__.py": NUMBA}),
    ("torch", "2.8.0", ["typing-extensions>=4.10.0"], {
        "torch/__init__.py": TORCH,
        "torch/version.py": "__version__ = '2.8.0'\ncuda = '12.8'\n",
        "torch/functional.py": "x = 1\n"}),
    ("numba-cuda", "0.30.4", ["cuda-pathfinder>=1.4.2"],
     {"numba_cuda/__init__.py": "from cuda.pathfinder import _optional_cuda_import\n"}),
    *(("jaxlib", v, [], {"jaxlib/__init__.py": f"__version__ = '{v}'\n"})
      for v in ("0.6.2", "0.7.2")),
    *(("llvmlite", v, [], {"llvmlite/__init__.py": f"__version__ = '{v}'\n"})
      for v in ("0.44.0", "0.49.0")),
    ("typing-extensions", "4.5.0", [], {"typing_extensions.py": "x = 1\n"}),
    ("typing-extensions", "4.15.0", [], {"typing_extensions.py": "TypeIs = 1\n"}),
    ("cuda-pathfinder", "1.0.0", [], {"cuda/pathfinder/__init__.py": ""}),
    ("cuda-pathfinder", "1.9.1", [], {"cuda/pathfinder/__init__.py": "",
                                      "cuda/pathfinder/_optional_cuda_import.py": ""}),
]  # fmt: skip


def wheel(folder, name, version, requires, files):
    """A wheel of pure Python."""
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    metadata = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    metadata += [f"Requires-Dist: {each}" for each in requires]
    whole = {
        **files,
        f"{info}/METADATA": "\n".join(metadata) + "\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = []
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as file:
        for path, text in whole.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())
            lines.append(f"{path},sha256={digest.rstrip(b'=').decode()},{len(text)}")
            file.writestr(path, text)
        file.writestr(f"{info}/RECORD", "\n".join([*lines, f"{info}/RECORD,,"]) + "\n")


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    folder = tmp_path_factory.mktemp("index")
    for each in WHEELS:
        wheel(folder, *each)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A virtual environment with pip and nothing else."""
    prefix = tmp_path_factory.mktemp("made") / "env"
    done = subprocess.run([sys.executable, "-m", "venv", prefix], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no environment can be made here: {done.stderr}")
    return prefix


@pytest.fixture
def env(tmp_path, index, made):
    prefix = tmp_path / "env"
    shutil.copytree(made, prefix, symlinks=True)
    return Environment(prefix, index)


class Environment:
    def __init__(self, prefix, index):
        self.prefix, self.index = prefix, index
        self.site = next(prefix.glob("lib/python*/site-packages"))
        self.python = f"{prefix}/bin/python"
        self.variables = {}

    def target(self):
        """Packages go to a folder of PYTHONPATH from now on, as pip's --target puts them."""
        self.site = self.prefix.parent / "my parts"
        self.site.mkdir()
        self.variables = {"PYTHONPATH": str(self.site)}

    def run(self, command):
        """A line of a shell, with an index that is this folder."""
        unset = ("PYTHON", "LD_", "VIRTUAL_ENV", "PIP_", "CONDA")
        environ = {k: v for k, v in os.environ.items() if not k.startswith(unset)}
        environ |= {
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.index),
            "PIP_CONFIG_FILE": "/dev/null",
            **self.variables,
        }
        words = ["bash", "-c", command]
        return subprocess.run(words, env=environ, cwd=self.prefix, capture_output=True, text=True)

    def put(self, name, version):
        """Unpacks a wheel in the place of another release, as --no-deps does."""
        self.take(name)
        with zipfile.ZipFile(next(self.index.glob(f"{name}-{version}-*.whl"))) as file:
            file.extractall(self.site)

    def take(self, name):
        for info in self.site.glob(f"{name}-*.dist-info"):
            for line in (info / "RECORD").read_text().splitlines():
                (self.site / line.partition(",")[0]).unlink(missing_ok=True)
            shutil.rmtree(info, ignore_errors=True)

    def error(self, module):
        """What its import ends with; "" where it works."""
        done = self.run(f"{self.python} -Bc 'import {module}'")
        return done.stderr.strip().rpartition("\n")[2] if done.returncode else ""

    def told(self):
        report = inspect(str(self.prefix), environ=self.variables, probe_driver=False)
        return [f for f in report.findings if f.severity != "note"]


def without_pip(env):
    shutil.rmtree(env.site / "pip")
    for info in env.site.glob("pip-*.dist-info"):
        shutil.rmtree(info)


JAX_PARTS = [("jax", "0.7.2"), ("jaxlib", "0.7.2")]
NUMBA_PARTS = [("numba", "0.67.0"), ("llvmlite", "0.49.0")]
TORCH_PARTS = [("torch", "2.8.0"), ("typing_extensions", "4.15.0")]
CUDA_PARTS = [("numba_cuda", "0.30.4"), ("cuda_pathfinder", "1.9.1")]
FAULTS = {
    "an older jaxlib": (JAX_PARTS, "jax", lambda e: e.put("jaxlib", "0.6.2")),
    "an older llvmlite": (NUMBA_PARTS, "numba", lambda e: e.put("llvmlite", "0.44.0")),
    "an older typing_extensions": (
        TORCH_PARTS, "torch", lambda e: e.put("typing_extensions", "4.5.0")),
    "an older cuda-pathfinder": (
        CUDA_PARTS, "numba_cuda", lambda e: e.put("cuda_pathfinder", "1.0.0")),
    "a merge's leftover": (
        TORCH_PARTS, "torch.functional",
        lambda e: (e.site / "torch/functional.py").open("a").write("<<<<<<< HEAD\n")),
    "an emptied module": (
        TORCH_PARTS, "torch", lambda e: (e.site / "typing_extensions.py").write_text("")),
    "a module that is gone": (
        TORCH_PARTS, "torch.functional", lambda e: (e.site / "torch/functional.py").unlink()),
    "a requirement that was uninstalled": (
        TORCH_PARTS, "torch", lambda e: e.take("typing_extensions")),
    "an older jaxlib, and no pip": (
        JAX_PARTS, "jax", lambda e: (e.put("jaxlib", "0.6.2"), without_pip(e))),
}  # fmt: skip
IN_TARGET = ["an older jaxlib", "an older cuda-pathfinder", "a module that is gone"]


@pytest.mark.parametrize(
    ("name", "target"), [*((n, False) for n in FAULTS), *((n, True) for n in IN_TARGET)]
)
def test_what_is_told_heals(env, name, target):
    parts, module, plant = FAULTS[name]
    if target:
        env.target()
    for each in parts:
        env.put(*each)
    assert env.error(module) == ""
    before = [(f.rule, f.severity, f.title) for f in env.told()]
    plant(env)
    assert env.error(module), "the fault is none"
    found = [f for f in env.told() if (f.rule, f.severity, f.title) not in before]
    assert found, "silent"
    commands = dict.fromkeys(command for finding in found for command in finding.fix)
    assert commands, found
    for command in commands:
        done = env.run(command)
        assert done.returncode == 0, f"{command}: {done.stderr}"
    assert env.error(module) == ""
    assert [(f.rule, f.severity, f.title) for f in env.told()] == before


def test_an_old_package_on_pythonpath_is_not_what_pip_mends(env):
    """pip leaves what lies outside the environment alone, and Python meets it first."""
    for each in TORCH_PARTS:
        env.put(*each)
    inside = env.site
    env.target()
    env.put("typing_extensions", "4.5.0")
    env.site = inside
    assert env.error("torch")
    commands = [command for finding in env.told() for command in finding.fix]
    assert set(commands) == {"unset PYTHONPATH"}
    env.variables = {}
    assert env.error("torch") == ""
    assert env.told() == []
