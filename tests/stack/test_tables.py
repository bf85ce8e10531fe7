"""The tables in data/: sound in themselves, and sourced row by row."""

import itertools
import json
import os

import pytest

from cudriver.stack import tables
from cudriver.stack.tables import FOLDER, driver_cuda, driver_floor, table, toolkit_of
from cudriver.stack.versions import compare, numbers

NAMES = ["architectures", "driver", "environments", "libraries", "pairs", "plan", "pytorch"]
NAMES += ["compiling", "gpus", "packages", "toolkits"]
MADE = ["derived", "proven", "zh"]  # sentences, and what `make corpus` and `make tables` write


def rows(name):
    """Every row that names a source."""
    for part in table(name).values():
        if isinstance(part, list):
            yield from (row for row in part if isinstance(row, dict))


def test_every_table_is_known_here():
    found = {f[:-5] for f in os.listdir(FOLDER) if f.endswith(".json") and "schema" not in f}
    assert found == {*NAMES, *MADE}


@pytest.mark.parametrize("name", NAMES)
def test_every_row_has_a_source_and_every_source_a_row(name):
    known = table(name)
    assert len(known["about"]) > 40
    used = {row["source"] for row in rows(name)}
    assert used <= set(known["sources"])
    if used:
        assert used == set(known["sources"])
    assert all(len(text) > 10 for text in known["sources"].values())


@pytest.mark.parametrize("name", NAMES)
def test_no_key_twice(name):
    def once(pairs):
        keys = [key for key, _ in pairs]
        assert len(keys) == len(set(keys)), keys
        return dict(pairs)

    with open(os.path.join(FOLDER, f"{name}.json"), encoding="utf-8") as file:
        json.load(file, object_pairs_hook=once)


def test_branches_ascend_with_what_they_offer():
    listed = [(row["branch"], row["cuda"]) for row in table("driver")["branches"]]
    assert listed == sorted(listed, key=lambda row: row[0])
    for (_, older), (_, newer) in itertools.pairwise(listed):
        assert compare(older, newer) <= 0


def test_every_architecture_has_a_span_of_branches():
    rows = table("driver")["architectures"]
    listed = [tuple(map(int, row["capability"].split("."))) for row in rows]
    assert listed == sorted(set(listed))
    branches = [row["branch"] for row in table("driver")["branches"]]
    for row in rows:
        first, last = row["first_branch"], row["last_branch"]
        assert row["name"]
        assert first is None or first in branches
        assert last is None or last in branches
        assert (first or 0) < (last or 9999), row


def test_pytorch_is_built_for_architectures_that_are_known():
    known = {row["capability"] for row in table("driver")["architectures"]}
    for row in table("architectures")["torch"]:
        assert set(row["archs"].replace("+PTX", "").split(";")) <= known, row


def test_a_toolkits_driver_offers_that_toolkit():
    """Two tables of NVIDIA, read apart, agree."""
    for row in table("driver")["toolkits"]:
        offered = driver_cuda(row["driver"])
        short = ".".join(row["toolkit"].split(".")[:2])
        if compare(short, "9.0") >= 0:
            assert compare(offered, short) >= 0, row


def test_floors_are_the_drivers_of_the_first_of_their_major():
    for row in table("driver")["floors"]:
        if row["cuda_major"] >= 12:
            first = driver_cuda(row["linux"])
            assert first == f"{row['cuda_major']}.0"


def test_toolkit_components_are_versions_and_belong_to_their_release():
    for release, parts in table("toolkits")["releases"].items():
        assert numbers(release)
        assert all(numbers(version) for version in parts.values()), release
        assert parts["cudart"].startswith(".".join(release.split(".")[:2]) + "."), release


def test_libraries_have_families_codes_and_components():
    known = table("libraries")
    components = {c for parts in table("toolkits")["releases"].values() for c in parts}
    for stem, row in known["libraries"].items():
        assert stem.startswith("lib")
        assert row["family"]
        assert row["wheel"]
        assert row.get("component") is None or row["component"] in components, stem
        assert (row.get("symbol") is None) == (row.get("code") is None), stem
        assert row.get("code") is None or row["code"] in known["codes"], stem
        for soname in row.get("sonames", {}).values():
            assert soname.startswith(stem + ".so.")
    for names in known["cudnn_parts"].values():
        assert all(name.split(".")[0] in known["libraries"] for name in names)


def test_pytorch_releases():
    for row in table("pytorch")["releases"]:
        assert numbers(row["torch"])
        assert all(numbers(v) for v in row["cuda"])
        assert row["default"] is None or row["default"] in row["cuda"], row
        for versions in (row["cudnn"], row["nccl"]):
            assert all(numbers(key) and numbers(value) for key, value in versions.items())


def test_architectures():
    known = table("architectures")
    for row in known["toolkits"]:
        assert row["archs"] == sorted(row["archs"])
    for row in known["torch"]:
        for arch in row["archs"].replace("+PTX", "").split(";"):
            assert arch in known["names"], row


@pytest.mark.parametrize(
    ("release", "cuda"),
    # As nvidia-smi printed them, per the facts' observed pairs.
    [("580.82.07", "13.0"), ("610.43.02", "13.3"), ("615.71.09", "13.4"), ("555.85", "12.5"),
     ("560.35", "12.6"), ("535.104.05", "12.2"), ("470.82.01", "11.4"), ("999.9", "13.4"),
     ("1.1", None), (None, None), ("x", None)],
)  # fmt: skip
def test_driver_cuda(release, cuda):
    assert driver_cuda(release) == cuda


@pytest.mark.parametrize(
    ("cuda", "floor"),
    [("13.3", "580"), ("12.8", "525.60.13"), ("11.8", "450.80.02"), ("10.2", "440.33"),
     ("99", None), (None, None)],
)  # fmt: skip
def test_driver_floor(cuda, floor):
    assert driver_floor(cuda) == floor


@pytest.mark.parametrize(
    ("component", "version", "release"),
    [
        ("cudart", "12.4.127", "12.4.1"),
        ("cublas", "12.8.4.1", "12.8.1"),
        ("cublas", "13.1.0", "13.0.2"),
        ("cudart", "13.0.96", "13.0"),
        ("cudart", "12.8.90", "12.8"),
        ("cudart", "1.2.3", None),
        ("cublas", "12.8", None),
        ("nothing", "12.8.90", None),
        ("cudart", None, None),
    ],
)
def test_toolkit_of(component, version, release):
    assert toolkit_of(component, version) == release


def test_tables_are_read_once():
    assert tables.table("driver") is tables.table("driver")
