"""Fixes are tried on a copy of the facts: what cannot heal is not told."""

import re

import pytest
from facts import (
    PINS,
    SITE,
    environment,
    facts,
    fault,
    gpu,
    library,
    pip,
    torch,
    wheel,
)
from facts import driver as a_driver
from synth import Prefix

from cudriver.stack import inspect
from cudriver.stack.model import Evidence, FileFault, Framework, Requirement, Resolution, every
from cudriver.stack.record import but
from cudriver.stack.report import Report
from cudriver.stack.rules import judge, tried

CUDNN = f"{SITE}/nvidia/cudnn/lib/libcudnn.so.9"


def fixes(of, rule, recollect=None):
    """The fixes of a rule's only error or warning, and whether they are proven."""
    told = [f for f in every(judge(of, None, recollect)) if f.severity != "note"]
    (found,) = [f for f in told if f.rule == rule]
    return found.fix, found.proven


def missing(name, library, framework, **more):
    said = f"{name}: cannot open shared object file: No such file or directory"
    return fault("not found", name, library, said, framework=framework, **more)


class TestWhatCannotHealIsNotTold:
    def test_the_same_release_of_cudnn_again(self):
        """cuDNN 8.9.7 is there, whole; to install 8.9.7 once more changes nothing."""
        lib = library("libcudnn.so.8", "8.9.7", "cudnn", provided_by="nvidia-cudnn-cu12 8.9.7.29")
        of = facts(
            distributions=[wheel("torch", "2.8.0"), wheel("nvidia-cudnn-cu12", "8.9.7.29")],
            libraries=[lib],
            frameworks=[torch(cudnn_built="9.10.2", cudnn="8.9.7", loads=[lib.path])],
        )
        assert fixes(of, "CU301") == ([tried.NONE], False)

    @pytest.mark.parametrize(
        ("package", "name", "beside"),
        [
            ("torchcodec", "libavutil.so.59", []),  # FFmpeg, which it does not bring
            ("pynvvideocodec", "libnccl.so.2", []),
            ("onnxruntime-gpu", "libcusolver.so.11", [wheel("nvidia-cusolver", "12.0.3.29")]),
            ("onnxruntime-gpu", "libcudnn.so.8", [wheel("nvidia-cudnn-cu12", "9.10.2.21")]),
        ],
    )
    def test_a_package_that_does_not_bring_the_library(self, package, name, beside):
        path = f"{SITE}/{package}"
        kind = Framework(package, "1.0", path=path, distribution=package, module=package)
        of = facts(
            distributions=[wheel(package, "1.0"), *beside],
            frameworks=[kind],
            load_faults=[missing(name, f"{path}/_core.so", package)],
        )
        fix, proven = fixes(of, "CU305")
        assert not proven
        assert fix == [tried.NONE] or fix[0].endswith(" before.")

    @pytest.mark.parametrize("installer", ["uv", "conda"])
    def test_the_newest_extension_whatever_pytorch(self, installer):
        kind = Framework("xformers", "0.0.32", path=f"{SITE}/xformers", distribution="xformers")
        name = "_ZNK3c106SymInt6sym_neERKS0_"
        of = facts(
            environment=environment("uv", installer),
            distributions=[
                wheel("torch", "2.9.1"),
                wheel("xformers", "0.0.31", installer=installer),
            ],
            frameworks=[torch("2.9.1+cu128"), kind],
            load_faults=[
                fault("symbol", name, f"{SITE}/xformers/_C.so", "x", framework="xformers")
            ],
        )
        assert fixes(of, "CU303") == ([tried.NONE], False)

    def test_another_pytorch_than_the_one_that_vllm_pins(self):
        kinds = [torch("2.6.0+cu124", "12.4", archs=["sm_90"])]
        parts = [wheel("torch", "2.6.0"), wheel("vllm", "0.8.5", "torch==2.6.0")]
        new = a_driver(devices=[gpu(capability="12.0", name="NVIDIA B200")])
        of = facts(distributions=parts[:1], frameworks=kinds, driver=new)
        assert fixes(of, "CU501")[1]
        of = facts(distributions=parts, frameworks=kinds, driver=new)
        assert fixes(of, "CU501") == ([tried.NONE], False)

    def test_an_environment_for_torchvision_alone(self):
        of = facts(
            distributions=[
                wheel("torch", "2.9.1"),
                wheel("vllm", "0.13.0", "torch==2.9.1"),
                wheel("torchvision", "0.23.0", "torch==2.8.0"),
            ],
            frameworks=[torch("2.9.1+cu128")],
        )
        told = [f for f in judge(of) if "torchvision" in f.title and f.severity != "note"]
        assert told
        for found in told:
            assert not any("env" in line.split("/")[0] for line in found.fix)
            assert found.proven
            assert "torchvision==0.24.*" in found.fix[0]

    def test_what_an_overlay_pins_into_the_environment(self):
        over = wheel("accelerate", "1.0", "nvidia-cublas-cu12==12.1.3.1", location="/overlay")
        parts = [wheel("torch", "2.8.0"), wheel("nvidia-cublas-cu12", "12.8.4.1")]
        of = facts(environment=environment(PYTHONPATH="/overlay"), distributions=[over, *parts])
        asked = []

        def recollect(changes):
            asked.append(changes)
            return facts(distributions=parts)

        assert fixes(of, "CU402", recollect) == (["unset PYTHONPATH"], True)
        assert asked == [{"PYTHONPATH": None}]


def file_fault(name, path, what="missing", *owners):
    return FileFault(name, path, what, Evidence(f"{SITE}/{name}/RECORD", 7, path), list(owners))


class TestWhatHealsIsProven:
    def test_a_file_that_its_package_brings(self):
        of = facts(
            distributions=[PINS, wheel("nvidia-cudnn-cu12", "9.10.2.21")],
            file_faults=[file_fault("nvidia-cudnn-cu12", CUDNN)],
            load_faults=[missing("libcudnn.so.9", f"{SITE}/torch/lib/libtorch.so", "torch")],
        )
        assert fixes(of, "CU404") == ([pip("nvidia-cudnn-cu12==9.10.2.21")], True)

    @pytest.mark.parametrize(
        ("name", "wheel_of", "version"),
        [
            ("libcudnn.so.9", "nvidia-cudnn-cu12", "9.10.2.21"),
            ("libcublas.so.12", "nvidia-cublas-cu12", "12.8.4.1"),
            ("libcusparseLt.so.0", "nvidia-cusparselt-cu12", "0.7.1"),
            ("libnccl.so.2", "nvidia-nccl-cu12", "2.27.3"),
        ],
    )
    def test_a_wheel_that_was_uninstalled(self, name, wheel_of, version):
        of = facts(
            distributions=[wheel("torch", "2.8.0", f"{wheel_of}=={version}")],
            load_faults=[missing(name, f"{SITE}/torch/lib/libtorch_cuda.so", "torch")],
            resolutions=[Resolution(name, "x", None, "none", searched=[f"{SITE}/nvidia/any/lib"])],
        )
        nowhere = fixes(of, "CU305")
        assert nowhere == fixes(of, "CU402")
        assert nowhere[1]

    def test_the_pins_of_the_framework(self):
        """CU301 and CU402 have one cause, and get the fix that takes both away."""
        pins = wheel("torch", "2.8.0", "nvidia-cudnn-cu12==9.10.2.21", "nvidia-nccl-cu12==2.27.3")
        lib = library("libcudnn.so.9", "9.1.0", "cudnn", provided_by="nvidia-cudnn-cu12 9.1.0.70")
        of = facts(
            distributions=[
                pins,
                wheel("nvidia-cudnn-cu12", "9.1.0.70"),
                wheel("nvidia-nccl-cu12", "2.18.1"),
            ],
            libraries=[lib],
            frameworks=[torch(cudnn="9.1.0", loads=[lib.path])],
        )
        (older, proven), (unmet, both) = fixes(of, "CU301"), fixes(of, "CU402")
        assert proven
        assert both
        assert older == unmet
        assert unmet[0].endswith("install nvidia-cudnn-cu12==9.10.2.21 nvidia-nccl-cu12==2.27.3")

    def test_two_that_brought_one_file(self):
        """Either step alone leaves the other's package with a file that is not its own."""
        path = f"{SITE}/nvidia/nccl/lib/libnccl.so.2"
        names = "nvidia-nccl-cu12 2.27.3", "nvidia-nccl-cu13 2.28.9"
        of = facts(
            distributions=[PINS, *(wheel(*name.split(" ")) for name in names)],
            file_faults=[file_fault("nvidia-nccl-cu12", path, "owners", *names)],
        )
        fix, proven = fixes(of, "CU404")
        assert proven
        assert [line.split()[3] for line in fix] == ["uninstall", "install"]

    def test_another_cuda_of_pytorch_but_not_beside_its_old_torchvision(self):
        kinds = [torch("2.8.0+cu128")]
        old = a_driver("470.1", "11.4")
        of = facts(frameworks=kinds, driver=old)
        fix, proven = fixes(of, "CU103")
        assert proven == any("torch==" in line for line in fix)
        assert any("nvidia-driver" in line for line in fix)

    def test_a_pair_of_the_table(self):
        of = facts(
            distributions=[wheel("jax", "0.4.35"), wheel("nvidia-cuda-nvcc-cu12", "12.9.86")],
            frameworks=[],
        )
        fix, proven = fixes(of, "CU402")
        assert proven
        assert fix[0].endswith("install 'nvidia-cuda-nvcc-cu12==12.8.*'")
        of.distributions[0] = wheel("jax", "0.4.36")
        assert [f for f in judge(of) if f.rule == "CU402"] == []

    @pytest.mark.parametrize(
        ("package", "version", "torch", "says"),
        [
            ("torchvision", "0.23.0", "2.9.1", "Segmentation fault"),
            ("xformers", "0.0.32.post2", "2.9.1", "undefined symbol"),
            ("torchao", "0.18.0", "2.9.1", "ScalingType"),
        ],
    )
    def test_pairs_with_pytorch(self, package, version, torch, says):
        requires = [] if package == "torchao" else ["torch==2.8.0"]
        parts = [wheel("torch", torch), wheel(package, version, *requires)]
        (found,) = [f for f in judge(facts(distributions=parts)) if f.rule == "CU402"]
        assert found.severity == "error"
        assert says in found.predicts
        assert found.proven
        parts[0] = wheel("torch", "2.10.0" if package == "torchao" else "2.8.0")
        assert [f for f in judge(facts(distributions=parts)) if f.rule == "CU402"] == []

    def test_jax_without_its_plugin(self):
        of = facts(distributions=[wheel("jax-cuda12-pjrt", "0.6.2")], frameworks=[])
        fix, proven = fixes(of, "CU402")
        assert proven
        assert fix[0].endswith("install jax-cuda12-plugin==0.6.2")

    def test_what_conda_s_solver_chooses_is_told_untried(self):
        of = facts(
            environment=environment("conda", "conda"),
            distributions=[wheel("torch", "2.8.0", installer="conda")],
            frameworks=[torch("2.8.0", None)],
        )
        fix, proven = fixes(of, "CU401")
        assert fix == ["conda install -p /envs/train pytorch-gpu"]
        assert not proven


class TestBounds:
    def test_no_more_than_so_many_are_tried(self, monkeypatch):
        monkeypatch.setattr(tried, "TRIALS", 0)
        of = facts(distributions=[wheel("jax-cuda12-pjrt", "0.6.2")], frameworks=[])
        fix, proven = fixes(of, "CU402")
        assert fix
        assert not proven

    def test_the_facts_stay_as_they_are(self):
        of = facts(
            distributions=[PINS, wheel("nvidia-cudnn-cu12", "9.10.2.21")],
            file_faults=[file_fault("nvidia-cudnn-cu12", CUDNN)],
        )
        before = of.to_dict()
        assert fixes(of, "CU404")[1]
        assert of.to_dict() == before

    def test_a_requirement_of_what_is_installed_comes_with_it(self):
        one = wheel("jax-cuda12-pjrt", "0.6.2")
        plugin = wheel("jax-cuda12-plugin", "0.6.1", "jax-cuda12-pjrt==0.6.2")
        assert plugin.requires == [
            Requirement("jax-cuda12-pjrt", "==0.6.2", plugin.requires[0].evidence)
        ]
        assert [f for f in judge(facts(distributions=[one, plugin], frameworks=[])) if f.fix] == []


def test_a_variable_is_tried_by_looking_again(tmp_path):
    """The oracle is the check itself, asked with that variable."""
    venv = Prefix(tmp_path / "venv").venv()
    venv.wheels({"nvidia-cublas-cu12": "12.8.4.1"})
    over = tmp_path / "overlay"
    over.mkdir()
    venv.dist("accelerate", "1.0", ["nvidia-cublas-cu12==12.1.3.1"], site=over)
    report = inspect(str(venv.path), environ={"PYTHONPATH": str(over)}, probe_driver=False)
    (found,) = [f for f in report.findings if f.rule == "CU402"]
    assert (found.fix, found.proven) == (["unset PYTHONPATH"], True)
    assert tried_on_a_copy(report)
    healed = inspect(str(venv.path), environ={}, probe_driver=False)
    assert [f for f in healed.findings if f.rule == "CU402"] == []


def tried_on_a_copy(report):
    """The text, the page and the data all say so; a shell takes each line of it for a remark."""
    told = "tried on a copy of these facts"
    data = report.to_dict()["findings"]
    narrow = report.to_text(width=40).partition("# tried")[2].partition("\n\n")[0].splitlines()
    assert len(narrow) > 1
    assert all(line.lstrip().startswith("# ") for line in narrow[1:])
    return told in str(report) and told in report.to_html() and any(f["proven"] for f in data)


class TestOneCauseIsOneFinding:
    """What the same proven command takes away is told once, with the evidence of both."""

    def of(self):
        lib = library("libcudnn.so.9", "9.1.0", "cudnn", provided_by="nvidia-cudnn-cu12 9.1.0.70")
        return facts(
            distributions=[
                wheel("torch", "2.8.0", "nvidia-cudnn-cu12==9.10.2.21"),
                wheel("nvidia-cudnn-cu12", "9.1.0.70"),
            ],
            libraries=[lib],
            frameworks=[torch(cudnn_built="9.10.2", cudnn="9.1.0", loads=[lib.path])],
        )

    def test_the_worst_has_the_other(self):
        (found,) = [f for f in judge(self.of()) if f.severity != "note"]
        (other,) = found.also
        assert (found.rule, found.severity) == ("CU301", "error")
        assert (other.rule, other.severity) == ("CU402", "warning")
        assert found.fix == other.fix
        assert len(found.fix) == 1

    @pytest.mark.parametrize(
        ("select", "ignore", "left"),
        [
            ([], [], [["CU301", "CU402"]]),
            (["CU4"], [], [["CU402"]]),
            ([], ["CU301"], [["CU402"]]),
            ([], ["CU402"], [["CU301"]]),
            (["CU3", "CU402"], [], [["CU301", "CU402"]]),
        ],
    )
    def test_each_can_be_chosen_by_its_rule(self, select, ignore, left):
        report = Report(self.of(), judge(self.of())).restricted(select, ignore)
        loud = [f for f in report.findings if f.severity != "note"]
        assert [[f.rule, *(other.rule for other in f.also)] for f in loud] == left

    def test_every_form_shows_the_evidence_of_both(self):
        report = Report(self.of(), judge(self.of()))
        (found,) = [f for f in report.to_dict()["findings"] if f["also"]]
        assert [f["rule"] for f in found["also"]] == ["CU402"]
        card = report._repr_html_().partition("<details")[0]  # below are the pages of the rules
        for shown in (report.to_text(), re.sub("<[^>]*>", "", card)):
            assert shown.count("pip install") == 1
            assert "CU402 torch requires nvidia-cudnn-cu12==9.10.2.21" in shown
            assert "METADATA" in shown
        assert "mismatch: 1 error;" in report.to_text()

    def test_what_has_another_fix_stays_by_itself(self):
        of = self.of()
        of.environment.variables["CUDA_VISIBLE_DEVICES"] = ""
        of.driver = a_driver(devices=[gpu()])
        loud = [f.rule for f in judge(of) if f.severity != "note"]
        assert loud == ["CU301", "CU502"]

    def test_what_nobody_has_tried_stays_by_itself(self):
        of = self.of()
        of.frameworks[0].cudnn_by_pin = True
        one, *_, other = [but(f, proven=False, also=[]) for f in every(judge(of))]
        assert tried.fold([one, other]) == [one, other]
