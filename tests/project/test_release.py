"""What a release says about itself: one version, the supported Pythons, links that lead on."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import cudriver
from cudriver._version import ADDRESS
from native_build import ROOT

pytestmark = [
    pytest.mark.static,
    pytest.mark.skipif(not (ROOT / "release").is_dir(), reason="no sources beside the tests"),
]

MANIFEST = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
CLASSIFIED = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', MANIFEST)


def test_the_citation_has_the_packages_version_and_address() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {cudriver.__version__}\n" in citation
    assert re.findall("^repository-code: (.*)$", citation, re.M) == [ADDRESS] * bool(ADDRESS)


def test_the_address_stands_wherever_it_belongs() -> None:
    told = (ROOT / "release" / "README.md").read_text(encoding="utf-8")
    places = re.findall(r"^\| `(\S+)` \|", told, re.M)
    assert "README.md" in places
    texts = {place: (ROOT / place).read_text(encoding="utf-8") for place in places}
    assert [place for place, text in texts.items() if ADDRESS not in text] == []


def test_the_changelog_begins_with_the_packages_version_and_a_date() -> None:
    headings = re.findall("^## (.*)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    if headings[0] == "Unreleased":
        headings.pop(0)
    assert re.fullmatch(re.escape(cudriver.__version__) + r" \(\d{4}-\d\d-\d\d\)", headings[0])


def test_the_recipe_has_the_packages_version_and_needs() -> None:
    recipe = (ROOT / "release" / "conda" / "recipe.yaml").read_text(encoding="utf-8")
    assert f'  version: "{cudriver.__version__}"' in recipe
    needs = re.search(r"^dependencies = \[(.*)\]$", MANIFEST, re.MULTILINE)
    assert needs is not None
    for need in re.findall(r'"(.*?)"', needs[1]):
        assert f"    - {need.replace('>=', ' >=')}\n" in recipe


def test_the_workflow_builds_and_tests_the_supported_pythons() -> None:
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    assert re.findall(r"^ +(3\.\d+)$", workflow, re.MULTILINE) == CLASSIFIED
    matrix = re.search(r"^ +python: \[(.*)\]$", workflow, re.MULTILINE)
    assert matrix is not None
    assert re.findall(r'"(.*?)"', matrix[1]) == CLASSIFIED
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"CPython {CLASSIFIED[0]} to {CLASSIFIED[-1]}" in readme


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_is_yaml_and_names_actions_by_their_hash(path: Path) -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values()
    used = [step["uses"] for job in jobs for step in job["steps"] if "uses" in step]
    assert [name for name in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", name)] == []


def steps() -> dict[str, set[str]]:
    """The steps of .ci/run by when they run: for each change, or weekly."""
    found: dict[str, set[str]] = {"change": set(), "weekly": set()}
    when = "change"
    for word, name in re.findall(
        r"^ *(when=|step )(\w[\w-]*)", (ROOT / ".ci" / "run").read_text("utf-8"), re.MULTILINE
    ):
        if word == "when=":
            when = name
        else:
            found[when].add(name)
    return found


def matrix(name: str) -> set[str]:
    workflow = (ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8")
    (named,) = re.findall(r"^ +step: \[(.*)\]$", workflow, re.MULTILINE)
    return set(named.split(", "))


def test_the_workflows_run_the_steps_that_there_are() -> None:
    # GitHub's machines install what is missing themselves, and make no chroot without root.
    assert steps()["change"] - matrix("ci") == {"base", "debian-13"}
    assert steps()["weekly"] - matrix("weekly") == {"debian-12"}
    assert matrix("ci") <= steps()["change"]
    assert matrix("weekly") <= steps()["weekly"]


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/zh/reference/contributing.md"])
def test_what_is_left_out_of_every_change_is_listed(page: str) -> None:
    rows = re.findall(r"^\| (`[^|]*) \|", (ROOT / page).read_text("utf-8"), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([\w-]+)`", row)}
    assert named >= steps()["weekly"]
    assert named & steps()["change"] == set()


def test_what_a_step_runs_is_there() -> None:
    words = set(re.findall(r"\btests/[\w/{},*.]+", (ROOT / ".ci" / "run").read_text("utf-8")))
    for word in words:
        done = subprocess.run(["bash", "-c", f"ls -d {word}"], cwd=ROOT, capture_output=True)
        assert done.returncode == 0, done.stderr


def test_each_step_has_its_seconds() -> None:
    lines = (ROOT / ".ci" / "seconds").read_text("utf-8").splitlines()
    counted = dict(line.split() for line in lines if not line.startswith("#"))
    assert counted.keys() | {"base"} == steps()["change"] | steps()["weekly"]
    assert sum(int(counted[name]) for name in steps()["change"] - {"base"}) <= 4200


REGISTRY = re.compile(
    r"\b(pip|pipx|conda|mamba|uv) (install|add) (-\S+ )*['\"]?cudriver(?![-/.\w])"
)


@pytest.mark.skipif(bool(ADDRESS), reason="the project has an address")
def test_nothing_says_that_the_package_is_on_a_registry() -> None:
    assert REGISTRY.search("$ pip install 'cudriver[dask]'")
    assert REGISTRY.search("uv pip install cudriver")
    texts = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*")]
    texts += [*ROOT.glob("python/**/*.py"), *ROOT.glob("python/**/*.md")]
    said = [
        (str(path.relative_to(ROOT)), match[0])
        for path in texts
        if path.is_file() and path.suffix in (".md", ".py", ".sh", ".yaml", ".yml", "")
        for match in REGISTRY.finditer(path.read_text(encoding="utf-8", errors="replace"))
    ]
    assert said == []


def metadata(address: str, folder: Path) -> str:
    """What a package would say of itself, with this address of the repository."""
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    (folder / "python" / "cudriver").mkdir(parents=True)
    version = f'__version__ = "1.2.3"\nADDRESS = "{address}"\n'
    (folder / "python" / "cudriver" / "_version.py").write_text(version, encoding="utf-8")
    command = [sys.executable, "setup.py", "-q", "egg_info"]
    subprocess.run(command, cwd=folder, capture_output=True, check=True)
    return (folder / "python" / "cudriver.egg-info" / "PKG-INFO").read_text(encoding="utf-8")


@pytest.mark.parametrize("given", ["https://example.org/cudriver", "https://example.org/cudriver/"])
def test_links_of_the_metadata_lead_to_the_repository(given: str, tmp_path: Path) -> None:
    pytest.importorskip("setuptools", minversion="77", reason="needs setuptools 77 to build")
    url = given.rstrip("/")
    told = metadata(given, tmp_path)
    links = re.findall(r"\]\((.*?)\)", told)
    assert f"Project-URL: Source, {url}\n" in told
    assert links
    for link in links:
        path = re.sub(rf"^{url}/(blob|raw)/HEAD/", "", link)
        assert (ROOT / path).exists(), link
        assert path.endswith(".svg") == ("/raw/" in link)


def test_the_metadata_has_no_links_while_the_repository_has_no_address(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", minversion="77", reason="needs setuptools 77 to build")
    told = metadata("", tmp_path)
    assert "Project-URL" not in told
    assert re.findall(r"\]\(", told) == []
    assert "English | 中文" in told  # the words stay
