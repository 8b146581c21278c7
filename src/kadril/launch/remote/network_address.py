"""Addresses and ports of this host."""

from __future__ import annotations

import fcntl
import socket
import struct

from kadril.launch.options import LaunchError

__all__ = ["find_address", "free_port"]

SIOCGIFADDR = 0x8915


def find_address(interface: str) -> str:
    """Return the address of a network interface, which is given by its name or an address.

    Raises:
        LaunchError: there is no such interface, or it has no address.
    """
    names = [name for _, name in socket.if_nameindex()]
    addresses = {name: address for name in names if (address := address_of(name))}
    if interface in addresses:
        return addresses[interface]
    if interface in addresses.values():
        return interface
    there = ", ".join(f"{name} ({address})" for name, address in addresses.items())
    what = "has no address" if interface in names else "is no interface"
    raise LaunchError(f"--network-interface {interface} {what} of this host; there are {there}")


def address_of(interface: str) -> str:
    """Return the IPv4 address of an interface, or nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", interface.encode()[:15])
        try:
            answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)
        except OSError:
            return ""
    return socket.inet_ntoa(answer[20:24])


def free_port(address: str, port: int = 0) -> int:
    """Return a port of an address of this host that nobody listens on, or make sure of one.

    Raises:
        LaunchError: the port is taken, or the address is not of this host.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            raise LaunchError(
                f"ranks cannot meet at {address}, port {port or 'any'}: {error.strerror}; give"
                " another --port, or the --network-interface that joins the hosts"
            ) from None
        return int(probe.getsockname()[1])
