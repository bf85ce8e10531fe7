"""Environments, distributions and their files, read from outside."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from synth import Prefix

from cudriver.stack.collect import ask, collect
from cudriver.stack.environment import distributions, interpreter, records
from cudriver.stack.roots.asked import Asked, from_here
from cudriver.stack.roots.rootfs import Root
from elfkit import compile_c


def describe(prefix, **variables):
    root = Root(str(prefix.root) if prefix.root else "/")
    return interpreter.describe(Asked(root, prefix.inside, variables)), root, root.problems


def installed(prefix, **variables):
    env, root, problems = describe(prefix, **variables)
    found = distributions.installed(root, env)
    return {d.name: d for d in found}, problems


def libraries(dist, problems=None):
    """What its RECORD lists."""
    root = Root("/")
    root.problems = [] if problems is None else problems
    return records.libraries(root, dist, records.read(root, dist))


@pytest.fixture
def venv(tmp_path):
    return Prefix(tmp_path / "env").venv()


class TestKinds:
    @pytest.mark.parametrize(("other", "threaded"), [("3.11t", True), ("3.12t", False)])
    def test_a_free_threaded_python_by_its_folder(self, tmp_path, other, threaded):
        prefix = Prefix(tmp_path / "env").venv()
        site = prefix.path / f"lib/python{other}/site-packages"
        site.mkdir(parents=True)
        env = describe(prefix)[0]
        assert env.site_packages == [str(site if threaded else prefix.site)]
        assert env.abi == ("311t" if threaded else "311")

    @pytest.mark.parametrize(("image", "platform"), [(False, "aarch64"), (True, "x86_64")])
    def test_the_machine_of_an_interpreter_that_is_a_script(
        self, tmp_path, monkeypatch, image, platform
    ):
        """This machine's own, but for an image."""
        monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine="aarch64"))
        prefix = Prefix(tmp_path / "env", root=tmp_path if image else None)
        (prefix.path / "bin/python").write_text("#!/bin/sh\n")
        assert describe(prefix)[0].platform == platform

    def test_system_python_of_another_root(self, tmp_path):
        (tmp_path / "usr/bin").mkdir(parents=True)
        (tmp_path / "usr/bin/python3.12").write_bytes(b"\x7fELF\2\1" + bytes(12) + b"\xb7\0")
        (tmp_path / "usr/bin/python3").symlink_to("/usr/bin/python3.12")
        for folder in ("usr/lib/python3/dist-packages", "usr/local/lib/python3.12/dist-packages"):
            (tmp_path / folder).mkdir(parents=True)
        env = interpreter.describe(Asked(Root(str(tmp_path)), "/usr", {}))
        assert (env.kind, env.python, env.platform) == ("system", "3.12", "aarch64")
        assert not env.managed
        (tmp_path / "usr/lib/python3.12").mkdir()
        (tmp_path / "usr/lib/python3.12/EXTERNALLY-MANAGED").write_text("[externally-managed]\n")
        assert interpreter.describe(Asked(Root(str(tmp_path)), "/usr", {})).managed
        assert env.site_packages == [
            "/usr/local/lib/python3.12/dist-packages",
            "/usr/lib/python3/dist-packages",
        ]


class TestPath:
    def test_a_folder_of_pythonpath_has_no_pth_files(self, venv, tmp_path):
        """Only site-packages have; Python itself is asked too."""
        stated, added = tmp_path / "stated", tmp_path / "added"
        stated.mkdir()
        added.mkdir()
        (stated / "a.pth").write_text(f"{added}\n")
        (venv.site / "b.pth").write_text(f"{stated}/..\n")
        there = describe(venv, PYTHONPATH=f"{stated}:{venv.site}")[0].site_packages
        assert there == [str(stated), str(venv.site), str(tmp_path)]
        real = subprocess.run(
            [sys.executable, "-c", "import sys; print(*sys.path, sep='\\n')"],
            env={"PYTHONPATH": str(stated)}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert str(stated) in real.stdout.splitlines()
        assert str(added) not in real.stdout.splitlines()

    @pytest.mark.parametrize(
        "form", ["{}/", "{}//", "{}/../side", "{}/.", "side", "./side/", "a:side"]
    )
    def test_a_folder_is_written_as_pythons(self, venv, tmp_path, monkeypatch, form):
        """Libraries are held against it."""
        monkeypatch.chdir(tmp_path)
        (tmp_path / "side").mkdir()
        written = form.format(tmp_path / "side")
        real = subprocess.run(
            [sys.executable, "-c", "import sys; print(*sys.path, sep='\\n')"],
            env={"PYTHONPATH": written}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        variables = from_here({"PYTHONPATH": written}, str(tmp_path))
        first, *others = describe(venv, **variables)[0].site_packages
        assert (first in real.stdout.splitlines(), others) == (True, [str(venv.site)])

    def test_what_is_named_like_a_pth_file_in_the_working_folder(self, venv, tmp_path):
        """A checkpoint; and the environment lies there."""
        (tmp_path / "side").mkdir()
        (tmp_path / "model.pth").write_text(f"{tmp_path}/side\nimport editable\n")
        variables = from_here({"PYTHONPATH": "."}, str(tmp_path))
        env, _, problems = describe(venv, **variables)
        assert env.site_packages == [str(tmp_path), str(venv.site)]
        assert env.by_code == []
        assert problems == []

    @pytest.mark.parametrize("shared", [True, False])
    @pytest.mark.parametrize("by", ["HOME", "PYTHONUSERBASE"])
    def test_the_order_is_pythons(self, tmp_path, shared, by):
        """A venv's own folder and what its .pth files add, the user's, the base Python's."""
        made = tmp_path / "env"
        options = ["--system-site-packages"] if shared else []
        words = [sys.executable, "-m", "venv", "--without-pip", *options, str(made)]
        subprocess.run(words, check=True)
        version = Path(sysconfig.get_path("stdlib")).name  # python3.13t of a free-threaded one
        home = tmp_path / "home"
        user = home / (".local" if by == "HOME" else "") / "lib" / version / "site-packages"
        user.mkdir(parents=True)
        for name, site in (("a", made / "lib" / version / "site-packages"), ("b", user)):
            (tmp_path / name).mkdir()
            (site / "more.pth").write_text(f"{tmp_path / name}\n")
        done = subprocess.run(
            [made / "bin/python", "-c", "import sys; print(*sys.path[1:], sep='\\n')"],
            env={by: str(home)}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        seen = [path for path in done.stdout.splitlines() if path.startswith(str(tmp_path))]
        env = interpreter.describe(Asked(Root("/"), str(made), {by: str(home)}))
        ours = [path for path in env.site_packages if path.startswith(str(tmp_path))]
        assert ours == seen
        assert len(seen) == (4 if shared else 2)

    def test_a_python_of_usr_local_has_its_own_packages(self, tmp_path):
        """As in images that have one beside the distribution's, of the same version."""
        ours = Prefix(tmp_path / "usr", root=tmp_path)
        (tmp_path / "usr/bin/python3.11").touch()
        local = Prefix(tmp_path / "usr/local", root=tmp_path)
        assert describe(ours)[0].site_packages == [
            "/usr/local/lib/python3.11/site-packages", "/usr/lib/python3.11/site-packages",
        ]  # fmt: skip
        (local.path / "bin/python3.11").touch()
        assert len(describe(ours)[0].site_packages) == 2  # Fedora's Python takes both
        (tmp_path / "usr/lib/python3/dist-packages").mkdir(parents=True)
        assert describe(ours)[0].site_packages == [
            "/usr/lib/python3.11/site-packages", "/usr/lib/python3/dist-packages",
        ]  # fmt: skip
        assert describe(local)[0].site_packages == ["/usr/local/lib/python3.11/site-packages"]


class TestConda:
    def test_owner_by_the_file_list(self, tmp_path):
        prefix = Prefix(tmp_path / "env").conda()
        prefix.conda_package(
            "libcublas", "12.8.4.1", files=["lib/libcublas.so.12", "lib/libcublas.so.12.8.4.1"]
        )
        (prefix.path / "conda-meta/nccl-2.27-0.json").mkdir()  # one that cannot be read
        found, _ = installed(prefix)
        owners = records.Owners(Root("/"))
        for name in ("nccl", "libcublas"):
            owners.add(found[name])
        assert owners.owner(f"{prefix.path}/lib/libcublas.so.12").name == "libcublas"
        assert owners.owner(f"{prefix.path}/lib/libcublas.so.1") is None


class TestRecords:
    def owners(self, prefix):
        found, problems = installed(prefix)
        owners = records.Owners(Root("/"))
        owners.root.problems = problems
        for dist in found.values():
            owners.add(dist)
        return owners, problems

    def test_paths_are_in_their_normal_form(self, venv):
        """As the loader's are, and as those of faults are compared."""
        info = venv.dist("nvidia-x", "1.0")
        lines = ["../../libup.so", "./a//libtwo.so.1", "/opt/libfar.so", "a/libplain.so"]
        (info / "RECORD").write_text("".join(f"{line},,\n" for line in [*lines, "a/x.so.py"]))
        entries = libraries(installed(venv)[0]["nvidia-x"])
        assert [entry.path for entry in entries] == [
            os.path.normpath(venv.site / line) for line in lines
        ]

    def test_a_path_with_a_comma_stands_in_quotes(self, venv):
        info = venv.dist("nvidia-x", "1.0", files={"a,b/libx.so": b"x", "a/liby.so.1": b"y"})
        record = (info / "RECORD").read_text()
        (info / "RECORD").write_text(record.replace("a,b/libx.so", '"a,b/libx.so"'))
        entries = libraries(installed(venv)[0]["nvidia-x"])
        assert {entry.path for entry in entries} == {
            f"{venv.site}/a,b/libx.so",
            f"{venv.site}/a/liby.so.1",
        }

    @pytest.mark.parametrize("content", [b"first", b"a longer one"])
    def test_no_hash_where_the_size_tells_or_both_agree(self, venv, monkeypatch, content):
        """NCCL has half a gigabyte."""
        path = "nvidia/nccl/lib/libnccl.so.2"
        venv.dist("nvidia-nccl-cu12", "2.27.3", files={path: b"first"})
        venv.dist("nvidia-nccl-cu13", "2.28.9", files={path: content})
        owners, _ = self.owners(venv)
        monkeypatch.setattr(owners.root, "open", lambda path: pytest.fail(f"{path} is hashed"))
        told = [("nvidia-nccl-cu12", "shared" if content == b"first" else "owners")]
        assert [(f.distribution, f.what) for f in owners.faults()] == told

    @pytest.mark.parametrize(("limit", "told"), [(5, "owners"), (4, "shared")])
    def test_a_huge_file_is_not_hashed(self, venv, monkeypatch, limit, told):
        path = "nvidia/nccl/lib/libnccl.so.2"
        venv.dist("nvidia-nccl-cu12", "2.27.3", files={path: b"first"})
        venv.dist("nvidia-nccl-cu13", "2.28.9", files={path: b"other"})
        monkeypatch.setattr(records, "HASH_LIMIT", limit)
        assert [fault.what for fault in self.owners(venv)[0].faults()] == [told]

    def test_a_name_that_begins_as_a_librarys_hides_none(self, venv):
        info = venv.dist("nvidia-x", "1.0")
        (info / "RECORD").write_text("a/x.sort.py,,\na/libplain.so,,\n")
        entries = libraries(installed(venv)[0]["nvidia-x"])
        assert [entry.path for entry in entries] == [f"{venv.site}/a/libplain.so"]

    def test_a_record_past_the_limit_is_said_to_be_cut(self, venv, monkeypatch):
        info = venv.dist("nvidia-nccl-cu12", "2.27.3", files={"nvidia/x/libx.so": b"x"})
        size = (info / "RECORD").stat().st_size
        for limit, problems in ((size, []), (size - 1, [f"is larger than {size - 1} bytes"])):
            monkeypatch.setattr(records, "RECORD_LIMIT", limit)
            owners, told = self.owners(venv)
            assert [p.text.partition(";")[0] for p in told] == problems
            assert list(owners.by_path) == [f"{venv.site}/nvidia/x/libx.so"]

    @pytest.mark.parametrize("damage", ["none", "gone", "half", "empty"])
    def test_a_library_that_only_conda_has(self, tmp_path, damage):
        """Its list has each file with its size; that of a link says nothing."""
        prefix = Prefix(tmp_path / "env").conda()
        file = compile_c(prefix.path / "lib/libcublas.so.12.8.4.1", "int cublas;")
        data = file.read_bytes()
        (prefix.path / "lib/libcublas.so.12").symlink_to(file.name)
        paths = [
            {"_path": f"lib/{file.name}", "path_type": "hardlink", "size_in_bytes": len(data)},
            {"_path": "lib/libcublas.so.12", "path_type": "softlink", "size_in_bytes": 1},
            {"_path": "lib/pkgconfig/cublas.pc", "path_type": "hardlink", "size_in_bytes": 1},
        ]
        prefix.conda_package("libcublas", "12.8.4.1", paths_data={"paths": paths})
        {"gone": file.unlink, "none": int}.get(
            damage, lambda: file.write_bytes(data[: len(data) // 2] if damage == "half" else b"")
        )()
        found = [
            (f.distribution, f.file, f.what) for f in collect(ask(str(prefix.path))).file_faults
        ]
        bad = "missing" if damage == "gone" else "damaged"
        names = {"none": []}.get(damage, [file.name])
        names += ["libcublas.so.12"] * (damage == "gone")  # which leads nowhere now
        assert found == [("libcublas", f"{prefix.path}/lib/{name}", bad) for name in names]

    def test_of_two_claims_the_one_whose_size_fits(self, venv):
        name = "nvidia/x/libx.so"
        venv.dist("nvidia-a-cu12", "1.0", files={name: b"first"})
        venv.dist("nvidia-b-cu12", "2.0", files={name: b"the second"})
        owners, _ = self.owners(venv)
        file = venv.site / name
        assert owners.owner(str(file)).name == "nvidia-b-cu12"
        file.write_bytes(b"fifth")
        assert owners.owner(str(file)).name == "nvidia-a-cu12"
        file.write_bytes(b"of neither size")
        assert owners.owner(str(file)).name == "nvidia-a-cu12", "the first that claims it"


class TestDamage:
    """What is broken is named, and the rest is still read."""

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"\0" * 5000,
            b"a,b\n" * 10,
            b".so,,\n",
            b'"\n.so',
            b"x.so,sha256=,99999999999999999999\n",
        ],
    )
    def test_record(self, venv, content):
        info = venv.dist("nvidia-nccl-cu12", "2.27.3")
        (info / "RECORD").write_bytes(content)
        problems = []
        dist = installed(venv)[0]["nvidia-nccl-cu12"]
        entries = libraries(dist, problems)
        assert all(entry.path.endswith(".so") for entry in entries)
        assert all(p.file == f"{info}/RECORD" for p in problems)
        assert bool(problems) is (b"\0" in content)

    @given(st.binary(max_size=300))
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
    def test_no_record_or_metadata_is_an_exception(self, tmp_path_factory, content):
        prefix = Prefix(tmp_path_factory.mktemp("e") / "env").venv()
        info = prefix.dist("nvidia-nccl-cu12", "2.27.3")
        (info / "RECORD").write_bytes(b"a.so" + content)
        (info / "METADATA").write_bytes(b"Requires-Dist: nvidia-" + content)
        found, problems = installed(prefix)
        libraries(found["nvidia-nccl-cu12"], problems)
