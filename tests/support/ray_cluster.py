"""A Ray cluster of several nodes on this machine, in an environment of its own (scripts/setup_ray.sh).

    python ray_cluster.py NODES                # in that environment: prints the address, then follows lines of stdin

`RayCluster` runs that program and speaks to it: Ray itself is not needed where tests run.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-ray" / "bin" / "python"
RESOURCES = {"num_cpus": 8, "num_gpus": 2, "memory": 2 * 2**30, "object_store_memory": 80 * 2**20}


def missing() -> str:
    """Return why no cluster can be started here; empty when one can."""
    return "" if PYTHON.exists() else "no .venv-ray; run: bash scripts/setup_ray.sh"


class RayCluster:
    """Nodes beside the head, which holds nothing and is never removed."""

    def __init__(self, num_nodes: int, environment: dict[str, str], log: Path) -> None:
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [str(PYTHON), __file__, str(num_nodes)], env=environment, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file,
            )  # fmt: skip
        self.address = self._answer()

    def remove(self, pid: int) -> str:
        """Kill the node below which the process `pid` runs, without grace; return its name."""
        return self._ask(f"remove {pid}")

    def add(self) -> None:
        """Add a node."""
        self._ask("add")

    def close(self) -> None:
        """End all nodes."""
        self._ask("close")
        self._process.wait(60)

    def _ask(self, line: str) -> str:
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        while line := self._process.stdout.readline():
            if line.startswith("answer "):
                return line.removeprefix("answer ").strip()
        raise RuntimeError("the Ray cluster's program has ended")


def main(num_nodes: int) -> None:
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "num_gpus": 0, "object_store_memory": RESOURCES["object_store_memory"]}
    cluster = Cluster(initialize_head=True, head_node_args={**head, "include_dashboard": False})
    nodes = [cluster.add_node(**RESOURCES) for _ in range(num_nodes)]
    cluster.wait_for_nodes()
    answer(cluster.address)
    for line in sys.stdin:
        word, *arguments = line.split()
        found = ""
        if word == "remove":
            parents = set(ancestors(int(arguments[0])))
            node = next(
                node for node in nodes
                if parents & {info.process.pid for infos in node.all_processes.values() for info in infos}
            )  # fmt: skip
            nodes.remove(node)
            found = node.unique_id
            cluster.remove_node(node, allow_graceful=False)
        elif word == "add":
            nodes.append(cluster.add_node(**RESOURCES))
        elif word == "close":
            cluster.shutdown()
        answer(found or "done")
        if word == "close":
            return


def answer(text: str) -> None:
    """Write the line that `RayCluster` waits for."""
    sys.stdout.write(f"answer {text}\n")
    sys.stdout.flush()


def ancestors(pid: int) -> list[int]:
    """Return the ids of the processes above this one."""
    found = []
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        found.append(pid)
    return found


if __name__ == "__main__":
    main(int(sys.argv[1]))
