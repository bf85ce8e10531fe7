"""CU501 to CU503: what a GPU needs of a build and of a driver, which are visible, a lost Python."""

import pytest
from facts import PREFIX, PYTHON, driver, environment, facts, fired, gpu, one, torch, wheel

from cudriver.stack.model import Driver, Evidence
from cudriver.stack.rules import cu5
from cudriver.stack.tables import driver_cuda
from cudriver.stack.visible import mark, select


class TestArchitectures:
    @pytest.mark.parametrize(
        ("capability", "archs", "how"),
        [
            ("8.6", ["sm_80"], "cubin"),
            ("8.0", ["sm_86"], None),
            ("9.0", ["sm_80", "sm_86"], None),
            ("9.0", ["sm_80", "compute_80"], "ptx"),
            ("9.0", ["sm_90a"], "cubin"),
            ("9.1", ["sm_90a"], None),
            ("10.3", ["sm_100f"], "cubin"),
            ("12.0", ["sm_100f"], None),
            ("12.0", ["sm_120"], "cubin"),
            ("12.1", ["compute_120"], "ptx"),
            ("12.0", ["compute_120"], "ptx"),
            ("10.3", ["compute_100f"], "ptx"),
            ("10.0", ["compute_100f"], "ptx"),
            ("12.0", ["compute_100f"], None),
            ("10.0", ["compute_103f"], None),
            ("7.0", ["compute_75"], None),
            ("9.0", ["nonsense", ""], None),
            ("?", ["sm_90"], None),
        ],
    )
    def test_fits(self, capability, archs, how):
        assert cu5.fits(capability, archs) == how

    def test_too_new(self):
        older = torch("2.6.0+cu124", "12.4", archs=["sm_50", "sm_80", "sm_90"])
        found = one(
            facts(
                driver=driver(devices=[gpu(capability="12.0", name="NVIDIA GeForce RTX 5090")]),
                frameworks=[older],
            ),
            "CU501",
            "error",
        )
        assert found.predicts == "no kernel image is available for execution on the device"
        assert found.evidence[0].file == "GPU 0"
        assert found.evidence[1].file.endswith("libtorch_python.so")
        assert "/whl/cu1" in found.fix[0]

    def test_dropped_by_this_build_and_kept_by_another(self):
        found = one(
            facts(driver=driver(devices=[gpu(capability="6.1", assumed=True, name=None)])),
            "CU501",
            "error",
        )
        assert "/whl/cu126" in found.fix[0]
        assert "torch==2.8.0" in found.fix[0]

    @pytest.mark.parametrize(
        ("capability", "cuda", "wanted", "index"),
        [
            ("12.0", "13.0", "torch==2.14.*", "cu130"),
            ("12.0", "12.8", "torch==2.11.*", "cu128"),
            ("12.0", "11.4", "torch==2.14.*", "cu130"),  # no driver of 11 runs one: CU103 speaks
            ("5.2", "12.2", "torch==2.14.*", "cu126"),
            ("3.7", "12.2", "torch==2.0.*", "cu117"),
            ("3.5", "12.2", None, None),
        ],
    )
    def test_another_release(self, capability, cuda, wanted, index):
        """A build that has code for the GPU and suits the driver; no command where none has."""
        older = torch("2.6.0+cu124", "12.4", archs=["sm_80", "sm_90"])
        made = driver(cuda=cuda, devices=[gpu(capability=capability)])
        (fixes,) = one(facts(driver=made, frameworks=[older]), "CU501", "error").fix
        if wanted is None:
            assert "from source" in fixes
            assert f"TORCH_CUDA_ARCH_LIST={capability}." in fixes
        else:
            assert f"'{wanted}' --index-url https://download.pytorch.org/whl/{index}" in fixes

    def test_the_environments_machine_counts(self):
        """The builds for Arm have other architectures than those for x86-64."""
        older = torch("2.12.0+cu126", "12.6", archs=["sm_80", "sm_90"])
        made = driver(cuda="13.2", devices=[gpu(capability="7.5")])
        of = facts(driver=made, frameworks=[older])
        assert "torch==2.12.0" in one(of, "CU501").fix[0]
        of.environment.platform = "aarch64"
        assert "torch==2.10.*" in one(of, "CU501").fix[0]

    def test_conda_has_builds_of_its_own(self):
        of = facts(
            environment=environment("conda", "conda"),
            driver=driver(devices=[gpu(capability="6.1")]),
            distributions=[wheel("torch", "2.8.0", installer="conda")],
        )
        assert one(of, "CU501").fix == [f"conda install -p {PREFIX} 'pytorch=*=*cuda126*'"]
        of.frameworks = [torch("2.6.0", "12.4", archs=["sm_80", "sm_90"])]
        of.driver = driver(cuda="13.0", devices=[gpu(capability="12.0")])
        assert one(of, "CU501").fix == [f"conda install -p {PREFIX} 'pytorch=*=*cuda13*'"]

    def test_gpus_of_one_kind_are_told_once(self):
        older = torch("2.6.0+cu124", "12.4", archs=["sm_90"])
        unknown = gpu(0, "12.0")
        unknown.compute_capability = None
        devices = [unknown, gpu(1, "12.0"), gpu(2, "12.0"), gpu(3, "7.5")]
        found = fired(facts(frameworks=[older], driver=driver(devices=devices)), "CU501")
        assert [f.evidence[0].file for f in found] == ["GPU 1", "GPU 3"]

    def test_where_the_list_stands_may_not_be_known(self):
        older = torch("2.6.0+cu124", "12.4", archs=["sm_90"], archs_evidence=None)
        of = facts(frameworks=[older], driver=driver(devices=[gpu(capability="12.0")]))
        assert [e.file for e in one(of, "CU501", "error").evidence] == ["GPU 0"]

    def test_a_driver_that_tells_no_version(self):
        old = torch("2.6.0+cu124", "12.4", archs=["sm_80", "sm_90"])
        for cuda in (None, "new"):
            made = driver(cuda=cuda, devices=[gpu(capability="12.0")])
            (fixes,) = one(facts(driver=made, frameworks=[old]), "CU501", "error").fix
            assert "'torch==2.14.*' --index-url https://download.pytorch.org/whl/cu130" in fixes

    def test_ptx_is_a_note(self):
        one(
            facts(
                driver=driver(devices=[gpu(capability="12.1")]),
                frameworks=[torch(archs=["compute_120"])],
            ),
            "CU501",
            "note",
        )

    def test_the_table_knows_ptx_that_the_list_leaves_out(self):
        newer = torch(
            "2.10.0+cu130", "13.0", archs=["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]
        )
        one(
            facts(driver=driver(devices=[gpu(capability="13.0")]), frameworks=[newer]),
            "CU501",
            "note",
        )

    def test_the_driver_dropped_it(self):
        made = driver(
            "590.48.01", "13.1", assumed=True, devices=[gpu(capability="7.0", assumed=True)]
        )
        found = one(facts(driver=made, frameworks=[]), "CU501", "error")
        assert "nvidia-driver-580" in found.fix[0]

    @pytest.mark.parametrize(
        ("release", "capability", "told"),
        [
            ("535.104.05", "10.0", "R570 is the first"),
            ("535.104.05", "12.0", "R570 is the first"),
            ("569.1", "10.0", "R570 is the first"),
            ("570.26", "10.0", None),
            ("570.26", "12.1", "R575 is the first"),
            ("580.95.05", "10.3", None),
            ("470.82.01", "9.0", "R520 is the first"),
            ("535.104.05", "9.0", None),
            ("418.40.04", "7.5", None),
            ("580.95.05", "7.0", None),
            ("590.48.01", "7.0", "R580 was the last"),
            ("470.82.01", "3.5", None),
            ("470.82.01", "2.0", "R390 was the last"),
            ("535.104.05", "8.7", None),  # Tegra's drivers are numbered apart
        ],
    )
    def test_the_driver_does_not_know_it(self, release, capability, told):
        devices = [gpu(capability=capability, assumed=True)]
        made = driver(release, driver_cuda(release), assumed=True, devices=devices)
        found = fired(facts(driver=made, frameworks=[]), "CU501")
        assert [f.severity for f in found] == (["error"] if told else [])
        if told:
            assert told in found[0].title
            assert f"compute capability {capability} (" in found[0].title
            branch = told[1:4] if "last" in told else "580"  # it lasts, and knows the newer ones
            assert f"nvidia-driver-{branch}" in found[0].fix[0]
            assert found[0].evidence[-1] == made.release_evidence

    def test_a_gpu_that_the_driver_knows_hides_no_other(self):
        devices = [gpu(n, capability, assumed=True) for n, capability in enumerate(("9.0", "10.0"))]
        made = driver("535.104.05", "12.2", assumed=True, devices=devices)
        assert "capability 10.0 (" in one(facts(driver=made, frameworks=[]), "CU501").title

    def test_what_a_driver_lists_it_knows(self):
        made = driver("535.104.05", "12.2", devices=[gpu(capability="10.0")])
        assert fired(facts(driver=made, frameworks=[]), "CU501") == []

    def test_silent(self):
        assert fired(facts(), "CU501") == []
        assert fired(facts(driver=driver(devices=[])), "CU501") == []
        hidden = gpu(capability="3.5", visible=False)
        assert fired(facts(driver=driver(devices=[hidden])), "CU501") == []

    @pytest.mark.parametrize(
        ("version", "cuda", "ptx"),
        [
            ("2.8.0+cu129", "12.9", ["compute_120"]),
            ("2.8.0+cu128", "12.8", []),
            ("2.9.0+cu129", "12.9", []),  # that release has no such build
            ("2.13.0+cu130", "13.0", ["compute_120"]),
        ],
    )
    def test_ptx_that_a_build_has_beside_its_list(self, version, cuda, ptx):
        made = torch(version, cuda, archs=["sm_90"])
        assert cu5.with_ptx(made, "x86_64") == ["sm_90", *ptx]
        for made.name in ("cupy", "vllm"):
            assert cu5.with_ptx(made, "x86_64") == ["sm_90"]
        made.name, made.archs = "torch", ["sm_90", "compute_90"]
        assert cu5.with_ptx(made, "x86_64") == ["sm_90", "compute_90"]

    def test_the_newest_of_the_variants_that_fit_a_gpu(self):
        """PyTorch 2.8 has code for compute capability 12.0 in cu128 and cu129, not in cu126."""
        old = torch("2.8.0+cu126", "12.6", archs=["sm_80", "sm_90"])
        devices = [gpu(0, "12.0", "RTX 5090")]
        made = facts(frameworks=[old], driver=driver(devices=devices))
        (fixes,) = one(made, "CU501", "error").fix
        assert fixes.endswith("/whl/cu129")
        made = facts(frameworks=[old], driver=driver("570.26", "12.8", devices=devices))
        assert one(made, "CU501", "error").fix[0].endswith("/whl/cu129"), "a minor is not a hurdle"


class TestVisible:
    DEVICES = [gpu(0), gpu(1), gpu(2, mig=True, instances=["MIG-11-22", "MIG-33-44"])]  # noqa: RUF012

    @pytest.mark.parametrize(
        ("value", "ordinals", "stopped"),
        [
            ("0", [0], None),
            ("1,0", [1, 0], None),
            (" 1 , 0 ", [1, 0], None),
            ("", [], None),
            ("-1", [], "-1"),
            ("0,-1,1", [0], "-1"),
            ("0,8,1", [0], "8"),
            ("none", [], "none"),
            ("NoDevFiles", [], "NoDevFiles"),
            ("GPU-1aaa", [1], None),
            ("GPU-1", [1], None),
            ("GPU-", [], "GPU-"),
            ("GPU-zz", [], "GPU-zz"),
            ("MIG-11", [2], None),
            ("MIG-55", [], "MIG-55"),
            ("0,0", [], "0"),
            ("1, 0, 1, 2", [], "1"),
            ("MIG-11,MIG-11", [], "MIG-11"),
            ("MIG-11,MIG-33", [2], None),
            ("-0,1", [0, 1], None),
            ("1gpu,0", [1, 0], None),
            ("GPU-1,0", [1], "0"),
            ("1,GPU-0", [1], "GPU-0"),
            ("0,,1", [0], ""),
            ("99999999999999999999", [], "99999999999999999999"),
        ],
    )
    def test_select(self, value, ordinals, stopped):
        chosen = select(value, self.DEVICES)
        assert (chosen.ordinals, chosen.stopped_at) == (ordinals, stopped)

    def test_the_beginning_of_a_mig_uuid_that_two_gpus_share_is_the_firsts(self):
        devices = [gpu(i, mig=True, instances=[f"MIG-11-{i}"]) for i in range(2)]
        assert select("MIG-11", devices).ordinals == [0]
        assert select("MIG-11-1", devices).ordinals == [1]

    def finding(self, value):
        made = facts(
            environment=environment(CUDA_VISIBLE_DEVICES=value), driver=driver(devices=self.DEVICES)
        )
        return one(made, "CU502")

    def test_an_invalid_entry_hides_what_follows(self):
        found = self.finding("0,8,1")
        assert found.severity == "warning"
        assert "1 after it not read" in found.title
        assert found.fix == ["export CUDA_VISIBLE_DEVICES=0"]
        assert found.evidence[0].value == "0,8,1"

    def test_none_left(self):
        assert self.finding("8").severity == "error"
        assert self.finding("").severity == "warning"
        assert self.finding("-1").severity == "warning"
        assert self.finding("-1").fix == ["unset CUDA_VISIBLE_DEVICES"]

    def test_one_gpu_is_one(self):
        made = facts(
            environment=environment(CUDA_VISIBLE_DEVICES="8"),
            driver=driver(devices=self.DEVICES[:1]),
        )
        assert one(made, "CU502").title.endswith("0 of 1 GPU visible")

    def test_a_repetition_hides_all(self):
        found = self.finding("1,0,1")
        assert found.severity == "error"
        assert "0 of 3 GPUs visible" in found.title
        assert found.fix == ["export CUDA_VISIBLE_DEVICES=1,0"]

    def test_a_choice_is_a_note(self):
        assert self.finding("1").severity == "note"

    def test_silent(self):
        assert fired(facts(), "CU502") == []
        all_of_them = facts(
            environment=environment(CUDA_VISIBLE_DEVICES="0,1,2"),
            driver=driver(devices=self.DEVICES),
        )
        assert fired(all_of_them, "CU502") == []
        without = facts(environment=environment(CUDA_VISIBLE_DEVICES="-1"), driver=Driver())
        assert fired(without, "CU502") == []

    @pytest.mark.parametrize(
        ("value", "ordinals", "unread", "meant"),
        [
            ("0,7,1", [0], ["1"], [0]),
            ("0,0,1", [], [], [0]),
            ("7,0,1", [], ["0", "1"], []),
            ("1,0", [1, 0], [], [1, 0]),
        ],
    )
    def test_what_is_not_read_of_the_variable(self, value, ordinals, unread, meant):
        chosen = select(value, [gpu(0), gpu(1)])
        assert (chosen.ordinals, chosen.unread, chosen.meant) == (ordinals, unread, meant)

    @pytest.mark.parametrize(
        ("value", "severity", "predicts"),
        [("8", "error", True), ("0,8", "warning", False), ("-1", "warning", True)],
    )
    def test_no_gpus_are_available_where_none_is_left(self, value, severity, predicts):
        variables = environment(CUDA_VISIBLE_DEVICES=value)
        made = facts(environment=variables, driver=driver(devices=[gpu(0), gpu(1)]))
        found = one(made, "CU502", severity)
        assert found.predicts == ("No CUDA GPUs are available" if predicts else None)

    def test_an_index_between_two_devices_is_none(self):
        chosen = select("1,0", [gpu(0), gpu(5)])
        assert (chosen.ordinals, chosen.stopped_at) == ([], "1")
        assert select("5", [gpu(0), gpu(5)]).ordinals == [5]
        assert select("9" * 5000, [gpu(0)]).reason == "is not the index of a device"

    @pytest.mark.parametrize(
        ("value", "seen"),
        [(None, [True, True, True]), ("1", [False, True, True]), ("", [False, False, True])],
    )
    def test_what_the_variable_leaves_visible(self, value, seen):
        """It is this machine's, and says nothing of an assumed device."""
        devices = [gpu(0), gpu(1), gpu(2, assumed=True)]
        mark(devices, value)
        assert [device.visible for device in devices] == seen


def test_a_gpu_that_ptx_serves_hides_no_other():
    archs = ["sm_80", "compute_90"]
    devices = [gpu(0, "12.0"), gpu(1, "7.5")]
    of = facts(frameworks=[torch(archs=archs)], driver=driver(devices=devices))
    assert [f.severity for f in fired(of, "CU501")] == ["note", "error"]


class TestGone:
    """CU503. What is read of such a venv is tested in test_left_over."""

    def test_pythons_own_tool_or_uv_makes_it_anew(self):
        of = facts(environment=environment())
        of.environment.gone = Evidence(PYTHON, None, "/usr/bin/python3.11 is not there")
        assert one(of, "CU503", "error").fix == [
            f"rm {PREFIX}/bin/python* && python3.11 -m venv {PREFIX}"
        ]
        of.environment.kind = "uv"
        assert one(of, "CU503", "error").fix == [f"uv venv --allow-existing --python 3.11 {PREFIX}"]
