"""Learning and predicting on many machines, with Ray.

    from klda import cluster

    learner = cluster.learn("tickets/*.parquet", address="auto")
    learner.save("bot/")
    cluster.predict("new/*.parquet", "bot/", "answers/", address="auto")

Statistics add up: each worker encodes and learns parts of the rows into an empty model, and the
models are merged. See docs/howto/many-machines.md for the setup, the costs and the limits.
"""

from __future__ import annotations

from klda.cluster.connection import ClusterError
from klda.cluster.jobs import learn, predict

__all__ = ["ClusterError", "learn", "predict"]
