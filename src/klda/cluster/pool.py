"""Connecting to Ray, and keeping a pool of workers busy."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from klda.cluster.blocks import Feed, Group, beside_driver
from klda.cluster.errors import ClusterError
from klda.cluster.workers import Attempts, Worker, WorkerInfo
from klda.errors import KldaError, require

LOCAL = "local"
CONNECT_SECONDS = 5.0
START_SECONDS = 300.0  # until the first worker has a place; what it loads may take longer
LOOK_SECONDS = 2.0  # between two looks at whether reading failed
POLL_SECONDS = 0.2  # while a worker has nothing to do and rows may come in


@dataclass(frozen=True)
class Status:
    """How far the work is.

    Attributes
    ----------
    rows : int
        Rows done.
    groups : int
        Groups done.
    fraction : float
        Share of all rows, as far as it can be told from the files; NaN for datasets.
    workers : tuple of WorkerInfo
        Workers that have started.
    """

    rows: int
    groups: int
    fraction: float
    workers: tuple[WorkerInfo, ...]


@dataclass(frozen=True)
class Resources:
    """What the work may use; None and "auto" are filled in from what the cluster has."""

    workers: int | None = None
    cpus_per_worker: int = 1
    gpus_per_worker: float | str = "auto"
    retries: int = 3

    def check(self) -> None:
        """Raise if a value can't be used."""
        for name in ("workers", "cpus_per_worker"):
            value = getattr(self, name)
            if value is None and name == "workers":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise KldaError(f"{name}={value!r} can't be used; give a positive integer.")
        if isinstance(self.retries, bool) or not isinstance(self.retries, int) or self.retries < 0:
            raise KldaError(f"retries={self.retries!r} can't be used; give 0 or more.")
        gpus = self.gpus_per_worker
        if gpus != "auto" and (isinstance(gpus, bool | str) or gpus < 0):
            raise KldaError(f"gpus_per_worker={gpus!r} can't be used; give a number or 'auto'.")

    def settled(self, ray: Any, leave_cpus: bool) -> tuple[int, float, float]:
        """Return workers, and the CPUs and GPUs that each asks Ray for.

        A dataset is read by tasks of Ray Data, which need CPUs that no worker holds.
        """
        has = ray.cluster_resources()
        cpus, gpus = has.get("CPU", 1.0), has.get("GPU", 0.0)
        a_gpu = (1.0 if gpus else 0.0) if self.gpus_per_worker == "auto" else self.gpus_per_worker
        assert not isinstance(a_gpu, str)
        if a_gpu > gpus:
            raise ClusterError(f"gpus_per_worker={a_gpu:g}, but the cluster has {gpus:g} GPUs.")
        free = cpus - max(1.0, cpus // 8) if leave_cpus else cpus
        workers = self.workers
        if workers is None:
            workers = max(1, int(gpus / a_gpu) if a_gpu else int(free // self.cpus_per_worker))
        a_cpu = float(self.cpus_per_worker)
        if leave_cpus and workers * a_cpu > free:
            a_cpu = int(100 * free / workers) / 100
        if a_cpu > cpus:
            raise ClusterError(f"cpus_per_worker={a_cpu:g}, but the cluster has {cpus:g} CPUs.")
        return workers, a_cpu, a_gpu


# ---------------------------------------------------------------------------------------------
# Connecting


@contextlib.contextmanager
def connected(address: str | None, resources: Resources) -> Iterator[Any]:
    """Connect to a cluster, and leave as it was found.

    Parameters
    ----------
    address : str or None
        ``"local"``: processes on this machine. ``"auto"``: the cluster that this machine is part
        of. ``host:port``: that of a cluster's head. None: what RAY_ADDRESS says, else local. A
        connection that exists already is used.
    resources : Resources
        What is needed, for a local start.

    Yields
    ------
    module
        Ray, connected.
    """
    ray = require("ray", "cluster")
    require("ray.data", "cluster")
    require("ray.util.scheduling_strategies", "cluster")
    if ray.is_initialized():
        yield ray
        return
    chosen = address or os.environ.get("RAY_ADDRESS") or LOCAL
    if chosen == LOCAL:
        _start_local(ray, resources)
    else:
        _connect(ray, chosen)
    try:
        yield ray
    finally:
        ray.shutdown()


def _start_local(ray: Any, resources: Resources) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anyone
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or a warning at each start
    cpus = max(os.cpu_count() or 1, (resources.workers or 1) * resources.cpus_per_worker)
    ray.init(
        address=LOCAL,
        num_cpus=cpus,
        include_dashboard=False,
        logging_level=logging.ERROR,
        log_to_driver=False,
    )


def _connect(ray: Any, address: str) -> None:
    if address.startswith("ray://"):
        raise ClusterError(
            f"address={address!r}: Ray Client is not supported. Run on a machine of the cluster, "
            "or by `ray job submit`, with address='auto'."
        )
    if address != "auto":
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise ClusterError(
                f"address={address!r} is not understood; give 'local', 'auto' or host:port."
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


# ---------------------------------------------------------------------------------------------
# Working


class Pool:
    """Workers, and the loop that keeps them busy.

    Parameters
    ----------
    ray : module
        Connected.
    make : tuple
        What a `Worker` is made with, except the number of threads.
    resources : Resources
        What workers may use.
    leave_cpus : bool
        Whether Ray Data needs CPUs, too.
    """

    def __init__(
        self,
        ray: Any,
        foundation: dict[str, Any],
        options: dict[str, Any],
        resources: Resources,
        *,
        leave_cpus: bool,
    ) -> None:
        self.ray = ray
        self.size, cpus, gpus = resources.settled(ray, leave_cpus)
        options = dict(options)
        device = options.pop("device", "auto")
        if device == "auto":
            device = "cuda" if gpus else "cpu"
        counter = ray.remote(num_cpus=0, scheduling_strategy=beside_driver(ray))(Attempts)
        # Known by name: an actor that is passed on would not outlive the loss of a machine.
        name = f"klda-attempts-{uuid.uuid4().hex}"
        self._attempts = counter.options(name=name).remote()
        # A worker that dies is started again, anywhere, and what it was doing is done again; so is
        # what it had done before if the machine that held it is gone.
        remote = ray.remote(
            num_cpus=cpus,
            num_gpus=gpus,
            max_restarts=-1,
            max_task_retries=-1,
            scheduling_strategy="SPREAD",
        )(Worker)
        threads, retries = resources.cpus_per_worker, resources.retries
        self._workers = [
            remote.remote(foundation, options, device, threads, name, retries)
            for _ in range(self.size)
        ]
        self._arriving = [worker.arrive.remote() for worker in self._workers]
        self._starting = {
            worker.prepare.remote(number): worker for number, worker in enumerate(self._workers, 1)
        }
        self._idle: list[Any] = []
        self.infos: list[WorkerInfo] = []

    def close(self) -> None:
        """End the workers."""
        for actor in (*self._workers, self._attempts):
            self.ray.kill(actor)

    def first(self) -> Any:
        """Return a worker that has started; waits for the first one."""
        if self._idle:
            return self._idle[0]
        self._await_arrival()
        (ref,), _ = self.ray.wait(list(self._starting), num_returns=1)
        self._admit(ref)
        return self._idle[0]

    def _await_arrival(self) -> None:
        arrived, _ = self.ray.wait(self._arriving, num_returns=1, timeout=START_SECONDS)
        if not arrived:
            has = self.ray.cluster_resources()
            raise ClusterError(
                f"No worker could be started in {START_SECONDS:.0f} s: the cluster has "
                f"{has.get('CPU', 0):g} CPUs and {has.get('GPU', 0):g} GPUs, and others may be "
                "using them. Ask for less with workers, cpus_per_worker or gpus_per_worker."
            )

    def status(self, rows: int = 0, groups: int = 0, fraction: float = 0.0) -> Status:
        """Say how far the work is."""
        return Status(rows, groups, fraction, tuple(self.infos))

    def _admit(self, ref: Any) -> None:
        worker = self._starting.pop(ref)
        self.infos.append(self.get(ref))
        self._idle.append(worker)

    def get(self, ref: Any) -> Any:
        """Fetch a value; errors of the work come as they were raised there."""
        exceptions = self.ray.exceptions
        try:
            return self.ray.get(ref)
        except exceptions.RayTaskError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, KldaError | OSError):
                raise cause from None
            raise ClusterError(f"A worker failed: {cause!r}.\n{error}") from error
        except exceptions.RayError as error:
            raise ClusterError(
                f"The cluster failed ({type(error).__name__}: {str(error).splitlines()[0]})."
            ) from error

    def run(
        self,
        feed: Feed,
        sizes: tuple[int, int],
        submit: Callable[[Any, Group], tuple[Any, Any]],
        finished: Callable[[Any, Any], None],
        report: Callable[[Status], None],
    ) -> int:
        """Have all groups done; returns the number of rows.

        Parameters
        ----------
        feed : Feed
            Where groups come from.
        sizes : tuple of int
            Least and most rows of a group.
        submit : callable
            Given a worker and a group, starts the work: a reference to a small value that is there
            when it is done, and one to its result.
        finished : callable
            Given the reference to a result, and the worker that made it.
        report : callable
            Told how far the work is.
        """
        busy: dict[Any, tuple[Any, Group, Any]] = {}
        rows, groups, fraction = 0, 0, 0.0
        self._await_arrival()
        while True:
            feed.check()
            while self._idle and (group := feed.take(*sizes, workers=self.size)) is not None:
                worker = self._idle.pop()
                done, result = submit(worker, group)
                busy[done] = (worker, group, result)
            if not busy and feed.exhausted:
                return rows
            if not busy and self._idle:
                feed.wait()
                continue
            timeout = POLL_SECONDS if self._idle and not feed.exhausted else LOOK_SECONDS
            ready, _ = self.ray.wait([*busy, *self._starting], num_returns=1, timeout=timeout)
            for ref in ready:
                if ref in self._starting:
                    self._admit(ref)
                else:
                    worker, group, result = busy.pop(ref)
                    self.get(ref)
                    finished(result, worker)
                    self._idle.append(worker)
                    rows, groups = rows + group.rows, groups + 1
                    fraction += group.weight
                report(self.status(rows, groups, fraction))


class Tree:
    """Merges shares two at a time as they come, on the workers, never on the driver.

    Like a binary counter: two shares of as many groups make one of twice as many. Of G groups no
    more than log2(G) + 1 shares exist at a time, and each has been through at most that many sums.
    """

    def __init__(self) -> None:
        self._levels: list[Any] = []
        self._merges = 0

    def add(self, share: Any, worker: Any) -> None:
        """Take a reference to a share, and the worker that has it and may merge it."""
        for level, held in enumerate(self._levels):
            if held is None:
                self._levels[level] = share
                return
            share, self._levels[level] = self._merged(held, share, worker), None
        self._levels.append(share)

    def root(self, worker: Any) -> Any:
        """Return a reference to the sum of all."""
        total = None
        for held in self._levels:
            if held is not None:
                total = held if total is None else self._merged(held, total, worker)
        return total

    def _merged(self, one: Any, other: Any, worker: Any) -> Any:
        self._merges += 1
        return worker.merge.remote(self._merges, one, other)
