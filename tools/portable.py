"""Run a command as other CPUs would: under three BLAS kernels, with one and two threads.

    python tools/portable.py --kernels Haswell --threads 1 2 -- make tests

OpenBLAS, NumPy and PyTorch choose their code by the CPU, and other code rounds otherwise. Each
kernel here limits all three to what one generation of CPUs has. Two loops keep the machine busy
meanwhile, so that a test which depends on time shows it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

# It ends with its parent, however that ends; Ctrl-C reaches it too and is left to the parent.
BUSY_LOOP = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
while os.getppid() == int(sys.argv[1]):
    for _ in range(1_000_000):
        pass
"""


@dataclass(frozen=True)
class Kernel:
    """A generation of CPUs."""

    needs: str | None  # the feature, as NumPy calls it, without which a CPU can't run the kernel
    torch: str  # ATEN_CPU_CAPABILITY

    def numpy_features_to_disable(self) -> list[str]:
        """Name what NumPy would use here and this kernel's CPUs do not have.

        NumPy warns of names that it does not know or this CPU does not have, and the names differ
        between its versions (AVX2 became X86_V3), so they are taken from NumPy itself.
        """
        used = [name for name in __cpu_dispatch__ if __cpu_features__[name]]
        if self.torch == "default":
            return used
        if self.torch == "avx2":
            return [name for name in used if name.startswith("AVX512") or name == "X86_V4"]
        return []


KERNELS = {
    "Prescott": Kernel(None, "default"),
    "Haswell": Kernel("AVX2", "avx2"),
    "SkylakeX": Kernel("AVX512_SKX", "avx512"),
}


def environment(name: str, threads: int) -> dict[str, str]:
    """Return the variables that make this machine compute like another."""
    kernel = KERNELS[name]
    return {
        "OPENBLAS_CORETYPE": name,
        "NPY_DISABLE_CPU_FEATURES": " ".join(kernel.numpy_features_to_disable()),
        "ATEN_CPU_CAPABILITY": kernel.torch,
        "OMP_NUM_THREADS": str(threads),
        "TEST_THREADS": str(threads),  # the Makefile's name for it
    }


@contextlib.contextmanager
def busy(loops: int) -> Iterator[None]:
    """Keep some cores busy."""
    command = [sys.executable, "-c", BUSY_LOOP, str(os.getpid())]
    running = [subprocess.Popen(command) for _ in range(loops)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
        for process in running:
            process.wait()


def run(name: str, threads: int, command: list[str]) -> str:
    """Run the command once and say how it went."""
    needs = KERNELS[name].needs
    if needs is not None and not __cpu_features__.get(needs, False):
        return f"skipped: this CPU has no {needs.removesuffix('_SKX')}"
    begin = time.monotonic()
    done = subprocess.run(command, env=os.environ | environment(name, threads), check=False)
    outcome = "passed" if done.returncode == 0 else f"FAILED with exit status {done.returncode}"
    return f"{outcome} after {(time.monotonic() - begin) / 60:.1f} minutes"


def main() -> int:
    """Run the command under each kernel with each number of threads; 1 if any run failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernels", nargs="+", choices=KERNELS, default=list(KERNELS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--busy", type=int, default=2, help="busy loops beside the command")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    if platform.machine() not in ("x86_64", "AMD64"):
        parser.error(f"the kernels are those of x86-64 CPUs; this one is {platform.machine()}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    outcomes = {}
    try:
        with busy(options.busy):
            for name in options.kernels:
                for threads in options.threads:
                    title = f"{name}, {threads} thread{'s' if threads > 1 else ''}"
                    print(f"\n=== {title}", flush=True)
                    outcomes[title] = run(name, threads, options.command)
    finally:
        print("\n" + "\n".join(f"{title}: {outcome}" for title, outcome in outcomes.items()))
    return int(any(outcome.startswith("FAILED") for outcome in outcomes.values()))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
