"""TCP sockets by host and port: bind, connect, and which address an interface has."""

from __future__ import annotations

import errno
import fcntl
import ipaddress
import socket
import struct

from kadril.errors import ConfigError, RendezvousError
from kadril.world.deadline import Backoff, Deadline

__all__ = ["address_of", "address_towards", "bind", "connect", "resolve"]

BACKLOG = 4096
TRY_SECONDS = 5.0  # for one attempt: a host that is just starting answers the next one

# struct ifreq of Linux: a name of 16 bytes, then an address of IPv4 at offset 20.
SIOCGIFADDR = 0x8915
IFREQ = struct.Struct("16s24x")

# Nobody listens yet; the network of the other host is not up yet; whoever listened left just when
# this end was connected (ENOTCONN, ECONNRESET).
WORTH_A_RETRY = (
    errno.ECONNREFUSED,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
    errno.ETIMEDOUT,
    errno.ECONNRESET,
    errno.ENOTCONN,
    errno.EAGAIN,
)


def resolve(host: str, port: int) -> tuple[int, int, int, str, tuple[str, int]]:
    """The first address of a host; that of localhost without asking a resolver."""
    if host == "localhost":
        host = "127.0.0.1"
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]  # type: ignore[return-value]


def bind(host: str, port: int) -> socket.socket:
    """A listening socket on one address of this host, and on no other.

    Raises:
        OSError: the name has no address, the address is not of this host, or the port is taken.
    """
    family, kind, protocol, _, address = resolve(host, port)
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def connect(host: str, port: int, deadline: Deadline, source: str = "") -> socket.socket:
    """Connect to a port, and wait until somebody listens there.

    Args:
        host: name or address.
        port: of TCP.
        deadline: until when to try.
        source: address of this host to connect from; by default the one that leads there.

    Raises:
        TimeoutError: nobody listened there before the deadline.
        RendezvousError: a later attempt would fail, too.
    """
    backoff = Backoff(0.002, 0.2)
    while True:
        try:
            return connect_once(
                host, port, max(0.001, min(deadline.remaining, TRY_SECONDS)), source
            )
        except OSError as error:
            is_passing = isinstance(error, TimeoutError | socket.gaierror)
            if not is_passing and error.errno not in WORTH_A_RETRY:
                raise RendezvousError(f"cannot connect to {host}:{port}: {error}") from error
            if deadline.expired:
                raise TimeoutError(str(error)) from error
        backoff.sleep(deadline)


def connect_once(host: str, port: int, timeout: float, source: str) -> socket.socket:
    """Connect to a port where somebody listens."""
    family, kind, protocol, _, address = resolve(host, port)
    sock = socket.socket(family, kind, protocol)
    try:
        if source:
            sock.bind((source, 0))
        sock.settimeout(timeout)
        sock.connect(address)
        if sock.getsockname()[:2] == sock.getpeername()[:2]:
            # Nobody listens, and the kernel gave this end the port of the other: it met itself.
            raise ConnectionRefusedError(errno.ECONNREFUSED, "nobody listens there")
    except BaseException:
        sock.close()
        raise
    return sock


def address_of(interface: str) -> str:
    """The address of a network interface, which is given by its name or by the address itself.

    Raises:
        ConfigError: this host has no such interface, or it has no address.
    """
    try:
        return str(ipaddress.ip_address(interface))
    except ValueError:
        pass
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            request = IFREQ.pack(interface.encode()[:15])
            answer = fcntl.ioctl(sock, SIOCGIFADDR, request)
    except OSError as error:
        names = ", ".join(name for _, name in socket.if_nameindex())
        raise ConfigError(
            f"KADRIL_INTERFACE={interface} has no IPv4 address on host {socket.gethostname()}:"
            f" {error.strerror}. Its interfaces are {names}; or give an address"
        ) from error
    return socket.inet_ntoa(answer[20:24])


def address_towards(host: str, port: int) -> str:
    """The address that this host has on the way to another one; empty where there is no way."""
    try:
        family, _, _, _, address = resolve(host, port)
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect(address)  # sends nothing
            return str(sock.getsockname()[0])
    except OSError:
        return ""
