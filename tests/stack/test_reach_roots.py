"""Where imports begin, and end: packages without a recipe, what extras ask for, data libraries.
The oracle is the real import.
"""

import sysconfig

import pytest
import real
from test_breakage_built import MODULE, SUFFIX, Venv, compile_c, library, pytestmark  # noqa: F401
from test_reach import told

TORCH = {
    "torch/__init__.py": "from .version import __version__\nfrom outer import inner\n"
    "class backends: pass\ntensor = 1\n",
    "torch/version.py": "__version__ = '2.8.0'\ncuda = None\nhip = None\n",
}
FASTNET = {
    "fastnet/__init__.py": "from . import part, _C\ndef later():\n    import fastnet.late\n",
    "fastnet/part.py": "x = 1\n",
    "fastnet/late.py": "x = 1\n",
}


def put(venv, sources):
    for name, text in sources.items():
        (venv.site / name).parent.mkdir(parents=True, exist_ok=True)
        (venv.site / name).write_text(text)
    return [venv.site / name for name in sources]


@pytest.fixture
def venv(tmp_path):
    return Venv(tmp_path / "env")


@pytest.fixture
def fastnet(venv):
    """A package with an extension module and a library of its own, and without a recipe."""
    files = put(venv, FASTNET)
    own = library(venv.site / "fastnet.libs", "libown-1.so.5.0.0", "int own(void) { return 0; }")
    target = venv.site / f"fastnet/_C{SUFFIX}"
    flags = f"-I{sysconfig.get_paths()['include']}", str(own), f"-Wl,-rpath,{own.parent}"
    compile_c(target, MODULE.format(needs="own"), *flags)
    target.with_name(target.name + ".c").unlink()
    venv.distribution("fastnet", "1.0", files=[*files, target, own])
    return venv


@pytest.mark.parametrize("name", ["part.py", "late.py", f"_C{SUFFIX}"])
def test_a_package_without_a_recipe(fastnet, name):
    assert real.import_error(fastnet.path, "fastnet") is None
    assert told(fastnet) == []
    (fastnet.site / "fastnet" / name).unlink()
    seen = real.import_error(fastnet.path, "fastnet")
    (found,) = told(fastnet)
    assert found.severity == ("error" if seen else "warning"), seen
    assert bool(seen) == (name != "late.py")
    if seen:
        assert found.predicts in seen
        assert "import fastnet fails" in [e.value for e in found.evidence]


@pytest.mark.parametrize("damage", [b"", b"\0" * 5000, None])
def test_its_own_library(fastnet, damage):
    file = fastnet.site / "fastnet.libs/libown-1.so.5.0.0"
    file.unlink()
    if damage is not None:
        file.write_bytes(damage)
    assert real.import_error(fastnet.path, "fastnet")
    assert "error" in [f.severity for f in told(fastnet)]


def test_what_others_require_is_reached_by_them_alone(fastnet):
    put(fastnet, {"user/__init__.py": ""})
    files = [fastnet.site / "user/__init__.py"]
    fastnet.distribution("user", "1.0", "fastnet>=1", files=files)
    (fastnet.site / "fastnet/part.py").unlink()
    (found,) = told(fastnet)
    assert found.severity == "warning"


def test_the_first_file_of_a_package_is_a_folder(venv):
    sources = {**TORCH, "outer/__init__.py": "", "outer/inner/__init__.py": "x = 1\n"}
    sources["torch/__init__.py"] += "inner.x\n"
    venv.distribution("torch", "2.8.0", files=put(venv, sources))
    assert told(venv) == []
    file = venv.site / "outer/inner/__init__.py"
    file.unlink()
    file.mkdir()
    seen = real.import_error(venv.path)
    (found,) = told(venv)
    assert found.severity == "error"
    assert found.predicts in seen


@pytest.mark.parametrize("python", ["", "if x:\n    y"])
@pytest.mark.parametrize(
    "end", ["if x:\n    #", "def f(self):\n", "x = y.", "if value", "x = 'a", "import", "x = f("]
)
def test_a_source_that_ends_too_early(venv, monkeypatch, python, end):
    """What a parser of any release refuses."""
    monkeypatch.setattr("cudriver.stack.collect.modules.sys.version_info", (3, 7))
    files = put(venv, {**TORCH, "outer/__init__.py": "inner = 1\n"})
    venv.distribution("torch", "2.8.0", files=files)
    files[-1].write_text(f"inner = x = y = 1\n{python}\n{end}")
    seen = real.import_error(venv.path)
    (found,) = told(venv)
    assert (found.severity, found.because) == ("error", str(files[-1]))
    assert found.predicts in seen


POINTS = "[console_scripts]\nother = other:main\n\n# one more\n[pytest11]\nother = other.plugin\n"


@pytest.mark.parametrize("version", ["2.8.0", "2.4.1"])
@pytest.mark.parametrize(
    "content",
    [
        POINTS.encode(), b"", POINTS[:-5].encode(), POINTS[:-16].encode(), b"\0" * 60, b"x",
        POINTS[:30].encode() + b"\0" * 50, b"[x]\n\xff=1\n", None,
    ],
)  # fmt: skip
def test_entry_points_that_an_import_reads(venv, version, content):
    """PyTorch reads those of all packages from 2.5 on, for its backends."""
    code = "from importlib.metadata import entry_points\nentry_points(group='torch.backends')\n"
    text = TORCH["torch/__init__.py"].replace("from outer import inner\n", "")
    text = f"{code if version > '2.5' else ''}{text}"
    names = {**TORCH, "torch/__init__.py": text}
    names["torch/version.py"] = names["torch/version.py"].replace("2.8.0", version)
    venv.distribution("torch", version, files=put(venv, names))
    venv.distribution("other", "1.0")
    file = venv.site / "other-1.0.dist-info/entry_points.txt"
    if content is None:
        file.symlink_to(file.name)
    else:
        file.write_bytes(content)
    seen, found = real.import_error(venv.path), told(venv)
    assert [f.severity for f in found] == ["error"] * bool(seen), seen
    for each in found:
        assert each.predicts in seen
        assert (each.rule, each.subject, each.because) == ("CU404", "torch", str(file))


def test_what_is_required_by_another_name(venv):
    """A package's name need not be its module's: protobuf brings google.protobuf."""
    venv.distribution("torch", "2.8.0", "something-else>=2", files=put(venv, TORCH))
    seen = real.import_error(venv.path)
    (found,) = told(venv)
    assert (found.rule, found.severity) == ("CU402", "error")
    assert "requires something-else>=2" in found.title
    assert found.predicts in seen


def test_of_two_that_are_missing_nobody_can_tell(venv):
    venv.distribution("torch", "2.8.0", "something-else>=2", "more", files=put(venv, TORCH))
    assert real.import_error(venv.path)
    assert told(venv) == []


@pytest.mark.parametrize("other", ["outer-inner==12.*; extra == 'cu12'", "more; extra == 'cu12'"])
def test_what_every_extra_for_a_cuda_release_asks_for(venv, other):
    asks = "outer-inner==13.*; extra == 'cu13'", other
    venv.distribution("torch", "2.8.0", *asks, files=put(venv, TORCH))
    part = put(venv, {"outer/part.py": "x = 1\n"})  # a folder without a first file
    venv.distribution("outer-part", "1.0", files=part)
    seen = real.import_error(venv.path)
    found = told(venv)
    assert [f.severity for f in found] == ["error"] * ("outer" in other)
    for each in found:
        assert each.predicts in seen
        assert each.title == "torch requires outer-inner==13.* (installed: none)"


def test_what_one_release_alone_asks_for_is_no_requirement(venv):
    venv.distribution(
        "torch", "2.8.0", "outer-inner==13.*; extra == 'cu13'", files=put(venv, TORCH)
    )
    venv.distribution("outer-part", "1.0", files=put(venv, {"outer/part.py": "x = 1\n"}))
    assert real.import_error(venv.path)
    assert told(venv) == []
