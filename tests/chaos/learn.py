"""Runs in a healthy environment, by its own Python: which files do its imports and first uses open?

python learn.py OPENED.json ANSWER.json MODULE [MODULE ...]
"""

import contextlib
import importlib.util
import json
import os
import sys


def main(out, words):
    opened = set()

    def hear(event, arguments):
        if event in ("open", "ctypes.dlopen", "subprocess.Popen", "os.posix_spawn", "os.exec"):
            # Not a descriptor, None.
            with contextlib.suppress(TypeError, ValueError, OSError):
                opened.add(os.path.abspath(os.fsdecode(arguments[0])))

    place = os.path.join(os.path.dirname(__file__), "..", "corpus", "child.py")
    description = importlib.util.spec_from_file_location("corpus_child", place)
    child = importlib.util.module_from_spec(description)
    description.loader.exec_module(child)
    sys.addaudithook(hear)
    child.main(words[0], words[1:], [])
    found = opened | set(child.mapped())
    found |= {
        os.path.abspath(m.__file__)
        for m in list(sys.modules.values())
        if isinstance(getattr(m, "__file__", None), str)
    }
    inside = os.path.abspath(sys.prefix) + os.sep
    paths = sorted(path for path in found if path.startswith(inside) and os.path.isfile(path))
    with open(out, "w") as file:
        json.dump([path[len(inside) :] for path in paths], file)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
