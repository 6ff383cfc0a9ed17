"""A program that owns a supervised server and waits to be killed: `python owner.py FOLDER`."""

import sys
import time
from pathlib import Path

from areal.engine.server.client import is_healthy
from areal.infra.supervisor.config import SupervisorConfig
from areal.infra.supervisor.supervisor import LocalSupervisor, ServerCommand

folder = Path(sys.argv[1])
server = Path(__file__).with_name("small_server.py")


class Listener:
    def server_up(self, instance):
        (folder / "up").write_text(instance.url)

    def server_down(self, instance, reason):
        pass

    def server_retired(self, name, reason):
        pass


supervisor = LocalSupervisor(
    ["one"],
    lambda index, port: ServerCommand(
        arguments=[sys.executable, "-S", str(server), "children", str(port), str(folder)]
    ),
    health=is_healthy,
    config=SupervisorConfig(poll_seconds=0.1, grace_seconds=2.0),
    log_folder=folder,
)
supervisor.start(Listener())
time.sleep(600)
