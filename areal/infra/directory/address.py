"""Find the address of this host that other hosts of a job reach, and the interface that has it.

What a host's own name means is not used: on many hosts it means 127.0.0.1, at which nobody else finds it.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from areal.api import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

_ADDRESS_REQUEST: Final = 0x8915  # SIOCGIFADDR, see netdevice(7)
_ELSEWHERE: Final = (("192.0.2.1", socket.AF_INET), ("2001:db8::1", socket.AF_INET6))
"""Addresses that exist nowhere (RFC 5737, RFC 3849): the way to them is the default route."""


def own_address(
    targets: Sequence[str] = (), *, interface: str = "", several_hosts: bool = False, setting: str = ""
) -> str:
    """Return the address of this host: that of `interface`; else the one from which `targets` are reached;
    else that of the default route when there are several hosts, 127.0.0.1 when not. Nothing is sent.

    targets: URLs with host and port. several_hosts: refuse an address that means "this host" everywhere. setting: where
    a user may give an address instead, for messages. Raises ConfigError for an unknown interface or name, or when only
    such an address is found.
    """
    if interface:
        found = _address_of(interface)
    elif targets:
        ways = [_address_towards(target, setting or "the address") for target in targets]
        # Some may be on this very host.
        found = next((one for one in ways if not ipaddress.ip_address(one).is_loopback), ways[0])
    elif several_hosts:
        found = _default_address()
    else:
        return "127.0.0.1"
    if several_hosts and ipaddress.ip_address(found).is_loopback:
        way = f"interface {interface}" if interface else f"the way to {targets[0]}" if targets else "the default route"
        raise ConfigError(
            f"the address of this host by {way} is {found}, which other hosts take for their own; name an interface "
            f"that they reach ({_shown_interfaces()})"
        )
    return found


def interface_of(address: str) -> str:
    """Return the name of the interface that has an address of this host, e.g. for GLOO_SOCKET_IFNAME. Raises
    ConfigError when none has it."""
    wanted = ipaddress.ip_address(address)
    for name, addresses in interfaces().items():
        if any(ipaddress.ip_address(one) == wanted for one in addresses):
            return name
    raise ConfigError(f"no interface of this host has the address {address} ({_shown_interfaces()})")


def interfaces() -> dict[str, list[str]]:
    """Return the interfaces of this host that are up, each with its addresses: IPv4 first, no link-local IPv6."""
    found: dict[str, list[str]] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            found[name] = []
            with contextlib.suppress(OSError):  # without an address
                answer = fcntl.ioctl(probe.fileno(), _ADDRESS_REQUEST, struct.pack("256s", name.encode()[:15]))
                found[name].append(socket.inet_ntoa(answer[20:24]))
    with contextlib.suppress(OSError):  # without IPv6
        for line in Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines():
            digits, *_, name = line.split()
            address = ipaddress.IPv6Address(bytes.fromhex(digits))
            if not address.is_link_local:
                found.setdefault(name, []).append(str(address))
    return {name: addresses for name, addresses in found.items() if addresses}


def _address_of(interface: str) -> str:
    found = interfaces()
    if interface not in found:
        raise ConfigError(f"this host has no interface {interface!r} with an address ({_shown_interfaces()})")
    return found[interface][0]


def _address_towards(target: str, setting: str) -> str:
    parts = urlsplit(target)
    try:
        family, kind, _, _, address = socket.getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_DGRAM)[0]
        return _source(family, kind, address)
    except OSError as error:
        raise ConfigError(f"cannot reach {target}: {error}; set {setting} to an address of this host") from error


def _default_address() -> str:
    for address, family in _ELSEWHERE:
        with contextlib.suppress(OSError):
            return _source(family, socket.SOCK_DGRAM, (address, 9))
    others = [
        address
        for addresses in interfaces().values()
        for address in addresses
        if not ipaddress.ip_address(address).is_loopback
    ]
    return others[0] if others else "127.0.0.1"


def _source(family: int, kind: int, target: tuple[object, ...]) -> str:
    """Return the address that a datagram to `target` would be sent from."""
    with socket.socket(family, kind) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])


def _shown_interfaces() -> str:
    shown = ", ".join(f"{name} {' '.join(addresses)}" for name, addresses in sorted(interfaces().items()))
    return f"it has {shown or 'no interface'}"
