"""Connecting to Ray, and what the work may use there."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from klda.checks import check_count
from klda.errors import KldaError, require

LOCAL = "local"
CONNECT_SECONDS = 5.0


class ClusterError(KldaError):
    """The cluster can't be reached or can't do the work; the message says what to do."""


@dataclass(frozen=True)
class Resources:
    """What the work may use; None and "auto" follow from what the cluster has."""

    workers: int | None = None
    cpus_per_worker: int = 1
    gpus_per_worker: float | str = "auto"
    retries: int = 3

    def __post_init__(self) -> None:
        if self.workers is not None:
            check_count("workers", self.workers)
        check_count("cpus_per_worker", self.cpus_per_worker)
        check_count("retries", self.retries, least=0)
        gpus = self.gpus_per_worker
        if gpus != "auto" and (isinstance(gpus, bool | str) or gpus < 0):
            raise KldaError(f"gpus_per_worker={gpus!r} can't be used; give a number or 'auto'.")

    def settled(self, ray: Any, leave_cpus: bool) -> tuple[int, float, float]:
        """Return the number of workers, and the CPUs and GPUs that each asks Ray for.

        With ``leave_cpus``, some CPUs are left to the tasks of Ray Data that read a dataset.
        """
        has = ray.cluster_resources()
        cpus, gpus = has.get("CPU", 1.0), has.get("GPU", 0.0)
        worker_gpus = (
            (1.0 if gpus else 0.0) if self.gpus_per_worker == "auto" else self.gpus_per_worker
        )
        assert not isinstance(worker_gpus, str)
        if worker_gpus > gpus:
            raise ClusterError(
                f"gpus_per_worker={worker_gpus:g}, but the cluster has {gpus:g} GPUs."
            )
        free = cpus - max(1.0, cpus // 8) if leave_cpus else cpus
        workers = self.workers
        if workers is None:
            workers = max(
                1, int(gpus / worker_gpus) if worker_gpus else int(free // self.cpus_per_worker)
            )
        worker_cpus = float(self.cpus_per_worker)
        if leave_cpus and workers * worker_cpus > free:
            worker_cpus = int(100 * free / workers) / 100
        if worker_cpus > cpus:
            raise ClusterError(
                f"cpus_per_worker={worker_cpus:g}, but the cluster has {cpus:g} CPUs."
            )
        return workers, worker_cpus, worker_gpus


@contextlib.contextmanager
def connected(address: str | None, resources: Resources) -> Iterator[Any]:
    """Connect to a cluster, and disconnect at the end; an existing connection is used and kept.

    The address is ``"local"`` for processes on this machine, ``"auto"`` for the cluster that this
    machine is part of, or ``host:port`` of a cluster's head; by default what RAY_ADDRESS says,
    else local. A local cluster has at least these resources. Yields the module ``ray``.
    """
    ray = require("ray", "cluster")
    require("ray.data", "cluster")
    if ray.is_initialized():
        yield ray
        return
    chosen = address or os.environ.get("RAY_ADDRESS") or LOCAL
    if chosen == LOCAL:
        _start_local(ray, resources)
    else:
        connect(ray, chosen)
    try:
        yield ray
    finally:
        ray.shutdown()


def _start_local(ray: Any, resources: Resources) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anyone
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or Ray warns at each start
    cpus = max(os.cpu_count() or 1, (resources.workers or 1) * resources.cpus_per_worker)
    ray.init(
        address=LOCAL,
        num_cpus=cpus,
        include_dashboard=False,
        logging_level=logging.ERROR,
        log_to_driver=False,
    )


def connect(ray: Any, address: str) -> None:
    """Connect to a running cluster; an address where there is none fails within seconds."""
    if address.startswith("ray://"):
        raise ClusterError(
            f"address={address!r}: Ray Client is not supported. Run on a machine of the cluster, "
            "or with `ray job submit`, and give address='auto'."
        )
    if address != "auto":
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise ClusterError(
                f"address={address!r} is not an address; give 'local', 'auto' or host:port."
            )
        try:
            socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
        except OSError as error:
            raise ClusterError(
                f"address={address!r}: nothing answers there ({error.strerror or error}). Start "
                f"the cluster's head with: ray start --head --port={port}"
            ) from error
    try:
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    except (ConnectionError, RuntimeError, TimeoutError, ValueError) as error:
        raise ClusterError(
            f"address={address!r}: no Ray cluster of the same version can be reached there "
            f"({str(error).splitlines()[0]}). Start one with: ray start --head"
        ) from error
