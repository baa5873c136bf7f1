"""`python -m kvlab` is `kvlab`."""

import sys

from kvlab.cli import main

if __name__ == "__main__":
    sys.exit(main())
