"""A classifier as named arrays and JSON-able values, and back.

Arrays are named ``predict/...`` (needed to answer) and ``learn/...`` (needed to learn more). A
state that is read back looks at the second group only when something is learned, so the arrays
may be a lazy mapping. Without that group (a *compact* state) the classifier can answer only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from klda import __version__, state_schema
from klda.backend import Array, Backend, choose_backend
from klda.calibration import TEMPERATURES, Calibration, Pending
from klda.decisions import Familiarity
from klda.discriminant import Solution
from klda.errors import KldaError
from klda.kernel import FourierFeatures
from klda.member import Member
from klda.schema import DamagedStateError, check_finite
from klda.statistics import ClassStatistics, Scatter

if TYPE_CHECKING:
    from klda.classifiers import ContinualClassifier


class PredictionOnlyError(KldaError):
    """A compact model was asked to learn."""


def pack(model: ContinualClassifier, compact: bool) -> tuple[dict[str, np.ndarray], dict]:
    """Return arrays and meta of a model; see `klda.classifiers.from_state`."""
    model._check_has_classes()
    model._settle()
    arrays: dict[str, np.ndarray] = {}
    members = []
    for i, (member, solution) in enumerate(zip(model._members, model._solve(), strict=True)):
        _pack_prediction(member, solution, f"predict/{i}/", arrays)
        entry: dict[str, Any] = {
            "rho": solution.rho,
            "spread": solution.spread,
            "inflation": solution.inflation,
        }
        if member.kernel is not None:
            entry["gamma"] = member.kernel.gamma
        if not compact:
            order = member.statistics.locate(sorted(member.statistics.labels))
            entry |= _pack_statistics(member.statistics, order, f"learn/{i}/", arrays)
        members.append(entry)
    calibration = getattr(model, "_calibration", None)
    if calibration is not None:
        for name, values in calibration.to_state(model.classes_.tolist()).items():
            arrays[f"predict/calibration/{name}"] = values
    meta = {
        "kind": type(model).__name__,
        "parameters": _plain_parameters(model),
        "n_features": int(model.n_features_in_),
        "feature_names": _feature_names(model),
        "classes": model.classes_.tolist(),
        "counts": model.class_count_.tolist(),
        "compact": compact,
        "members": members,
    }
    pending = getattr(model, "_pending", None)
    if pending is not None and pending.labels and not compact:
        meta["waiting"] = _pack_pending(pending, "learn/pending", arrays)
    if not compact:
        _check_readable(model, arrays, meta)
    return arrays, meta


def _check_readable(
    model: ContinualClassifier, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]
) -> None:
    """Refuse to pack what could not be read again, before it takes the place of a good model."""
    try:
        state_schema.check_meta(meta)
        state_schema.check_model(arrays, meta, _parts_of(model))
    except DamagedStateError as error:
        raise KldaError(
            f"This model can't be saved, its numbers have overflowed or are damaged: {error}. "
            "Load it again from where it was last saved."
        ) from error


def unpack(
    kinds: Mapping[str, type[ContinualClassifier]],
    arrays: Mapping[str, np.ndarray],
    meta: Mapping[str, Any],
    device: str | None,
) -> ContinualClassifier:
    """Return the model of a packed state."""
    model, backend = _without_members(kinds, meta, device)
    state_schema.check_model(arrays, meta, _parts_of(model))
    solutions = []
    for i, entry in enumerate(meta["members"]):
        kernel, solution = _unpack_prediction(f"predict/{i}/", arrays, meta, entry, backend)
        read = _Reader(f"learn/{i}/", arrays, meta, entry, backend)
        model._members.append(Member(backend, kernel, read))
        solutions.append(solution)
    model._restore(solutions, _unpack_calibration(arrays, meta))
    if "waiting" in meta:
        _unpack_pending(model._pending, "learn/pending", arrays, meta["waiting"])
    return model


def _without_members(
    kinds: Mapping[str, type[ContinualClassifier]], meta: Mapping[str, Any], device: str | None
) -> tuple[ContinualClassifier, Backend]:
    state_schema.check_meta(meta)
    if meta["kind"] not in kinds:
        raise KldaError(
            f"kind={meta['kind']!r} is not a classifier of this version of klda; "
            f"known kinds: {', '.join(kinds)}."
        )
    model = kinds[meta["kind"]]()
    defaults = model.get_params()
    unknown = sorted(set(meta["parameters"]) - set(defaults))
    if unknown:
        raise KldaError(
            f"The model was made by a newer version of klda: its {meta['kind']} has a parameter "
            f"{unknown[0]!r}, which klda {__version__} does not know. Upgrade klda."
        )
    state_schema.check_parameters(meta["parameters"], defaults)
    model.set_params(**meta["parameters"])
    if device is not None:
        model.set_params(device=device)
    model._check_parameters()
    model.n_features_in_ = meta["n_features"]
    if meta.get("feature_names") is not None:
        model.feature_names_in_ = np.array(meta["feature_names"], dtype=object)
    model._members = []
    return model, choose_backend(model.device, model.dtype)


def _parts_of(model: ContinualClassifier) -> state_schema.Parts:
    kernel = "gamma" in model.get_params()
    return state_schema.Parts(kernel, model._keeps_scatter, len(TEMPERATURES))


def _unpack_calibration(
    arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]
) -> Calibration | None:
    prefix = "predict/calibration/"
    if prefix + "filed" not in arrays:
        return None
    names = ("filed", "labels", "novelty", "losses")
    return Calibration.from_state({name: arrays[prefix + name] for name in names}, meta["classes"])


def _feature_names(model: ContinualClassifier) -> list[str] | None:
    names = getattr(model, "feature_names_in_", None)
    return None if names is None else names.tolist()


def _plain_parameters(model: ContinualClassifier) -> dict[str, Any]:
    parameters = model.get_params()
    state = parameters.get("random_state")
    if state is not None and not isinstance(state, int | np.integer):
        parameters["random_state"] = None  # a generator object; the drawn features are stored
    return {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in parameters.items()
    }


def _pack_prediction(
    member: Member, solution: Solution, prefix: str, arrays: dict[str, np.ndarray]
) -> None:
    to_numpy = member.backend.to_numpy
    if member.kernel is not None:
        arrays[prefix + "frequencies"] = to_numpy(member.kernel.frequencies)
        arrays[prefix + "phases"] = to_numpy(member.kernel.phases)
    arrays[prefix + "weights"] = to_numpy(solution.weights)
    arrays[prefix + "biases"] = to_numpy(solution.biases)
    if solution.familiarity is not None:
        for name, values in vars(solution.familiarity).items():
            arrays[f"{prefix}familiarity/{name}"] = values


def _unpack_prediction(
    prefix: str,
    arrays: Mapping[str, np.ndarray],
    meta: Mapping[str, Any],
    entry: Mapping[str, Any],
    backend: Backend,
) -> tuple[FourierFeatures | None, Solution]:
    kernel = _unpack_kernel(prefix, arrays, entry, backend)
    familiarity = None
    if f"{prefix}familiarity/offsets" in arrays:
        familiarity = Familiarity(
            **{
                field.name: np.asarray(arrays[f"{prefix}familiarity/{field.name}"])
                for field in fields(Familiarity)
            }
        )
    solution = Solution(
        tuple(meta["classes"]),
        backend.asarray(arrays[prefix + "weights"]),
        backend.asarray(arrays[prefix + "biases"]),
        np.asarray(meta["counts"], np.int64),
        entry["rho"],
        entry["spread"],
        entry.get("inflation", 1.0),
        familiarity,
    )
    return kernel, solution


def _unpack_kernel(
    prefix: str, arrays: Mapping[str, np.ndarray], entry: Mapping[str, Any], backend: Backend
) -> FourierFeatures | None:
    if "gamma" not in entry:
        return None
    return FourierFeatures(
        backend.asarray(arrays[prefix + "frequencies"]),
        backend.asarray(arrays[prefix + "phases"]),
        entry["gamma"],
        backend,
    )


def _pack_statistics(
    statistics: ClassStatistics,
    order: slice | np.ndarray,
    prefix: str,
    arrays: dict[str, np.ndarray],
) -> dict[str, Any]:
    backend = statistics.backend
    arrays[prefix + "means"] = backend.to_numpy(statistics.means)[order]
    entry: dict[str, Any] = {"n_scattered": statistics.n_scattered}
    if not statistics.has_scatter:
        return entry
    scatter = statistics.scatter
    entry["turnover"] = scatter.turnover
    if scatter.is_thin:  # of what was taken away nothing is written
        arrays[prefix + "rows"] = scatter.settled_rows()
        arrays[prefix + "signs"] = np.ones(len(arrays[prefix + "rows"]), np.int8)
    else:
        arrays[prefix + "triangle"] = pack_triangle(backend.to_numpy(scatter.square))
    return entry


class _Reader:
    """Reads the statistics of a member when they are first needed."""

    def __init__(
        self,
        prefix: str,
        arrays: Mapping[str, np.ndarray],
        meta: Mapping[str, Any],
        entry: Mapping[str, Any],
        backend: Backend,
    ) -> None:
        self.prefix, self.arrays, self.meta = prefix, arrays, meta
        self.entry, self.backend = entry, backend

    @property
    def counts(self) -> dict:
        """Classes and their counts, known without reading any array."""
        return dict(zip(self.meta["classes"], self.meta["counts"], strict=True))

    def __call__(self) -> ClassStatistics:
        """Read them."""
        if self.meta["compact"]:
            raise PredictionOnlyError(
                "This model was saved compact: it can predict but not learn, remove or merge. "
                "Use a model saved without compact=True."
            )
        means = self._read("means")
        statistics = ClassStatistics(means.shape[1], self.backend, with_scatter=False)
        statistics.restore(self.meta["classes"], np.asarray(self.meta["counts"], np.int64), means)
        statistics.n_scattered = self.entry["n_scattered"]
        if "turnover" in self.entry:
            statistics.scatter = self._scatter(means.shape[1])
        return statistics

    def _read(self, name: str) -> Array:
        # A copy: statistics change in place, and the arrays may be a read-only mapping of a file.
        return self.backend.copy(self.backend.asarray(self._finite(name)))

    def _finite(self, name: str) -> np.ndarray:
        array = np.asarray(self.arrays[self.prefix + name])
        check_finite(array, self.prefix + name)
        return array

    def _scatter(self, n_components: int) -> Scatter:
        scatter = Scatter(n_components, self.backend)
        if self.prefix + "rows" in self.arrays:
            rows, signs = self._read("rows"), np.asarray(self.arrays[self.prefix + "signs"])
            scatter.restore_rows(rows, signs.astype(np.int64))
        else:
            triangle = unpack_triangle(self._finite("triangle"), n_components)
            scatter.square = self.backend.asarray(triangle)
        scatter.turnover = self.entry["turnover"]
        return scatter


def pack_triangle(square: np.ndarray) -> np.ndarray:
    """Lower triangle of a square as a vector, row after row."""
    size = len(square)
    packed = np.empty(size * (size + 1) // 2, square.dtype)
    start = 0
    for i in range(size):
        packed[start : start + i + 1] = square[i, : i + 1]
        start += i + 1
    return packed


def unpack_triangle(packed: np.ndarray, size: int) -> np.ndarray:
    """Square whose lower triangle is the packed one and whose upper triangle is zero."""
    square = np.zeros((size, size), packed.dtype)
    start = 0
    for i in range(size):
        square[i, : i + 1] = packed[start : start + i + 1]
        start += i + 1
    return square


# ---------------------------------------------------------------------------------------------
# Progress: all that goes on learning needs, and nothing solved


def pack_progress(model: ContinualClassifier) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the state of a model in the middle of learning, as arrays and JSON-able values.

    Unlike `pack` it solves nothing and settles nothing: it costs a copy of the statistics, leaves
    the model as it is, and the model that `unpack_progress` makes of it learns on as if there had
    been no pause. It can't answer from a store as quickly.
    """
    arrays: dict[str, np.ndarray] = {}
    members = []
    for i, member in enumerate(model._members):
        statistics, prefix = member.statistics, f"progress/{i}/"
        entry: dict[str, Any] = {}
        if member.kernel is not None:
            entry["gamma"] = member.kernel.gamma
            arrays[prefix + "frequencies"] = member.backend.to_numpy(member.kernel.frequencies)
            arrays[prefix + "phases"] = member.backend.to_numpy(member.kernel.phases)
        entry |= _pack_statistics(statistics, slice(None), prefix, arrays)
        members.append(entry)
    statistics = model._members[0].statistics
    meta = {
        "kind": type(model).__name__,
        "parameters": _plain_parameters(model),
        "n_features": int(model.n_features_in_),
        "classes": list(statistics.labels),
        "counts": statistics.counts.tolist(),
        "compact": False,
        "members": members,
    }
    if hasattr(model, "_calibration"):
        meta["judging"] = _pack_judging(model, arrays)
    return arrays, meta


def _pack_judging(model: Any, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Pack what judges samples as if not learned: those that wait, and what was found so far."""
    labels = model._members[0].statistics.labels
    for name, values in model._calibration.to_state(labels).items():
        arrays[f"predict/calibration/{name}"] = values
    return _pack_pending(model._pending, "progress/pending", arrays)


def _pack_pending(pending: Pending, name: str, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Pack samples that wait to be judged: in a finished model, those of an only class."""
    if pending.samples:
        arrays[name] = np.stack(pending.samples)
    return {"seen": pending.seen, "pending": list(pending.labels)}


def _unpack_pending(
    pending: Pending, name: str, arrays: Mapping[str, np.ndarray], waiting: Mapping[str, Any]
) -> None:
    pending.seen = waiting["seen"]
    pending.labels = list(waiting["pending"])
    if pending.labels:
        pending.samples = list(np.array(arrays[name]))


def unpack_progress(
    kinds: Mapping[str, type[ContinualClassifier]],
    arrays: Mapping[str, np.ndarray],
    meta: Mapping[str, Any],
    device: str | None,
) -> ContinualClassifier:
    """Return the model that `pack_progress` described, ready to learn on."""
    model, backend = _without_members(kinds, meta, device)
    state_schema.check_progress(arrays, meta, _parts_of(model))
    for i, entry in enumerate(meta["members"]):
        prefix = f"progress/{i}/"
        kernel = _unpack_kernel(prefix, arrays, entry, backend)
        read = _Reader(prefix, arrays, meta, entry, backend)
        model._members.append(Member(backend, kernel, read()))
    model._start_anew()
    if "judging" in meta:
        _unpack_judging(model, arrays, meta)
    return model


def _unpack_judging(model: Any, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
    model._calibration = _unpack_calibration(arrays, meta)
    _unpack_pending(model._pending, "progress/pending", arrays, meta["judging"])
