"""Processes of one job find each other: named entries with leases, through a small service or a shared folder.

    server = serve_directory("10.0.0.1", key)                       # one process of the job; url: tcp://10.0.0.1:41733
    with open_directory(server.url, key) as directory:              # every process
        mine = directory.announce("server", "vllm-0", {"url": "http://10.0.0.2:8000"}, lease_seconds=30)
        servers = directory.wait_for("server", 4, timeout_seconds=600)

An entry ends when its owner withdraws it, or a lease after its owner was last heard of.
"""

from areal.infra.directory.directory import Announcement, Directory, open_directory, read_key
from areal.infra.directory.server import DirectoryServer, serve_directory

__all__ = ["Announcement", "Directory", "DirectoryServer", "open_directory", "read_key", "serve_directory"]
