"""Names of this machine: whether a name leads to it, by the word of the resolver.

    host_lookup.py NAME...      a line for each: "here", "elsewhere" or "unknown"

The resolver may take half a minute for a name. Run as a program, this file lets the event loop of a
job go on meanwhile; so it imports little of the standard library and nothing of kadril.
"""

from __future__ import annotations

import socket
import sys

__all__ = ["look_up"]

# That there is no such host. All other errors say that the resolver does not know at present.
NO_SUCH_HOST = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}


def look_up(name: str) -> bool | None:
    """Whether a name or an address leads to this machine; None where the resolver cannot say."""
    if name in ("localhost", socket.gethostname()):
        return True
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_DGRAM)
    except socket.gaierror as error:
        return False if error.errno in NO_SUCH_HOST else None
    except OSError:
        return None
    except UnicodeError:
        return False
    return any(is_own_address(family, address) for family, _, _, _, address in found)


def is_own_address(family: int, address: tuple[object, ...]) -> bool:
    """Whether an address belongs to an interface of this machine: only then can it be bound."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address[0], 0, *address[2:]))
    except OSError:
        return False
    return True


if __name__ == "__main__":
    words = {True: "here", False: "elsewhere", None: "unknown"}
    for word in sys.argv[1:]:
        print(words[look_up(word)], flush=True)
