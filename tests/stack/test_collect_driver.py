"""The driver: from files of a root, from NVML and libcuda made by the test, and assumed."""

import io
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cudriver.stack import inspect
from cudriver.stack.collect import ask, collect_machine
from cudriver.stack.machine import driver, probe
from cudriver.stack.machine.child import Child
from cudriver.stack.roots.asked import Asked
from cudriver.stack.roots.rootfs import Root
from elfkit import compile_c


def put(root, path, content=""):
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        file.write_text(content)
    return file


class TestFiles:
    def test_nodes_that_may_not_be_opened(self, monkeypatch):
        """A GPU's own is not opened: that would wake it."""
        names = ["nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-caps", "nvidia-uvm-tools", "null"]
        opened = []

        def refuse(path, flags):
            opened.append(path)
            raise PermissionError(1, "Operation not permitted", path)

        monkeypatch.setattr(os, "access", lambda path, _: False)
        monkeypatch.setattr(os, "open", refuse)
        found = [driver._node(name, True) for name in names if driver.NODE.fullmatch(name)]
        monkeypatch.undo()
        told = {node.path: node.errno for node in found}
        assert told == {"/dev/nvidia0": 13, "/dev/nvidiactl": 1, "/dev/nvidia-uvm": 1}
        assert sorted(opened) == ["/dev/nvidia-uvm", "/dev/nvidiactl"]


class TestAssumed:
    def test_release(self):
        found = driver.assumed("535.104.05", ["9.0", "sm_120", "86"])
        assert (found.release, found.cuda, found.assumed) == ("535.104.05", "12.2", True)
        assert [d.compute_capability for d in found.devices] == ["9.0", "12.0", "8.6"]

    @pytest.mark.parametrize(
        ("release", "gpus"),
        [
            ("new", None),
            ("12", None),
            ("535.x", None),
            (None, ["H200"]),
            (None, ["9"]),
            (None, [""]),
        ],
    )
    def test_nonsense_is_refused(self, release, gpus):
        with pytest.raises(ValueError, match="looks like"):
            driver.assumed(release, gpus)

    def test_nothing_is_probed(self, tmp_path):
        machine = collect_machine(ask("/", root=str(tmp_path), assumed=driver.assumed("535", None)))
        assert machine.probe is None
        assert machine.driver().release == "535"

    @pytest.mark.parametrize(
        ("text", "capability"),
        [("9.0", "9.0"), ("90", "9.0"), ("sm_90a", "9.0"), ("sm_100f", "10.0"), (" 12.1 ", "12.1")],
    )
    def test_a_stated_capability(self, text, capability):
        assert driver.capability(text) == capability

    @pytest.mark.parametrize("text", ["999", "9.1", "0.0", "20.0", "H200", "", "sm_", "9", "9.0x"])
    def test_a_capability_that_no_gpu_has(self, text):
        with pytest.raises(ValueError, match="capability") as caught:
            driver.capability(text)
        if text in ("999", "9.1"):
            assert "known are 2.0, 2.1, 3.0" in str(caught.value)
            assert f"compute capability {'99.9' if text == '999' else text};" in str(caught.value)


NVML = """
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <signal.h>
typedef void *dev;
static void copy(char *to, const char *from, unsigned n) { strncpy(to, from, n); }
int nvmlInit_v2(void) { %(init)s return %(code)d; }
const char *nvmlErrorString(int code) { return "Driver/library version mismatch"; }
int nvmlSystemGetDriverVersion(char *b, unsigned n) { copy(b, "580.95.05", n); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *v) { *v = 13000; return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, dev *d) { *d = (dev)(long)(i + 1); return 0; }
int nvmlDeviceGetName(dev d, char *b, unsigned n) { %(name)s copy(b, "NVIDIA H200", n); return 0; }
int nvmlDeviceGetUUID(dev d, char *b, unsigned n)
{ copy(b, d == (dev)1 ? "GPU-aaaa" : d == (dev)2 ? "GPU-bbbb" : "MIG-cccc", n); return 0; }
int nvmlDeviceGetCudaComputeCapability(dev d, int *a, int *b) { *a = 9; *b = 0; return 0; }
int nvmlDeviceGetMemoryInfo(dev d, unsigned long long *m)
{ m[0] = 150754820096ull; m[1] = m[2] = 0; return 0; }
struct pci { char legacy[16]; unsigned numbers[5]; char bus[32]; };
int nvmlDeviceGetPciInfo_v3(dev d, struct pci *p)
{ copy(p->bus, d == (dev)1 ? "00000000:1B:00.0" : "00000000:43:00.0", 32); return 0; }
int nvmlDeviceGetMigMode(dev d, unsigned *a, unsigned *b) { *a = *b = d == (dev)2; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(dev d, unsigned i, dev *to)
{ *to = (dev)3; return i == 1 ? 0 : 6; }
"""


@pytest.fixture
def nvml(tmp_path):
    def make(code=0, init="", name=""):
        source = NVML % {"code": code, "init": init, "name": name}
        compile_c(tmp_path / "lib/libnvidia-ml.so.1", source, "-Wl,-soname,libnvidia-ml.so.1")
        return {"LD_LIBRARY_PATH": str(tmp_path / "lib"), "PATH": os.environ["PATH"]}

    return make


def probed(environ, monkeypatch, limit=20.0):
    """What NVML in LD_LIBRARY_PATH tells of a driver that has no files."""
    monkeypatch.setattr(probe, "TIME_LIMIT", limit)
    assert driver.worth_asking(Asked(Root("/"), "/", environ))
    found = driver.Driver()
    probe.complete(found, probe.Probe(environ), probe.Inspected(()), environ)
    return found


class TestNvml:
    @pytest.mark.parametrize(
        ("kind", "release", "cuda"),
        [("native", "575.57.08", "13.0"), ("compat", "575.57.08", "12.9"), ("stub", None, None)],
    )
    def test_the_kernels_cuda_is_not_that_of_another_library(self, nvml, kind, release, cuda):
        """NVML tells the kernel driver's."""
        environ = nvml()
        found = driver.Driver(kind=kind, release=release)
        probe.complete(found, probe.Probe(environ), probe.Inspected(()), environ)
        assert (found.kernel_release, found.cuda) == ("580.95.05", cuda)

    def test_devices(self, nvml, monkeypatch):
        found = probed(nvml(), monkeypatch)
        assert (found.kernel_release, found.cuda, found.probe_error) == ("580.95.05", "13.0", None)
        one, other = found.devices
        for d in found.devices:
            assert (d.name, d.compute_capability, d.memory) == ("NVIDIA H200", "9.0", 150754820096)
            assert not d.assumed
        assert (one.index, one.uuid, one.pci_bus_id) == (0, "GPU-aaaa", "00000000:1B:00.0")
        assert (other.index, other.uuid, other.pci_bus_id) == (1, "GPU-bbbb", "00000000:43:00.0")
        assert (one.mig, one.instances, other.mig, other.instances) == (
            False,
            [],
            True,
            ["MIG-cccc"],
        )

    def test_an_error_is_an_answer(self, nvml, monkeypatch):
        found = probed(nvml(code=18), monkeypatch)
        assert found.nvml_error == "Driver/library version mismatch"
        assert found.probe_error is None

    @pytest.mark.parametrize(("init", "told"), [("", ["1"]), ("raise(SIGSEGV);", None)])
    def test_the_end_is_told(self, nvml, init, told):
        """Without it cuInit is asked too, which takes longer."""
        assert probe.Probe(nvml(init=init)).join().get("nvml.done") == told

    def test_a_crash_is_a_result(self, nvml, monkeypatch):
        found = probed(nvml(init="raise(SIGSEGV);"), monkeypatch)
        assert found.probe_error == "crashed (SIGSEGV)"
        assert found.devices == []

    def test_what_came_before_a_crash_counts(self, nvml, monkeypatch):
        found = probed(nvml(name="if (d == (dev)2) abort();"), monkeypatch)
        assert found.probe_error == "crashed (SIGABRT)"
        assert found.cuda == "13.0"
        assert found.devices[0].uuid == "GPU-aaaa"

    def test_a_hang_is_a_result(self, nvml, monkeypatch):
        before = time.monotonic()
        found = probed(
            nvml(init="signal(SIGTERM, SIG_IGN); for (;;) pause();"), monkeypatch, limit=1.0
        )
        assert found.probe_error == "gave no answer within 1 s"
        assert time.monotonic() - before < 250

    def test_no_sign_of_a_driver_no_child(self, tmp_path):
        asked = Asked(Root(str(tmp_path)), "/", {"LD_LIBRARY_PATH": "/usr/lib"})
        assert not driver.worth_asking(asked)

    def test_a_library_that_cannot_be_loaded(self, tmp_path, monkeypatch):
        put(tmp_path, "lib/libnvidia-ml.so.1", "no library")
        found = probed({"LD_LIBRARY_PATH": str(tmp_path / "lib")}, monkeypatch)
        assert found.nvml_error
        assert found.probe_error is None


CUDA = """
#include <signal.h>
int cuInit(unsigned f) { %s }
int cuDriverGetVersion(int *v) { *v = 13000; return 0; }
int cuDeviceGetCount(int *n) { *n = 1; return 0; }
int cuDeviceGet(int *d, int i) { *d = i; return 0; }
int cuDeviceGetAttribute(int *v, int what, int d) { *v = what == 75 ? 9 : 0; return 0; }
int cuDeviceGetName(char *b, int n, int d) { b[0] = 'G'; b[1] = 0; return 0; }
"""


NO_NVML = "/absent/libnvidia-ml.so.1"  # a machine with a GPU has one of its own


class TestCuInit:
    def ask(self, tmp_path, body, **more):
        path = compile_c(tmp_path / "libcuda.so.1", CUDA % body, "-Wl,-soname,libcuda.so.1")
        found = driver.Driver(path=str(path), kind="compat", **more)
        probe.complete(found, probe.Probe({}, nvml=NO_NVML), probe.Inspected(()), {})
        return found

    @pytest.mark.parametrize("code", [34, 100, 802, 803, 804, 999])
    def test_codes(self, tmp_path, code):
        found = self.ask(tmp_path, f"return {code};")
        assert found.init_code == code
        assert driver.trouble(found) == f"cuInit returns {code}"

    def test_success_shows_devices(self, tmp_path):
        found = self.ask(tmp_path, "return 0;")
        assert (found.init_code, found.cuda) == (0, "13.0")
        assert {d.compute_capability for d in found.devices} == {"9.0"}

    def test_a_library_that_cannot_be_loaded(self, tmp_path):
        file = put(tmp_path, "libcuda.so.1", "no library")
        found = driver.Driver(path=str(file), kind="compat")
        probe.complete(found, probe.Probe({}, nvml=NO_NVML), probe.Inspected(()), {})
        assert f"{file}: " in found.probe_error

    @pytest.mark.parametrize(
        ("kind", "told", "asked"),
        [
            ("native", {"nvml.done": ["1"]}, False),
            ("native", {}, True),  # NVML did not come to its end
            *((kind, {"nvml.done": ["1"]}, True) for kind in ("stub", "compat", "wsl", "tegra")),
            ("simulated", {}, False),
            *(
                ("native", {"nvml.done": ["1"], "device.0.fabric": ["0 0", fabric]}, asked)
                for fabric, asked in [("0 9", False), ("3 0", False), ("3 1", True), ("1 0", True)]
            ),
        ],
    )
    def test_when_it_is_asked(self, monkeypatch, kind, told, asked):
        """Where NVML leaves a doubt; 3 is NVML's NVML_GPU_FABRIC_STATE_COMPLETED."""
        monkeypatch.setattr(probe, "_was_suspended", lambda: False)
        answers = probe.Probe({})
        answers.join()
        answers.values = told
        assert probe.doubtful(driver.Driver(path="/l", kind=kind), answers) is asked
        assert not probe.doubtful(driver.Driver(kind=kind), answers)

    def test_its_program_is_the_same_in_every_locale(self, monkeypatch, tmp_path):
        """The child may decode its arguments in another way than this process encodes them."""
        programs = []
        monkeypatch.setattr(probe, "__file__", f"{tmp_path}/gr\u00f6\u00dfe/probe.py")
        monkeypatch.setattr(probe, "Child", lambda command, *_: programs.append(command[5]))
        probe.Probe({})
        (program,) = programs
        assert program.isascii()
        assert r"gr\xf6\xdfe'" in program

    @pytest.mark.parametrize(("count", "suspended"), [("0\n", False), ("1\n", True), ("", False)])
    def test_a_machine_that_has_slept(self, monkeypatch, count, suspended):
        """CUDA may answer 999 until its kernel module is loaded anew."""
        monkeypatch.setattr(probe, "open", lambda *_, **__: io.StringIO(count), raising=False)
        assert probe._was_suspended() is suspended

    def test_devices_that_nvml_told_are_not_told_again(self, tmp_path):
        told = [driver.Device(0), driver.Device(1)]
        found = self.ask(tmp_path, "return 0;", devices=[*told])
        assert found.devices == told

    def test_a_crash(self, tmp_path):
        assert (
            self.ask(tmp_path, "raise(SIGBUS); return 0;").probe_error == "cuInit crashed (SIGBUS)"
        )

    def test_a_hang(self, tmp_path, monkeypatch):
        monkeypatch.setattr(probe, "CUDA_TIME_LIMIT", 1.0)
        assert self.ask(tmp_path, "for (;;);").probe_error == "cuInit gave no answer within 1 s"


def children() -> set[str]:
    """This process's children. Another test's multiprocessing may have left a helper."""
    lists = Path("/proc/self/task").glob("*/children")
    return {number for each in lists for number in each.read_text().split()}


class TestChild:
    def run(self, code, limit=20.0):
        import sys

        return Child([sys.executable, "-I", "-S", "-c", code], {}, limit).join()

    def test_output_and_exit_code(self):
        assert self.run("print('a')") == (b"a\n", None)
        assert self.run("import sys; print('a'); sys.exit(3)") == (b"a\n", "ended with exit code 3")

    def test_one_that_says_nothing_for_a_while_is_waited_for(self):
        """A driver may take seconds to start."""
        script = "import time; time.sleep(1.3); print('here')"
        assert self.run(script, limit=60.0) == (b"here\n", None)

    def test_endless_output_ends(self):
        output, error = self.run("while True: print('x' * 1000)", limit=5.0)
        assert len(output) <= 2 << 20
        assert error is not None

    def test_output_closed_and_still_running(self):
        for limit in (2.0, 30.0):  # a busy machine may come to the close late
            output, error = self.run("import os, time; os.close(1); time.sleep(60)", limit=limit)
            if error == f"did not end within {limit:g} s":
                break
        assert (output, error) == (b"", f"did not end within {limit:g} s")

    def test_no_end_of_its_output(self):
        assert (
            self.run("import time; time.sleep(60)", limit=0.5)[1] == "gave no answer within 0.5 s"
        )

    @pytest.fixture(autouse=True)
    def _no_child_is_left(self):
        before = children()
        yield
        assert children() <= before

    def test_no_such_program(self):
        with pytest.raises(OSError, match="No such file"):
            Child(["/nonexistent/python"], {}, 1.0)

    def test_no_descriptor_is_left(self):
        before = os.listdir("/proc/self/fd")
        for _ in range(5):
            self.run("pass")
        assert os.listdir("/proc/self/fd") == before


TELL_TALE = """
#include <stdio.h>
__attribute__((constructor)) static void loaded(void) { fclose(fopen("%s", "w")); }
"""


class TestInspected:
    """No driver library of an inspected environment is loaded, and the report says so."""

    @pytest.fixture
    def prefix(self, tmp_path):
        """An environment with a driver of its own, whose code leaves a trace where it runs."""
        prefix = tmp_path / "env"
        trace = TELL_TALE % (tmp_path / "trace")
        for name, source in ((probe.NVML, NVML % {"code": 0, "init": "", "name": ""}),
                             ("libcuda.so.1", CUDA % "return 0;"), ("libmine.so", "")):  # fmt: skip
            compile_c(prefix / "lib" / name, source + trace, f"-Wl,-soname,{name}")
        (prefix / "bin").mkdir()
        (prefix / "bin/python").symlink_to(sys.executable)
        (prefix / "pyvenv.cfg").write_text(
            "home = /usr/bin\nversion = 3.11.7\ninclude-system-site-packages = false\n"
        )
        (tmp_path / "link").symlink_to(prefix / "lib")
        return prefix

    @pytest.mark.parametrize("folder", ["env/lib", "link", "env/../env/lib/"])
    @pytest.mark.parametrize("preload", [False, True])
    def test_it_is_not_loaded(self, tmp_path, prefix, folder, preload):
        environ = {"LD_LIBRARY_PATH": f"/nowhere:{tmp_path / folder}", "PATH": os.environ["PATH"]}
        if preload:
            environ["LD_PRELOAD"] = str(prefix / "lib/libmine.so")
        report = inspect(str(prefix), environ=environ)
        assert not (tmp_path / "trace").exists()
        assert os.path.realpath(report.driver.path) == str(prefix / "lib/libcuda.so.1")
        unasked = [p.file for p in report.facts.problems if "did not ask it" in p.text]
        assert unasked[0].endswith(probe.NVML)
        subprocess.run(  # what a program there does
            [sys.executable, "-c", "import ctypes; ctypes.CDLL('libcuda.so.1')"],
            env=environ, check=True,
        )  # fmt: skip
        assert (tmp_path / "trace").exists()

    def test_one_outside_is_asked_in_its_place(self, tmp_path, prefix):
        source = NVML % {"code": 0, "init": "", "name": ""}
        compile_c(tmp_path / "other" / probe.NVML, source, f"-Wl,-soname,{probe.NVML}")
        environ = {"LD_LIBRARY_PATH": f"{prefix}/lib:{tmp_path}/other", "PATH": os.environ["PATH"]}
        report = inspect(str(prefix), environ=environ)
        assert not (tmp_path / "trace").exists()
        assert [device.name for device in report.driver.devices] == ["NVIDIA H200"] * 2
        assert any(p.file.endswith(f"env/lib/{probe.NVML}") for p in report.facts.problems)

    def test_of_another_environment_it_is_asked(self, tmp_path, prefix):
        (tmp_path / "empty/bin").mkdir(parents=True)
        environ = {"LD_LIBRARY_PATH": f"{prefix}/lib", "PATH": os.environ["PATH"]}
        report = inspect(str(tmp_path / "empty"), environ=environ)
        assert [device.name for device in report.driver.devices] == ["NVIDIA H200"] * 2
        assert not any("did not ask" in p.text for p in report.facts.problems)

    def test_what_only_the_child_would_expand_is_left_out(self):
        """$ORIGIN is the asking program's folder: that may lead into the environment."""
        for name in ("LD_LIBRARY_PATH", "LD_PRELOAD"):
            given = {name: "$ORIGIN/../x/lib:/usr/lib:/opt/x/lib:/opt/${LIB}", "A": "$B"}
            kept = probe.Inspected(["/opt/x"]).without(given)
            assert kept == {name: "/usr/lib", "A": "$B"}

    def test_the_systems_own_folders_count_as_outside(self):
        assert not probe.Inspected(["/usr"]).holds("/usr/lib/libcuda.so.1")
        assert probe.Inspected(["/opt/x", "/usr"]).holds("/opt/x/lib/libcuda.so.1")
        assert not probe.Inspected(["/opt/x"]).holds("/opt/xy/lib")
        assert not probe.Inspected([]).holds("/opt/xy/lib")
