"""Loading recipes: that each can be read, and what the interpreter makes of each kind of step.

The libraries are small ones compiled here, under the names of NVIDIA's. Nothing of a framework is
needed: what its wheels really load is compared with a real import in tests/corpus.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from importlib.machinery import EXTENSION_SUFFIXES
from types import SimpleNamespace

import packages
import pytest
from facts import PREFIX, SITE, environment
from packages import Packages
from synth import Prefix

from cudriver.stack import facts as known
from cudriver.stack.collect import ask, collect
from cudriver.stack.environment.debian import DebianOwners
from cudriver.stack.environment.records import Owners
from cudriver.stack.facts import Environment, Framework
from cudriver.stack.load import catalogue, imports, recipes
from cudriver.stack.load.imports import applies
from cudriver.stack.load.recipes import parse
from cudriver.stack.loader.search import Loader, Search
from cudriver.stack.roots.rootfs import Root
from cudriver.stack.rules import judge
from elfkit import compile_c

ALL = {recipe.name: recipe for recipe in map(parse, recipes.listed())}
ABI = f".cpython-{sys.version_info[0]}{sys.version_info[1]}-x86_64-linux-gnu.so"
MUSL = ABI.replace("gnu", "musl")
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


@pytest.fixture
def venv(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return Prefix(root / "env", root=root, python=python).venv()


def facts(prefix, **variables):
    return collect(ask(prefix.inside, root=str(prefix.root), environ=variables, probe=False))


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


@pytest.mark.parametrize("name", packages.CASES)
def test_a_case(tmp_path, monkeypatch, name):
    packages.check(tmp_path, monkeypatch, name)


class TestExtensions:
    @pytest.mark.parametrize("name", [f"_C{MUSL}", "_C.cpython-39-x86_64-linux-gnu.so", "_C.pyd"])
    def test_one_of_another_python_is_none(self, tmp_path, monkeypatch, name):
        tree = Packages(tmp_path, monkeypatch)
        tree.recipe({"load": ["net/_C{so}"], "absent": "import"})
        tree.lib(f"net/{name}")
        code = f"import sys; sys.path = [{str(tree.path('SITE/net'))!r}]; import _C"
        said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert "No module named '_C'" in said.stderr
        (finding,) = findings(tree.facts(), "error")
        assert finding.title.startswith("_C")

    def test_the_endings_are_those_of_this_python(self):
        short = sysconfig.get_python_version()
        name = f"python{short}{'t' * FREE_THREADED}"
        made = Environment(
            prefix="/env",
            kind="venv",
            python=f"{short}.1",
            site_packages=[f"/env/lib/{name}/site-packages"],
            platform=os.uname().machine,
        )
        taken = [ending for ending in made.extensions if ending in EXTENSION_SUFFIXES]
        assert taken == EXTENSION_SUFFIXES

    @pytest.mark.skipif(FREE_THREADED, reason="the environment is one of a Python with the GIL")
    @pytest.mark.parametrize("first", range(len(EXTENSION_SUFFIXES)))
    def test_the_one_that_python_takes(self, tmp_path, monkeypatch, first):
        """Of those in one folder, and that folder is not the first of sys.path."""
        python = f"{sys.version_info[0]}.{sys.version_info[1]}"
        tree = Packages(tmp_path, monkeypatch)
        tree.made = Prefix(tmp_path / "env", root=tmp_path, python=python).venv()
        tree.recipe({"load": ["net/_C{so}"]})
        for number, ending in enumerate(EXTENSION_SUFFIXES[first:]):
            tree.lib(f"net/_C{ending}", f"libcudart.so.{number}")
            tree.move(f"SITE/net/_C{ending}", f"later/net/_C{ending}")
        code = f"import sys; sys.path = [{str(tmp_path / 'later/net')!r}, *sys.path]; import _C"
        said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr
        tree.environ(PYTHONPATH="/later")
        (finding,) = findings(tree.facts())
        assert finding.predicts in said
        assert "libcudart.so.0" in finding.predicts


class TestChoices:
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

    @pytest.mark.parametrize(
        ("builds", "torch", "nearest"),
        [
            (["121", "126"], "12.4", ["121"]),
            (["121", "126"], "12.0", ["121"]),
            (["118", "130", ""], "12.8", []),
            (["118", "130", "", "126"], "12.8", ["126"]),
            (["118", "130", "", "126"], "12.0", ["126"]),
        ],
    )
    def test_the_build_for_the_nearest_cuda(self, builds, torch, nearest):
        files = [f"/net/libnet_cuda{digits}.so" for digits in builds]
        wanted = [f"/net/libnet_cuda{digits}.so" for digits in nearest]
        assert imports._nearest(files, torch) == wanted


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

    @pytest.mark.parametrize("recipe", ALL.values(), ids=ALL)
    def test_each_step_is_one_that_can_be_followed(self, recipe):
        ends = {known.IMPORT, known.USE, known.GPU, known.FEATURE, known.NOTHING}
        for step in [*recipe.steps, *(step for each in recipe.rescues for step in each.steps)]:
            assert sum(map(bool, (step.load, step.open, step.find, step.builtin))) == 1
            assert step.when in (known.IMPORT, known.USE)
            assert {step.fails, step.absent} <= ends
            assert step.choose in (recipes.ALL, recipes.FIRST, recipes.LOADS, recipes.NEAREST)


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A library that loads anywhere."""
    return compile_c(tmp_path_factory.mktemp("lib") / "x.so", "int x;", "-nostdlib").read_bytes()


class TestEach:
    """Every recipe on an environment of its own files, all of them sound, and then with one that
    the loader refuses.
    """

    NAMES = tuple(
        name for name, recipe in ALL.items() if name != "torch" and recipe.shown != "never"
    )

    @staticmethod
    def make(venv, recipe, sound):
        """The environment; returns (step, file) of all that the steps load by path."""
        stated = recipe.distributions[0]
        dist = {"jax": "jax-cuda12-plugin", "cupy": "cupy-cuda12x"}.get(recipe.name, stated)
        version = {"torchvision": "0.23.0", "cupy": "14.2.0", "lightgbm": "4.7.0"}.get(
            recipe.name, "2.8.0"
        )
        venv.dist(dist.replace("*", "12"), version)
        if recipe.name == "jax":
            venv.dist("jaxlib", version)
        (venv.site / recipe.package).mkdir(parents=True, exist_ok=True)
        if recipe.after or recipe.shown == "beside":
            venv.torch("2.8.0", "12.8", pins={})
        made = []
        for step in recipe.steps:
            if step.within and "*" not in step.within:
                (venv.site / step.within).parent.mkdir(parents=True, exist_ok=True)
                (venv.site / step.within).touch()
            for pattern in step.load if not step.without else ():  # made by another step
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
            assert recipe.shown in ("cuda", "beside")
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
            elif step.fails in ("import", "use", "gpu"):
                assert [f.severity for f in told] == ["error"], file
            elif step.fails == "nothing":  # a later step may need it
                assert len(told) <= 1
            else:
                assert [f.severity for f in told] in ([], ["warning"]), file

    def test_what_faiss_says_of_a_wheel_and_of_its_file(self, venv, sound):
        """It asks for each wheel by its folder first, and says the same of each file then."""
        TestEach.make(venv, ALL["faiss-gpu"], sound)
        (venv.site / f"faiss/_swigfaiss{ABI}").unlink()
        (found,) = findings(facts(venv), "error")
        assert found.predicts == "cannot import name '_swigfaiss' from"
        (venv.site / "faiss/_swigfaiss.abi3.so").write_bytes(sound)
        file = venv.site / "nvidia/cublas/lib/libcublasLt.so.12"
        file.write_bytes(b"x" * 64)
        (found,) = findings(facts(venv), "error")
        assert found.predicts == "corrupt or incomplete nvidia CUDA wheel?"
        file.unlink()
        (found,) = findings(facts(venv), "error")
        assert found.predicts == "corrupt or incomplete nvidia CUDA wheel?"
        shutil.rmtree(file.parents[1])
        (found,) = findings(facts(venv), "error")
        assert found.predicts == "faiss-gpu installed but nvidia-cublas-cu12 is missing"

    @pytest.mark.parametrize(
        ("name", "lost", "says"),
        [
            ("xgboost", "lib/libxgboost.so", "Cannot find XGBoost Library in the candidate path"),
            ("lightgbm", "lib/lib_lightgbm.so", "Cannot find lightgbm library file in following"),
            ("lightgbm", "lib_lightgbm.so", "Cannot find lightgbm library file in following"),
        ],
    )
    def test_a_package_without_its_library(self, venv, sound, name, lost, says):
        """It may lie elsewhere, too: where conda puts it, or another build. LightGBM looks for it
        in lib since 4, and only there; that of the other release lies beside it.
        """
        TestEach.make(venv, ALL[name], sound)
        (venv.site / name / "libpath.py").write_text("")
        if lost == "lib_lightgbm.so":
            shutil.rmtree(venv.site / "lightgbm-4.7.0.dist-info")
            venv.dist("lightgbm", "3.3.5")
        assert findings(facts(venv), "error") == []
        (venv.site / name / lost).unlink()
        (found,) = findings(facts(venv), "error")
        assert found.predicts.startswith(says)
        for elsewhere in ("../../libxgboost.so", "lightgbm/bin/lib_lightgbm.so"):
            (venv.site / elsewhere).parent.mkdir(parents=True, exist_ok=True)
            (venv.site / elsewhere).write_bytes(sound)
        assert findings(facts(venv), "error") == []

    @pytest.mark.parametrize(
        ("lost", "names"),
        [
            ("libnvJitLink.so.12", "libnvJitLink.so.13 or libnvJitLink.so.12"),
            ("libcublasLt.so.12", "libcublasLt.so.13 or libcublasLt.so.12"),
            ("libcusparse.so.12", "libcusparse.so.12"),
            ("libcusolver.so.11", "libcusolver.so.12 or libcusolver.so.11"),
        ],
    )
    def test_what_cuda_pathfinder_says_for_cupy(self, venv, sound, lost, names):
        """It finds what a library needs before that library."""
        TestEach.make(venv, ALL["cupy"], sound)
        paths = (
            "nvjitlink/lib/libnvJitLink.so.12", "cusolver/lib/libcusolver.so.11",
            "cublas/lib/libcublas.so.12", "cublas/lib/libcublasLt.so.12",
            "cusparse/lib/libcusparse.so.12",
            "curand/lib/libcurand.so.10", "cuda_nvrtc/lib/libnvrtc.so.12",
        )  # fmt: skip
        for path in paths:
            file = venv.site / "nvidia" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(sound)
        (venv.site / "nvidia" / next(path for path in paths if path.endswith(lost))).unlink()
        told = [f.predicts for f in findings(facts(venv), "warning")]
        assert told == [f'Failure finding "{names}"']


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
        of = catalogue.Catalogue(root, environment(kind), Owners(root), DebianOwners(root))
        assert of.origin(path, real) == ("environment" if inside else "system")


def test_what_a_wheel_s_library_needs_is_loaded_before_it_once(tmp_path, monkeypatch):
    """NVRTC with its builtins from beside it."""
    tree = Packages(tmp_path, monkeypatch)
    tree.recipe(*({"load": [f"net/{name}.so"], "pathfinder": True} for name in "ab"))
    folder = "nvidia/cuda_nvrtc/lib"
    tree.lib(f"{folder}/libnvrtc.so.12")
    tree.lib(f"{folder}/libnvrtc-builtins.so.12.8")
    tree.lib("nvidia/cufft/lib/libcufft.so.11", f"{folder}/libnvrtc.so.12")
    for name in "ab":
        tree.lib(f"net/{name}.so", "nvidia/cufft/lib/libcufft.so.11", "libm.so.6")
    found = tree.facts()
    loads = [os.path.basename(path) for path in found.framework("net").loads]
    assert loads == ["libnvrtc.so.12", "libnvrtc-builtins.so.12.8", "libcufft.so.11"]
    assert {x.found_by for x in found.libraries} == {"cuda-pathfinder"}


@pytest.mark.parametrize("version", ["2.10.0", "2.11.0.dev20260101", "2.11.0a0+abc", "2.11.0rc1"])
def test_a_release_before_its_final_one_is_followed_too(version):
    """As its final one is: PEP 440 has 2.11.0rc1 neither in "<2.11" nor in ">=2.11"."""
    (recipe,) = [r for r in map(parse, recipes.listed()) if r.name == "torchaudio"]
    framework = Framework("torchaudio", version=version)
    (step,) = [step for step in recipe.steps if applies(step, framework)]
    assert ("libtorchaudio*.so" in str(step.load)) == version.startswith("2.11")
