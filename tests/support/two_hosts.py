"""Two hosts on this machine: network namespaces joined by a cable, which can be cut.

Needs root and the program `ip`. They share files and processes with this machine, and no interface.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import contextmanager

import pytest


class TwoHosts:
    """10.77.0.1 on `cable0` of the first, 10.77.0.2 on `cable1` of the second; neither has a default route."""

    addresses = ("10.77.0.1", "10.77.0.2")

    def __init__(self):
        self.names = [f"areal-{os.getpid()}-{number}" for number in (1, 2)]

    def command(self, host, *words):
        """Return a command that runs on a host."""
        return ["ip", "netns", "exec", self.names[host], *map(str, words)]

    @contextmanager
    def cut(self):
        """Lose every packet meanwhile; connections are not told."""
        # A link that is down would be noticed: its route goes, and every call says at once that the network is
        # unreachable. Packets to an address that no card has are lost in silence.
        self._neighbours("replace", "lladdr", "02:00:00:00:00:01", "nud", "permanent")
        try:
            yield
        finally:
            self._neighbours("del")

    def _neighbours(self, action, *words):
        for here, there in ((0, 1), (1, 0)):
            neighbour = [self.addresses[there], *words, "dev", f"cable{here}"]
            subprocess.run(["ip", "-n", self.names[here], "neigh", action, *neighbour], check=True)


@contextmanager
def two_hosts():
    """Make them; skips the test where that is not allowed."""
    if os.geteuid() or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the program `ip` (Debian: apt-get install iproute2)")
    hosts = TwoHosts()
    first, second = hosts.names
    script = "; ".join(
        [
            f"ip netns add {first} && ip netns add {second}",
            f"ip link add cable0 netns {first} type veth peer name cable1 netns {second}",
            *(
                f"ip -n {name} addr add {hosts.addresses[number]}/24 dev cable{number} && "
                f"ip -n {name} link set cable{number} up && ip -n {name} link set lo up"
                for number, name in enumerate(hosts.names)
            ),
        ]
    )
    made = subprocess.run(["sh", "-ec", script], capture_output=True, text=True, check=False)
    try:
        if made.returncode:
            pytest.skip(f"network namespaces are not allowed here: {made.stderr.strip()[:200]}")
        yield hosts
    finally:
        for name in hosts.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
