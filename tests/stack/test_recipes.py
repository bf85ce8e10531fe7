"""Loading recipes: that each can be read, and what the interpreter makes of each kind of step.

The libraries are small ones compiled here, under the names of NVIDIA's. Nothing of a framework is
needed: what its wheels really load is compared with a real import in tests/corpus.
"""

import json
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
from facts import PREFIX, SITE, environment
from synth import Prefix

from cudriver.stack import recipes
from cudriver.stack.collect import catalogue, collect, frameworks, imports
from cudriver.stack.collect.imports import applies
from cudriver.stack.collect.records import Owners
from cudriver.stack.loader import Loader, Search
from cudriver.stack.model import Framework, every
from cudriver.stack.recipes import parse
from cudriver.stack.rootfs import Root
from cudriver.stack.rules import judge, verdict
from elfkit import compile_c

ALL = {recipe.name: recipe for recipe in map(parse, recipes.listed())}
ABI = f".cpython-{sys.version_info[0]}{sys.version_info[1]}-x86_64-linux-gnu.so"


@pytest.fixture
def venv(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return Prefix(root / "env", root=root, python=python).venv()


def facts(prefix, **variables):
    return collect(prefix.inside, root=str(prefix.root), environ=variables, probe_driver=False)


def library(prefix, path, *needs, symbol=None, flags=()):
    """A library at `path` in site-packages; `needs` are libraries that it is linked to."""
    target = prefix.site / path
    target.parent.mkdir(parents=True, exist_ok=True)
    name = "x" + "".join(c if c.isalnum() else "_" for c in target.name)
    soname = [] if target.name.endswith(ABI) else [f"-Wl,-soname,{target.name}"]
    source = f"int {symbol or name};"
    linked = ("-nostdlib", "-Wl,--no-as-needed", *map(str, needs))
    compile_c(target, source, *linked, *soname, *flags)
    target.with_name(target.name + ".c").unlink(missing_ok=True)
    return target


def outside(prefix, name):
    """A library to link to that no process finds."""
    target = prefix.root / "build" / name
    if not target.exists():
        target.parent.mkdir(exist_ok=True)
        compile_c(target, f"int {name.partition('.')[0]};", "-nostdlib", f"-Wl,-soname,{name}")
    return target


def model(monkeypatch, **fields):
    """A recipe of ours in place of all others, for a framework `net`."""
    recipe = {"name": "net", "distributions": ["net"], "module": "net", "source": "here", **fields}
    data = json.loads(json.dumps(recipe))
    monkeypatch.setattr(frameworks, "listed", lambda: [data])


def loads(found, name="net"):
    return [os.path.basename(path) for path in found.framework(name).loads]


def findings(found, *severities):
    """Those about libraries and packages."""
    wanted = severities or ("error", "warning")
    return [f for f in judge(found) if f.severity in wanted and f.rule.startswith(("CU3", "CU4"))]


class TestFiles:
    @pytest.mark.parametrize("recipe", ALL.values(), ids=ALL)
    def test_each_says_what_it_was_read_from(self, recipe):
        assert any(character.isdigit() for character in recipe.source), "no release is named"
        assert recipe.distributions
        assert recipe.module.replace(".", "").isidentifier()
        for name in recipe.after:
            assert name in ALL

    def test_the_file_has_the_name(self):
        folder = os.path.join(recipes.FOLDER, "loading")
        names = {name.removesuffix(".json") for name in os.listdir(folder)}
        assert names == set(ALL)

    def test_pytorchs_comes_first(self):
        """Others are imported after it."""
        first, *rest = ALL
        assert (first, rest) == ("torch", sorted(rest, key="{}.json".format))

    def test_no_distribution_has_two(self):
        every = [name for recipe in ALL.values() for name in recipe.distributions]
        assert len(every) == len(set(every))

    @pytest.mark.parametrize(
        ("change", "complaint"),
        [
            ({"steps": [{"load": ["a"], "open": ["b"]}]}, "needs one of load, open, find, builtin"),
            ({"steps": [{"fails": "use"}]}, "needs one of"),
            ({"steps": [{"load": ["a"], "fails": "maybe"}]}, "fails is one of"),
            ({"steps": [{"load": ["a"], "when": "never"}]}, "when is one of"),
            ({"steps": [{"lode": ["a"]}]}, "no field 'lode'"),
            ({"colour": "red"}, "no field 'colour'"),
            ({"rescues": [{"after": ["torch"]}]}, "needs 'say'"),
        ],
    )
    def test_a_mistake_is_told(self, change, complaint):
        good = {"name": "net", "distributions": ["net"], "module": "net", "source": "here"}
        with pytest.raises(ValueError, match=complaint):
            parse({**good, **change})


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A library that loads anywhere."""
    return compile_c(tmp_path_factory.mktemp("lib") / "x.so", "int x;", "-nostdlib").read_bytes()


class TestEach:
    """Every recipe on an environment of its own files, all of them sound, and then with one that
    the loader refuses.
    """

    NAMES = tuple(name for name in ALL if name != "torch")

    @staticmethod
    def make(venv, recipe, sound):
        """The environment; returns (step, file) of all that the steps load by path."""
        stated = recipe.distributions[0]
        dist = {"jax": "jax-cuda12-plugin", "cupy": "cupy-cuda12x"}.get(recipe.name, stated)
        version = {"torchvision": "0.23.0", "cupy": "14.2.0"}.get(recipe.name, "2.8.0")
        venv.dist(dist.replace("*", "12"), version)
        if recipe.name == "jax":
            venv.dist("jaxlib", version)
        (venv.site / recipe.package).mkdir(parents=True, exist_ok=True)
        if recipe.after:
            venv.torch("2.8.0", "12.8", pins={})
        made = []
        for step in recipe.steps:
            if step.within and "*" not in step.within:
                (venv.site / step.within).parent.mkdir(parents=True, exist_ok=True)
                (venv.site / step.within).touch()
            for pattern in step.load:
                name = pattern.replace("{so}", ABI).replace("{major}", "12").replace("*", "128")
                name = name.replace("[0-9]", "8")
                file = venv.site / name
                file.parent.mkdir(parents=True, exist_ok=True)
                if not file.exists():
                    file.write_bytes(sound)
                    made.append((step, file))
        return made

    @pytest.mark.parametrize("name", NAMES)
    def test_it_is_found_and_modelled(self, venv, sound, name):
        recipe = ALL[name]
        self.make(venv, recipe, sound)
        found = facts(venv)
        framework = found.framework(name)
        if framework is None:
            assert recipe.shown == "cuda"
            return
        assert framework.modelled
        assert (framework.module, framework.blocked) == (recipe.module, None)
        # What is not among its files is not found; nothing else is wrong.
        assert {f.rule for f in findings(found)} <= {"CU305", "CU306"}

    @pytest.mark.parametrize("name", NAMES)
    def test_a_file_that_the_loader_refuses(self, venv, sound, name):
        """Whose failure ends the import, or every use, is an error; no other is."""
        recipe = ALL[name]
        for step, file in self.make(venv, recipe, sound):
            file.write_bytes(b"not a library" * 10)
            found = facts(venv)
            told = [f for f in findings(found) if (f.because or "").endswith(f"/{file.name}")]
            file.write_bytes(sound)
            framework = found.framework(name)
            followed = framework is None or applies(step, framework)
            first = step.choose == "all" or file.match(step.load[0].replace("{so}", ABI))
            steps = [s for s in recipe.steps if framework is None or applies(s, framework)]
            if any(file.name in s.find and s.when == "import" for s in steps):
                assert [f.severity for f in told] == ["error"], file  # pathfinder's RuntimeError
            elif not followed or not first:
                assert told == []
            elif step.fails in ("import", "use"):
                assert [f.severity for f in told] == ["error"], file
            elif step.fails == "nothing":  # a later step may need it
                assert len(told) <= 1
            else:
                assert [f.severity for f in told] in ([], ["warning"]), file


class TestSteps:
    def test_files_in_order_and_by_the_pythons_own_name(self, venv, monkeypatch):
        model(monkeypatch, steps=[{"load": ["net/_C{so}"]}])
        venv.dist("net", "1.0")
        gone = outside(venv, "libcudart.so.12")
        library(venv, f"net/_C{ABI}", gone)
        library(venv, "net/_C.cpython-39-x86_64-linux-gnu.so", outside(venv, "libcublas.so.12"))
        (finding,) = findings(facts(venv))
        assert "libcudart.so.12" in finding.title
        assert (finding.rule, finding.severity, finding.subject) == ("CU305", "error", "net")

    @pytest.mark.parametrize("name", ["_C.cpython-39-x86_64-linux-gnu.so", "_C.txt", "_C.pyd"])
    def test_an_extension_of_another_python_is_none(self, venv, monkeypatch, name):
        model(monkeypatch, steps=[{"load": ["net/_C{so}"], "absent": "import"}])
        venv.dist("net", "1.0")
        file = library(venv, f"net/{name}")
        code = f"import sys; sys.path = [{str(file.parent)!r}]; import _C"
        said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert "No module named '_C'" in said.stderr
        (finding,) = findings(facts(venv), "error")
        assert finding.title.startswith("_C")

    @pytest.mark.parametrize("first", range(3))
    def test_the_extension_that_python_takes(self, venv, monkeypatch, first):
        """Of those in one folder, and that folder is not the first of sys.path."""
        model(monkeypatch, steps=[{"load": ["net/_C{so}"]}])
        venv.dist("net", "1.0")
        later = venv.root / "later/net"
        later.mkdir(parents=True)
        for number, ending in enumerate([ABI, ".abi3.so", ".so"][first:]):
            gone = outside(venv, f"libcudart.so.{number}")
            shutil.move(library(venv, f"net/_C{ending}", gone), later)
        code = f"import sys; sys.path = [{str(later)!r}, *sys.path]; import _C"
        said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr
        (finding,) = findings(facts(venv, PYTHONPATH="/later"))
        assert finding.predicts in said
        assert "libcudart.so.0" in finding.predicts

    def test_of_two_that_are_missing_the_first_is_told(self, venv, monkeypatch):
        model(monkeypatch, steps=[{"load": ["net/a.so"]}])
        venv.dist("net", "1.0")
        library(venv, "net/a.so", *(outside(venv, f"lib{n}.so.12") for n in ("cublas", "cufft")))
        assert [fault.name for fault in facts(venv).load_faults] == ["libcublas.so.12"]

    def test_a_refused_file_has_an_owner_and_no_copy_elsewhere(self, venv, monkeypatch):
        """The loader looked, and found the wrong one."""
        path = "nvidia/cublas/lib/libcublas.so.12"
        model(monkeypatch, steps=[{"load": ["net/a.so"]}])
        made = library(venv, path)
        wrong = outside(venv, "libcublas.so.12")
        library(venv, "net/a.so", wrong, flags=["-Wl,-rpath,$ORIGIN"])
        venv.dist("net", "1.0")
        venv.dist("net-z", "1.0", files={"net/libcublas.so.12": b"not a library" * 10})
        venv.dist("a-cublas", "12.8.4.1", files={path: made})
        found = facts(venv)
        assert found.distributions[0].name == "a-cublas"
        (fault,) = found.load_faults
        assert (fault.kind, fault.owner, fault.own_copy) == ("rejected", "net-z", None)

    def test_one_that_does_not_tell_its_build_is_shown_where_it_uses_cuda(self, venv, monkeypatch):
        """By what it loads, or by what it lacks; that another lacks something says nothing."""
        both = [
            {"name": name, "distributions": [name], "module": name, "source": "here",
             "shown": "cuda", "steps": [{"load": [f"{name}/a.so"], "fails": "feature"}]}
            for name in ("idle", "uses", "lacks", "other")
        ]  # fmt: skip
        monkeypatch.setattr(frameworks, "listed", lambda: both)
        for name in ("idle", "uses", "lacks", "other"):
            venv.dist(name, "1.0")
        library(venv, "idle/a.so")
        library(venv, "nvidia/lib/libcufft.so.11")
        needs = venv.site / "nvidia/lib/libcufft.so.11"
        library(venv, "uses/a.so", needs, flags=["-Wl,-rpath,$ORIGIN/../nvidia/lib"])
        for name in ("lacks", "other"):
            library(venv, f"{name}/a.so", outside(venv, f"libcublas.so.{len(name)}"))
        assert [f.name for f in facts(venv).frameworks] == ["uses", "lacks", "other"]

    @pytest.mark.parametrize(
        ("fails", "severity"),
        [("import", "error"), ("use", "error"), ("feature", "warning"), ("nothing", None)],
    )
    def test_what_a_failure_means(self, venv, monkeypatch, fails, severity):
        model(monkeypatch, steps=[{"load": ["net/a.so"], "when": "use", "fails": fails}])
        venv.dist("net", "1.0")
        library(venv, "net/a.so", outside(venv, "libcublas.so.12"))
        assert [f.severity for f in findings(facts(venv))] == ([severity] if severity else [])

    @pytest.mark.parametrize(
        ("other", "severity"),
        [(None, "error"), ("cupy-net>=1", "warning"), ("cupy-net; extra == 'x'", "warning")],
    )
    def test_a_package_that_another_may_use_in_part(self, venv, monkeypatch, other, severity):
        """CuPy cannot compile a kernel without NVRTC; who requires it may never do so."""
        step = {"find": ["libnvrtc.so.12"], "when": "use", "fails": "use", "alone": True}
        step["purpose"] = "compile a kernel"
        model(monkeypatch, steps=[step], distributions=["cupy-net"])
        venv.dist("cupy-net", "1.0")
        if other:
            venv.dist("other", "1.0", [other])
        (finding,) = findings(facts(venv))
        assert finding.severity == severity
        assert finding.evidence[-1].value == "net needs it to compile a kernel"

    def test_what_cupy_and_numba_need_nvrtc_for(self, venv):
        """Much of either works without: arrays, copies, cuBLAS."""
        venv.dist("cupy-cuda12x", "14.2.0")
        (finding,) = findings(facts(venv))
        assert finding.evidence[-1].value.startswith("cupy needs it to compile kernels: for ")
        venv.dist("numba-cuda", "0.30.4")
        told = [f.evidence[-1].value for f in findings(facts(venv)) if f.subject == "numba-cuda"]
        assert set(told[:2]) == {"numba.cuda needs it to compile a kernel"}

    def test_numba_cuda_takes_the_place_of_numbas_own_target(self, venv):
        """What numba itself would find outside is not asked for then."""
        venv.dist("numba", "0.61.2")
        folder = venv.root / "usr/local/cuda/lib64"
        library(venv, "elsewhere/libcudart.so.12")
        folder.mkdir(parents=True)
        (venv.site / "elsewhere/libcudart.so.12").rename(folder / "libcudart.so.12")
        found = facts(venv, LD_LIBRARY_PATH="/usr/local/cuda/lib64")
        assert loads(found, "numba") == ["libcudart.so.12"]
        venv.dist("numba-cuda", "0.30.4", files={"numba_cuda/__init__.py": b""})
        found = facts(venv, LD_LIBRARY_PATH="/usr/local/cuda/lib64")
        numba = found.framework("numba")
        assert numba is None or numba.loads == []

    def test_onnxruntime_opens_its_shared_part_for_all(self, venv):
        """At import and globally: its CUDA part is linked to nothing that has the symbol."""
        venv.dist("onnxruntime-gpu", "1.22.0")
        info = venv.site / "onnxruntime/capi/build_and_package_info.py"
        info.parent.mkdir(parents=True)
        info.write_text("__version__ = '1.22.0'\ncuda_version = '12.8'\n")
        library(venv, f"onnxruntime/capi/onnxruntime_pybind11_state{ABI}")
        folder = "onnxruntime/capi/libonnxruntime_providers"
        shared = library(venv, f"{folder}_shared.so", symbol="Provider_GetHost")
        target = venv.site / f"{folder}_cuda.so"
        source = "extern int Provider_GetHost; int *at = &Provider_GetHost;"
        compile_c(target, source, "-nostdlib", "-Wl,-soname,libonnxruntime_providers_cuda.so")
        assert [f.rule for f in findings(facts(venv)) if "Provider_GetHost" in f.title] == []
        shared.unlink()
        (fault,) = [f for f in facts(venv).load_faults if f.kind == "symbol"]
        assert fault.name == "Provider_GetHost"

    def test_what_a_use_loads_is_not_there_when_another_imports_it(self, venv, monkeypatch):
        """A program that imports `late` has imported `net`, and need not have used it."""
        used = {"load": ["net/libcublas.so.12"], "when": "use"}
        late = {"after": ["net"], "steps": [{"open": ["libcublas.so.12"]}]}
        both = [
            {"name": name, "distributions": [name], "module": name, "source": "here", **more}
            for name, more in (("net", {"steps": [used]}), ("late", late))
        ]
        venv.dist("net", "1.0")
        venv.dist("late", "1.0")
        library(venv, "net/libcublas.so.12")
        monkeypatch.setattr(frameworks, "listed", lambda: both)
        (finding,) = findings(facts(venv))
        assert (finding.rule, finding.subject) == ("CU305", "late")

    def test_an_import_ends_at_its_first_fault(self, venv, monkeypatch):
        model(monkeypatch, steps=[{"load": ["net/a.so"]}, {"load": ["net/b.so"]}])
        venv.dist("net", "1.0")
        library(venv, "net/a.so", outside(venv, "libcublas.so.12"))
        library(venv, "net/b.so", outside(venv, "libcufft.so.11"))
        (finding,) = findings(facts(venv))
        assert "libcublas.so.12" in finding.title

    @pytest.mark.parametrize(
        ("cuda", "cudnn", "named"),
        [("12.8", "9.10.2", ["a12", "b9", "c"]), ("12.8", None, ["a12", "c"]), (None, None, ["c"])],
    )
    def test_the_majors_in_a_name(self, cuda, cudnn, named):
        of = Framework("net", "1.0", cuda, cudnn_built=cudnn)
        importer = imports.Importer(Loader(), environment(), None)
        assert importer.named(["a{major}", "b{cudnn}", "c"], of) == named

    @pytest.mark.parametrize(
        ("good", "taken", "tried"), [("b", "b", "ab"), ("ac", "a", "a"), ("", "a", "abc")]
    )
    def test_the_first_that_loads_or_the_first_of_all(self, good, taken, tried):
        seen = []

        def load(name):
            seen.append(name)
            return SimpleNamespace(name=name, error=None if name in good else "no")

        (chosen,) = imports._until_one_loads(map(load, "abc"))
        assert (chosen.name, "".join(seen)) == (taken, tried)
        assert imports._until_one_loads([]) == []

    @pytest.mark.parametrize(
        ("versions", "cuda", "made"),
        [
            ("", "", True), (">=2", "", True), (">=3", "", False), ("", "<13", True),
            ("", "<12", False), (">=2", ">=13", False),
        ],
    )  # fmt: skip
    def test_whose_step_it_is(self, versions, cuda, made):
        step = recipes.Step(load=["a"], versions=versions, cuda=cuda)
        assert applies(step, Framework("net", "2.1", "12.8")) is made
        assert applies(step, Framework("net", "2.1", None)) is (versions != ">=3")

    def test_a_part_that_is_not_there(self, venv, monkeypatch):
        step = {"load": ["net/a.so"]}
        venv.dist("net", "1.0")
        model(monkeypatch, steps=[step])
        assert findings(facts(venv)) == []
        model(monkeypatch, steps=[{**step, "absent": "import"}])
        (finding,) = findings(facts(venv))
        assert finding.severity == "error"

    @pytest.mark.parametrize(
        ("sound", "taken", "blamed"),
        [("46", "6", None), ("45", "5", None), ("4", "4", None), ("", None, "libcublas.so.16")],
    )
    def test_the_first_that_loads_from_the_last_name_back(
        self, venv, monkeypatch, sound, taken, blamed
    ):
        """TorchCodec has a library for each FFmpeg; where none loads, one finding says so."""
        model(monkeypatch, steps=[{"load": ["net/core[0-9].so"], "choose": "loads"}])
        venv.dist("net", "1.0")
        for number in "456":
            ours = library(venv, f"nvidia/lib/libcublas.so.1{number}") if number in sound else None
            needs = ours or outside(venv, f"libcublas.so.1{number}")
            library(venv, f"net/core{number}.so", needs, flags=["-Wl,-rpath,$ORIGIN/../nvidia/lib"])
        found = facts(venv)
        assert loads(found) == ([f"libcublas.so.1{taken}"] if taken else [])
        assert [f.title.partition(",")[0] for f in findings(found, "error")] == (
            [blamed] if blamed else []
        )

    def test_the_build_for_the_nearest_cuda(self, venv, monkeypatch):
        two = [data for data in recipes.listed() if data["name"] in ("torch", "bitsandbytes")]
        monkeypatch.setattr(frameworks, "listed", lambda: two)
        venv.torch("2.8.0+cu128", "12.8", pins={})
        venv.dist("bitsandbytes", "0.50.0")
        for cuda in ("118", "121", "126", "130"):
            name = f"libcudart.so.{cuda}"
            library(venv, f"bitsandbytes/libbitsandbytes_cuda{cuda}.so", outside(venv, name))
        (finding,) = findings(facts(venv))
        assert "libbitsandbytes_cuda126.so" in finding.evidence[0].file
        assert imports._nearest(["/x_cuda121.so", "/x_cuda126.so"], "12.4") == ["/x_cuda121.so"]
        assert imports._nearest(["/x_cuda121.so", "/x_cuda126.so"], "12.0") == ["/x_cuda121.so"]

    @pytest.mark.parametrize("torch", ["12.8", "12.0"])
    def test_no_build_for_that_major(self, torch):
        files = [f"/net/libnet_cuda{digits}.so" for digits in ("118", "130", "")]
        assert imports._nearest(files, torch) == []
        assert imports._nearest([*files, "/net/libnet_cuda126.so"], torch) == [
            "/net/libnet_cuda126.so"
        ]

    @pytest.mark.parametrize("by", ["libnet.so", "libn*.so", "net*.so"])
    def test_opened_by_a_library_whose_path_counts(self, venv, monkeypatch, by):
        """By its SONAME or by its file's name; what is not mapped opens nothing."""
        step = {"open": ["libcublas.so.12"], "by": by, "when": "use", "fails": "use"}
        model(monkeypatch, steps=[{"load": ["net/libnet.so"]}, step])
        venv.dist("net", "1.0")
        flags = ("-Wl,--enable-new-dtags", "-Wl,-rpath,$ORIGIN/../nvidia/cublas/lib")
        library(venv, "net/libnet.so", flags=flags)
        if by == "net*.so":
            assert facts(venv).resolutions == []
            return
        (finding,) = findings(facts(venv))
        assert finding.severity == "error"
        library(venv, "nvidia/cublas/lib/libcublas.so.12")
        found = facts(venv)
        assert findings(found) == []
        assert loads(found) == ["libcublas.so.12"]

    def test_releases_and_builds(self, venv, monkeypatch):
        steps = [
            {"load": ["net/a.so"], "versions": ">=2"},
            {"load": ["net/b.so"], "versions": "<2", "cuda": ">=13"},
            {"load": ["net/c{major}.so"], "versions": "<2", "cuda": "<13"},
        ]
        model(monkeypatch, steps=steps, build={"cuda": [{"name": "-cu(\\d+)\\Z"}]},
              distributions=["net-cu*"])  # fmt: skip
        venv.dist("net-cu12", "1.5")
        (venv.site / "net").mkdir()
        for name in ("a", "b", "c12"):
            library(venv, f"net/{name}.so", outside(venv, f"libcudart.so.{ord(name[0])}"))
        (finding,) = findings(facts(venv))
        assert finding.evidence[0].file.endswith("/net/c12.so")

    def test_what_it_is_imported_after(self, venv, monkeypatch):
        """The libraries of the other are mapped; where that fails, nothing more is said."""
        recipe = {"name": "kin", "distributions": ["kin"], "module": "kin", "source": "here",
                  "after": ["net"], "steps": [{"load": ["kin/a.so"]}]}  # fmt: skip
        net = {**recipe, "name": "net", "distributions": ["net"], "module": "net", "after": [],
               "steps": [{"load": ["net/libnet.so"]}]}  # fmt: skip
        monkeypatch.setattr(frameworks, "listed", lambda: [net, recipe])
        venv.dist("net", "1.0")
        venv.dist("kin", "1.0")
        base = library(venv, "net/libnet.so")
        library(venv, "kin/a.so", base)
        assert findings(facts(venv)) == []
        library(venv, "net/libnet.so", outside(venv, "libcublas.so.12"))
        found = facts(venv)
        (finding,) = findings(found)
        assert (finding.subject, found.framework("kin").blocked) == ("net", "net")
        assert (found.unsure, found.problems) == ([], [])

    @pytest.mark.parametrize("driver", [(), ("libcuda.so.1",)])
    def test_what_a_program_can_do_before(self, venv, monkeypatch, driver):
        """Whether or not the driver's library, which the same file needs, is on this machine."""
        say = "call net.prepare() before."
        rescue = {"say": say, "steps": [{"load": ["nvidia/cublas/lib/libcublas.so.12"]}]}
        step = {"load": ["net/a.so"], "when": "use", "fails": "feature"}
        model(monkeypatch, steps=[step], rescues=[rescue])
        venv.dist("net", "1.0")
        needed = [outside(venv, name) for name in ("libcublas.so.12", *driver)]
        library(venv, "net/a.so", *needed)
        (finding,) = findings(facts(venv))
        assert finding.severity == "warning"
        library(venv, "nvidia/cublas/lib/libcublas.so.12")
        found = facts(venv)
        (note,) = [f for f in judge(found) if f.rule == "CU305"]
        assert (note.severity, note.fix) == ("note", [say])
        assert loads(found) == ["libcublas.so.12"]

    def test_the_first_rescue_of_this_release_that_helps_is_told(self, venv, monkeypatch):
        steps = [{"load": ["nvidia/cublas/lib/libcublas.so.12"]}]
        rescues = [
            {"say": "vain", "steps": [{"load": ["net/b.so"]}]},
            {"say": "old", "versions": "<1", "steps": steps},
            {"say": "new", "versions": ">=1", "steps": steps},
            {"say": "any", "steps": [*steps, {"load": ["nvidia/curand/lib/libcurand.so.10"]}]},
        ]
        step = {"load": ["net/a.so"], "when": "use", "fails": "use"}
        model(monkeypatch, steps=[step], rescues=rescues)
        venv.dist("net", "1.0")
        library(venv, "nvidia/cublas/lib/libcublas.so.12")
        for name in "ab":
            gone = outside(venv, f"libcu{'blas' if name == 'a' else 'fft'}.so.12")
            library(venv, f"net/{name}.so", gone)
        library(venv, "nvidia/curand/lib/libcurand.so.10")
        found = facts(venv)
        assert [fault.rescue for fault in found.load_faults] == ["new"]
        assert loads(found) == ["libcublas.so.12"]

    @pytest.mark.parametrize("there", [True, False])
    def test_what_is_to_be_imported_before_has_to_be_there(self, venv, monkeypatch, there):
        names = ("net", "kin")
        both = [
            {"name": name, "distributions": [name], "module": name, "source": "here"}
            for name in names
        ]
        both[0]["steps"] = [{"load": ["net/a.so"], "when": "use", "fails": "use"}]
        both[0]["rescues"] = [{"say": "import kin before.", "after": ["kin"]}]
        both[1]["steps"] = [{"load": ["nvidia/cublas/lib/libcublas.so.12"]}]
        monkeypatch.setattr(frameworks, "listed", lambda: both)
        for name in names if there else names[:1]:
            venv.dist(name, "1.0")
        library(venv, "net/a.so", outside(venv, "libcublas.so.12"))
        library(venv, "nvidia/cublas/lib/libcublas.so.12")
        (fault,) = facts(venv).load_faults
        assert fault.rescue == ("import kin before." if there else None)
        if not there:  # nor does one help that does not load what is missing
            both[0]["rescues"] = [{"say": "in vain", "steps": [{"load": ["none"]}]}]
            assert facts(venv).load_faults[0].rescue is None

    def test_what_works_by_itself_needs_no_rescue(self, venv, monkeypatch):
        steps = [{"load": [f"net/{name}.so"], "when": "use", "fails": "use"} for name in "ab"]
        rescue = {"say": "say", "steps": [{"load": ["nvidia/cublas/lib/libcublas.so.12"]}]}
        model(monkeypatch, steps=steps, rescues=[rescue])
        venv.dist("net", "1.0")
        library(venv, "net/a.so")
        library(venv, "net/b.so", outside(venv, "libcublas.so.12"))
        library(venv, "nvidia/cublas/lib/libcublas.so.12")
        found = facts(venv)
        assert [fault.rescue for fault in found.load_faults] == ["say"]
        assert found.unsure == []

    @pytest.mark.parametrize("there", [True, False])
    def test_a_file_of_ours_where_nobody_looks(self, venv, monkeypatch, there):
        path = "nvidia/cublas/lib/libcublas.so.12"
        model(monkeypatch, steps=[{"load": ["net/a.so"]}])
        venv.dist("net", "1.0")
        library(venv, "net/a.so", outside(venv, "libcublas.so.12"))
        made = library(venv, path)
        venv.dist("nvidia-cublas-cu12", "12.8.4.1", files={path: made})
        if not there:
            made.unlink()
        (fault,) = facts(venv).load_faults
        assert (fault.own_copy or "").endswith(path) is there

    def test_who_else_looked_into_its_folder_does_not_count(self, venv, monkeypatch):
        """Another library's search, and one of its own that found it."""
        path = "nvidia/cublas/lib/libcublas.so.12"
        names = ("b", "c", "a")
        steps = [{"load": [f"net/{name}.so"], "fails": "nothing"} for name in names[:2]]
        model(monkeypatch, steps=[*steps, {"load": ["net/a.so"], "when": "use"}])
        made = library(venv, path)
        away = outside(venv, "libcufft.so.11")
        flags = ["-Wl,--enable-new-dtags", "-Wl,-rpath,$ORIGIN/../nvidia/cublas/lib"]
        library(venv, "net/b.so", made, away, flags=flags)
        library(venv, "net/c.so", away, flags=flags)
        library(venv, "net/a.so", made)
        venv.dist("net", "1.0")
        venv.dist("nvidia-cublas-cu12", "12.8.4.1", files={path: made})
        told = [f.own_copy for f in facts(venv).load_faults if f.name == "libcublas.so.12"]
        assert [os.path.basename(own or "") for own in told] == ["libcublas.so.12"]

    def test_a_package_for_the_cpu_too(self, venv, monkeypatch):
        steps = [
            {"open": [name], "when": "use", "fails": "feature"}
            for name in ("libcublas.so.12", "libcudnn.so.9")
        ]
        model(monkeypatch, steps=steps, cpu=True)
        venv.dist("net", "1.0")
        found = facts(venv)
        assert findings(found) == []
        assert "runs on the CPU" in next(f.title for f in judge(found) if f.rule == "CU305")


NVVM = {
    "find": ["libnvvm.so.4", "libnvvm.so"],
    "when": "use",
    "fails": "use",
    "places": ["nvidia/cu13/lib", "nvidia/cuda_nvcc/nvvm/lib64"],
    "anchors": ["nvvm/lib64"],
}


class TestParts:
    def test_what_is_mapped_already_is_told_as_such(self, venv, monkeypatch):
        path = "nvidia/cublas/lib/libcublas.so.12"
        model(monkeypatch, steps=[{"load": [path]}, {"open": ["libcublas.so.12"]}])
        venv.dist("net", "1.0")
        library(venv, path)
        found = [(r.how, r.rule) for r in facts(venv).resolutions]
        assert found == [("preload", "absolute"), ("dlopen", "loaded")]

    @pytest.mark.parametrize("fails", ["nothing", "use"])
    def test_nvrtcs_builtins_where_somebody_uses_nvrtc(self, venv, monkeypatch, fails):
        """JAX loads nvrtc for cuDNN, should that want it."""
        step = {"load": ["nvidia/cuda_nvrtc/lib/libnvrtc.so.12"], "when": "use", "fails": fails}
        model(monkeypatch, steps=[step])
        venv.dist("net", "1.0")
        nvrtc = library(venv, "nvidia/cuda_nvrtc/lib/libnvrtc.so.12")
        venv.dist("nvidia-cuda-nvrtc-cu12", "12.8.93",
                  files={"nvidia/cuda_nvrtc/lib/libnvrtc.so.12": nvrtc})  # fmt: skip
        told = [f.rule for f in findings(facts(venv), "error")]
        assert told == (["CU306"] if fails == "use" else [])

    @pytest.mark.parametrize("first", ["nothing", "use"])
    def test_nvrtcs_builtins_where_only_one_of_two_uses_nvrtc(self, venv, monkeypatch, first):
        """Both load the same file, in either order."""
        path = "nvidia/cuda_nvrtc/lib/libnvrtc.so.12"
        both = [
            {"name": name, "distributions": [name], "module": name, "source": "here",
             "steps": [{"load": [path], "when": "use", "fails": fails}]}
            for name, fails in zip("ab", (first, "use" if first == "nothing" else "nothing"),
                                   strict=True)
        ]  # fmt: skip
        monkeypatch.setattr(frameworks, "listed", lambda: both)
        for name in "ab":
            venv.dist(name, "1.0")
        venv.dist("nvidia-cuda-nvrtc-cu12", "12.8.93", files={path: library(venv, path)})
        assert [f.rule for f in findings(facts(venv), "error")] == ["CU306"]

    @pytest.mark.parametrize(
        ("number", "version", "builtins"),
        [
            ("12", None, []),
            ("12", "12.8.93", ["12.8"]),
            ("11.2", None, []),  # the SONAME of 11.2 to 11.8: alone it does not tell
            ("11.2", "11.2.152", ["11.2"]),
            ("11.2", "11.8.89", ["11.8"]),
        ],
    )
    def test_the_builtins_are_of_nvrtcs_own_version(
        self, venv, monkeypatch, number, version, builtins
    ):
        path = f"nvidia/cuda_nvrtc/lib/libnvrtc.so.{number}"
        model(monkeypatch, steps=[{"load": [path], "when": "use", "fails": "use"}])
        venv.dist("net", "1.0")
        made = library(venv, path)
        if version:
            venv.dist(f"nvidia-cuda-nvrtc-cu{version[:2]}", version, files={path: made})
        found = facts(venv)
        asked = [r.soname for r in found.resolutions if r.soname.startswith("libnvrtc-builtins")]
        assert asked == [f"libnvrtc-builtins.so.{short}" for short in builtins]

    @pytest.mark.parametrize("listed", ["link", "file"])
    def test_whose_nvrtc_it_is_where_links_lead_to_it(self, venv, monkeypatch, listed):
        """uv can make links into its cache; RECORD may list either name."""
        path, far = "nvidia/cuda_nvrtc/lib/libnvrtc.so.12", "store/libnvrtc.so.12"
        model(monkeypatch, steps=[{"load": [path], "when": "use", "fails": "use"}])
        venv.dist("net", "1.0")
        made = library(venv, path)
        (venv.site / "store").mkdir()
        made.rename(venv.site / far)
        made.symlink_to(f"../../../{far}")
        name = path if listed == "link" else far
        venv.dist("nvidia-cuda-nvrtc-cu12", "12.8.93", files={name: venv.site / far})
        found = facts(venv)
        assert found.resolutions[-1].soname == "libnvrtc-builtins.so.12.8"
        assert [x.provided_by for x in found.libraries] == ["nvidia-cuda-nvrtc-cu12 12.8.93"]


class TestCatalogue:
    @pytest.mark.parametrize(
        ("rule", "entry", "how", "words"),
        [
            ("rpath", "$ORIGIN/x", "needed", "RPATH of libtorch.so ($ORIGIN/x)"),
            ("runpath", "$ORIGIN", "dlopen", "RUNPATH of libtorch.so ($ORIGIN)"),
            ("rpath", "$ORIGIN/x", "LD_PRELOAD", "LD_PRELOAD"),
            ("absolute", "/a", "needed", "its path"),
            ("absolute", "/a", "preload", "preload by net"),
            ("cache", "/etc/ld.so.cache", "needed", "ld.so.cache"),
            ("LD_LIBRARY_PATH", "/opt", "preload", "LD_LIBRARY_PATH (/opt)"),
            ("LD_LIBRARY_PATH", "", "needed", "LD_LIBRARY_PATH"),
            ("default", "/lib", "needed", "default (/lib)"),
            ("configuration", "/etc/x.conf", "needed", "configuration (/etc/x.conf)"),
            ("loaded", "x", "needed", "loaded"),
        ],
    )
    def test_the_rule_in_words(self, rule, entry, how, words):
        search = Search("libx.so", "/a", rule=rule, entry=entry, owner="/a/libtorch.so")
        assert catalogue._rule(search, Framework("net", "1"), how) == words
        if how == "preload" and rule == "absolute":
            wheels = Framework("net", "1", finds_wheels=True)
            assert catalogue._rule(search, wheels, how) == "cuda-pathfinder"
        search.owner = ""
        assert catalogue._rule(search, Framework("net", "1"), how) == (
            words.replace("libtorch.so", "the program")
        )

    @pytest.mark.parametrize(
        ("kind", "path", "real", "inside"),
        [
            ("venv", f"{SITE}/a.so", "/store/a.so", True),
            ("venv", "/store/a.so", f"{SITE}/a.so", True),
            ("venv", f"{PREFIX}/lib/a.so", "/store/a.so", True),
            ("venv", f"{PREFIX}-2/lib/a.so", f"{PREFIX}-2/lib/a.so", False),
            ("system", f"{PREFIX}/lib/a.so", f"{PREFIX}/lib/a.so", False),
            ("system", f"{SITE}/a.so", f"{SITE}/a.so", True),
        ],
    )
    def test_where_a_file_comes_from(self, kind, path, real, inside):
        root = Root("/")
        of = catalogue.Catalogue(root, environment(kind), Owners(root))
        assert of.origin(path, real) == ("environment" if inside else "system")


class TestPathfinder:
    def test_a_wheel_before_the_system_before_cuda_home(self, venv, monkeypatch):
        model(monkeypatch, steps=[NVVM])
        venv.dist("net", "1.0")
        (finding,) = findings(facts(venv))
        assert (finding.rule, finding.severity) == ("CU305", "error")
        assert finding.title.startswith("libnvvm.so.4, ")
        assert finding.predicts == 'Failure finding "libnvvm.so.4 or libnvvm.so"'

        kit = venv.root / "opt/cuda/nvvm/lib64"
        kit.mkdir(parents=True)
        compile_c(kit / "libnvvm.so.4", "int kit;", "-nostdlib", "-Wl,-soname,libnvvm.so.4")
        home = {"CUDA_HOME": "/opt/cuda"}
        found = facts(venv, **home)
        assert findings(found) == []
        assert found.framework("net").loads == ["/opt/cuda/nvvm/lib64/libnvvm.so.4"]

        system = venv.root / "usr/lib64"
        system.mkdir(parents=True)
        compile_c(system / "libnvvm.so.4", "int sys;", "-nostdlib", "-Wl,-soname,libnvvm.so.4")
        assert facts(venv, **home).framework("net").loads == ["/usr/lib64/libnvvm.so.4"]

        library(venv, "nvidia/cuda_nvcc/nvvm/lib64/libnvvm.so.4")
        (path,) = facts(venv, **home).framework("net").loads
        assert path.endswith("/nvidia/cuda_nvcc/nvvm/lib64/libnvvm.so.4")

    def test_a_wheel_is_loaded_for_a_module_that_needs_it(self, venv, monkeypatch):
        model(monkeypatch, steps=[{"load": ["net/a.so"], "pathfinder": True}])
        venv.dist("net", "1.0")
        library(venv, "net/a.so", outside(venv, "libcublas.so.12"))
        (finding,) = findings(facts(venv))
        assert finding.title.startswith("libcublas.so.12, ")
        library(venv, "nvidia/cublas/lib/libcublas.so.12")
        found = facts(venv)
        assert (findings(found), loads(found)) == ([], ["libcublas.so.12"])

    def test_what_a_wheel_s_library_needs_is_loaded_before_it_once(self, venv, monkeypatch):
        """NVRTC with its builtins from beside it, as the release of pathfinder has it."""
        steps = [{"load": [f"net/{name}.so"], "pathfinder": True} for name in "ab"]
        model(monkeypatch, steps=steps)
        venv.dist("net", "1.0")
        nvrtc = library(venv, "nvidia/cuda_nvrtc/lib/libnvrtc.so.12")
        library(venv, "nvidia/cuda_nvrtc/lib/libnvrtc-builtins.so.12.8")
        fft = library(venv, "nvidia/cufft/lib/libcufft.so.11", nvrtc)
        for name in "ab":
            library(venv, f"net/{name}.so", fft, outside(venv, "libm.so.6"))
        source = venv.site / imports._PATHFINDER
        source.parent.mkdir(parents=True)
        for text, builtins in (
            ("preload_nvrtc_builtins", True),
            ('"libnvrtc.so.12" "libnvrtc-builtins.so.12.8"', True),
            ('"libnvrtc.so.13" "libnvrtc-builtins.so.12.8"', False),
            ('"libnvrtc.so.12" "libnvrtc-builtins.so.12.9"', False),
            ("", False),
        ):
            source.write_text(text)
            found = facts(venv)
            there = ["libnvrtc-builtins.so.12.8"] * builtins
            assert loads(found) == ["libnvrtc.so.12", *there, "libcufft.so.11"]
            assert {r.rule for r in found.resolutions if r.soname == "libcufft.so.11"} == (
                {"absolute"}
            )
            assert {x.found_by for x in found.libraries} == {"cuda-pathfinder"}

    @pytest.mark.parametrize("own", [True, False])
    def test_condas_prefix_is_the_environment_s_own_or_the_active_one(self, venv, monkeypatch, own):
        model(monkeypatch, steps=[NVVM])
        conda = Prefix(venv.root / "conda", root=venv.root, python=venv.python).conda()
        (conda.path / "nvvm/lib64").mkdir(parents=True)
        target = conda.path / "nvvm/lib64/libnvvm.so.4"
        compile_c(target, "int nvvm;", "-nostdlib", "-Wl,-soname,libnvvm.so.4")
        prefix = conda if own else venv
        prefix.dist("net", "1.0")
        elsewhere = {"CONDA_PREFIX": "/elsewhere" if own else "/conda"}
        assert facts(prefix, **elsewhere).framework("net").loads == [
            "/conda/nvvm/lib64/libnvvm.so.4"
        ]

    @pytest.mark.parametrize("name", ["cudf", "cuvs"])
    def test_cufile_is_asked_for_by_libkvikios_module_alone(self, venv, sound, name):
        """conda's packages have no such module: there nobody asks."""
        venv.dist(name, "26.10.0")
        assert findings(facts(venv)) == []
        module = venv.site / "libkvikio/load.py"
        module.parent.mkdir()
        module.write_text('load_nvidia_dynamic_lib("cufile")')
        (finding,) = findings(facts(venv))
        assert (finding.rule, finding.severity) == ("CU305", "error")
        assert finding.title == f"libcufile.so.0, which {name} needs, is not found"
        place = venv.site / "nvidia/cufile/lib"
        place.mkdir(parents=True)
        (place / "libcufile.so.0").write_bytes(sound)
        assert findings(facts(venv)) == []

    def test_condas_cudf_is_looked_at_too(self, venv):
        prefix = Prefix(venv.root / "conda", root=venv.root, python=venv.python).conda()
        prefix.conda_package("cudf", "26.10.0", "cuda12_py311")
        (prefix.site / "cudf").mkdir()
        flags = ("-Wl,--disable-new-dtags", "-Wl,-rpath,$ORIGIN/../../..")
        library(prefix, f"pylibcudf/column{ABI}", outside(prefix, "libcudf.so"), flags=flags)
        (finding,) = findings(facts(prefix))
        assert (finding.severity, finding.title) == (
            "error",
            f"libcudf.so, which column{ABI} needs, is not found",
        )
        shutil.copy(outside(prefix, "libcudf.so"), prefix.path / "lib")
        assert findings(facts(prefix)) == []

    def test_one_that_is_not_loaded_for_lack_of_another_is_no_second_finding(
        self, venv, monkeypatch
    ):
        """cuSOLVER's wheel is there and needs cuBLAS; CuPy's modules find either only if loaded."""
        names = {"libcublas.so.12": "cublas", "libcusolver.so.11": "cusolver"}
        steps = []
        for name, part in names.items():
            place = f"nvidia/{part}/lib"
            steps.append({"find": [name], "places": [place], "when": "use", "fails": "nothing"})
            load = {"load": [f"net/{part}.so"], "when": "use", "fails": "feature"}
            steps.append(load)
            library(venv, f"net/{part}.so", outside(venv, name))
        model(monkeypatch, steps=steps)
        venv.dist("net", "1.0")
        blas = library(venv, "nvidia/cublas/lib/libcublas.so.12")
        flags = ("-Wl,--enable-new-dtags", "-Wl,-rpath,$ORIGIN/../../cublas/lib")
        library(venv, "nvidia/cusolver/lib/libcusolver.so.11", blas, flags=flags)
        assert findings(facts(venv)) == []
        blas.unlink()
        (finding,) = findings(facts(venv))
        assert "libcublas.so.12" in finding.title

    def test_what_ends_an_import_is_not_folded_into_what_ends_a_feature(self, venv, monkeypatch):
        place = "nvidia/cusolver/lib"
        lacking = library(venv, f"{place}/libcusolver.so.11", outside(venv, "libcublas.so.12"))
        library(venv, "net/part.so", outside(venv, "libcublas.so.12"))
        library(venv, "net/core.so", lacking)
        steps = [
            {"load": ["net/part.so"], "fails": "feature"},
            {"find": [lacking.name], "places": [place], "fails": "nothing"},
            {"load": ["net/core.so"]},
        ]
        model(monkeypatch, steps=steps)
        venv.dist("net", "1.0")
        told = {f.severity: f.title for f in every(findings(facts(venv)))}
        assert "libcublas.so.12" in told["warning"]
        assert "libcusolver.so.11" in told["error"]

    def test_the_name_is_that_of_the_frameworks_cuda(self, venv, monkeypatch):
        step = {"find": ["libnvrtc.so.13", "libnvrtc.so.12"], "when": "use", "fails": "use"}
        model(monkeypatch, steps=[step], build={"cuda": [{"tag": r"\+cu(\d+)"}]})
        for cuda in ("12", "13"):
            venv.dist("net", f"1.0+cu{cuda}")
            (finding,) = findings(facts(venv))
            assert f"libnvrtc.so.{cuda}" in finding.title
            shutil.rmtree(venv.site / f"net-1.0+cu{cuda}.dist-info")

    def test_a_file_that_is_no_library(self, venv, monkeypatch):
        step = {"find": ["libdevice.10.bc"], "places": ["nvidia/cu13/nvvm/libdevice"],
                "when": "use", "fails": "use", "says": "Unable to find libdevice"}  # fmt: skip
        model(monkeypatch, steps=[step])
        venv.dist("net", "1.0")
        (finding,) = findings(facts(venv))
        assert finding.predicts == "Unable to find libdevice"
        folder = venv.site / "nvidia/cu13/nvvm/libdevice"
        folder.mkdir(parents=True)
        (folder / "libdevice.10.bc").write_bytes(b"BC")
        assert findings(facts(venv)) == []


class TestNoRecipe:
    def test_it_is_not_counted_as_healthy(self, venv):
        runtime = library(venv, "nvidia/cuda_runtime/lib/libcudart.so.12")
        flags = ("-Wl,-rpath,$ORIGIN/../nvidia/cuda_runtime/lib",)
        target = library(venv, "fast/_fast.so", runtime, flags=flags)
        venv.dist("fast", "1.0", files={"fast/_fast.so": target})
        found = facts(venv)
        assert not found.framework("fast").modelled
        assert loads(found, "fast") == ["libcudart.so.12"]
        assert verdict(judge(found), found) == "unknown"
        venv.dist("triton", "3.2.0")
        (venv.site / "triton").mkdir()
        found = facts(venv)
        assert verdict(judge(found), found) == "consistent"  # --strict leaves it open

    def test_what_its_libraries_open_later_is_asked_for_too(self, venv):
        runtime = library(venv, "nvidia/cuda_nvrtc/lib/libnvrtc.so.12")
        flags = ("-Wl,-rpath,$ORIGIN/../nvidia/cuda_nvrtc/lib",)
        target = library(venv, "fast/_fast.so", runtime, flags=flags)
        venv.dist("fast", "1.0", files={"fast/_fast.so": target})
        path = "nvidia/cuda_nvrtc/lib/libnvrtc.so.12"
        venv.dist("nvidia-cuda-nvrtc-cu12", "12.8.93", files={path: runtime})
        (told,) = [f for f in judge(facts(venv)) if f.rule == "CU306"]
        assert (told.severity, told.predicts) == (
            "note",
            "nvrtc: error: failed to open libnvrtc-builtins.so.12.8.",
        )

    def test_a_package_of_python_alone_that_requires_nvidias_wheels(self, venv):
        venv.dist("fast", "1.0", ["nvidia-cublas-cu12>=12"])
        found = facts(venv)
        assert not found.framework("fast").modelled


@pytest.mark.parametrize("version", ["2.10.0", "2.11.0.dev20260101", "2.11.0a0+abc", "2.11.0rc1"])
def test_a_release_before_its_final_one_is_followed_too(version):
    """As its final one is: PEP 440 has 2.11.0rc1 neither in "<2.11" nor in ">=2.11"."""
    (recipe,) = [r for r in map(parse, recipes.listed()) if r.name == "torchaudio"]
    framework = Framework("torchaudio", version=version)
    (step,) = [step for step in recipe.steps if applies(step, framework)]
    assert ("libtorchaudio*.so" in str(step.load)) == version.startswith("2.11")


@pytest.mark.parametrize(
    ("version", "caller"),
    [("2.20.0", "libtensorflow_framework.so.2"), ("2.21.0", "libtensorflow_cc.so.2")],
)
def test_the_library_of_tensorflow_that_opens_cusolver(venv, version, caller):
    """LD_DEBUG of TensorFlow 2.17 and 2.20 tells the caller; its RUNPATH is what leads there."""
    venv.dist("tensorflow", version)
    build = venv.site / "tensorflow/python/platform/build_info.py"
    build.parent.mkdir(parents=True)
    build.write_text("build_info = {'cuda_version': '12.5.1', 'is_cuda_build': True}\n")
    library(venv, "nvidia/cusolver/lib/libcusolver.so.11")
    leads = "-Wl,-rpath,$ORIGIN/../nvidia/cusolver/lib,--enable-new-dtags"
    parts = [
        library(venv, f"tensorflow/{name}", flags=[leads] if name == caller else ())
        for name in ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2")
    ]
    internal = "tensorflow/python/_pywrap_tensorflow_internal.so"
    library(venv, internal, *parts, flags=["-Wl,-rpath,$ORIGIN/.."])
    found = facts(venv)
    assert "libcusolver.so.11" in loads(found, "tensorflow")
    assert "libcusolver.so.11" not in {fault.name for fault in found.load_faults}
