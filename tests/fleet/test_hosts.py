"""Lists of hosts, as Slurm writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudriver.fleet.hosts import fold, parse


# As `scontrol show hostnames` answers.
@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("d[0-3,7]", ["d0", "d1", "d2", "d3", "d7"]),
        ("d[08-11]", ["d08", "d09", "d10", "d11"]),
        ("login,d[1-2],gpu7", ["login", "d1", "d2", "gpu7"]),
        ("r[0-1]n[1-2]", ["r0n1", "r0n2", "r1n1", "r1n2"]),
        ("d[1-2].example.org d2.example.org", ["d1.example.org", "d2.example.org"]),
        ("d[3-3]", ["d3"]),
        ("d[9-10],d[9-9]", ["d9", "d10"]),
        ("", []),
        ("a,,b,", ["a", "b"]),
        (" a\tb\n", ["a", "b"]),
        ("[1-2]", ["1", "2"]),
        ("[1]x[08-09]y", ["1x08y", "1x09y"]),
        ("d[08-08]", ["d08"]),
        ("d[8-10]", ["d8", "d9", "d10"]),
        ("d[" + "0" * 14 + "1]", ["d000000000000001"]),
    ],
)
def test_a_list_stands_for_its_names(text, names):
    assert parse(text) == names


@pytest.mark.parametrize(
    "text",
    [
        *("d[0-", "d]", "d[a-b]", "d[]", "d[1-2-3]", "d[0-9999999]", "[0-999]" * 9, "d[3-\u0665]"),
        *("d[1,]", "d[-3]", "d[1, 2]", "d[0-1000000]", "a,d[0-999999]", "[0-999999]" * 5000),
        "d[0-999999]," * 5000,
        "d[" + "7" * 5_000_000 + "]",
    ],
    ids=lambda text: text[:20],
)
def test_what_is_no_list_is_refused(text):
    with pytest.raises(ValueError, match="hosts") as error:
        parse(text)
    assert len(str(error.value)) < 200


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("d]", "a ']' lacks its other half: a list of hosts is like d[0-3,7]"),
        ("d[0-3", "a '[' lacks its other half: a list of hosts is like d[0-3,7]"),
        ("d[0-999999],e", "'e': more than 1,000,000 names in a list of hosts"),
        ("d[0-1000000]", "'d[0-1000000]': more than 1,000,000 names in a list of hosts"),
        (
            "d[x]",
            "'x' in the brackets of a list of hosts is neither a number nor a span of numbers "
            "like 0-3",
        ),
    ],
)
def test_what_is_no_list_is_told(text, error):
    with pytest.raises(ValueError) as caught:
        parse(text)
    assert str(caught.value) == error


@pytest.mark.parametrize("span", ["5-3", "3-", "-", "x7"])
def test_the_error_names_the_span(span):
    with pytest.raises(ValueError, match=f"'{span}'"):
        parse(f"login,d[1,{span},9]")


@pytest.mark.parametrize(
    ("text", "count"),
    [("d[0-999],e[0-1999]", 3000), ("d[0-999999]", 1_000_000), ("r[0-99]n[0-99],a", 10_001)],
)
def test_long_lists_stand_for_all_their_names(text, count):
    assert len(parse(text)) == count


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["d3", "d1", "d2", "d10", "d1"], ["d[1-3,10]"]),
        (["d008", "d009", "d010", "d8"], ["d8", "d[008-010]"]),
        ([f"d{number}" for number in range(13)], ["d[0-12]"]),  # one "0" pads nothing
        (
            ["ip-10-0-0-1.ec2.internal", "ip-10-0-0-2.ec2.internal"],
            ["ip-10-0-0-[1-2].ec2.internal"],
        ),
        (["a", "n1", "b"], ["a", "b", "n1"]),
        (["d0 rank 3", "d0 rank 4"], ["d0 rank [3-4]"]),
        (["x" + "9" * 5000], ["x" + "9" * 5000]),
        ([], []),
        (["d1", "d3"], ["d[1,3]"]),
        (["d1"], ["d1"]),
        (["d1", "d1"], ["d1"]),
        (["d1", "e1"], ["d1", "e1"]),
        (["d9", "d10", "d11"], ["d[9-11]"]),
        (["d09", "d10", "d9"], ["d9", "d[09-10]"]),
        (["d00", "d01"], ["d[00-01]"]),
        (["d0", "d1"], ["d[0-1]"]),
        (["r1n1", "r1n2", "r2n1"], ["r1n[1-2]", "r2n1"]),
        (["1a", "2a", "a"], ["[1-2]a", "a"]),
        (["d1.x9", "d2.x9", "d1.x8"], ["d1.x8", "d[1-2].x9"]),
        (["d" + "1" * 15, "d" + "1" * 14 + "2"], ["d[111111111111111-111111111111112]"]),
    ],
)
def test_names_are_folded(names, words):
    assert fold(names) == words


HOST = st.builds(
    "{}{}{}".format,
    st.text("ab", min_size=1, max_size=2),
    st.text("0129", max_size=3),
    st.sampled_from(["", ".a", ".b2"]),
)


@given(st.lists(HOST, max_size=40))
def test_folding_loses_no_name(names):
    assert set(parse(",".join(fold(names)))) == set(names)
