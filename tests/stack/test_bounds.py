"""Environments of absurd sizes: the work grows with the size, and what was left out is said."""

import errno
import fcntl
import itertools
import json
import os
import signal

import pytest
from facts import facts, wheel
from synth import Prefix

from cudriver import _elf
from cudriver.stack import inspect
from cudriver.stack.environment import interpreter, records
from cudriver.stack.integrity import listed
from cudriver.stack.loader.files import LoaderFiles
from cudriver.stack.roots import rootfs
from cudriver.stack.roots.rootfs import Root
from cudriver.stack.rules import cu4_pins


@pytest.fixture
def compared(monkeypatch):
    """Counts the specifiers that are compared or met by a version."""
    calls = []
    for name in ("compatible", "satisfies"):
        usual = getattr(cu4_pins, name)
        monkeypatch.setattr(
            cu4_pins, name, lambda *words, usual=usual: calls.append(words) or usual(*words)
        )
    return calls


def hub(count: int, own: bool):
    """Packages that pin the next ones, and `own`: one package, each in a version of its own."""
    dists = [
        wheel(
            f"nvidia-p{i}", "1.0",
            *(f"nvidia-p{(i + k) % count}=={k}.0" for k in (1, 2, 3)),
            *[f"nvidia-hub=={i}.0"] * own,
        )
        for i in range(count)
    ]  # fmt: skip
    return facts(distributions=[*dists, wheel("nvidia-hub", "1.0")])


@pytest.mark.parametrize("own", [False, True])
def test_pins_are_compared_in_linear_time(compared, own):
    found = {}
    for count in (500, 1000):
        compared.clear()
        of = hub(count, own)
        findings = [*cu4_pins.cu402(of), *cu4_pins.cu407(of)]
        assert findings
        found[count] = len(compared)
    assert found[1000] < 2.5 * found[500]


def test_a_record_of_many_lines_is_read_up_to_its_limit(tmp_path, monkeypatch):
    prefix = Prefix(tmp_path / "env", root=tmp_path).venv()
    for name in ("nvidia-a", "nvidia-b"):
        record = prefix.dist(name, "1.0") / "RECORD"
        lines = (f"x/lib{number}.so,sha256=abc,100\n" for number in range(3 * records.LIBRARIES))
        record.write_text("".join(lines))
    made = []
    entry = records.Entry
    monkeypatch.setattr(records, "Entry", lambda *words: made.append(1) or entry(*words))
    report = inspect("/env", root=str(tmp_path))
    most = 2 * (records.LIBRARIES + 1)  # one more shows that there are more, of files, too
    assert most <= len(made) <= most + listed.MOST + 1
    assert [p.text for p in report.facts.problems] == [
        "lists more than 10000 shared libraries; the rest was not read"
    ] * 2
    assert report.facts.unsure


def checked(tmp_path):
    return inspect("/env", root=str(tmp_path)).facts


def test_a_folder_on_the_path_by_many_names_counts_once(tmp_path):
    """.pth files name one folder by links to it, in all their combinations."""
    prefix = Prefix(tmp_path / "env", root=tmp_path).venv()
    packages = prefix.dist("torch", "2.4.0").parent
    (packages / "more").mkdir()
    for name in "0123":
        (packages / name).symlink_to(".")
    paths = ["/".join(way) for way in itertools.product("0123", repeat=4)]
    (packages / "a.pth").write_text("\n".join([*paths, "more", *(f"{p}/more" for p in paths)]))
    found = checked(tmp_path)
    own = "/" + str(packages.relative_to(tmp_path))
    assert found.environment.site_packages == [own, f"{own}/more"]


def test_a_path_of_more_folders_than_anybody_has_is_said(tmp_path, monkeypatch):
    prefix = Prefix(tmp_path / "env", root=tmp_path).venv()
    packages = prefix.dist("torch", "2.4.0").parent
    for number in range(5):
        (packages / f"f{number}").mkdir()
    (packages / "a.pth").write_text("".join(f"f{number}\n" for number in range(5)))
    monkeypatch.setattr(interpreter, "PATH_MOST", 6)
    assert len(checked(tmp_path).environment.site_packages) == 6
    monkeypatch.setattr(interpreter, "PATH_MOST", 5)
    report = inspect("/env", root=str(tmp_path))
    why = "more than 5 folders are named by its .pth files; the check was stopped"
    assert (report.verdict, report.facts.unsure) == ("unknown", [f"/env: {why}"])
    assert why in str(report)


@pytest.mark.parametrize(
    ("limit", "value", "why"),
    [
        ("MOST_BYTES", 2 << 20, "more than 2 MiB would be read; the check was stopped"),
        ("MOST_FILES", 300, "more than 300 files would be read; the check was stopped"),
    ],
)
@pytest.mark.parametrize("what", ["text", "names", "modules", "paths"])
def test_an_environment_of_too_much_is_left_and_said(
    tmp_path, monkeypatch, limit, value, why, what
):
    """Small parts that refer to each other: whatever is asked for counts each time."""
    prefix = Prefix(tmp_path / "env", root=tmp_path).venv()
    info = prefix.dist("nvidia-a", "1.0")
    packages = info.parent
    inspected = checked(tmp_path)
    assert not inspected.unsure
    if what == "text":
        (info / "METADATA").write_text("Name: nvidia-a\nVersion: 1.0\n\n" + "x" * 20_000)
        for number in range(400):
            (packages / f"nvidia_a{number}-1.0.dist-info").symlink_to(info.name)
    elif what == "names":
        for number in range(100):
            (packages / f"{number}.txt").write_text("")
            (tmp_path / f"usr/local/cuda-{number}").mkdir(parents=True)
            (tmp_path / f"usr/local/cuda-{number}/lib64").symlink_to(
                f"/{packages.relative_to(tmp_path)}"
            )
            (tmp_path / f"usr/local/cuda-{number}/bin").symlink_to(
                f"/{packages.relative_to(tmp_path)}"
            )
            (tmp_path / f"usr/local/cuda-{number}/version.json").write_text("{}" + " " * 20_000)
    elif what == "modules":
        torch = prefix.dist("torch", "2.4.0")
        (torch / "RECORD").write_text("torch/a.py,sha256=x,1\n" * 100_000)
    else:
        (packages / "a.pth").write_text(f"{'x' * 100}\n" * 600)
        for number in range(50):
            (packages / f"{number}.pth").symlink_to("a.pth")
    monkeypatch.setattr(rootfs, limit, value)
    report = inspect("/env", root=str(tmp_path))
    assert (report.verdict, report.facts.unsure) == ("unknown", [f"/env: {why}"])
    assert [(p.file, p.text) for p in report.facts.problems] == [("/env", why)]
    assert why in str(report)
    assert {finding.rule for finding in report.findings} <= {"CU101"}  # the driver is told


@pytest.mark.parametrize("conda", [False, True])
def test_packages_that_require_too_much_are_left_and_said(tmp_path, monkeypatch, conda):
    """Each requirement is compared with those of others on the same package."""
    prefix = Prefix(tmp_path / "env", root=tmp_path)
    prefix.conda() if conda else prefix.venv()
    wanted = "".join(f"Requires-Dist: nvidia-p{number}!=2\n" for number in range(10))
    for number in range(3):
        if conda:
            prefix.conda_package(f"cuda-p{number}", "1", depends=[f"cuda-p{n}" for n in range(10)])
            continue
        info = prefix.dist(f"nvidia-p{number}", "1.0")
        (info / "METADATA").write_text(f"Name: nvidia-p{number}\nVersion: 1.0\n{wanted}")
    monkeypatch.setattr(rootfs, "MOST_REQUIREMENTS", 30)
    assert not checked(tmp_path).unsure
    monkeypatch.setattr(rootfs, "MOST_REQUIREMENTS", 29)
    why = "more than 29 requirements would be compared; the check was stopped"
    assert checked(tmp_path).unsure == [f"/env: {why}"]


def test_a_conda_record_is_searched_once_for_the_lines_of_what_it_depends_on(tmp_path):
    """A search from its start for each took minutes for a record of 30 MB."""
    prefix = Prefix(tmp_path / "env", root=tmp_path).conda()
    record = prefix.conda_package("cuda-a", "1", depends=[])
    asks = [f"cuda-{number} >={number % 3}" for number in range(15_000)]
    asks[40] = "cuda-é"
    text = json.dumps({"name": "cuda-a", "x": " " * (30 << 20), "depends": asks}, indent=1)
    record.write_text(text)
    (found,) = [dist for dist in checked(tmp_path).distributions if dist.name == "cuda-a"]
    lines = text.splitlines()
    stated = [lines.index(f'  "{ask}",') + 1 for ask in asks[:40]]
    assert [each.evidence.line for each in found.requires[:40]] == stated
    assert [each.evidence.line for each in found.requires[40:42]] == [None, None]
    assert len(found.requires) == len(asks)


def test_libraries_of_too_much_are_left_and_said(tmp_path, monkeypatch):
    def spent(*_):
        raise rootfs.TooMuch("no more")

    Prefix(tmp_path / "env", root=tmp_path).venv().torch()
    monkeypatch.setattr(LoaderFiles, "open", spent)
    report = inspect("/env", root=str(tmp_path))
    assert (report.verdict, report.facts.unsure) == (
        "unknown",
        ["/env: more than no more; the check was stopped"],
    )


def test_a_version_of_any_length_is_not_repeated(tmp_path):
    prefix = Prefix(tmp_path / "env", root=tmp_path).venv()
    metadata = prefix.dist("torch", "2.8.0") / "METADATA"
    metadata.write_text(metadata.read_text().replace("2.8.0", "2.8.0+" + "x" * 400_000))
    assert checked(tmp_path).distribution("torch").version == "2.8.0"


@pytest.mark.parametrize("below", [False, True])
@pytest.mark.parametrize("name", ["absent", "folder", "pipe", "nul\0", "n" * 300])
def test_what_cannot_be_read_is_nothing(tmp_path, name, below):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    root = Root(str(tmp_path) if below else "/")
    assert root.raw(f"/{name}" if below else f"{tmp_path}/{name}", 10) == b""


def test_a_file_that_somebody_holds_is_not_waited_for(tmp_path):
    """A write lease keeps whoever opens the file waiting for 45 s."""
    metadata = Prefix(tmp_path / "env", root=tmp_path).venv().dist("torch", "2.8.0") / "METADATA"
    ignored = signal.signal(signal.SIGIO, signal.SIG_IGN)
    with open(metadata, "r+b") as held:
        fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        facts = checked(tmp_path)
        assert _elf_errno(str(metadata)) == errno.EAGAIN
    signal.signal(signal.SIGIO, ignored)
    (problem,) = [p for p in facts.problems if p.file.endswith("METADATA")]
    assert problem.text == "cannot be read: Resource temporarily unavailable"


def _elf_errno(path):
    with pytest.raises(_elf.ElfError) as caught:
        _elf.ElfFile(path)
    return caught.value.errno


def test_a_link_to_a_file_of_proc_is_not_read(tmp_path):
    """/proc/kmsg waits, and whoever reads it takes its lines from others."""
    venv = Prefix(tmp_path / "env").venv()
    metadata = venv.dist("torch", "2.8.0") / "METADATA"
    metadata.unlink()
    metadata.symlink_to("/proc/self/environ")
    root = Root()
    assert root.read("/proc/self/environ") != b""
    assert root.read(str(metadata)) == b""
