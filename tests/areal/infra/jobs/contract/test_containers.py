"""Jobs whose runners are in containers, started by a program that takes docker's options (podman here).

The image is empty: programs and libraries of this machine are mounted into it, since no registry is asked.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import eventually

ROOT = Path(__file__).resolve().parents[5]
IMAGE = "localhost/areal-empty:1"
FOLDERS = ("dev", "etc", "proc", "root", "run", "sys", "tmp", "usr", "var")
SETTINGS = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
"""
pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def path_with_docker(tmp_path_factory):
    """A folder with a program `docker` that can run the image."""
    if os.geteuid() or shutil.which("podman") is None or shutil.which("runc") is None:
        pytest.skip("needs root, podman, runc and catatonit (Debian: apt-get install podman runc catatonit)")
    folder = tmp_path_factory.mktemp("docker")
    (folder / "containers.conf").write_text(SETTINGS)
    program = folder / "docker"
    program.write_text(
        f'#!/bin/sh\nexport CONTAINERS_CONF="{folder}/containers.conf"\n'
        f'exec podman --root "{folder}/store" --runroot "{folder}/state" "$@"\n'
    )
    program.chmod(0o755)
    root = folder / "root"
    for name in FOLDERS:
        (root / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        (root / name).symlink_to(f"usr/{name}")
    packed = subprocess.run(["tar", "-C", root, "-c", "."], capture_output=True, check=True).stdout
    done = subprocess.run([program, "import", "-", IMAGE], input=packed, capture_output=True, check=False)
    if done.returncode == 0:
        asked = [
            program,
            "run",
            "--rm",
            "--network",
            "host",
            "--ipc",
            "host",
            "--volume",
            "/usr:/usr:ro",
            IMAGE,
            "true",
        ]
        done = subprocess.run(asked, capture_output=True, check=False, timeout=60)
    if done.returncode:
        pytest.skip(f"podman runs no containers here: {done.stderr.decode(errors='replace')[-300:]}")
    yield folder
    subprocess.run([program, "rmi", "--force", IMAGE], capture_output=True, check=False)


@pytest.fixture
def contained(backend, path_with_docker, tmp_path):
    """Returns what the section `job` needs for containers."""
    if backend.name != "local":
        pytest.skip("docker is for jobs of this machine")
    before = backend.environment["PATH"]
    backend.environment["PATH"] = f"{path_with_docker}:{before}"
    places = dict.fromkeys(map(str, (ROOT, sys.prefix, sys.base_prefix, tmp_path / "notes")))
    readable = [f"{path}:{path}:ro" for path in ("/usr", "/etc")]
    yield {
        "image": IMAGE,
        "runtime": "docker",
        "mounts": [*readable, *(f"{path}:{path}" for path in places if not path.startswith("/usr"))],
    }
    backend.environment["PATH"] = before


def test_processes_run_in_containers_and_the_exit_code_is_theirs(launch, contained, tmp_path):
    job = launch(
        {
            "trainer": {
                "count": 2,
                "max_restarts": 0,
                "command": "note('inside', root=sorted(os.listdir('/')))\nif rank == 1:\n    sys.exit(7)\n"
                "time.sleep(60)",
                "arguments": ["it's $(id)"],
            },
            "server": {"count": 1, "command": "ready(); time.sleep(600)"},
        },
        environment={"QUOTED": "a 'b' $(c)"},
        **contained,
    )
    assert job.wait() == 7, job.said()
    inside = job.noted("inside")["trainer-0-0"]["root"]
    assert "home" not in inside, "that of the image, not of this machine"
    began = job.noted("began")["trainer-1-0"]
    assert (began["arguments"], began["environment"]["QUOTED"]) == (["it's $(id)"], "a 'b' $(c)")
    assert eventually(lambda: not job.left(), 60), job.left()


def test_cancelling_lets_contained_ranks_save(launch, contained):
    job = launch(
        {
            "trainer": {
                "count": 1,
                "command": "subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
                "signal.signal(signal.SIGTERM, save_and_end)\nnote('ready')\ntime.sleep(600)",
            }
        },
        **contained,
    )
    assert eventually(lambda: job.noted("ready")), job.said()
    job.command("cancel")
    assert job.left() == []
    assert list(job.noted("saved")) == ["trainer-0-0"]
    assert job.wait() == 143


def test_containers_end_with_whoever_launched_them(launch, contained):
    job = launch({"trainer": {"count": 1, "command": "note('ready'); time.sleep(600)"}}, **contained)
    assert eventually(lambda: job.noted("ready")), job.said()
    job.process.send_signal(signal.SIGKILL)
    job.process.wait(30)
    assert eventually(lambda: not job.left(), 60), job.left()
