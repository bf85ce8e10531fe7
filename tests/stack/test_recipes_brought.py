"""Recipes of other distributions, by the entry point cudriver.recipes. pip installs one here."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile

import pytest
from synth import Prefix

import cudriver

RECIPE = {
    "name": "fastnet",
    "distributions": ["fastnet"],
    "module": "fastnet",
    "source": "fastnet/__init__.py of 1.2",
    "steps": [{"open": ["libnvfastnet.so.1"], "says": "fastnet: its library was not found"}],
}
VALUE = "fastnet_recipes:recipe.json"
WRONG = [
    ({"name": 7}, "name is no str"),
    ({"module": None}, "module is no str"),
    ({"distributions": "fastnet"}, "distributions is no list[str]"),
    ({"after": [["torch"]]}, "after is no list[str]"),
    ({"cpu": "yes"}, "cpu is no bool"),
    ({"steps": {"open": ["x"]}}, "steps is no list[Step]"),
    ({"steps": ["open"]}, "steps is no list[Step]"),
    ({"steps": [{"open": "libx.so"}]}, "open is no list[str]"),
    ({"steps": [{"open": ["x"], "versions": 2}]}, "versions is no str"),
    ({"steps": [{"load": ["x"], "when": "later"}]}, "when is one of"),
    ({"build": {"cuda": [["name"]]}}, "build is no dict[str, list[dict[str, str]]]"),
    ({"build": {"cuda": [{"name": "("}]}}, "'(' is no pattern"),
    ({"rescues": [{"say": 3}]}, "say is no str"),
]
ASK = """
import json, sys, warnings
from cudriver import stack
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    report = stack.inspect(sys.argv[1], environ={}, probe_driver=False)
errors = [finding.predicts for finding in report.findings if finding.severity == "error"]
print(json.dumps({
    "modelled": {f.name: f.modelled for f in report.frameworks},
    "errors": errors,
    "warned": [str(each.message) for each in caught],
    "imported": "fastnet_recipes" in sys.modules,
}))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder in which pip has installed a distribution that brings a recipe."""
    pytest.importorskip("pip")
    folder = tmp_path_factory.mktemp("brought")
    info = "fastnet_recipes-1.0.dist-info"
    files = {
        "fastnet_recipes/__init__.py": "raise SystemExit('a check imports nothing')\n",
        "fastnet_recipes/recipe.json": json.dumps(RECIPE),
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: fastnet-recipes\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[cudriver.recipes]\nfastnet = {VALUE}\n",
    }
    rows = [f"{info}/RECORD,,"]
    wheel = folder / "fastnet_recipes-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())
            rows.append(f"{name},sha256={digest.rstrip(b'=').decode()},{len(text.encode())}")
            archive.writestr(name, text)
        archive.writestr(f"{info}/RECORD", "\n".join(rows) + "\n")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--target", folder / "site", wheel], check=True, capture_output=True)
    return folder / "site"


@pytest.fixture
def checked(installed, tmp_path):
    """What a check tells of fastnet, with that distribution beside cudriver."""
    prefix = Prefix(tmp_path / "env", python="{}.{}".format(*sys.version_info)).venv()
    prefix.dist("fastnet", "1.2")
    (prefix.site / "fastnet").mkdir(exist_ok=True)
    (prefix.site / "fastnet" / "__init__.py").touch()
    beside = shutil.copytree(installed, tmp_path / "beside")

    def check(value=None, content=None):
        if value is not None:
            (entries,) = beside.glob("*.dist-info/entry_points.txt")
            entries.write_text(entries.read_text().replace(VALUE, value))
        if content is not None:
            (beside / "fastnet_recipes" / "recipe.json").write_text(content)
        ours = os.path.dirname(os.path.dirname(cudriver.__file__))
        environ = {**os.environ, "PYTHONPATH": f"{ours}{os.pathsep}{beside}"}
        words = [sys.executable, "-c", ASK, prefix.path]
        done = subprocess.run(words, env=environ, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return check


def test_a_framework_is_modelled_by_the_recipe_of_another_distribution(checked):
    found = checked()
    assert found["modelled"] == {"fastnet": True}
    assert found["errors"] == ["fastnet: its library was not found"]
    assert found["warned"] == []
    assert not found["imported"]


@pytest.mark.parametrize(
    ("value", "content", "told"),
    [
        (VALUE, "{", "Expecting property name"),
        (VALUE, "[]", "is not a mapping"),
        (VALUE, '{"name": "fastnet"}', "needs 'distributions'"),
        *((VALUE, json.dumps({**RECIPE, **other}), told) for other, told in WRONG),
        ("fastnet_recipes:other.json", "{}", "No such file"),
        ("nowhere:recipe.json", "{}", "'nowhere' is not the name of a package"),
        ("fastnet_recipes.sub:recipe.json", "{}", "is not the name of a package"),
    ],
)
def test_a_recipe_that_is_none_is_left_out_with_a_warning(checked, value, content, told):
    found = checked(value, content)
    assert not any(found["modelled"].values())
    (warned,) = found["warned"]
    assert warned.startswith("cudriver.recipes: fastnet is left out: ")
    assert told in warned
    assert not found["imported"]
