"""What a process may use of the CPUs: affinity, quotas of both versions of control groups, and load."""

from __future__ import annotations

import os

import pytest

from areal.utils.machine import CpuShare, cpu_share, free_memory, host_memory


def system(folder, groups, **files):
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        path = folder / "sys/fs/cgroup" / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize(
    ("groups", "files", "quota"),
    [
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        # Every group above counts as well.
        ("0::/pod/app\n", {"pod__cpu.max": "200000 100000\n", "pod__app__cpu.max": "max 100000\n"}, 2.0),
        # In a container, the path is that outside.
        ("0::/not/mounted/here\n", {"cpu.max": "50000 100000\n"}, 0.5),
        ("4:cpu,cpuacct:/\n", {"cpu__cpu.cfs_quota_us": "400000\n", "cpu__cpu.cfs_period_us": "100000\n"}, 4.0),
        ("4:cpu,cpuacct:/\n", {"cpu__cpu.cfs_quota_us": "-1\n", "cpu__cpu.cfs_period_us": "100000\n"}, None),
        ("7:memory:/\n", {"cpu.max": "nonsense"}, None),
    ],
)
def test_quotas_are_read(tmp_path, groups, files, quota):
    assert cpu_share(system(tmp_path, groups, **files)).quota == quota


def test_without_such_files_there_is_no_quota_and_every_cpu_is_a_core(tmp_path):
    share = cpu_share(tmp_path)
    assert share.quota is None
    assert share.total == os.cpu_count()
    assert 1 <= share.allowed <= share.total


def test_two_cpus_of_one_core_count_once(tmp_path):
    for cpu in range(os.cpu_count()):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text("0-999\n")
    assert cpu_share(tmp_path).total == 1


@pytest.mark.parametrize(
    ("share", "usable", "free"),
    [
        ({"total": 16, "allowed": 16, "quota": None, "load": 0.0}, 16, 16),
        ({"total": 16, "allowed": 16, "quota": None, "load": 12.2}, 16, 4),
        ({"total": 16, "allowed": 16, "quota": None, "load": 99.0}, 16, 1),
        ({"total": 16, "allowed": 4, "quota": None, "load": 8.0}, 4, 2),
        ({"total": 64, "allowed": 64, "quota": 2.5, "load": 0.4}, 2, 2),
        ({"total": 64, "allowed": 64, "quota": 0.5, "load": 0.0}, 1, 1),
    ],
)
def test_what_is_usable_and_what_is_free(share, usable, free):
    found = CpuShare(**share)
    assert (found.usable, found.free) == (usable, free)


def test_memory_is_no_more_than_the_control_group_grants(tmp_path):
    whole = host_memory(tmp_path)
    assert whole is None or whole > 1 << 26
    assert host_memory(system(tmp_path, "0::/", **{"memory.max": "1000000\n"})) == 1_000_000
    assert host_memory(system(tmp_path / "free", "0::/", **{"memory.max": "max\n"})) == whole


def test_free_memory_is_what_the_system_says(tmp_path):
    assert free_memory(tmp_path) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    1234 kB\n")
    assert free_memory(tmp_path) == 1234 * 1024
