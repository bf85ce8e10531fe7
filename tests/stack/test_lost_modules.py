"""Python files that RECORD lists and the disk denies: what proves nothing is not told."""

import base64
import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from synth import Prefix

from cudriver.stack import inspect
from cudriver.stack.collect import distributions, lost, records
from cudriver.stack.model import Distribution
from cudriver.stack.rootfs import Root

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


def told(venv: Prefix) -> list[tuple[str, str]]:
    """The faults, by file and kind."""
    faults = report(venv).facts.file_faults
    return [(fault.file.partition("/site-packages/")[2], fault.what) for fault in faults]


def record(venv: Prefix, *lines: str, of: str = "torch-2.8.0") -> None:
    """Adds lines to a RECORD, at its end."""
    with open(venv.site / f"{of}.dist-info/RECORD", "a") as file:
        file.writelines(f"{line}\n" for line in lines)


def test_an_empty_file_that_not_every_import_reads(venv):
    """In another root thousands are not asked for their size."""
    (venv.site / "torch/nn/functional.py").write_bytes(b"")
    assert told(venv) == ([] if venv.root else [("torch/nn/functional.py", "size")])


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
    assert told(venv) == []
    assert [path for path in asked if "xgboost" in path] == []


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
        listdir = os.listdir

        def fail(path):
            # A machine with a driver has /dev listed too, by its name.
            if isinstance(path, int) and os.readlink(f"/proc/self/fd/{path}").endswith("torch/nn"):
                raise OSError(116, "Stale file handle")
            return listdir(path)

        (venv.site / "torch/nn/functional.py").unlink()
        monkeypatch.setattr(os, "listdir", fail)
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


def test_the_time_does_not_grow_with_the_faults(tmp_path, monkeypatch):
    """Past the limit no more is looked at."""
    info = tmp_path / "torch-2.8.0.dist-info"
    info.mkdir()
    folders = 3 * records.LOST
    (info / "RECORD").write_text("".join(f"torch/a{n}/x.py,sha256=x,9\n" for n in range(folders)))
    root = Root("/")
    looked = []
    monkeypatch.setattr(root, "names", lambda path: looked.append(path) or [])
    dist = Distribution("torch", "2.8.0", "wheel", str(info), str(tmp_path))
    lost = records.LostModules(root, [(dist, records.read(root, dist, []))])
    assert len(lost.faults()[0]) == len(looked) == records.LOST


def test_a_lost_module_behind_a_thousand_of_documentation(venv):
    pages = [f"torch/docs/a{number}.py" for number in range(records.LOST)]
    record(venv, *(f"{page},sha256=x,9" for page in pages), "torch/zlib.py,sha256=x,9")
    assert told(venv) == [("torch/zlib.py", "missing")]


def test_the_installer_of_a_distribution(tmp_path):
    for text, says in (("", None), (" \n", None), ("conda", "conda"), ("uv\nmore\n", "uv")):
        (tmp_path / "INSTALLER").write_text(text)
        assert distributions.installer(Root("/"), str(tmp_path)) == says


class TestChangedLater:
    """A file of the right size that was changed after its package was installed."""

    @staticmethod
    def list_hash(venv: Prefix, name: str) -> None:
        """Puts the hash of a file into RECORD, as installers do, and RECORD's time after it."""
        content = (venv.site / name).read_bytes()
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record(venv, f"{name},sha256={digest},{len(content)}")

    @pytest.fixture
    def changed(self, tmp_path: Path) -> tuple[Prefix, Path]:
        venv = Prefix(tmp_path).venv()
        venv.dist("torch", "2.8.0", files=FILES)
        path = venv.site / "torch/cuda.py"
        path.write_bytes(b"x = 1\n" * 9)
        self.list_hash(venv, "torch/cuda.py")
        return venv, path

    @staticmethod
    def later(path: Path, content: bytes) -> None:
        path.write_bytes(content)
        time = path.stat().st_mtime + 60
        os.utime(path, (time, time))

    def test_what_is_not_reached_is_not_told(self, changed):
        venv, path = changed
        self.later(path, b"y = 2\n" * 9)
        assert told(venv) == []

    def test_an_import_that_meets_zeros(self, changed):
        venv, path = changed
        (venv.site / "torch/__init__.py").write_bytes(b"import torch.cuda\n")
        self.later(path, bytes(6 * 9))
        assert ("torch/cuda.py", "edited") in told(venv)
        (found,) = [f for f in report(venv).findings if "cuda.py" in f.title]
        assert found.severity == "error"
        assert found.predicts == "source code string cannot contain null bytes"

    def test_a_file_that_another_package_brought_too(self, changed):
        """cuda-python 12.6 and cuda-bindings 13 both bring cuda/bindings/driver*.so."""
        venv, path = changed
        (venv.site / "torch/__init__.py").write_bytes(b"import torch.cuda\n")
        self.later(path, bytes(6 * 9))
        venv.dist("two", "1.0")
        record(venv, "torch/cuda.py,sha256=x,54", of="two-1.0")
        assert [name for name, _ in told(venv) if "cuda" in name] == []

    def test_the_same_bytes_are_no_change(self, changed):
        venv, path = changed
        (venv.site / "torch/__init__.py").write_bytes(b"import torch.cuda\n")
        self.later(path, b"x = 1\n" * 9)
        assert [name for name, _ in told(venv) if "cuda" in name] == []

    def test_a_copy_whose_files_are_all_of_today_is_not_read(self, changed, monkeypatch):
        venv, _ = changed
        for number in range(records.COPIED + 1):
            copy = venv.site / f"torch/a{number}.py"
            copy.write_bytes(b"x = 1\n")
            self.list_hash(venv, f"torch/a{number}.py")
            self.later(copy, b"x = 1\n")
        monkeypatch.setattr(records, "differs", lambda *_: pytest.fail("read"))
        assert told(venv) == []


def test_a_folder_where_a_module_was(venv):
    """Python passes it by. In another root only what every import reads is asked what it is."""
    (venv.site / "torch/nn/functional.py").unlink()
    (venv.site / "torch/nn/functional.py").mkdir()
    assert told(venv) == ([] if venv.root else [("torch/nn/functional.py", "missing")])


def test_the_packages_of_a_record_are_its_first_folders_with_a_public_name():
    lines = ["yaml", "_yaml", "yaml/inner", "google", "not-a-name", "x.dist-info"]
    raw = "".join(f"{folder}/__init__.py,sha256=A,1\n" for folder in lines) + "top.py,,\n"
    assert lost._packages(raw.encode()) == {"yaml", "google"}
