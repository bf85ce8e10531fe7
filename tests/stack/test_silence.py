"""A checker that cries wolf is uninstalled: what is fine stays without error and warning."""

import json
import os
import sys

import pytest
from synth import CU12, Prefix, toolkit

from cudriver.stack import inspect
from cudriver.stack.collect import collect
from cudriver.stack.rules import judge
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


def alarms(prefix, driver="580.95.05", gpus=("9.0",), **variables):
    facts = collect(
        prefix.inside,
        root=str(prefix.root),
        environ=variables,
        assume_driver=driver,
        assume_gpus=gpus,
    )
    assert facts.framework("torch") is not None
    return [(f.rule, f.severity, f.title) for f in judge(facts) if f.severity != "note"]


def test_a_system_toolkit_of_another_minor(tree, venv):
    toolkit(tree / "usr/local/cuda-12.4", "12.4", json_version="12.4.1")
    (tree / "usr/local/cuda").symlink_to("cuda-12.4")
    venv.torch(libraries=True)
    venv.wheels()
    assert alarms(venv, PATH="/usr/local/cuda/bin:/usr/bin") == []


def test_two_system_toolkits_with_one_plainly_chosen(tree, venv):
    toolkit(tree / "usr/local/cuda-12.4", "12.4", json_version="12.4.1")
    toolkit(tree / "usr/local/cuda-12.8", "12.8", json_version="12.8.1")
    (tree / "usr/local/cuda").symlink_to("/usr/local/cuda-12.8")
    venv.torch()
    venv.wheels()
    assert alarms(venv, PATH="/usr/local/cuda/bin:/usr/bin", CUDA_HOME="/usr/local/cuda") == []


@pytest.mark.parametrize("release", ["525.60.13", "535.104.05", "550.54.15"])
def test_cu128_on_an_older_driver_of_its_major(venv, release):
    venv.torch()
    venv.wheels()
    assert alarms(venv, driver=release) == []


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("nvidia-nvjitlink-cu12", "12.9.86"),
        ("nvidia-cudnn-cu12", "9.10.5.3"),
        ("nvidia-cudnn-cu12", "9.14.0.64"),
        ("nvidia-nccl-cu12", "2.28.9"),
    ],
)
def test_a_newer_forward_compatible_library(venv, name, version):
    venv.torch()
    venv.wheels({**CU12, name: version})
    assert alarms(venv) == []


def test_unused_wheels_of_cuda_11(venv):
    venv.torch()
    venv.wheels(
        {
            **CU12,
            "nvidia-cublas-cu11": "11.11.3.6",
            "nvidia-cuda-runtime-cu11": "11.8.89",
            "nvidia-cudnn-cu11": "8.7.0.84",
        }
    )
    assert alarms(venv) == []


def test_a_conda_environment_pinned_by_cuda_version(tree):
    prefix = Prefix(tree / "opt/conda/envs/train", root=tree).conda()
    prefix.torch("2.7.1", "12.8", pins={})
    for name, version in {
        "cuda-version": "12.8",
        "cuda-cudart": "12.8.90",
        "libcublas": "12.8.4.1",
        "cudnn": "9.10.1.4",
        "nccl": "2.27.5.1",
        "libnvjitlink": "12.9.86",
    }.items():
        prefix.conda_package(name, version, "h1_0", depends=["cuda-version >=12,<13.0a0"])
    prefix.conda_package(
        "pytorch",
        "2.7.1",
        "cuda128_mkl_py311_h1_300",
        depends=["cuda-version >=12.8,<13", "cudnn >=9.10.1.4,<10.0a0"],
    )
    assert alarms(prefix) == []


@pytest.mark.parametrize("release", ["615.71.09", "700.10", "999.99.99"])
def test_a_driver_newer_than_everything(venv, release):
    venv.torch()
    venv.wheels()
    assert alarms(venv, driver=release) == []


def test_no_gpu_on_a_machine_that_only_builds(tree, venv):
    toolkit(tree / "usr/local/cuda-12.8", "12.8", json_version="12.8.1")
    venv.torch()
    venv.wheels()
    facts = collect(venv.inside, root=str(tree), environ={"PATH": "/usr/local/cuda-12.8/bin"})
    assert facts.driver.path is None
    assert [f for f in judge(facts) if f.severity != "note"] == []


def test_a_login_node_that_asks_about_its_gpus(tree, venv):
    venv.torch()
    venv.wheels()
    facts = collect(venv.inside, root=str(tree), assume_gpus=["9.0"])
    assert [f for f in judge(facts) if f.severity != "note"] == []


def test_what_this_machine_hides_is_not_the_assumed_gpu(venv):
    venv.torch(libraries=True)
    venv.wheels()
    for value in ("", "-1", "7"):
        variables = {"CUDA_VISIBLE_DEVICES": value}
        assert alarms(venv, **variables) == []
        told = alarms(venv, gpus=("5.0",), **variables)
        assert [(rule, severity) for rule, severity, _ in told] == [("CU501", "error")]


def test_cu13_by_the_metapackage(venv):
    venv.torch(
        "2.11.0+cu130",
        "13.0",
        pins={"nvidia-cudnn-cu13": "9.19.0.56"},
        more=['cuda-toolkit[cublas,cudart]==13.0.2; platform_system == "Linux"'],
        archs="sm_75 sm_80 sm_90 sm_120",
    )
    venv.dist(
        "cuda-toolkit",
        "13.0.2",
        [
            "nvidia-cublas==13.1.0.3.*; (sys_platform == 'linux') and extra == 'cublas'",
            "nvidia-cuda-runtime==13.0.96.*; (sys_platform == 'linux') and extra == 'cudart'",
        ],
    )
    venv.wheels(
        {
            "nvidia-cublas": "13.1.0.3",
            "nvidia-cuda-runtime": "13.0.96",
            "nvidia-cudnn-cu13": "9.19.0.56",
        }
    )
    assert alarms(venv) == []


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
        facts = collect(venv.inside, root=str(tree))
        assert {x.path for x in facts.libraries} <= {"/usr/lib/libcudart.so.12"}
        assert facts.driver.path is None

    def test_what_is_no_folder_is_refused(self, tree, venv):
        with pytest.raises(NotADirectoryError):
            inspect("/absent", root=str(tree))
        with pytest.raises(NotADirectoryError):
            inspect(root=str(tree / "absent"))
        with pytest.raises(ValueError, match="looks like"):
            inspect(venv.inside, root=str(tree), assume_driver="new")
        outside = os.path.dirname(str(tree))
        with pytest.raises(NotADirectoryError):
            inspect("/../" + os.path.basename(outside), root=str(tree))

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
            "torch/version.py",
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
