"""Versions, specifiers and markers: the quick answers are those of packaging."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.markers import (
    InvalidMarker,
    Marker,
    UndefinedComparison,
    UndefinedEnvironmentName,
)
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from cudriver.stack import versions
from cudriver.stack.environment.markers import Markers, marker_values, normal

numbers = st.lists(st.integers(0, 130), min_size=1, max_size=5).map(lambda n: ".".join(map(str, n)))
locals_ = st.sampled_from(["", "", "+cu128", "+cpu", "+cu12.8", ".post1", "rc1", ".dev3", "a0"])
any_version = st.tuples(numbers, locals_).map("".join)
signs = st.sampled_from(["==", "!=", "<", "<=", ">", ">=", "~="])
clause = st.tuples(signs, numbers, st.sampled_from(["", "", ".*", ".dev0", "dev0", ".dev1"])).map(
    "".join
)
# Near each other, so that each sign's edge is met: 2.9 beside 2.9.dev0, 2.9.0.0 and 2.9.1.
near = st.lists(st.integers(0, 1), max_size=2).map(lambda n: ".".join(map(str, [2, 9, *n])))
near_version = st.tuples(near, locals_).map("".join)
near_clause = st.tuples(
    signs,
    near,
    st.sampled_from(["", "", ".*", ".dev0", "dev0", ".dev1", "rc1", ".post1", "+cu128"]),
).map("".join)


@given(any_version | near_version, any_version | near_version)
def test_compare_is_packagings(a, b):
    first, second = Version(a), Version(b)
    assert versions.compare(a, b) == (first > second) - (first < second)


@settings(max_examples=300)
@given(any_version | near_version, st.lists(clause | near_clause, min_size=1, max_size=3))
def test_satisfies_is_packagings(version, clauses):
    text = ",".join(clauses)
    try:
        expected = SpecifierSet(text).contains(version, prereleases=True)
    except ValueError:  # "<1.*", "~=1"
        expected = None
    assert versions.satisfies(version, text) is expected


@pytest.mark.parametrize(
    ("version", "specifier", "expected"),
    [
        ("12.3", "~=12.4", False),
        ("12.4", "~=12.4", True),
        ("12.9.1", "~=12.4", True),
        ("13.0", "~=12.4", False),
        ("12.4.1", "~=12.4.2", False),
        ("12.4.2.1", "~=12.4.2", True),
        ("12.5", "~=12.4.2", False),
        ("12", "~=12", None),
        ("12.8", "==12.8.0.0", True),
        ("12.8", "!=12.8.0", False),
        ("12.8.93", "==12.8.*", True),
        ("12.80", "==12.8.*", False),
        ("12.8", "!=12.8.*", False),
        ("12.9", "!=12.8.*", True),
        ("12.8", "<=12.8.*", None),
        ("12.8.1", ">12.8,<12.9", True),
        ("12.9", ">12.8,<12.9", False),
        ("12.8", ">12.8,<12.9", False),
        ("2.9", ">2.9.dev0", True),  # it comes after its own development releases
        ("2.9", "<=2.9.dev0", False),
        ("2.9.dev0", "<2.9", False),
        ("12.8", "", True),
        ("12.8", " ", True),
    ],
)
def test_satisfies(version, specifier, expected):
    assert versions.satisfies(version, specifier) is expected


@pytest.mark.parametrize(("version", "expected"), [("2.10.1", False), ("2.11+cu130", True)])
def test_what_recipes_ask_needs_no_packaging(version, expected, monkeypatch):
    monkeypatch.setattr(versions, "_by_packaging", None)
    assert versions.satisfies(version, ">=2.11.dev0") is expected
    assert versions.satisfies(version, "<2.11.dev0") is not expected


@given(st.text(max_size=20), st.text(max_size=20))
def test_satisfies_never_raises(version, specifier):
    assert versions.satisfies(version, specifier) in (True, False, None)


@pytest.mark.parametrize(
    ("version", "parts", "expected"),
    [
        ("12.8.93", 2, "12.8"),
        ("12", 2, "12"),
        ("2.8.0+cu128", 3, "2.8.0"),
        ("x", 2, None),
        (None, 1, None),
    ],
)
def test_cut(version, parts, expected):
    assert versions.cut(version, parts) == expected


@pytest.mark.parametrize(
    ("version", "major", "minor"),
    [
        ("12.8.93", 12, (12, 8)),
        ("12.8", 12, (12, 8)),
        ("12", 12, None),
        ("2.8.0+cu128", 2, (2, 8)),
        ("x", None, None),
        ("", None, None),
        (None, None, None),
        ("999999999.1", 999999999, (999999999, 1)),
        ("9999999999.1", None, None),
    ],
)
def test_major_and_minor(version, major, minor):
    assert versions.major(version) == major
    assert versions.minor(version) == minor


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("12.8.93", (12, 8, 93)),
        ("1.2.3.4.5.6.7.8", (1, 2, 3, 4, 5, 6, 7, 8)),
        ("1.2.3.4.5.6.7.8.9", None),
        ("123456789", (123456789,)),
        ("1234567890", None),
        ("12345678901", None),
        ("1..2", None),
        ("", None),
        ("1.x", None),
    ],
)
def test_numbers(text, numbers):
    assert versions.numbers(text) == numbers


@pytest.mark.parametrize(
    ("code", "expected"), [(12080, "12.8"), (11040, "11.4"), (13000, "13.0"), (9020, "9.2")]
)
def test_cuda_codes(code, expected):
    assert versions.from_code(code) == expected


names = st.sampled_from(
    [
        "sys_platform",
        "platform_system",
        "platform_machine",
        "os_name",
        "extra",
        "python_version",
        "implementation_name",
    ]
)
values = st.sampled_from(
    [
        "linux",
        "Linux",
        "win32",
        "x86_64",
        "aarch64",
        "cublas",
        "posix",
        "3.9",
        "3.11",
        "3.12",
        "cpython",
    ]
)
comparison = st.tuples(names, st.sampled_from(["==", "!=", "<", ">=", ">", "<="]), values).map(
    lambda c: f"{c[0]} {c[1]} '{c[2]}'"
)
markers = st.recursive(
    comparison,
    lambda inner: (
        st.tuples(inner, st.sampled_from([" and ", " or "]), inner).map("".join)
        | inner.map(lambda m: f"({m})")
    ),
    max_leaves=5,
)
PYTHON = marker_values("3.11.7", "x86_64")


@given(markers, st.sampled_from(["", "cublas"]))
def test_markers_are_packagings(text, extra):
    expected = Marker(text).evaluate({**PYTHON, "extra": extra})
    assert Markers(PYTHON).holds(text, extra) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('platform_system == "Linux" and platform_machine == "x86_64"', True),
        ("(sys_platform == 'linux' or sys_platform == 'win32') and extra == 'cublas'", True),
        ('python_version >= "3.12"', False),
        ("extra == 'CuBLAS'", True),
        (' extra=="cublas-x" ', False),
        ("extra == 'cublas\"", None),
        ('"linux" in sys_platform', True),
        ("'linux' == sys_platform", True),
        ("'win32' != sys_platform and 'linux' != sys_platform", False),
        ('"3.12" <= python_version', False),
        ('"3.9" < python_version', True),
        ("sys_platform == linux", None),
        ("((((", None),
        ("", None),
        # What Python's grammar takes, and markers do not.
        ("os_name == 'posix' # so", None),
        ("os_name == 'po' 'six'", None),
        ("os_name == r'posix'", None),
        ("os_name == 'posix') or (os_name == 'nt'", None),
        ("not os_name == 'nt'", None),
    ],
)
def test_markers(text, expected):
    assert Markers(PYTHON).holds(text, "cublas") is expected


pieces = st.lists(
    st.sampled_from(
        [
            *("sys_platform", "python_version", "extra", "no_such", "linux", "and", "or", "in"),
            *("==", "!=", "<", "<=", "~=", "===", "not in", "(", ")", "'linux'", "'3.9'", '"3.12"'),
            *("'", '"', "\0", "x"),
        ]
    ),
    max_size=9,
).map(" ".join)


@given(pieces | st.tuples(comparison, pieces).map(" ".join) | st.text(max_size=40))
def test_a_hostile_marker_is_what_packaging_makes_of_it(text):
    try:
        expected = bool(Marker(text).evaluate(dict(PYTHON)))
    except (InvalidMarker, UndefinedComparison, UndefinedEnvironmentName):
        expected = None
    assert Markers(PYTHON).holds(text) is expected


def test_extras_and_names_are_compared_in_one_form():
    assert normal("Typing_Extensions") == normal("typing.extensions") == "typing-extensions"
    assert Markers(PYTHON).holds("extra == 'Opt_Einsum'", "opt-einsum")


def test_plain_numbers_do_without_packaging():
    import subprocess
    import sys

    code = """
import sys
from cudriver.stack.environment.markers import Markers, marker_values
from cudriver.stack.versions import compare, satisfies

satisfies("2.8.0+cu128", "==2.8.0")
satisfies("0.50.0", "<0.51,>=0.50.0dev0")
compare("9.10.2.21", "9.9")
markers = Markers(marker_values("3.12.1", "x86_64"))
linux, windows = 'platform_system == "Linux"', 'os_name == "nt"'
answers = [
    markers.holds(text)
    for text in (
        linux,
        f"{linux} and {windows}",
        f"{windows} or {linux}",
        f"{windows} or {linux} and python_version >= '3.10'",
        f"({linux} or {windows}) and extra == 'all'",
    )
]
assert answers == [True, False, True, True, False]
sys.exit("packaging" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
