"""What a failed import that is survived leaves behind: flags, names without a value, what a handler
does. The oracle is the real import.
"""

import pytest
import real
from test_breakage_built import pytestmark  # noqa: F401
from test_reach_survives import errors, made

CASES = {
    "a flag of what nobody brought": """
try:
    import nobody_brought_this
except ImportError:
    there = False
else:
    there = bool(nobody_brought_this.version)
if there:
    from nobody_brought_this import x
else:
    from torch.part import x
""",
    "a flag of what a package lacks": """
import os
loaded = False
fast = os.sep == "/"
if fast and not loaded:
    try:
        from .part_fast import *
        loaded = True
    except ImportError:
        loaded = False
if not loaded:
    from torch.part import x
""",
    "a handler that calls what raises": """
def explain(error):
    text = f"Built wrongly: {error}"
    raise ImportError(text)
try:
    from torch.part import x
except ImportError as error:
    explain(error)
""",
    "a handler that ends the process": """
import sys
try:
    from torch.part import x
except ModuleNotFoundError as error:
    sys.exit(str(error))
""",
    "a name that a try no longer gives a value": "from torch.holder import LATE\n",
    "all of what is empty": "from torch.all import x\n",
    "a function that only returns": """
def always():
    "Whether it is there."
    return True
if always():
    from torch.part import x
""",
    "the package's own name": """
if getattr(globals().get("__spec__"), "parent", None) or __package__ or "." in __name__:
    from torch.part import x
else:
    import part
""",
    "a module that is no None": """
import json
if json is not None:
    import torch.part
""",
}
SOURCES = {
    "holder.py": """
try:
    import torch.optional
    LATE = (torch.optional, 1)
except ImportError:
    pass
""",
    "optional.py": "from torch.part import x\n",
    "all.py": "from torch.part import *\n",
    "part.py": "x = 1\n",
}


@pytest.mark.parametrize("damage", ["gone", "empty"])
@pytest.mark.parametrize("case", CASES)
def test_what_a_try_leaves(tmp_path, case, damage):
    init = "from .version import __version__\n" + CASES[case]
    venv = made(tmp_path, {"__init__.py": init, **SOURCES})
    assert real.import_error(venv.path) is None
    assert errors(venv.path) == []
    part = venv.site / "torch/part.py"
    part.write_text("") if damage == "empty" else part.unlink()
    seen = real.import_error(venv.path)
    told = errors(venv.path)
    assert bool(told) == (seen is not None)
    for title, predicts in told:
        assert "part.py" in title
        assert predicts in seen or "explain" in init
