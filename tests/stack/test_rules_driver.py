"""CU101 to CU110: each fires where it should, and only there."""

import pytest
from facts import SITE, driver, environment, facts, fired, gpu, library, one, torch, wheel

from cudriver.stack.model import Device, DeviceNode, Driver, Evidence, Framework
from cudriver.stack.rules import registry

LIB = "/usr/lib/x86_64-linux-gnu"


class TestNoDriver:
    def test_error_where_a_gpu_is(self):
        found = one(facts(driver=Driver(pci_devices=["0000:01:00.0"])), "CU101", "error")
        assert found.predicts == "Found no NVIDIA driver on your system"
        assert "/sys/bus/pci/devices/0000:01:00.0/vendor" in [e.file for e in found.evidence]
        assert "nvidia-driver" in found.fix[0]

    def test_the_driver_is_for_the_newest_cuda_that_is_used(self):
        unknown = Framework("jax", "0.7.2", None, variant="cuda")
        kepler = Device(0, compute_capability="3.7")
        there = Driver(pci_devices=["0000:01:00.0"], devices=[kepler])
        of = facts(driver=there, frameworks=[unknown, torch("2.0.1", "11.7")])
        assert "nvidia-driver-470" in one(of, "CU101").fix[0]
        of.frameworks.append(torch())
        assert one(of, "CU101").fix[0].startswith("no driver from R525 on serves ")

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

    WSL = "/usr/lib/wsl/lib/libcuda.so.1"

    @pytest.mark.parametrize(
        ("made", "told"),
        [
            (driver(), False),
            (Driver(assumed=True), False),
            (Driver(devices=[gpu(assumed=True)]), False),
            (Driver(wsl=True, wsl_library=WSL), False),
            (Driver(wsl=True), True),
            (Driver(wsl_library=WSL), True),
            (Driver(devices=[gpu()]), True),
        ],
        ids=["installed", "assumed", "assumed GPU", "WSL", "WSL without", "not WSL", "GPU"],
    )
    def test_silent_with_a_driver_an_assumed_one_or_wsls(self, made, told):
        assert bool(fired(facts(driver=made), "CU101")) is told

    def test_the_gpu_is_evidence_with_its_line(self):
        found = one(facts(driver=Driver(pci_devices=["0000:01:00.0"])), "CU101", "error")
        card = Evidence("/sys/bus/pci/devices/0000:01:00.0/vendor", 1, "0x10de")
        assert found.evidence == [Evidence("libcuda.so.1", None, "not found by the loader"), card]

    def test_device_nodes_are_a_sign_and_two_are_shown(self):
        nodes = [DeviceNode(f"/dev/nvidia{n}") for n in range(3)]
        found = one(facts(driver=Driver(nodes=nodes)), "CU101", "error")
        files = [e.file for e in found.evidence]
        assert files == ["libcuda.so.1", "/dev/nvidia0", "/dev/nvidia1"]


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
        assert found.evidence[1] == Evidence("cuInit", None, "34")

    @pytest.mark.parametrize(
        ("rule", "kind", "code"),
        [("CU102", "native", 34), ("CU105", "compat", 803), ("CU106", "compat", 804)],
    )
    def test_a_library_whose_path_is_not_known(self, rule, kind, code):
        made = driver(path=None, kind=kind, init_code=code)
        (found,) = registry()[rule](facts(driver=made))
        assert "ld.so.conf.d" in found.fix[0]
        made.path = "/opt/odd/libcuda.so.1"
        of = facts(driver=made, environment=environment(LD_LIBRARY_PATH="/opt/odd"))
        assert one(of, rule, "error").fix == ["unset LD_LIBRARY_PATH"]

    def test_neither_half_s_release_is_known(self):
        nothing = {"release_evidence": None, "kernel_evidence": None, "kernel_release": None}
        made = driver(None, None, path=None, kind="compat", init_code=803, **nothing)
        assert one(facts(driver=made), "CU105", "error").evidence == [
            Evidence("libcuda.so.1", None, ""),
            Evidence("/proc/driver/nvidia/version", None, ""),
            Evidence("cuInit", None, "803"),
        ]


class TestTooOld:
    def test_one_framework_that_it_suits_hides_no_other(self):
        others = [
            Framework("jax", "0.7.2", None, variant="cuda"),
            torch("1.13.1", "11.7"),
            Framework("cupy", "14.2.0", "13.0", variant="cuda"),
        ]
        found = one(facts(driver=driver("535.104.05", "12.2"), frameworks=others), "CU103")
        assert "too old for cupy 14.2.0" in found.title

    def test_below_the_floor_of_the_major(self):
        found = one(facts(driver=driver("470.82.01", "11.4", devices=[gpu()])), "CU103", "error")
        assert (
            found.predicts == "The NVIDIA driver on your system is too old (found version 11040)."
        )
        assert [e.file for e in found.evidence] == [
            f"{LIB}/libcuda.so.470.82.01",
            f"{SITE}/torch/version.py",
        ]
        assert "R580" in found.fix[-1]

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

    def test_the_library_is_evidence_where_nothing_else_tells(self):
        of = facts(driver=driver("470.82.01", "11.4", release_evidence=None))
        path = "/usr/lib/x86_64-linux-gnu/libcuda.so.470.82.01"
        assert one(of, "CU103").evidence[0] == Evidence(path, None, "470.82.01")

    def test_the_release_or_the_cuda_may_not_be_known(self):
        found = one(facts(driver=driver(None, "11.4")), "CU103", "error")
        assert found.title.startswith("driver 11.4 is too old for torch")
        found = one(facts(driver=driver("470.82.01", None)), "CU103", "error")
        assert found.predicts is None
        assert fired(facts(driver=driver("470.82.01", "11.4", kind="stub")), "CU103") == []
        assert fired(facts(driver=driver("528.33", None, wsl=True)), "CU103") == []

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

    @pytest.mark.parametrize(
        ("more", "told"),
        [
            ({}, True),
            ({"wsl": True}, False),  # its number is Windows'
            ({"kind": "compat"}, False),
            ({"kind": "tegra"}, False),
        ],
    )
    def test_a_release_counts_where_it_is_a_linux_driver_s(self, more, told):
        made = facts(driver=driver("450.80.02", "12.8", **more))
        assert bool(fired(made, "CU103")) is told

    @pytest.mark.parametrize("name", ["jax", "vllm", "torch"])
    def test_what_a_framework_says_of_an_old_driver(self, name):
        made = torch(distribution=name)
        made.name = name
        said = one(facts(driver=driver("450.80.02", "11.0"), frameworks=[made]), "CU103")
        own = "The NVIDIA driver on your system is too old (found version 11000)."
        others = "CUDA driver version is insufficient for CUDA runtime version"
        assert said.predicts == (own if name == "torch" else others)


class TestHalves:
    def test_kernel_and_libraries(self):
        found = one(facts(driver=driver("580.95.05", kernel_release="580.82.07")), "CU104", "error")
        assert found.predicts == "Failed to initialize NVML: Driver/library version mismatch"
        assert found.evidence[0].file == "/proc/driver/nvidia/version"
        assert "reboot" in found.fix[0]

    def test_a_half_that_is_not_known(self):
        for unknown in ("kernel_release", "paired_release"):
            assert fired(facts(driver=driver("580.95.05", **{unknown: None})), "CU104") == []

    def test_nvml_says_it(self):
        said = "Driver/library version mismatch"
        found = one(facts(driver=driver(nvml_error=said)), "CU104", "error")
        assert Evidence("libnvidia-ml.so.1", None, said) in found.evidence
        bare = driver(nvml_error=said, kernel_release=None, paired_release=None)
        assert one(facts(driver=bare), "CU104").title == (
            "kernel driver of another release and driver libraries 580.95.05 do not match"
        )

    @pytest.mark.parametrize(
        "more", [{"assumed": True}, {"kind": "stub"}, {"kind": "simulated"}, {"nvml_error": "No"}]
    )
    def test_of_which_there_are_no_two_halves(self, more):
        halves = {"kernel_release": None} if "nvml_error" in more else {"kernel_release": "550.1"}
        assert fired(facts(driver=driver("551.1", **halves, **more)), "CU104") == []

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

    @pytest.mark.parametrize("kernel", ["535.104.05", "580.95.05", None])
    def test_newer_is_its_purpose(self, kernel):
        assert fired(facts(driver=self.made(kernel_release=kernel)), "CU105") == []

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

    @pytest.mark.parametrize("name", ["NVIDIA TITAN V", "NVIDIA MX450"])
    def test_other_consumer_brands(self, name):
        devices = [gpu(), gpu(1, name=name)]
        found = one(facts(driver=self.made(devices=devices)), "CU106", "error")
        assert found.evidence[1:] == [Evidence("GPU 1", None, name)]

    def test_the_folder_under_another_name_goes_too(self):
        env = environment(LD_LIBRARY_PATH=":/opt/cuda/compat/:/opt/lib")
        of = facts(environment=env, driver=self.made(kernel_release="595.45.04"))
        assert one(of, "CU105").fix == ["export LD_LIBRARY_PATH=/opt/lib"]

    def test_a_data_centre_part_or_an_unknown_one(self):
        assert fired(facts(driver=self.made(devices=[gpu(name=None)])), "CU106") == []
        assert fired(facts(driver=self.made(devices=[gpu()])), "CU106") == []
        assert fired(facts(driver=self.made()), "CU106") == []

    def test_only_compat_is_older_or_on_the_wrong_gpu(self):
        made = self.made(kind="native", kernel_release="595.45.04", devices=[gpu(name="GeForce")])
        assert fired(facts(driver=made), "CU105") == fired(facts(driver=made), "CU106") == []

    def test_unused_compat_is_nobodys_concern(self):
        beside = driver("580.159.04", compat=[Evidence(self.PATH, None, "580.95.05")])
        assert fired(facts(driver=beside), "CU105") == fired(facts(driver=beside), "CU106") == []

    @pytest.mark.parametrize(("code", "told"), [(None, False), (0, False), (803, True)])
    def test_cuinit_is_evidence_where_it_said_so(self, code, told):
        """An old cuda-compat is seen from the releases, and by error 803."""
        old = driver("535.104.05", kind="compat", init_code=code, kernel_release="580.95.05")
        found = one(facts(driver=old), "CU105", "error")
        assert any(e.file == "cuInit" and e.value == "803" for e in found.evidence) is told


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

    @pytest.mark.parametrize(
        "more", [{"wsl": True}, {"path": None}, {"kernel_release": None}, {"assumed": True}]
    )
    def test_a_container_that_needs_no_nodes(self, more):
        """WSL's GPU is /dev/dxg; without either half of the driver other rules speak."""
        assert fired(facts(driver=driver(container="docker", **more)), "CU107") == []

    def test_a_node_that_is_open_or_fails_otherwise_is_not_closed(self):
        nodes = [DeviceNode("/dev/nvidiactl"), DeviceNode("/dev/nvidia0", 5)]
        assert fired(facts(driver=driver(nodes=nodes, container="docker")), "CU107") == []

    def test_an_open_device_hides_no_closed_node(self):
        nodes = [DeviceNode("/dev/nvidiactl"), DeviceNode("/dev/nvidia1", 1)]
        found = one(facts(driver=driver(devices=[gpu()], nodes=nodes)), "CU107", "error")
        assert [e.file for e in found.evidence] == ["/dev/nvidia1"]

    @pytest.mark.parametrize(
        ("errno", "words"), [(1, "operation not permitted"), (13, "permission denied")]
    )
    def test_why_a_node_is_closed(self, errno, words):
        made = facts(driver=driver(nodes=[DeviceNode("/dev/nvidiactl", errno)]))
        assert one(made, "CU107").evidence == [Evidence("/dev/nvidiactl", None, words)]


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

    @pytest.mark.parametrize(
        "made", [Driver(wsl=True), driver(wsl_library="/usr/lib/wsl/lib/libcuda.so.1")]
    )
    def test_half_of_wsl_is_none(self, made):
        assert fired(facts(driver=made), "CU108") == []


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
        assert found.evidence[0] == self.NVRTC.version_evidence
        assert "nvidia-driver-580" in found.fix[0]

    def test_nvjitlink_makes_ptx_and_the_builtins_do_not(self):
        old = driver("535.104.05", "12.2")
        part = library("libnvrtc-builtins.so.12.8", "12.8.93", "nvrtc")
        assert fired(facts(driver=old, libraries=[part]), "CU109") == []
        linker = library("libnvJitLink.so.12", "12.8.93", "nvjitlink", version_evidence=None)
        found = one(facts(driver=old, libraries=[part, linker]), "CU109", "note")
        assert found.evidence[0] == Evidence(linker.path)

    def test_pytorch_compiles_for_the_gpu(self):
        one(facts(driver=driver("535.104.05", "12.2"), libraries=[self.NVRTC]), "CU109", "note")

    def test_it_is_told_once(self):
        linker = library("libnvJitLink.so.12", "12.8.93", "nvjitlink")
        of = facts(driver=driver("535.104.05", "12.2"), libraries=[self.NVRTC, linker])
        assert one(of, "CU109").title.startswith("libnvrtc.so.12 ")

    def test_silent(self):
        assert fired(facts(libraries=[self.NVRTC]), "CU109") == []
        assert fired(facts(driver=driver(cuda=None), libraries=[self.NVRTC]), "CU109") == []
        assert fired(facts(driver=driver("570.1", "12.8"), libraries=[self.NVRTC]), "CU109") == []

    @pytest.mark.parametrize(
        ("version", "told"),
        [("12.8.93", False), ("12.9.41", True), ("13.0.48", False), ("11.9.1", False)],
    )
    def test_ptx_is_newer_within_a_major_only(self, version, told):
        """Of another major CU103 and CU403 speak."""
        nvrtc = library("libnvrtc.so.12", version, "nvrtc")
        found = fired(facts(driver=driver("570.26", "12.8"), libraries=[nvrtc]), "CU109")
        assert bool(found) is told


class TestInitialise:
    @pytest.mark.parametrize(
        ("code", "name", "fixes"),
        [
            (3, "CUDA_ERROR_NOT_INITIALIZED", "modprobe nvidia_uvm"),
            (46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "nvidia-smi"),
            (100, "CUDA_ERROR_NO_DEVICE", "nvidia-smi -L"),
            (101, "CUDA_ERROR_INVALID_DEVICE", "nvidia-smi -L"),
            (304, "CUDA_ERROR_OPERATING_SYSTEM", "/dev/nvidia-uvm"),
            (802, "CUDA_ERROR_SYSTEM_NOT_READY", "fabricmanager"),
            (999, "CUDA_ERROR_UNKNOWN", "rmmod nvidia_uvm"),
            (777, "CUDA error 777", "nvidia-smi"),
        ],
    )
    def test_codes(self, code, name, fixes):
        found = one(facts(driver=driver(init_code=code)), "CU110", "error")
        assert found.predicts == f"{name} ({code})"
        assert fixes in found.fix[0]
        assert found.evidence[0].file == "cuInit"

    def test_a_child_that_hung(self):
        found = one(facts(driver=driver(probe_error="gave no answer within 3 s")), "CU110", "error")
        assert "no answer" in found.title

    def test_a_child_that_failed_where_no_gpu_is_or_all_is_known(self):
        bare = Driver(probe_error="crashed")
        found = one(facts(driver=bare), "CU110", "warning")
        assert found.evidence == [Evidence("libnvidia-ml.so.1", None, "crashed")]
        known = driver(probe_error="crashed", devices=[gpu()])
        assert fired(facts(driver=known), "CU110") == []

    def test_no_device_on_a_machine_without_a_gpu(self):
        assert fired(facts(driver=Driver(init_code=100)), "CU110") == []

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

    @pytest.mark.parametrize("value", ["", "-1", "7"])
    def test_no_device_where_the_variable_hides_them(self, value):
        broken = driver(init_code=100)
        made = facts(driver=broken, environment=environment(CUDA_VISIBLE_DEVICES=value))
        assert fired(made, "CU110") == []
        made.driver = driver(init_code=999)
        assert one(made, "CU110", "error").predicts == "CUDA_ERROR_UNKNOWN (999)"
        assert one(facts(driver=broken), "CU110", "error").predicts == "CUDA_ERROR_NO_DEVICE (100)"


def test_wheel_helper_reads_as_intended():
    (requirement,) = wheel("torch", "2.11.0", "cuda-toolkit{cublas,cudart}==13.0.2").requires
    assert (requirement.name, requirement.extras, requirement.specifier) == (
        "cuda-toolkit",
        ["cublas", "cudart"],
        "==13.0.2",
    )
