"""CU101 to CU110, CU501 and CU502: each fires where it should, and only there."""

import pytest
from facts import PREFIX, SITE, driver, environment, facts, fired, gpu, library, one, torch, wheel

from cudriver.stack.model import DeviceNode, Driver, Evidence, Framework
from cudriver.stack.rules import cu5
from cudriver.stack.tables import driver_cuda
from cudriver.stack.visible import select

LIB = "/usr/lib/x86_64-linux-gnu"


class TestNoDriver:
    def test_error_where_a_gpu_is(self):
        found = one(facts(driver=Driver(pci_devices=["0000:01:00.0"])), "CU101", "error")
        assert found.predicts == "Found no NVIDIA driver on your system"
        assert "/sys/bus/pci/devices/0000:01:00.0/vendor" in [e.file for e in found.evidence]
        assert "nvidia-driver" in found.fix[0]

    def test_note_on_a_machine_that_only_builds(self):
        one(facts(driver=Driver()), "CU101", "note")
        one(facts(driver=Driver(container="docker")), "CU101", "note")

    def test_a_build_for_the_cpu_does_not_look_for_a_driver(self):
        of = facts(driver=Driver(), frameworks=[torch("2.8.0+cpu", None)])
        assert one(of, "CU101").predicts is None
        assert one(facts(driver=Driver()), "CU101").predicts

    @pytest.mark.parametrize(
        ("kind", "says"),
        [
            ("docker", "--gpus"),
            ("apptainer", "--nv"),
            ("podman", "nvidia.com/gpu"),
            ("kubernetes", "nvidia.com/gpu"),
        ],
    )
    def test_container_started_without_the_gpu(self, kind, says):
        found = one(
            facts(driver=Driver(container=kind, kernel_release="580.95.05")), "CU101", "error"
        )
        assert says in found.fix[0]

    def test_silent_with_a_driver_an_assumed_one_or_wsls(self):
        assert fired(facts(), "CU101") == []
        assert fired(facts(driver=Driver(assumed=True)), "CU101") == []
        assert fired(facts(driver=Driver(devices=[gpu(assumed=True)])), "CU101") == []
        assert (
            fired(
                facts(driver=Driver(wsl=True, wsl_library="/usr/lib/wsl/lib/libcuda.so.1")), "CU101"
            )
            == []
        )


class TestStub:
    PATH = "/usr/local/cuda/lib64/stubs/libcuda.so.1"

    def test_by_the_variable(self):
        env = environment(LD_LIBRARY_PATH="/usr/local/cuda/lib64/stubs:/opt/lib")
        found = one(
            facts(
                environment=env,
                driver=driver(None, None, path=self.PATH, kind="stub", found_by="LD_LIBRARY_PATH"),
            ),
            "CU102",
            "error",
        )
        assert found.fix == ["export LD_LIBRARY_PATH=/opt/lib"]
        assert found.evidence[0].file == self.PATH

    def test_the_last_folder_unsets(self):
        env = environment(LD_LIBRARY_PATH="/usr/local/cuda/lib64/stubs/")
        found = one(
            facts(environment=env, driver=driver(None, None, path=self.PATH, kind="stub")), "CU102"
        )
        assert found.fix == ["unset LD_LIBRARY_PATH"]

    def test_by_the_configuration(self):
        found = one(
            facts(driver=driver(None, None, path=self.PATH, kind="stub", found_by="cache")), "CU102"
        )
        assert "ld.so.conf.d" in found.fix[0]

    def test_by_cuinit(self):
        found = one(facts(driver=driver(init_code=34)), "CU102")
        assert "stub" in found.predicts


class TestTooOld:
    def test_below_the_floor_of_the_major(self):
        found = one(facts(driver=driver("470.82.01", "11.4", devices=[gpu()])), "CU103", "error")
        assert (
            found.predicts == "The NVIDIA driver on your system is too old (found version 11040)."
        )
        assert [e.file for e in found.evidence] == [
            f"{LIB}/libcuda.so.470.82.01",
            f"{SITE}/torch/version.py",
        ]
        assert "R535" in found.fix[-1]

    def test_wheels_of_the_older_major_are_offered(self):
        thirteen = torch("2.9.0+cu130", "13.0")
        found = one(
            facts(driver=driver("550.54.15", "12.4"), frameworks=[thirteen]), "CU103", "error"
        )
        assert "--index-url https://download.pytorch.org/whl/cu126" in found.fix[0]
        assert found.fix[0].startswith(
            "/envs/train/bin/python -m pip install --force-reinstall torch==2.9.0"
        )

    @pytest.mark.parametrize(
        ("release", "cuda"),
        [("525.60.13", "12.0"), ("535.104.05", "12.2"), ("580.95.05", "13.0"), ("999.1", None)],
    )
    def test_minor_version_compatibility(self, release, cuda):
        assert fired(facts(driver=driver(release, cuda)), "CU103") == []

    def test_a_patch_below_the_floor(self):
        one(facts(driver=driver("525.60.11", "12.0")), "CU103", "error")

    def test_wsl_goes_by_the_cuda_that_is_offered(self):
        windows = driver("528.33", "12.0", wsl=True, kind="wsl")
        assert fired(facts(driver=windows), "CU103") == []
        one(facts(driver=windows, frameworks=[torch("2.9.0+cu130", "13.0")]), "CU103", "error")

    def test_jax_and_others_too(self):
        jax = Framework("jax", "0.7.0", "13", variant="cuda", cuda_evidence=Evidence(f"{SITE}/x"))
        found = one(facts(driver=driver("535.104.05", "12.2"), frameworks=[jax]), "CU103")
        assert found.predicts == "CUDA driver version is insufficient for CUDA runtime version"


class TestHalves:
    def test_kernel_and_libraries(self):
        found = one(facts(driver=driver("580.95.05", kernel_release="580.82.07")), "CU104", "error")
        assert found.predicts == "Failed to initialize NVML: Driver/library version mismatch"
        assert found.evidence[0].file == "/proc/driver/nvidia/version"
        assert "reboot" in found.fix[0]

    def test_nvml_says_it(self):
        one(facts(driver=driver(nvml_error="Driver/library version mismatch")), "CU104", "error")

    def test_compat_is_compared_by_the_drivers_own_library(self):
        own = driver(
            "580.95.05", kernel_release="535.104.05", paired_release="535.104.05", kind="compat"
        )
        assert fired(facts(driver=own), "CU104") == []

    def test_wsl_and_tegra_have_other_names(self):
        assert (
            fired(
                facts(driver=driver("551.1", kernel_release="550.1", wsl=True, kind="wsl")), "CU104"
            )
            == []
        )
        assert (
            fired(facts(driver=driver("551.1", kernel_release="550.1", kind="tegra")), "CU104")
            == []
        )


class TestCompat:
    PATH = "/usr/local/cuda-13.0/compat/libcuda.so.580.95.05"

    def made(self, **more):
        return driver(
            "580.95.05",
            **{"path": self.PATH, "kind": "compat", "found_by": "LD_LIBRARY_PATH", **more},
        )

    def test_older_than_the_kernel_driver(self):
        env = environment(LD_LIBRARY_PATH="/usr/local/cuda-13.0/compat")
        found = one(
            facts(environment=env, driver=self.made(kernel_release="595.45.04")), "CU105", "error"
        )
        assert "803" in found.predicts
        assert found.fix == ["unset LD_LIBRARY_PATH"]

    def test_newer_is_its_purpose(self):
        assert fired(facts(driver=self.made(kernel_release="535.104.05")), "CU105") == []

    def test_cuinit_says_it(self):
        one(facts(driver=self.made(kernel_release="535.104.05", init_code=803)), "CU105", "error")

    def test_geforce(self):
        found = one(
            facts(
                driver=self.made(
                    kernel_release="535.104.05",
                    devices=[gpu(name="NVIDIA GeForce RTX 4090", capability="8.9")],
                )
            ),
            "CU106",
            "error",
        )
        assert "804" in found.predicts
        assert "GeForce" in found.evidence[1].value

    def test_cuinit_says_804(self):
        one(facts(driver=self.made(init_code=804)), "CU106", "error")

    def test_a_data_centre_part_or_an_unknown_one(self):
        assert fired(facts(driver=self.made(devices=[gpu()])), "CU106") == []
        assert fired(facts(driver=self.made()), "CU106") == []

    def test_unused_compat_is_nobodys_concern(self):
        beside = driver("580.159.04", compat=[Evidence(self.PATH, None, "580.95.05")])
        assert fired(facts(driver=beside), "CU105") == fired(facts(driver=beside), "CU106") == []


class TestNodes:
    @pytest.mark.parametrize("errno", [1, 13])
    def test_closed(self, errno):
        made = driver(nodes=[DeviceNode("/dev/nvidiactl", errno)], container="docker")
        found = one(facts(driver=made), "CU107", "error")
        assert found.evidence[0].file == "/dev/nvidiactl"
        assert "--gpus" in found.fix[0]

    def test_outside_a_container(self):
        found = one(facts(driver=driver(nodes=[DeviceNode("/dev/nvidiactl", 13)])), "CU107")
        assert "usermod" in found.fix[0]

    def test_absent_in_a_container(self):
        one(facts(driver=driver(container="docker")), "CU107", "error")

    def test_silent(self):
        assert fired(facts(driver=driver(nodes=[DeviceNode("/dev/nvidiactl")])), "CU107") == []
        assert fired(facts(driver=driver()), "CU107") == []
        assert fired(facts(driver=driver(container="docker", devices=[gpu()])), "CU107") == []


class TestWsl:
    LIBRARY = "/usr/lib/wsl/lib/libcuda.so.1"

    def test_not_in_the_cache(self):
        found = one(facts(driver=Driver(wsl=True, wsl_library=self.LIBRARY)), "CU108", "error")
        assert "ldconfig" in found.fix[0]
        assert found.evidence[0].file == self.LIBRARY

    def test_a_linux_driver_in_front(self):
        one(facts(driver=driver(wsl=True, wsl_library=self.LIBRARY)), "CU108", "error")

    def test_found(self):
        assert (
            fired(facts(driver=driver(wsl=True, kind="wsl", wsl_library=self.LIBRARY)), "CU108")
            == []
        )


class TestPtx:
    NVRTC = library("libnvrtc.so.12", "12.8.93", "nvrtc")

    def test_numba_hands_over_ptx(self):
        numba = Framework("numba", "0.20.0", variant="unknown", distribution="numba-cuda")
        found = one(
            facts(
                driver=driver("535.104.05", "12.2"),
                libraries=[self.NVRTC],
                frameworks=[torch(), numba],
            ),
            "CU109",
            "warning",
        )
        assert found.predicts == "the provided PTX was compiled with an unsupported toolchain."
        assert "nvidia-driver-570" in found.fix[0]

    def test_pytorch_compiles_for_the_gpu(self):
        one(facts(driver=driver("535.104.05", "12.2"), libraries=[self.NVRTC]), "CU109", "note")

    def test_silent(self):
        assert fired(facts(libraries=[self.NVRTC]), "CU109") == []
        assert fired(facts(driver=driver("570.1", "12.8"), libraries=[self.NVRTC]), "CU109") == []


class TestInitialise:
    @pytest.mark.parametrize(
        ("code", "name", "mend"),
        [
            (999, "CUDA_ERROR_UNKNOWN", "nvidia_uvm"),
            (802, "CUDA_ERROR_SYSTEM_NOT_READY", "fabricmanager"),
            (46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "nvidia-smi"),
            (777, "CUDA error 777", "nvidia-smi"),
        ],
    )
    def test_codes(self, code, name, mend):
        found = one(facts(driver=driver(init_code=code)), "CU110", "error")
        assert name in found.predicts
        assert mend in found.fix[0]
        assert found.evidence[0].file == "cuInit"

    def test_a_child_that_hung(self):
        found = one(facts(driver=driver(probe_error="gave no answer within 3 s")), "CU110", "error")
        assert "no answer" in found.title

    def test_a_module_that_is_not_loaded(self):
        made = driver(
            None,
            None,
            kernel_release=None,
            nvml_error="Driver Not Loaded",
            pci_devices=["0000:01:00.0"],
        )
        assert one(facts(driver=made), "CU110", "error").fix == ["sudo modprobe nvidia"]

    def test_a_module_that_is_not_loaded_by_files_alone(self):
        """NVML is not asked where nothing of the kernel's half is there."""
        made = driver(kernel_release=None, probed=False, pci_devices=["0000:01:00.0"])
        found = one(facts(driver=made), "CU110", "warning")
        assert found.fix == ["sudo modprobe nvidia"]
        assert [e.file for e in found.evidence] == [
            "/proc/driver/nvidia/version",
            "/sys/bus/pci/devices/0000:01:00.0/vendor",
        ]
        for other in ({"wsl": True}, {"kind": "tegra"}, {"devices": [gpu()]}, {"path": None}):
            made = driver(kernel_release=None, pci_devices=["0000:01:00.0"], **other)
            assert fired(facts(driver=made), "CU110") == []

    @pytest.mark.parametrize("code", [0, 34, 803, 804, None])
    def test_other_rules_speak_of_these(self, code):
        assert fired(facts(driver=driver(init_code=code)), "CU110") == []

    def test_driver_libraries_in_an_image_without_a_gpu(self):
        made = driver(None, None, kernel_release=None, nvml_error="Driver Not Loaded")
        assert fired(facts(driver=made), "CU110") == []


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
        (mend,) = one(facts(driver=made, frameworks=[older]), "CU501", "error").fix
        if wanted is None:
            assert "from source" in mend
            assert f"TORCH_CUDA_ARCH_LIST={capability}." in mend
        else:
            assert f"'{wanted}' --index-url https://download.pytorch.org/whl/{index}" in mend

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
            assert f"nvidia-driver-{told[1:4]}" in found[0].fix[0]
            assert found[0].evidence[-1] == made.release_evidence

    def test_what_a_driver_lists_it_knows(self):
        made = driver("535.104.05", "12.2", devices=[gpu(capability="10.0")])
        assert fired(facts(driver=made, frameworks=[]), "CU501") == []

    def test_silent(self):
        assert fired(facts(), "CU501") == []
        assert fired(facts(driver=driver(devices=[])), "CU501") == []
        hidden = gpu(capability="3.5", visible=False)
        assert fired(facts(driver=driver(devices=[hidden])), "CU501") == []


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


def test_wheel_helper_reads_as_intended():
    (requirement,) = wheel("torch", "2.11.0", "cuda-toolkit{cublas,cudart}==13.0.2").requires
    assert (requirement.name, requirement.extras, requirement.specifier) == (
        "cuda-toolkit",
        ["cublas", "cudart"],
        "==13.0.2",
    )
