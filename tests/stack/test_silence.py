"""What of this machine stays out of a report about another, and what could not be read of it."""

import json
import os
import sys
from pathlib import Path

import pytest
from synth import Prefix, toolkit

from cudriver.stack import find_environments, inspect
from cudriver.stack.collect import ask, collect
from elfkit import compile_c


@pytest.fixture
def tree(tmp_path):
    """Another file system's root, with a venv for PyTorch in it."""
    root = tmp_path / "root"
    (root / "usr/local").mkdir(parents=True)
    return root


@pytest.fixture
def venv(tree):
    return Prefix(tree / "home/ana/env", root=tree).venv()


class TestAnotherRoot:
    """Nothing of this machine is in a report about another."""

    def strings(self, value):
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            for key, item in value.items():
                yield from self.strings(key)
                yield from self.strings(item)
        elif isinstance(value, list):
            for item in value:
                yield from self.strings(item)

    def test_no_path_of_ours(self, tree, venv, monkeypatch):
        monkeypatch.setenv("CUDA_HOME", "/leak/cuda")
        monkeypatch.setenv("LD_LIBRARY_PATH", "/leak/lib")
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
        monkeypatch.setenv("NVCC_CCBIN", "/leak/gcc")
        toolkit(tree / "usr/local/cuda-12.4", "12.4", json_version="12.4.1")
        (tree / "usr/local/cuda").symlink_to("/usr/local/cuda-12.4")
        # Links that would lead to this machine's own files, were they followed outside.
        (tree / "etc").mkdir()
        (tree / "etc/ld.so.conf").symlink_to("/" + "../" * 40 + "etc/ld.so.conf")
        venv.torch(libraries=True)
        venv.wheels()
        report = inspect(
            venv.inside, root=str(tree), assume_driver="535.104.05", assume_gpus=["9.0"]
        )
        data = report.to_dict()
        assert data["environment"].pop("root") == str(tree)
        whole = json.dumps([data, report.facts.to_dict() | {"root": ""}])
        assert "/leak" not in whole
        assert str(tree) not in whole
        for ours in (
            sys.prefix,
            sys.executable,
            os.path.realpath(sys.executable),
            os.path.expanduser("~/"),
            os.uname().nodename,
        ):
            if len(ours) > 3:
                assert ours not in whole
        for text in self.strings(data):
            if (
                text.startswith("/")
                and " " not in text
                and os.path.exists(text)
                and not os.path.exists(str(tree) + text)
            ):
                assert text.startswith(("/usr/bin", "/proc/driver")), text

    def test_text_and_html_neither(self, tree, venv):
        venv.torch()
        venv.wheels()
        report = inspect(venv.inside, root=str(tree), assume_driver="535.104.05")
        for shown in (report.to_text(), report.to_html()):
            assert sys.prefix not in shown
            assert os.path.realpath(sys.executable) not in shown

    def test_its_libraries_are_its_own(self, tree, venv):
        lib = tree / "usr/lib"
        lib.mkdir()
        compile_c(lib / "libcudart.so.12", "int cudart;", "-Wl,-soname,libcudart.so.12")
        venv.torch(libraries=True)
        compile_c(
            venv.site / "torch/lib/libtorch_cuda.so",
            "extern int cudart; int *use(void) { return &cudart; }",
            "-Wl,-soname,libtorch_cuda.so",
            str(lib / "libcudart.so.12"),
        )
        facts = collect(ask(venv.inside, root=str(tree)))
        assert {x.path for x in facts.libraries} <= {"/usr/lib/libcudart.so.12"}
        assert facts.driver.path is None

    def test_what_is_no_folder_is_refused(self, tree, venv):
        with pytest.raises(NotADirectoryError):
            inspect("/absent", root=str(tree))
        with pytest.raises(NotADirectoryError):
            inspect(root=str(tree / "absent"))
        with pytest.raises(ValueError, match="looks like"):
            inspect(venv.inside, root=str(tree), assume_driver="new")
        with pytest.raises(ValueError, match="match='toolkit'"):
            inspect(venv.inside, root=str(tree), match="toolkit")
        with pytest.raises(ValueError, match="match_level='patch'"):
            inspect(venv.inside, root=str(tree), match_level="patch")
        for absent in ("", str(tree / "absent")):
            with pytest.raises(NotADirectoryError):
                find_environments(absent)
        outside = os.path.dirname(str(tree))
        with pytest.raises(NotADirectoryError):
            inspect("/../" + os.path.basename(outside), root=str(tree))

    def test_a_path_is_a_folder_too(self, tree, venv):
        assert inspect(Path(venv.inside), root=str(tree)).prefix == venv.inside

    def test_an_interpreter_stands_for_its_environment(self, tree, venv):
        venv.torch()
        assert inspect(venv.inside + "/bin/python", root=str(tree)).prefix == venv.inside


class TestWhatCannotBeRead:
    """A file that decides and cannot be read: the check could not tell, and says which it was."""

    def verdict(self, venv):
        report = inspect(venv.inside, root=str(venv.root), environ={})
        return report.verdict, [problem.file for problem in report.facts.problems]

    @pytest.fixture
    def sound(self, venv):
        venv.torch(libraries=True)
        venv.wheels()
        assert self.verdict(venv) == ("consistent", [])
        return venv

    @pytest.mark.parametrize(
        "name",
        [
            "torch-2.8.0+cu128.dist-info/METADATA",
            "torch-2.8.0+cu128.dist-info/RECORD",
            "nvidia_nccl_cu12-2.27.3.dist-info/METADATA",
        ],
    )
    def test_a_file(self, sound, name):
        (sound.site / name).unlink()
        (sound.site / name).mkdir()  # whoever runs this may read any file, but no folder as one
        verdict, files = self.verdict(sound)
        assert verdict == "unknown"
        assert [file.endswith(name) for file in files] == [True]

    def test_a_package_of_no_interest(self, sound):
        (sound.site / "idna-3.7.dist-info/METADATA").mkdir(parents=True)
        verdict, files = self.verdict(sound)
        assert verdict == "consistent"
        assert len(files) == 1

    def test_a_folder(self, sound, monkeypatch):
        listdir = os.listdir

        def refuse(path):
            if os.readlink(f"/proc/self/fd/{path}").endswith("site-packages"):
                raise PermissionError(13, "Permission denied")
            return listdir(path)

        monkeypatch.setattr(os, "listdir", refuse)
        verdict, files = self.verdict(sound)
        assert verdict == "unknown"
        assert files == ["/home/ana/env/lib/python3.11/site-packages"]

    def test_no_site_packages(self, sound):
        sound.site.rename(sound.site.with_name("elsewhere"))
        assert self.verdict(sound)[0] == "unknown"
