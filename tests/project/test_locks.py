"""What Python calls of the core takes the lock that stands for the GIL: cext/README.md, "Locks"."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.static

CEXT = Path(__file__).parents[2] / "cext"
ENTRY = re.compile(r'\{(?:"(?!cu[A-Z])\w+"|Py_(?:tp|mp|nb|am)_\w+),\s+([^,}]+)')
SETTER = re.compile(r'\{"\w+", \w+, (set_\w+),')
BODY = re.compile(r"^\w[\w ]* \*?(\w+)\([^;{]*?\)\n\{\n(.*?)^\}", re.MULTILINE | re.DOTALL)

#: Those that read only what never changes, raise, or leave all to a function that takes it.
WITHOUT = """
    array_assign array_compare array_compute array_hash array_iterate array_length array_number
    array_repr array_truth cudriver_device_array_dlpack_device
    cudriver_device_array_subscript get_context get_device get_geometry get_is_primary
    get_python get_reversed lock_dealloc lock_stop lock_traverse memory_dealloc memory_repr
    method_view module_copy_threads module_mark module_node
    module_numpy_forget module_numpy_new module_numpy_set module_place
    module_ranges module_set_copy_threads module_set_limit module_set_nodes module_stats
    module_pinned set_cache_config stream_get_device stream_traverse transfer_await
    transfer_repr work_dealloc
"""


def test_every_function_that_python_calls_takes_the_lock() -> None:
    folders = ("contexts", "arrays", "pinned", "python", "ladder")
    files = [
        CEXT / "module.c",
        *(file for folder in folders for file in (CEXT / folder).glob("*.c")),
    ]
    text = "".join(file.read_text(encoding="utf-8") for file in sorted(files))
    bodies = BODY.findall(text)
    named = {re.split(r"\W+", name.strip(" )"))[-1] for name in ENTRY.findall(text)}
    called = [pair for pair in bodies if pair[0] in named | set(SETTER.findall(text))]
    assert len(called) > 100
    assert {name for name, body in called if "CUDRIVER_LOCK()" not in body} == set(WITHOUT.split())
