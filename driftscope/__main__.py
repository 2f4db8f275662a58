"""`python -m driftscope` is the command `driftscope`."""

import sys

from driftscope.cli import main

if __name__ == "__main__":
    sys.exit(main())
