#!/bin/sh
# The part of the suite that downloads real builds of PyTorch: several GB on the first run, kept in
# CUDRIVER_TEST_CACHE (default ~/.cache/cudriver-tests) for the next. Arguments go to pytest.
#
#   tests/stack/run-network.sh -x
set -eu
cd "$(dirname "$0")/../.."
: "${PYTHON:=python3}"
exec "$PYTHON" -m pytest -m network tests/stack "$@"
