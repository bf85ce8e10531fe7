"""`python -m cudriver`."""

import sys

from cudriver.cli import program

if __name__ == "__main__":
    sys.exit(program())
