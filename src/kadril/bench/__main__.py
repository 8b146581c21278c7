"""`python -m kadril.bench` is `kadril bench`."""

import sys

from kadril.bench.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
