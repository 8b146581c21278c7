"""`python -m kadril` is the `kadril` command."""

import sys

from kadril.cli import main

if __name__ == "__main__":
    sys.exit(main())
