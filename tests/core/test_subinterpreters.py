"""In a subinterpreter, with the main interpreter's GIL or one of its own, the core says why it is
refused, the ELF reader works, and the main interpreter goes on.
"""

from __future__ import annotations

import sys
import textwrap

import pytest

from program import output

MODULE = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
pytest.importorskip(MODULE, reason="this Python does not offer its subinterpreters")

#: Each program's beginning; sys.argv[1] is the kind. `tell` is what a program in a new one raised.
BEGIN = f"""
import sys, threading
import {MODULE} as interpreters

def tell(code):
    if sys.version_info >= (3, 13):
        other = interpreters.create(sys.argv[1])
    else:
        other = interpreters.create(isolated=sys.argv[1] == "isolated")
    try:
        answer = interpreters.run_string(other, code)
        return "" if answer is None else answer.formatted
    except interpreters.RunFailedError as error:  # before 3.13
        return str(error)
    finally:
        interpreters.destroy(other)
"""
kinds = pytest.mark.parametrize("kind", ["isolated", "legacy"])


@kinds
@pytest.mark.parametrize("used", [True, False])
def test_the_core_says_that_it_is_refused(kind: str, used: bool) -> None:
    """The driver is one a process: another interpreter's end must not stop our copies."""
    program = """
        import numpy as np
        import cudriver as cu

        def copies():
            there, here = cu.device_empty((100, 100)), np.arange(10000.0).reshape(100, 100).T
            cu.copy(there, here)
            cu.copy_async(there, here, cu.Stream()).wait()
            assert (there.to_numpy() == here).all()

        if sys.argv[2] == "True":
            copies()  # the copy engine has begun
        for code in ("import cudriver; cudriver.init()", "from cudriver import _core") * 2:
            print(tell(code))
            copies()
        thread = threading.Thread(target=lambda: print(tell(code)))
        thread.start()
        copies()
        thread.join()
        copies()
    """
    said = output(BEGIN + textwrap.dedent(program), kind, str(used)).splitlines()
    assert len(said) == 5
    for line in said:
        assert "ImportError" in line
        assert "cudriver._core works in the process's main interpreter only" in line
        assert "and this is a subinterpreter" in line


@kinds
def test_the_elf_reader_works(kind: str) -> None:
    program = """
        from cudriver import _elf

        code = "from cudriver import _elf; import sys; file = _elf.ElfFile(sys.executable); "
        found = _elf.ElfFile(sys.executable)
        code += f"assert file.needed == {found.needed!r}; "
        code += f"assert len(file.references()) == {len(found.references())}; "
        code += "held = [file]"  # at the interpreter's end
        said = []
        threads = [
            threading.Thread(target=lambda: said.extend(tell(code) for _ in range(3)))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(said)
        print(found.needed == _elf.ElfFile(sys.executable).needed)
        print(tell("from cudriver import _elf; _elf.ElfFile(1)"))
    """
    said = output(BEGIN + textwrap.dedent(program), kind).splitlines()
    assert said[:2] == [str([""] * 12), "True"]
    assert "TypeError" in said[2]
