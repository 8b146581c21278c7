"""All ranks on one host whose library is loaded with torch: forks of a process that has loaded it.

    python forks.py SOCKET JSON

JSON is a list of pairs: a contestant, and the variables of a rank. Loading torch once per host and
not once per rank spares half a minute.
"""

from __future__ import annotations

import json
import os
import sys
import traceback

import torch
import torch.distributed
from rank import run_rank

import kadril.torch
import kadril.transport.c10d
import kadril.transport.tcp
import kadril.transport.tiers.tiered  # noqa: F401 - loaded before the fork


def main(path: str, ranks: str) -> None:
    """Fork, and wait for the end of all."""
    torch.set_num_threads(1)
    for contestant, variables in json.loads(ranks):
        if os.fork() == 0:
            os.environ.update(variables)
            try:
                run_rank(path, contestant)
            except BaseException:
                traceback.print_exc()
            os._exit(1)
    for _ in json.loads(ranks):
        os.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
