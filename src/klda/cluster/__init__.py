"""Learning and predicting on many machines, with Ray.

    from klda import cluster

    learner = cluster.learn("tickets/*.parquet", address="auto")
    learner.save("bot/")
    cluster.predict("new/*.parquet", "bot/", "answers/", address="auto")

The statistics of KLDA add up, so each worker encodes and learns its part of the rows, and what they
gathered is merged: see `klda.cluster.shares` for what travels, and docs/cluster.md for how to set
it up, what it costs, and where it ends.
"""

from __future__ import annotations

from klda.cluster.errors import ClusterError
from klda.cluster.jobs import learn, predict
from klda.cluster.pool import Status
from klda.cluster.workers import WorkerInfo

__all__ = ["ClusterError", "Status", "WorkerInfo", "learn", "predict"]
