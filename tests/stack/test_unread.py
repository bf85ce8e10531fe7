"""Files and folders that this user may not read, and odd records: nothing is made of them."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from synth import Prefix

from cudriver.stack import inspect
from cudriver.stack.environment import distributions
from cudriver.stack.facts import Distribution
from cudriver.stack.roots.rootfs import Root

NOBODY = 65534
FILES = {
    "torch/__init__.py": b"tensor = float\n",
    "torch/version.py": b"__version__ = '2.8.0'\ncuda = '12.8'\nhip = None\n",
    "torch/nn/__init__.py": b"x = 1\n",
    "torch/nn/functional.py": b"x = 1\n",
}


@pytest.fixture(params=["host", "root"])
def venv(request: pytest.FixtureRequest) -> Iterator[Prefix]:
    """An environment with PyTorch's modules, that any user can read: pytest's folders are not."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        where = Path(name)
        root = where if request.param == "root" else None
        made = Prefix(where / "env", root=root).venv()
        made.dist("torch", "2.8.0", files=FILES)
        yield made


@contextmanager
def anybody() -> Iterator[None]:
    """As a user whom permissions hold for."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def report(venv: Prefix):
    return inspect(venv.inside, root=str(venv.root or "/"), environ={}, probe_driver=False)


def record(venv: Prefix, *lines: str, of: str = "torch-2.8.0") -> None:
    """Adds lines to a RECORD, at its end."""
    with open(venv.site / f"{of}.dist-info/RECORD", "a") as file:
        file.writelines(f"{line}\n" for line in lines)


def test_installer_is_not_asked_where_nothing_is_told(venv, monkeypatch):
    venv.dist(
        "xgboost", "2.1.4", files={"xgboost/lib/libxgboost.so": b"\x7fELF", "xgboost/a.py": b"x"}
    )
    asked = []
    text = Root.text

    def listen(self, path, *limit):
        asked.append(path)
        return text(self, path, *limit)

    monkeypatch.setattr(Root, "text", listen)
    assert report(venv).facts.file_faults == []
    assert [path for path in asked if "xgboost" in path and path.endswith("/INSTALLER")] == []


class TestUnreadable:
    """Nothing is known of a folder that this user may not look into."""

    @pytest.fixture(autouse=True)
    def warm(self, venv):
        """What is imported late is imported before the user changes."""
        assert report(venv).verdict == "consistent"

    @pytest.mark.parametrize("mode", [0, 0o444])
    @pytest.mark.parametrize("folder", ["torch", "torch/nn", "nvidia/nccl/lib", "xgboost"])
    def test_a_folder(self, venv, folder, mode):
        venv.dist("nvidia-nccl-cu12", "2.27.3", files={"nvidia/nccl/lib/libnccl.so.2": b"x"})
        venv.dist("xgboost", "2.1.4", files={"xgboost/__init__.py": b"x", "xgboost/a/b.py": b"x"})
        os.chmod(venv.site / folder, mode)
        with anybody():
            made = report(venv)
        os.chmod(venv.site / folder, 0o755)
        assert made.facts.file_faults == []
        assert [finding for finding in made.findings if finding.rule == "CU404"] == []
        where = f"{venv.inside}/lib/python3.11/site-packages/{folder}"
        assert made.verdict == "unknown", [f for f in made.findings if f.severity == "error"]
        assert f"{where}: cannot be read: Permission denied" in made.facts.unsure

    @pytest.mark.parametrize("mode", [0, 0o755])
    def test_the_python_of_a_venv(self, venv, mode):
        """One that this user may not see is not gone."""
        private = venv.path / "private"
        private.mkdir(mode)
        for link in (venv.path / "bin").iterdir():
            link.unlink()
        (venv.path / "bin/python").symlink_to(f"{venv.inside}/private/python")
        with anybody():
            made = report(venv)
        os.chmod(private, 0o755)
        assert ("CU503" in [finding.rule for finding in made.findings]) is (mode != 0)

    def test_a_disk_that_fails(self, venv, monkeypatch):
        """EIO, or ESTALE of a network's folder."""
        usual = Root.stat

        def fail(self, path):
            if path.endswith("torch/nn/functional.py"):
                raise OSError(116, "Stale file handle")
            return usual(self, path)

        (venv.site / "torch/nn/functional.py").unlink()
        monkeypatch.setattr(Root, "stat", fail)
        made = report(venv)
        assert made.facts.file_faults == []
        assert made.verdict == "unknown"


@pytest.mark.parametrize("size", ["9" * 5000, "", "x", "\u00b2"])
def test_a_size_that_is_no_number(tmp_path, size):
    """Of two records of one package the one that the disk bears out."""
    prefix = Prefix(tmp_path / "env").venv()
    for version in ("1.0", "2.0"):
        prefix.dist("torch", version, files={"torch/__init__.py": b"x" * int(version[0])})
    record(prefix, f"torch/version.py,sha256=x,{size}", of="torch-1.0")
    (prefix.site / "torch/version.py").touch()
    assert report(prefix).facts.distribution("torch").version == "2.0"


def test_the_installer_of_a_distribution(tmp_path):
    for text, says in (("", None), (" \n", None), ("conda", "conda"), ("uv\nmore\n", "uv")):
        (tmp_path / "INSTALLER").write_text(text)
        dist = Distribution("a", "1", "wheel", str(tmp_path), "/site")
        assert distributions.installer(Root("/"), dist) == says == dist.installer
