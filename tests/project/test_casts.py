"""No object of Python's is taken for one of ours unlooked: a cast stands behind its check.

A cast is right in a method or slot of the type, whose first argument the interpreter has checked,
and behind a check of the same expression in the same function. What is known otherwise is listed,
with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.static

CEXT = Path(__file__).parents[2] / "cext"
BODY = re.compile(
    r"^(?:static )?[\w ]+? \*?(\w+)\(([^;{]*?)\)\n\{\n(.*?)^\}", re.MULTILINE | re.DOTALL
)
#: Functions that cast what they are called with: a call of one is a cast.
CASTING = (
    "array_of", "lock_of", "event_method", "cudriver_device_array_endpoint",
    "cudriver_numpy_endpoint",
)  # fmt: skip
#: What tp_alloc has just made is of its type.
CAST = re.compile(
    rf"(?:\((?!PyObject|PyTypeObject)\w+Object \*\)|\b(?:{'|'.join(CASTING)})\()"
    r"(?!Py_NewRef|\(+char|\w+->\w+->tp_alloc|\w+->tp_alloc)"
    r"\(*(?:PyObject \*\))?(\w+(?:->\w+|\([^()]*\))?)"
)
CHECKS = (
    r"Py_IS_TYPE\({0}, [\w>-]+_type\b", r"Py_IS_TYPE\({0}, type\)", r"PyArray_Check\({0}\)",
    r"PyTuple_Check\({0}\)", r'PyArg_ParseTuple\(args, "[^"]*O!.*?&{0}\b',
)  # fmt: skip
#: Functions and methods that Python calls: in tables of methods, slots and properties.
CALLED = re.compile(
    r"\{(?:Py_\w+|\"\w+\"),\s+(?:\(PyCFunction\)\(void \(\*\)\(void\)\))?(\w+)"
    r"|\{\"\w+\", \w+, (set_\w+),"
)
#: FUNCTION EXPRESSION: why it needs no check there.
KNOWN = {
    "array_of object": "a call is a cast",
    "lock_of object": "a call is a cast",
    "event_method object": "a call is a cast",
    "cudriver_device_array_endpoint object": "a call is a cast",
    "cudriver_device_array_endpoint self->array": "of an array of ours",
    "endpoint_read array": "memory/foreign.py has made it",
    "module_copy work": "copy_batch_issue() has made it",
    "cudriver_device_array_view view": "array_wrap() has made it",
    "module_device_empty array": "cudriver_device_array_new() has made it",
    "array_lend array": "its callers check the type",
    "export_new end->owner": "the end is cudriver_device_array_endpoint's",
    "stack_list PyList_GET_ITEM(list, i - 1)": "the function has filled the list",
    "cudriver_streams_wait PyTuple_GET_ITEM(busy, i)": "the function has filled the tuple",
    "cudriver_works_wait PyList_GET_ITEM(now, i)": "the function has filled the list",
    "cudriver_numpy_endpoint object": "a call is a cast",
    "cudriver_numpy_is_writable array": "of an array of ours",
    "cudriver_numpy_over array": "NumPy has made it",
}


def unchecked(text: str, called: set[str]) -> Iterator[str]:
    """FUNCTION EXPRESSION of each cast without a check."""
    for name, parameters, body in BODY.findall(text):
        first = parameters.split(",")[0].split("*")[-1].strip()
        for cast in CAST.finditer(body):
            before = re.sub(r"\s+", " ", body[: cast.end()])
            looked = any(re.search(c.format(re.escape(cast[1])), before) for c in CHECKS)
            if not looked and not (cast[1] == first and name in called):
                yield f"{name} {cast[1]}"


def sources() -> list[str]:
    files = (path for path in CEXT.rglob("*.c") if "sim" not in path.parts)
    return [path.read_text(encoding="utf-8") for path in sorted(files)]


def test_every_cast_stands_behind_its_check() -> None:
    called = {name for text in sources() for pair in CALLED.findall(text) for name in pair if name}
    found = {each for text in sources() for each in unchecked(text, called)}
    assert sum(len(CAST.findall(text)) for text in sources()) > 50
    assert found == set(KNOWN)


def test_a_cast_without_its_check_is_found() -> None:
    text = """
static PyObject *module_pin_stop(PyObject *module, PyObject *pin)
{
    cudriver_pin_stop(&((HostMemoryObject *)pin)->stop);
    Py_RETURN_NONE;
}
"""
    assert list(unchecked(text, {"module_pin_stop"})) == ["module_pin_stop pin"]
    checked = text.replace("cudriver_", "(void)Py_IS_TYPE(pin, state->host_memory_type); cudriver_")
    assert list(unchecked(checked, set())) == []


def test_a_cast_by_a_function_is_found() -> None:
    text = """
static PyObject *module_pin_stop(PyObject *module, PyObject *pin)
{
    cudriver_pin_stop(&lock_of(pin)->stop);
    Py_RETURN_NONE;
}
"""
    assert list(unchecked(text, {"module_pin_stop"})) == ["module_pin_stop pin"]
