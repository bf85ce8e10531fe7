"""The commands that fix what rules find: for each installer, in its words."""

import re

import pytest
from facts import (
    PREFIX,
    PYTHON,
    SITE,
    but,
    environment,
    facts,
    fault,
    kin,
    library,
    pip,
    torch,
    wheel,
)

from cudriver.stack.facts import Framework
from cudriver.stack.fixes import fix
from cudriver.stack.fixes.library_fixes import back_to_pin, library_fix, pinned, symbol_fix
from cudriver.stack.machine_facts import Device, Driver
from cudriver.stack.record import put


def test_nobody_s_library_has_no_fix():
    lost = fault("not found", "libcublas.so.12", "/x/a.so", "gone", framework="net")
    of = facts(load_faults=[lost], frameworks=[Framework("net", "1.0")], distributions=[])
    assert library_fix(of, lost) == []


def test_the_pin_that_counts():
    """Exact, of no extra, and of a wheel that is there."""
    nccl = wheel("nvidia-nccl-cu12", "2.0")
    asks = [
        wheel("a", "1", "[x]nvidia-nccl-cu12==1.0"),
        wheel("b", "1", "nvidia-nccl-cu12>=2"),
        wheel("c", "1", "nvidia-nccl-cu13==3.0"),
        wheel("d", "1", "nvidia-nccl-cu12==2.5.*"),
        wheel("e", "1", "nvidia-nccl-cu12==2.6"),
    ]
    assert pinned(facts(distributions=[*asks, nccl]), "libnccl.so.2") == (nccl, "2.5")
    assert pinned(facts(distributions=asks), "libnccl.so.2") is None


@pytest.mark.parametrize("major", ["11", "12"])
def test_a_wheel_that_nothing_pins(major):
    both = [wheel(f"nvidia-cublas-cu{n}", f"{n}.1") for n in ("11", "12")]
    of = facts(distributions=[wheel("nvidia-nccl-cu12", "2.0"), *both])
    fixes = pip(f"nvidia-cublas-cu{major}=={major}.1")
    assert back_to_pin(of, f"libcublas.so.{major}") == [fixes]


@pytest.mark.parametrize(("major", "name"), [("12", "nvidia-cublas-cu12"), ("13", "nvidia-cublas")])
def test_of_two_majors_that_are_pinned_the_one_of_the_library(major, name):
    asks = wheel("torch", "2", "nvidia-cublas-cu12==12.4", "nvidia-cublas==13.4")
    both = [wheel("nvidia-cublas-cu12", "12.1"), wheel("nvidia-cublas", "13.1")]
    of = facts(distributions=[asks, *both])
    assert back_to_pin(of, f"libcublas.so.{major}") == [pip(f"{name}=={major}.4")]


@pytest.mark.parametrize(
    ("kind", "soname", "fixes"),
    [
        ("conda", "libnccl.so.2", [f"conda install -p {PREFIX} nccl"]),
        ("conda", "libfoo.so.2", []),
        ("venv", "libnccl.so.2", []),
    ],
)
def test_where_there_is_no_wheel(kind, soname, fixes):
    env = environment(kind, "conda" if kind == "conda" else "pip")
    assert back_to_pin(facts(environment=env, distributions=[]), soname) == fixes


def test_the_owners_of_the_file_before_a_wheel_of_the_name():
    nccl = library("libnccl.so.2", "2.18.1", "nccl", provided_by="net 1.0")
    put(nccl, real_path="/store/libnccl.so.2")
    of = facts(
        libraries=[nccl], distributions=[wheel("nvidia-nccl-cu12", "2"), wheel("net", "1.0")]
    )
    for path in (nccl.path, nccl.real_path):
        assert back_to_pin(of, "libnccl.so.2", path) == [pip("net==1.0")]
    assert back_to_pin(of, "libnccl.so.2", "/x") == [pip("nvidia-nccl-cu12==2")]


def test_a_provider_that_nothing_fixes():
    """Then whoever asks is brought anew."""
    alien = library("libalien.so.1", "1", "", path="/opt/libalien.so.1")
    ours = library("libnccl.so.2", "2.0", "nccl", provided_by="nvidia-nccl-cu12 2.0")
    lost = fault("symbol", "alien_new", ours.path, "x", provider=alien.path)
    of = facts(libraries=[ours, alien], distributions=[wheel("nvidia-nccl-cu12", "2.0")])
    put(of, load_faults=[lost])
    assert symbol_fix(of, lost, alien) == [pip("nvidia-nccl-cu12==2.0")]


def test_uv_replaces_what_a_folder_of_pythonpath_has():
    """pip leaves the old .dist-info beside the new one, which is removed first."""
    old = wheel("numba", "0.56", installer="uv", location="/old")
    command = fix.install(environment("uv", "uv", PYTHONPATH="/old"), "numba==0.61", of=old)
    assert command == f"uv pip install --python {PYTHON} --target /old numba==0.61"


def test_another_environment_is_not_changed():
    """Its packages are on PYTHONPATH; what is installed there is for its own Python."""
    theirs = "/other/lib/python3.10/site-packages"
    env = environment("venv", "pip", PYTHONPATH=f"/mine:{theirs}")
    command = fix.install(env, "numba==0.61", of=wheel("numba", "0.56", location=theirs))
    assert command == "export PYTHONPATH=/mine"


def test_condas_framework_has_no_extra():
    net = Framework("net", "1.0", "12.8", distribution="net", extra="gpu")
    lost = fault("not found", "libcublas.so.12", "/a.so", "x", framework="net")
    of = facts(
        environment=environment("conda", "mamba"),
        frameworks=[net],
        distributions=[wheel("net", "1.0", installer="conda")],
    )
    assert library_fix(of, lost) == [f"mamba install -p {PREFIX} libcublas"]


@pytest.mark.parametrize(
    ("name", "version", "index"),
    [
        ("torchvision", "0.23.0+cu128", "https://download.pytorch.org/whl/cu128"),
        ("torchvision", "0.23.0", None),
        ("net", "1.0+cu128", None),
    ],
)
def test_the_index_of_a_build_that_lost_a_library(name, version, index):
    file = f"{SITE}/{name}/_C.so"
    lost = fault("not found", "libother.so.1", file, "x", framework=name)
    net = Framework(name, version, "12.8", path=f"{SITE}/{name}", distribution=name)
    of = facts(frameworks=[net], distributions=[wheel(name, version)])
    expected = f"{PYTHON} -m pip install --force-reinstall {name}=={version}"
    assert library_fix(of, lost) == [expected + (f" --index-url {index}" if index else "")]


@pytest.mark.parametrize(
    ("stated", "makes", "expected"),
    [
        ("pip", "uv", "uv"), ("pip", "pipx", "pipx"), ("pip", "conda", "pip"),
        ("uv", "pipx", "uv"), ("conda", "mamba", "conda"), ("", "uv", "uv"),
    ],
)  # fmt: skip
def test_who_fixes_a_package(stated, makes, expected):
    """uv and pipx install as pip does, and say "pip" in INSTALLER where pip itself ran."""
    assert fix.installer(environment("venv", makes), wheel("x", "1", installer=stated)) == (
        expected
    )


@pytest.mark.parametrize(
    ("installer", "executable", "uninstall"),
    [
        ("pip", "/opt/py", "/opt/py -m pip uninstall -y x"),
        ("pip", None, f"{PYTHON} -m pip uninstall -y x"),
        ("uv", "/opt/py", "uv pip uninstall --python /opt/py x"),
        ("uv", None, f"uv pip uninstall --python {PREFIX} x"),
        ("pipx", None, "pipx runpip train uninstall -y x"),
        ("conda", None, f"conda remove -p {PREFIX} x"),
    ],
)
def test_installers(installer, executable, uninstall):
    kind = "conda" if installer == "conda" else "venv"
    env = but(environment(kind, installer), executable=executable)
    assert fix.uninstall(env, wheel("x", "1", installer=installer)) == uninstall
    upgrade = fix.install(env, "x", upgrade=True)
    words = {"uv": f"--python {executable or PREFIX} --upgrade x", "conda": f"-p {PREFIX} x"}
    assert upgrade.endswith(f" install {words.get(installer, '--upgrade x')}")
    again = fix.install(env, "x", again=True, alone=True)
    words = {
        "uv": f"--python {executable or PREFIX} --reinstall-package x --no-deps x",
        "conda": f"-p {PREFIX} --force-reinstall x",
    }
    usual = "--force-reinstall --no-deps x"
    assert again.endswith(f" install {words.get(installer, usual)}")


def test_conda_calls_torch_pytorch():
    dist = wheel("torch", "2.7.1", installer="conda", conda_name="pytorch")
    assert fix.uninstall(environment("conda", "conda"), dist) == f"conda remove -p {PREFIX} pytorch"


@pytest.mark.parametrize(
    ("tool", "start"),
    [
        ("pip", f"{PYTHON} -m pip install --break-system-packages "),
        ("uv", f"uv pip install --python {PYTHON} --break-system-packages "),
    ],
)
def test_a_systems_own_python_wants_to_hear_it(tool, start):
    env = environment("system", tool)
    put(env, managed=True)
    assert fix.install(env, "torch") == f"{start}torch"
    assert " --break-system-packages torch" in fix.uninstall(env, wheel("torch", "2.8.0"))


def with_gpu(gpu, cuda):
    devices = [Device(0, compute_capability=gpu)] if gpu else []
    built = [torch(cuda=cuda)] if cuda else []
    return facts(driver=Driver(devices=devices), frameworks=built)


@pytest.mark.parametrize(
    ("gpu", "floor", "cuda", "branch"),
    [(None, None, None, 580), (None, "525.60.13", None, 580), (None, 610, "13.0", 610),
     ("9.0", "450.80.02", "13.0", 580), ("3.7", "450.80.02", "11.8", 470),
     ("7.0", "580", "12.8", 580), ("10.7", "580", None, 615)],
)  # fmt: skip
def test_a_driver_that_lasts_and_knows_the_gpu(gpu, floor, cuda, branch):
    told = fix.driver_package(with_gpu(gpu, cuda), floor)
    assert re.match(rf"sudo apt-get install nvidia-driver-{branch}(-open)?  # ", told)


@pytest.mark.parametrize(
    ("gpu", "floor", "cuda", "since"),
    [("3.7", "525.60.13", None, 525), ("7.0", 590, None, 590), ("3.7", "450.80.02", "12.4", 525),
     ("3.7", None, "13.0", 580)],
)  # fmt: skip
def test_no_driver_is_named_where_none_serves_the_gpu_and_the_packages(gpu, floor, cuda, since):
    told = fix.driver_package(with_gpu(gpu, cuda), floor)
    assert told.startswith(f"no driver from R{since} on serves this machine's GPUs")


@pytest.mark.parametrize(
    ("release", "oldest", "usual"),
    [("2.8.0+cu126", "12.6", "12.8"), ("2.6.0", "11.8", "12.4"), ("99.9", None, None)],
)
def test_the_variants_of_a_release(release, oldest, usual):
    assert fix.variants(release)[:1] == ([oldest] if oldest else [])
    assert fix.usual_variant(release) == usual


def test_the_tag_of_a_cuda():
    assert [fix.tag(cuda) for cuda in ("12.8", "12.8.1", "13.0")] == ["cu128", "cu128", "cu130"]


@pytest.mark.parametrize(
    ("name", "version", "index"),
    [("torch", "2.8.0+cu128", "cu128"), ("torch", "2.8.0+cpu", "cpu"),
     ("torchvision", "0.23.0+cu126", "cu126"), ("torch", "2.8.0", None),
     ("torch", "2.8.0+cu128.x", None), ("flash-attn", "2.7.0+cu128", None)],
)  # fmt: skip
def test_a_local_version_is_on_pytorchs_index(name, version, index):
    fixes = fix.reinstall(facts(), wheel(name, version))
    start = f"{PYTHON} -m pip install --force-reinstall --no-deps {name}=={version}"
    more = f" --index-url https://download.pytorch.org/whl/{index}" if index else ""
    assert fixes == start + more


def test_kin_without_a_pytorch():
    of = facts(frameworks=[], distributions=[wheel("torchvision", "0.20.0")])
    assert fix.kin(of, "torchvision") == f"{PYTHON} -m pip install torchvision"
    fixes = f"{PYTHON} -m pip install --force-reinstall torch torchvision --index-url "
    assert fix.torch_from(of, "12.8") == f"{fixes}https://download.pytorch.org/whl/cu128"


@pytest.mark.parametrize(("asks", "wanted"), [("2.7.0", "0.22.*"), ("2.7.1", "0.22.0")])
def test_kin_of_another_build_must_go_with_the_pytorch_that_is_there(asks, wanted):
    other = wheel("torchvision", "0.22.0+cu126", f"torch=={asks}")
    of = facts(
        frameworks=[torch("2.7.1+cu128"), kin("torchvision", "0.22.0+cu126", "12.6")],
        distributions=[wheel("torch", "2.7.1+cu128"), other],
    )
    assert f"torchvision=={wanted}" in fix.kin(of, "torchvision")


def test_a_version_with_four_numbers_is_asked_for_by_three():
    of = facts(frameworks=[torch("2.8.0.1+cu126", "12.6")])
    assert " torch==2.8.0 " in fix.torch_from(of, "12.8")


@pytest.mark.parametrize(
    ("version", "cuda", "index"),
    [
        ("2.8.0", "12.8", None),  # PyPI's own
        ("2.8.0", "12.6", "cu126"),
        ("2.8.0", "12.9", "cu129"),
        ("2.8.0+cu128", "12.8", "cu128"),
        ("2.4.1", "12.1", None),
        ("2.4.1", "12.4", "cu124"),
        ("2.8.0", None, "cpu"),
    ],
)
def test_the_index_that_pytorch_came_from(version, cuda, index):
    of = facts(frameworks=[torch(version, cuda)], distributions=[wheel("torch", version)])
    assert fix.index_of(of) == (index and f"https://download.pytorch.org/whl/{index}")
