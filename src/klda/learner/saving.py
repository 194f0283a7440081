"""Learners in model folders: what is written, and how it is read."""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from klda import encoders
from klda.engine.arrays import Packed
from klda.engine.engine import Engine
from klda.errors import KldaError
from klda.inspection.quality import quality_of
from klda.inspection.refusal import Refusal
from klda.learner.answerer import Answerer
from klda.learner.class_names import ClassNames
from klda.learner.inputs import InputEncoder
from klda.learner.state import State
from klda.storage import folder, stored
from klda.undo.change import Named
from klda.undo.log import KEPT_SECONDS, UndoLog


class PersistentModel(Answerer):
    """A model that can be copied, saved to a folder or to the hub, and loaded again.

    Attributes
    ----------
    extras : dict
        JSON values that other programs, such as the service, keep in the model folder. Later saves
        to that folder keep them.
    """

    def __init__(self, inputs: InputEncoder, state: State, extras: Mapping[str, Any]) -> None:
        super().__init__(inputs, state)
        self.extras: dict[str, Any] = dict(extras)
        self._origin: tuple[Path, str] | None = None  # the folder, and the generation in it
        self._lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.RLock()

    def copy(self) -> Self:
        """Return an independent copy; it shares all that never changes."""
        with self._lock:
            twin = copy.copy(self)
            twin.extras = dict(self.extras)
            return twin

    def ready(self) -> Self:
        """Return a copy that has solved what it learned: its next change need not wait for that."""
        twin, engine = self.copy(), self.engine.copy()
        engine.solved_rule()  # also where the solution was stored
        twin._state = replace(twin._state, engine=engine)
        return twin

    def frozen(self) -> Answerer:
        """Return what answers as this learner does now, whatever is learned here later.

        It has the methods that answer, and none that changes it.
        """
        with self._lock:
            engine = self.engine.frozen()
            return Answerer(self.inputs, replace(self._state, engine=engine))

    @property
    def origin(self) -> Path | None:
        """The model folder that this learner was loaded from or last saved to."""
        return None if self._origin is None else self._origin[0]

    def pack(self, *, compact: bool = False, solved: bool = True) -> Packed:
        """Return the arrays and the document that :meth:`save` writes.

        Later changes leave them alone, so another thread can write them with
        `klda.storage.folder.save`. With ``solved=False`` they hold only what learning needs, and
        nothing is solved.
        """
        return pack_state(self._state, self.foundation, compact=compact, solved=solved)

    @classmethod
    def unpack(
        cls,
        content: folder.StoredModel,
        *,
        model: str | Path | encoders.Encoder | None = None,
        **options: Any,
    ) -> Self:
        """Return the learner that `pack` described; parameters as for :meth:`load`.

        Raises `ValueError` if its parts can't belong together.
        """
        state, document = unpack_state(content, options.get("device"))
        inputs = InputEncoder.of_stored(document["foundation_model"], options, model)
        learner = object.__new__(cls)  # its own __init__ makes a new model
        PersistentModel.__init__(learner, inputs, state, document.get("extras", {}))
        return learner

    def push_to_hub(
        self,
        name: str,
        *,
        private: bool = True,
        token: str | None = None,
        message: str | None = None,
    ) -> str:
        """Upload the learner to the Hugging Face Hub, with a model card.

        Parameters
        ----------
        name : str
            Name on the hub, as ``"user/model"``. What is there is replaced in one commit.
        private : bool
            Whether a new model on the hub is visible to its owner alone.
        token : str, optional
            Access token; by default the one of ``hf auth login``.
        message : str, optional
            Commit message.

        Returns the address of the commit.
        """
        from klda.export import hub

        twin = self.copy()
        # The features in it are nobody else's business.
        undo = self._state.undo
        twin._state = replace(self._state, undo=UndoLog(undo.seconds, first=undo.named))
        return hub.push(twin.save, name, private=private, token=token, message=message)

    @classmethod
    def from_pretrained(
        cls, name: str | Path, *, revision: str | None = None, token: str | None = None, **load: Any
    ) -> Self:
        """Load a model folder, or a model from the Hugging Face Hub, as ``"user/model"``.

        `revision` is a branch, tag or commit there, and `token` as for :meth:`push_to_hub`; more
        parameters are those of :meth:`load`.
        """
        from klda.export import hub

        if not Path(name).is_dir():
            name = hub.download(str(name), revision=revision, token=token)
        return cls.load(name, **load)

    def save(self, path: str | Path, *, compact: bool = False, overwrite: bool = False) -> None:
        """Save to a model folder, atomically.

        Parameters
        ----------
        path : str or Path
            The folder; created if it does not exist.
        compact : bool
            Write only what answering needs: small, but it can't learn any more. A ledger is left
            out too. Not to a folder that holds a model that can learn.
        overwrite : bool
            Replace whatever model the folder holds. By default only the one that this learner was
            loaded from or saved as, and not if someone else has saved it since.
        """
        at = Path(path).resolve()
        if not self.classes:
            raise KldaError("This learner has no classes: learn something before saving it.")
        if compact and folder.exists(at) and not folder.load(at).document.get("compact"):
            raise folder.ModelExistsError(
                f"compact=True: {at} holds a model that can learn, and a compact one in its place "
                "could not. Save the compact one to another folder."
            )
        origin, own = self._origin or (None, folder.NOTHING)
        replaces = None if overwrite else own if origin == at else folder.NOTHING
        folder.check_replaceable(at, replaces)
        arrays, document = self.pack(compact=compact)
        # What others keep in the folder that it came from stays there.
        extras = self.extras if origin in (at, None) else {}
        if extras and not compact:
            document["extras"] = dict(extras)
        try:
            saved = folder.save(at, arrays, document, replaces=replaces)
        except folder.UnconfirmedSaveError as error:  # it may not be on the disk yet
            if not compact:
                self.extras, self._origin = extras, (at, error.generation)
            raise
        if not compact:
            self.extras, self._origin = extras, (at, saved.generation)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        model: str | Path | encoders.Encoder | None = None,
        verify: bool = False,
        **options: Any,
    ) -> Self:
        """Load a learner as it was saved: arrays are mapped, and the encoder is opened when used.

        Parameters
        ----------
        path : str or Path
            The folder.
        model : str, Path or Encoder, optional
            Where to find the foundation model, if not where the model folder says. It must be the
            same one: its weights are compared.
        verify : bool
            Read every file and compare its checksum; by default files of up to 1 MiB only.
        **options
            Passed to :func:`klda.encoders.load`: ``device``, ``batch_size``,
            ``trust_remote_code`` (never taken from the model folder).
        """
        content = folder.load(path, verify=verify)
        with folder.folder_damage_named(Path(path)):
            learner = cls.unpack(content, model=model, **options)
        learner._origin = (Path(path).resolve(), content.generation)
        return learner


def pack_state(
    state: State, foundation: Mapping[str, Any], *, compact: bool = False, solved: bool = True
) -> Packed:
    """Return the arrays and the document of a state; see `PersistentModel.pack`."""
    packed = Packed({}, {"compact": compact, "keeps": {}})
    if not state.engine.is_new:
        packed = state.engine.pack(compact=compact, solved=solved)
    counts = state.engine.counts
    document = {
        "compact": compact,
        "samples": sum(counts.values()),
        "classes": {str(label): count for label, count in counts.items()},
        "parameters": state.engine.parameters.stored(),
        "engine": packed.meta,
        "history": list(state.history),
        "names": state.names.pack(),
        "keep": "features" if state.engine.keep_all else None,
        "foundation_model": foundation,
    }
    if state.refusal is not None:
        document["refusal"] = state.refusal.pack()
    packed, undo = Packed(packed.arrays, document), state.undo.expired()
    if (undo.changes or undo.seconds != KEPT_SECONDS) and not compact:
        packed.put("undo", undo.pack())
    if solved:
        document["quality"] = quality_of(state.engine.calibrated()).summary()
    return packed


def unpack_state(
    content: folder.StoredModel, device: str | None = None
) -> tuple[State, dict[str, Any]]:
    """Return the state that a folder holds, and the document in the form of this version."""
    document, arrays = stored.current(content)
    here = {} if device is None else {"device": device}
    parameters = stored.parameters(document["parameters"] | here)
    keep_all = document["keep"] is not None
    engine = Engine(parameters, keep_all=keep_all)
    if {"model", "solution"} & document["engine"].keys():  # it has learned something
        engine = Engine.unpack(arrays, document["engine"], parameters, keep_all=keep_all)
    counts = engine.counts
    named = {str(label): count for label, count in counts.items()}
    found = (document["classes"], document["samples"], document["compact"])
    if found != (named, sum(counts.values()), document["engine"]["compact"]):
        raise ValueError("its parts do not agree with each other")
    hints = document["engine"].get("model", {}).get("hints", {})
    names = ClassNames.unpack(document.get("names"), hints.get("labels", ()))
    refusal = None
    if "refusal" in document:
        refusal = Refusal.unpack(document["refusal"]).only(counts)
    undo = UndoLog(first=Named(names.declared, refusal))
    if "undo" in document:
        undo = UndoLog.unpack(*Packed(arrays, document).part("undo"), undo.first)
    history = stored.numbered(document["history"])
    state = State(
        engine=engine,
        names=names,
        undo=undo,
        history=history,
        refusal=refusal,
        next_number=int(history[-1]["number"]) + 1 if history else 1,
    )
    return state, document
