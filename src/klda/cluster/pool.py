"""Workers on a cluster: placed, kept busy, and replaced when they die."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Self

from klda.checks import check_count
from klda.cluster.connection import ClusterError
from klda.cluster.rows import Part
from klda.cluster.workers import Worker
from klda.errors import KldaError

START_SECONDS = 300.0  # until the first worker has a place; loading may take longer


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

    @property
    def local_cpus(self) -> int:
        """CPUs that these workers ask for."""
        return (self.workers or 1) * self.cpus_per_worker

    def settled(self, has: dict[str, float]) -> tuple[int, float]:
        """Return the number of workers and the GPUs of each, on a cluster that has so much."""
        cpus, gpus = has.get("CPU", 1.0), has.get("GPU", 0.0)
        each = min(1.0, gpus) if self.gpus_per_worker == "auto" else float(self.gpus_per_worker)
        if each > gpus:
            raise ClusterError(f"gpus_per_worker={each:g}, but the cluster has {gpus:g} GPUs.")
        if self.cpus_per_worker > cpus:
            raise ClusterError(
                f"cpus_per_worker={self.cpus_per_worker}, but the cluster has {cpus:g} CPUs."
            )
        room = gpus / each if each else cpus / self.cpus_per_worker
        return self.workers or max(1, int(room)), each


class Pool:
    """Workers, and the loop that keeps them busy.

    Exactly once: a result is computed from the rows of its part alone and given out when it has
    arrived here. When a worker dies, or a machine with a result on it, another worker does the
    part again from its rows, and nothing of the first attempt is left. Ray's own restarts and
    retries are not used: while a machine is being lost, they are spent on attempts that never
    reach a worker.

    Workers beside a dataset reserve no CPUs, which the tasks that read the dataset would wait for.
    """

    def __init__(
        self,
        ray: Any,
        foundation: dict[str, Any],
        options: dict[str, Any],
        resources: Resources,
        *,
        beside_dataset: bool = False,
    ) -> None:
        self.ray, self.beside_dataset, self._retries = ray, beside_dataset, resources.retries
        self.size, gpus = resources.settled(ray.cluster_resources())
        threads = resources.cpus_per_worker
        cpus = 0 if beside_dataset else threads
        remote = ray.remote(num_cpus=cpus, num_gpus=gpus, scheduling_strategy="SPREAD")(Worker)
        device = options.get("device", "auto")
        if device == "auto":
            device = "cuda" if gpus else "cpu"
        self._start: Callable[[], Any] = lambda: remote.remote(
            foundation, options | {"device": device}, threads
        )
        self._workers = [self._start() for _ in range(self.size)]

    def __enter__(self) -> Self:
        """Wait until Ray has found a place for the first worker; raise if that takes too long."""
        placed = [worker.__ray_ready__.remote() for worker in self._workers]
        if not self.ray.wait(placed, num_returns=1, timeout=START_SECONDS)[0]:
            self.__exit__()
            has = self.ray.cluster_resources()
            raise ClusterError(
                f"No worker could be started in {START_SECONDS:.0f} s: the cluster has "
                f"{has.get('CPU', 0):g} CPUs and {has.get('GPU', 0):g} GPUs, and others may be "
                "using them. Ask for less with workers, cpus_per_worker or gpus_per_worker."
            )
        return self

    def __exit__(self, *exception: object) -> None:
        for worker in self._workers:
            self.ray.kill(worker)

    def map(self, parts: Iterable[Part], work: str, *given: Any) -> Iterator[tuple[Part, Any]]:
        """Yield all parts with their results, in the order in which they are done.

        `work` names the method of a worker, which is `given` the same for each part. While the
        caller uses a result, its worker has the next part to do.
        """
        left, again, idle = iter(parts), list[Part](), list(self._workers)
        busy: dict[Any, tuple[Any, Part]] = {}  # by the reference to the result
        failures: Counter[int] = Counter()
        done = None
        while True:
            while idle and (part := again.pop() if again else next(left, None)):
                worker = idle.pop()
                ref = getattr(worker, work).remote(*given, part.first_row, *part.batches)
                busy[ref] = worker, part
            if done:
                yield done
            if not busy:
                return
            (ref, *_), _ = self.ray.wait(list(busy), num_returns=1)
            worker, part = busy.pop(ref)
            try:
                done = part, self.ray.get(ref)
            except self.ray.exceptions.RayTaskError as error:
                cause = getattr(error, "cause", None)
                if isinstance(cause, KldaError | OSError):
                    raise cause from None
                raise ClusterError(f"A worker failed: {cause!r}.\n{error}") from error
            except self.ray.exceptions.RayError as error:
                done = None
                failures[part.first_row] += 1
                if failures[part.first_row] > self._retries:
                    raise ClusterError(
                        f"A worker died working on {part}, also after {self._retries} retries. "
                        "Workers that die repeatedly have usually run out of memory: use fewer per "
                        "machine, or a smaller batch_size. Ray says: "
                        f"{str(error).splitlines()[0]}"
                    ) from error
                again.append(part)
                worker = self._replaced(worker)
            idle.append(worker)

    def _replaced(self, worker: Any) -> Any:
        """Start another worker in the place of one that died."""
        self.ray.kill(worker)
        new = self._start()
        self._workers[self._workers.index(worker)] = new
        return new
