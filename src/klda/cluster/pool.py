"""Keeping a pool of workers busy, and replacing those that die."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
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
    workers: tuple[WorkerInfo, ...] = ()  # that run now
    # Of all rows, estimated from the sizes of files; None for a dataset.
    fraction: float | None = None


class Pool:
    """Workers, and the loop that keeps them busy.

    Exactly once: a result is computed from the rows of its part alone and given out when it has
    arrived here. When a worker dies, or a machine with a result on it, another worker does the
    part again from its rows, and nothing of the first attempt is left.

    `report` is called with the `Progress` whenever a worker has loaded or a part is done.
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
        given = (foundation, options, device, resources.cpus_per_worker)
        self._make: Callable[[], Any] = lambda: remote.remote(*given)
        self._workers: dict[Any, WorkerInfo | None] = {}  # None while one is loading
        self._idle: list[Any] = []
        self._busy: dict[Any, tuple[Any, Part | None]] = {}  # by result; None while loading
        self._again: list[Part] = []  # whose worker died
        self._failures: Counter[str] = Counter()
        self._progress = Progress()
        self._placed = [self._start() for _ in range(self.size)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for worker in self._workers:
            self.ray.kill(worker)

    def map(self, parts: Iterable[Part], work: str, *given: Any) -> Iterator[tuple[Part, Any]]:
        """Yield all parts with their results, in the order in which they are done.

        `work` names the method of a worker, which is `given` the same for each part. While the
        caller uses a result, its worker has the next part to do.
        """
        left, done = iter(parts), None
        while True:
            while self._idle and (part := self._again.pop() if self._again else next(left, None)):
                worker, contents = self._idle.pop(), [block.ref for block in part.blocks]
                ref = getattr(worker, work).remote(*given, part, *contents)
                self._busy[ref] = (worker, part)
            if done:
                yield done
            if self._idle and not any(part for _, part in self._busy.values()):
                return
            done = self._wait()

    def wait_for_place(self) -> None:
        """Wait until Ray has found a place for the first worker; raise if that takes too long."""
        if not self.ray.wait(self._placed, num_returns=1, timeout=START_SECONDS)[0]:
            has = self.ray.cluster_resources()
            raise ClusterError(
                f"No worker could be started in {START_SECONDS:.0f} s: the cluster has "
                f"{has.get('CPU', 0):g} CPUs and {has.get('GPU', 0):g} GPUs, and others may be "
                "using them. Ask for less with workers, cpus_per_worker or gpus_per_worker."
            )

    def _wait(self) -> tuple[Part, Any] | None:
        """Wait until a worker has loaded, has died and been replaced, or has done a part.

        Returns the part with its result, if it was that.
        """
        (ref, *_), _ = self.ray.wait(list(self._busy), num_returns=1)
        worker, part = self._busy.pop(ref)
        doing = "opening the foundation model" if part is None else f"working on {part}"
        try:
            result = self.ray.get(ref)
        except self.ray.exceptions.RayTaskError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, KldaError | OSError):
                raise cause from None
            raise ClusterError(f"A worker failed: {cause!r}.\n{error}") from error
        except self.ray.exceptions.RayError as error:
            self._replace_worker(worker, doing, error)
            if part is not None:
                self._again.append(part)
            return None
        self._idle.append(worker)
        if part is None:
            self._workers[worker] = result
        self._tell(part)
        return None if part is None else (part, result)

    def _tell(self, part: Part | None) -> None:
        """Report the progress, one part further if it is done."""
        now = self._progress
        infos = tuple(info for info in self._workers.values() if info is not None)
        if part is None:
            self._progress = replace(now, workers=infos)
        else:
            sofar = None if part.fraction is None else part.fraction + (now.fraction or 0.0)
            self._progress = Progress(now.rows + part.n_rows, now.parts + 1, infos, sofar)
        self._report(self._progress)

    def _start(self) -> Any:
        """Start a worker that loads; return what is there once Ray has found a place for it."""
        worker = self._make()
        self._workers[worker] = None
        placed = worker.__ray_ready__.remote()  # before it loads: one does one thing at a time
        self._busy[worker.load.remote()] = (worker, None)
        return placed

    def _replace_worker(self, worker: Any, doing: str, error: Exception) -> None:
        """Start another worker in the place of one that died, unless that happens again and again.

        Ray's own retries are not used: while a machine is being lost, they are spent on attempts
        that never reach a worker.
        """
        self._failures[doing] += 1
        if self._failures[doing] > self._retries:
            raise ClusterError(
                f"A worker died {doing}, also after {self._retries} retries. Workers that die "
                "repeatedly have usually run out of memory: use fewer per machine, or a smaller "
                f"batch_size. Ray says: {str(error).splitlines()[0]}"
            ) from error
        del self._workers[worker]
        self.ray.kill(worker)
        self._start()
