"""A Slurm cluster of several nodes on this machine: real daemons, invented nodes, started in about two seconds.

Needs root and the programs of scripts/setup_slurm.sh. No systemd, no cgroups, no database; GPUs are device files that
do nothing. It is the caller who closes it, which ends the daemons and everything they started.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel", "squeue")
SETTINGS = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=cred_expire=5,socket={folder}/munge.socket
CredType=cred/munge
SlurmctldPort={control_port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_interval=2,sched_interval=2
ReturnToService=2
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
GresTypes=gpu
MpiDefault=none
MinJobAge=60
KillWait=5
SlurmdTimeout=20
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{nodes}
PartitionName=low Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=30
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""


def missing() -> str:
    """Return why no cluster can be started here; empty when one can."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"no {', '.join(absent)}; run: bash scripts/setup_slurm.sh"
    return "" if os.geteuid() == 0 else "starting Slurm's daemons needs root"


class SlurmCluster:
    """Daemons and nodes n1, n2, ... below `folder`; commands find it by SLURM_CONF."""

    def __init__(self, folder: Path, num_nodes: int = 4) -> None:
        self.folder = folder
        self.names = [f"n{number + 1}" for number in range(num_nodes)]
        self._daemons: list[subprocess.Popen[bytes]] = []
        folder.chmod(0o755)
        for name in ("state", *(f"spool-{name}" for name in self.names)):
            (folder / name).mkdir()
        control, *ports = _free_ports(num_nodes + 1)
        lines = [
            f"NodeName={name} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={port} CPUs=8 "
            f"RealMemory=4000 Gres=gpu:2 State=UNKNOWN"
            for name, port in zip(self.names, ports, strict=True)
        ]
        self.conf = folder / "slurm.conf"
        self.conf.write_text(
            SETTINGS.format(host=socket.gethostname(), folder=folder, control_port=control, nodes="\n".join(lines))
        )
        for number in range(2):  # plain files would not do: slurmd wants devices before it sets CUDA_VISIBLE_DEVICES
            os.mknod(folder / f"gpu{number}", 0o20666, os.makedev(1, 3))
        names = f"{self.names[0]},{','.join(self.names[1:])}" if num_nodes > 1 else self.names[0]
        (folder / "gres.conf").write_text(f"NodeName={names} Name=gpu File={folder}/gpu[0-1]\n")
        self.environment = {**os.environ, "SLURM_CONF": str(self.conf)}
        try:
            self._start_munge()
            self._start("slurmctld", "-D", "-f", str(self.conf))
            for name in self.names:
                self._start("slurmd", "-D", "-f", str(self.conf), "-N", name)
            self.wait_for_nodes(self.names)
        except BaseException:
            self.close()
            raise

    def ask(self, *command: str, check: bool = True) -> str:
        """Run a command of Slurm and return what it prints."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False, timeout=60)
        if check and done.returncode:
            raise RuntimeError(f"{command}: {done.stderr}")
        return done.stdout

    def wait_for_nodes(self, names: list[str], seconds: float = 60.0) -> None:
        """Wait until these nodes take jobs."""
        deadline = time.monotonic() + seconds
        while True:
            found = self.ask("sinfo", "--noheader", "-N", "-p", "low", "--format", "%N %T", check=False).split("\n")
            idle = {
                line.split()[0] for line in found if line.strip() and line.split()[1] in {"idle", "mixed", "allocated"}
            }
            if set(names) <= idle:
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"nodes {names} did not come up: {found}")
            time.sleep(0.2)

    def close(self) -> None:
        """End all jobs, then all daemons."""
        if self.conf.exists() and len(self._daemons) > 1:
            self.ask("scancel", "--user=root", check=False)
            deadline = time.monotonic() + 60
            while self.ask("squeue", "--noheader", check=False).strip() and time.monotonic() < deadline:
                time.sleep(0.3)
        for daemon in reversed(self._daemons):
            daemon.send_signal(signal.SIGTERM)
        for daemon in reversed(self._daemons):
            try:
                daemon.wait(60)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        names = {name: str(self.folder / f"munge.{name}") for name in ("socket", "pid", "log", "seed")}
        self._start(
            "munged", "--foreground", "--force", f"--key-file={key}", f"--socket={names['socket']}",
            f"--pid-file={names['pid']}", f"--log-file={names['log']}", f"--seed-file={names['seed']}",
        )  # fmt: skip
        deadline = time.monotonic() + 60
        while not Path(names["socket"]).exists():
            if time.monotonic() > deadline:
                raise RuntimeError("munged did not start")
            time.sleep(0.05)

    def _start(self, *command: str) -> None:
        log = (self.folder / f"{command[0]}-{len(self._daemons)}.out").open("wb")
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "SLURM_CONF": str(self.conf)}
        program = shutil.which(command[0]) or command[0]
        with log:
            self._daemons.append(
                subprocess.Popen(
                    [program, *command[1:]], env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
            )


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports
