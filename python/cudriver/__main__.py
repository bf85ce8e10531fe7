"""`python -m cudriver`."""

import sys

from cudriver.cli import main

if __name__ == "__main__":
    sys.exit(main())
