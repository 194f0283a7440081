"""Connecting to Ray."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from typing import Any

from klda.errors import KldaError, require

LOCAL = "local"
CONNECT_SECONDS = 5.0


class ClusterError(KldaError):
    """The cluster can't be reached or can't do the work; the message says what to do."""


@contextlib.contextmanager
def connected(address: str | None, local_cpus: int) -> Iterator[Any]:
    """Connect to a cluster, and disconnect at the end; an existing connection is used and kept.

    The address is ``"local"`` for processes on this machine, ``"auto"`` for the cluster that this
    machine is part of, or ``host:port`` of a cluster's head; by default what RAY_ADDRESS says,
    else local. A local cluster has at least so many CPUs. Yields the module ``ray``.
    """
    ray = require("ray", "cluster")
    require("ray.data", "cluster")
    if ray.is_initialized():
        yield ray
        return
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or Ray warns at each start
    chosen = address or os.environ.get("RAY_ADDRESS") or LOCAL
    if chosen == LOCAL:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anyone
        cpus = max(os.cpu_count() or 1, local_cpus)
        _init(ray, LOCAL, num_cpus=cpus, include_dashboard=False)
    else:
        connect(ray, chosen)
    try:
        yield ray
    finally:
        ray.shutdown()


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
        _init(ray, address)
    except (ConnectionError, RuntimeError, TimeoutError, ValueError) as error:
        raise ClusterError(
            f"address={address!r}: no Ray cluster of the same version can be reached there "
            f"({str(error).splitlines()[0]}). Start one with: ray start --head"
        ) from error


def _init(ray: Any, address: str, **settings: Any) -> None:
    ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, **settings)
