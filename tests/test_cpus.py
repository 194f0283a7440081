"""How many threads are started: OMP_NUM_THREADS, the CPUs of the process, a container's quota."""

from __future__ import annotations

import os

import pytest

from klda import cpus
from klda.cpus import container_quota, usable_cpus


@pytest.mark.parametrize(
    "files, expected",
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, 2.0),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({}, None),
    ],
)
def test_the_quota_of_a_container_is_read(files, expected, tmp_path):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    assert container_quota(tmp_path) == expected


def test_omp_num_threads_sets_the_number_of_threads(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert usable_cpus() == 3
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert 1 <= usable_cpus() <= (os.cpu_count() or 1)


@pytest.mark.parametrize("wanted", ["0", "many", None])
def test_without_a_number_the_cpus_of_the_process_and_its_quota_count(
    monkeypatch, tmp_path, wanted
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(4)), raising=False)
    monkeypatch.setattr(cpus, "_CGROUP", tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if wanted is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", wanted)
    assert usable_cpus() == 4
    (tmp_path / "cpu.max").write_text("150000 100000")
    assert usable_cpus() == 2
