"""Imported by the core before it asks for NumPy's C API, so that one thread at a time does so.

NumPy 1.26 forwards ``numpy._core._multiarray_umath`` by copying names one by one, ``__spec__``
among the first: from then on another thread takes the module for imported, and misses
``_ARRAY_API``.
"""

import numpy._core._multiarray_umath  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
