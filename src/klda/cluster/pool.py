"""Keeping workers busy, and replacing those that die."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Self

from klda.cluster.connection import ClusterError, Resources
from klda.cluster.rows import Part
from klda.cluster.workers import Worker, WorkerInfo
from klda.errors import KldaError

START_SECONDS = 300.0  # until the first worker has a place; loading may take longer


@dataclass(frozen=True)
class Progress:
    """How far the work is."""

    rows: int = 0  # that are done
    parts: int = 0  # that are done; a part is what one worker is given at a time
    workers: tuple[WorkerInfo, ...] = ()  # that run now and have done a part
    # Of all rows, estimated from the sizes of files; None for a dataset.
    fraction: float | None = None


class Pool:
    """Workers, and the loop that keeps them busy.

    Exactly once: a result is computed from the rows of its part alone and given out when it has
    arrived here. When a worker dies, or a machine with a result on it, another worker does the
    part again from its rows, and nothing of the first attempt is left. Ray's own restarts and
    retries are not used: while a machine is being lost, they are spent on attempts that never
    reach a worker.

    `report` is called with the `Progress` whenever a part is done.
    """

    def __init__(
        self,
        ray: Any,
        foundation: dict[str, Any],
        options: dict[str, Any],
        resources: Resources,
        *,
        leave_cpus: bool = False,
        report: Callable[[Progress], None] = lambda progress: None,
    ) -> None:
        self.ray, self._report, self._retries = ray, report, resources.retries
        self.size, cpus, gpus = resources.settled(ray, leave_cpus)
        remote = ray.remote(num_cpus=cpus, num_gpus=gpus, scheduling_strategy="SPREAD")(Worker)
        device = options.get("device", "auto")
        if device == "auto":
            device = "cuda" if gpus else "cpu"
        given = (foundation, options | {"device": device}, resources.cpus_per_worker)
        self._make: Callable[[], Any] = lambda: remote.remote(*given)
        self._workers: dict[Any, WorkerInfo | None] = {self._make(): None for _ in range(self.size)}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for worker in self._workers:
            self.ray.kill(worker)

    def wait_for_place(self) -> None:
        """Wait until Ray has found a place for the first worker; raise if that takes too long."""
        placed = [worker.__ray_ready__.remote() for worker in self._workers]
        if not self.ray.wait(placed, num_returns=1, timeout=START_SECONDS)[0]:
            has = self.ray.cluster_resources()
            raise ClusterError(
                f"No worker could be started in {START_SECONDS:.0f} s: the cluster has "
                f"{has.get('CPU', 0):g} CPUs and {has.get('GPU', 0):g} GPUs, and others may be "
                "using them. Ask for less with workers, cpus_per_worker or gpus_per_worker."
            )

    def map(self, parts: Iterable[Part], work: str, *given: Any) -> Iterator[tuple[Part, Any]]:
        """Yield all parts with their results, in the order in which they are done.

        `work` names the method of a worker, which is `given` the same for each part. While the
        caller uses a result, its worker has the next part to do.
        """
        left, again, idle = iter(parts), list[Part](), list(self._workers)
        busy: dict[Any, tuple[Any, Part]] = {}  # by the reference to the result
        failures: Counter[int] = Counter()
        progress, done = Progress(), None
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
                self._workers[worker], result = self.ray.get(ref)
                done = part, result
                progress = self._told(progress, part)
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

    def _told(self, before: Progress, part: Part) -> Progress:
        """Report the progress, one part further."""
        infos = tuple(info for info in self._workers.values() if info is not None)
        fraction = part.fraction + (before.fraction or 0.0)
        now = Progress(before.rows + part.n_rows, before.parts + 1, infos, fraction or None)
        self._report(now)
        return now

    def _replaced(self, worker: Any) -> Any:
        """Start another worker in the place of one that died."""
        del self._workers[worker]
        self.ray.kill(worker)
        new = self._make()
        self._workers[new] = None
        return new
