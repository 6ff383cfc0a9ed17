"""The address that others reach: loopback hides every mistake here, so two hosts are made of network namespaces."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from two_hosts import two_hosts

from areal.api import ConfigError
from areal.infra.directory.address import interface_of, interfaces, own_address

KEY = "11" * 16
HOST = """
import json, sys
from areal.infra.directory import open_directory, serve_directory
from areal.infra.directory.address import interface_of, own_address
key = bytes.fromhex(sys.argv[2])
if sys.argv[1] == "first":
    address = own_address(several_hosts=True, interface=sys.argv[3])
    server = serve_directory(address, key)
    print(server.url, flush=True)
    with open_directory(server.url, key) as directory:
        print(json.dumps(directory.wait_for("host", 1, 60)), flush=True)
        sys.stdin.readline()
else:
    address = own_address([sys.argv[1]], several_hosts=True)
    with open_directory(sys.argv[1], key) as directory:
        directory.announce("host", "second", {"address": address, "interface": interface_of(address)}, 30)
        sys.stdin.readline()
"""


def test_one_host_needs_no_address_and_several_refuse_that_of_themselves():
    assert own_address() == "127.0.0.1"
    with pytest.raises(ConfigError, match="which other hosts take for their own; name an interface"):
        own_address(["http://127.0.0.1:80"], several_hosts=True)
    with pytest.raises(ConfigError, match=r"by interface lo is 127\.0\.0\.1"):
        own_address(interface="lo", several_hosts=True)
    if "::1" in interfaces()["lo"]:
        assert own_address(["tcp://[::1]:80"]) == "::1"


def test_interfaces_and_addresses_lead_to_each_other():
    found = interfaces()
    assert found["lo"][0] == "127.0.0.1"
    for name, addresses in found.items():
        assert own_address(interface=name) == addresses[0]
        assert interface_of(addresses[0]) == name
    with pytest.raises(ConfigError, match=r"no interface 'eth99' .*lo 127\.0\.0\.1"):
        own_address(interface="eth99")
    with pytest.raises(ConfigError, match=r"has the address 192\.0\.2\.7"):
        interface_of("192.0.2.7")
    with pytest.raises(ConfigError, match=r"no-such-host.* set job\.network"):
        own_address(["tcp://no-such-host.invalid:80"], setting="job.network")


@pytest.fixture
def hosts():
    with two_hosts() as made:
        yield made


@pytest.mark.exhaustive
@pytest.mark.parametrize("interface", ["", "cable0"])
def test_two_hosts_meet_at_an_address_that_was_found(hosts, interface):
    """Neither has a default route, and the name of each means 127.0.0.1 or nothing."""

    def start(host, *arguments):
        command = hosts.command(host, sys.executable, "-c", HOST, *arguments)
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    with start(0, "first", KEY, interface) as first:
        url = first.stdout.readline().strip()
        assert url.startswith("tcp://10.77.0.1:")
        with start(1, url, KEY) as second:
            found = json.loads(first.stdout.readline())
            second.communicate("end\n", timeout=60)
        first.communicate("end\n", timeout=60)
    assert found == {"second": {"address": "10.77.0.2", "interface": "cable1"}}
    assert (first.returncode, second.returncode) == (0, 0)
