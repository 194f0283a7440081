"""How many CPUs this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def usable_cpus() -> int:
    """Return the number of threads that can run at once.

    ``OMP_NUM_THREADS`` decides if it is set, as it does for NumPy and torch. Otherwise the CPUs of
    this process count, and in a container no more than its quota: threads beyond it are paused.
    """
    wanted = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    if wanted.isdigit() and int(wanted) > 0:
        return int(wanted)
    affinity = getattr(os, "sched_getaffinity", None)
    cpus = len(affinity(0)) if affinity else os.cpu_count() or 1
    quota = container_quota(_CGROUP)
    return cpus if quota is None else max(1, min(cpus, math.ceil(quota)))


def container_quota(root: Path) -> float | None:
    """Return the CPUs that a container may use on average; None without a limit."""
    try:
        if (root / "cpu.max").is_file():  # cgroup version 2
            quota, period = (root / "cpu.max").read_text().split()
        else:
            quota = (root / "cpu/cpu.cfs_quota_us").read_text()
            period = (root / "cpu/cpu.cfs_period_us").read_text()
        return float(quota) / float(period) if float(quota) > 0 else None
    except (OSError, ValueError):  # "max", or no such limit on this system
        return None
