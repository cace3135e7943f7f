"""Saving: each rank writes a file of its own, and rank 0 says when all are there.

Ranks on several hosts need one folder, so a file system that they share.
"""

from __future__ import annotations

import errno
import json
import threading
import time
import warnings
from collections.abc import Iterable, Mapping
from operator import itemgetter
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from minipipe.comm import ProcessGroup
from minipipe.comm.objects import broadcast, gather
from minipipe.errors import ArgumentError, CheckpointError, FileError, RankError, quoted
from minipipe.io import read_text, write_whole
from minipipe.optim import Optimiser
from minipipe.pipeline import Pipeline
from minipipe.pipeline.checkpoint import storage
from minipipe.pipeline.checkpoint.manifest import Manifest, encoded, raise_first
from minipipe.pipeline.checkpoint.state import Arrays, by_name, check_given, merged, take
from minipipe.pipeline.checkpoint.storage import Digest, pieces

_POLL = 0.02  # seconds between looks for the other ranks' files, in the background


class _Part(NamedTuple):
    """One rank's part of a checkpoint: its arrays, and their entries in the manifest."""

    partial: Path
    group: ProcessGroup
    arrays: Arrays
    told: dict[str, Any]

    def write(self) -> dict[str, Any]:
        """Write the file; return its entries in the manifest, or an error as ``{"error": [code, message]}``."""
        if self.told["error"]:
            return self.told
        path = self.partial / storage.name_of_file(self.group.rank)
        try:
            content = pieces(self.arrays)
            storage.write(path, *content)
            return {**self.told, "digest": storage.digest_of(*content)}
        except OSError as error:
            return _told(_unwritable(self.group, path, error))
        except CheckpointError as error:
            return _told(error)


def save(
    folder: str | Path,
    pipeline: Pipeline,
    optimiser: Optimiser | Mapping[str, Optimiser] | None = None,
    *,
    step: int,
    extra: Mapping[str, Any] | None = None,
    keep: int = 2,
) -> Path:
    """Write a checkpoint: the complete state of training, between an update and the next step.

    Collective; returns when it is complete and on the disk. Gradients are not saved, so call it after
    ``optimiser.step()``. Nor is what only the script has, such as a ``LearningRateSchedule``: give ``extra={"rates":
    rates.state_dict()}``, and after :func:`restore` ``rates.load_state_dict(restored.extra["rates"])``. Each rank
    writes the parameters of its own stages and what the optimiser keeps for them. Any number of ranks, with any
    schedule and partition, resumes from it with the same bits (:func:`restore`), given the same microbatches.

    Parameters
    ----------
    folder : str or Path
        Of all checkpoints of a run; made if it is not there. On several hosts all ranks must see the same folder. One
        job at a time writes into it.
    pipeline : Pipeline
    optimiser : Optimiser, or mapping of str to Optimiser
        Several have names of their own, by which :func:`restore` finds them.
    step : int
        How far the script is; the same on every rank.
    extra : mapping
        The script's own state, in numbers, strings, lists and dicts: the epoch, the position in the data, the
        state of a generator. That of the rank of the first stage is kept; other ranks may give None. JSON has no
        tuples, arrays or numbers as keys: they come back as lists and strings.
    keep : int
        How many checkpoints to keep, at least 1. Older ones of no later step are deleted once this one is whole; those
        of later steps, from a run that this one did not resume, stay. With 2 an earlier one remains, should
        the disk damage one.

    Returns
    -------
    Path
        Of this checkpoint, a folder in ``folder``.

    Raises
    ------
    CheckpointError
        On every rank: codes ``unwritable``, such as for a full disk, which leaves earlier checkpoints as they were;
        ``value``, for something in ``extra`` that JSON cannot hold.
    RankError
        Code ``disagreement``, when the ranks give different steps.
    ArgumentError
        Codes ``value`` and ``type``.
    NotFiniteError
        Code ``not-found``, when a step that was not waited for was not finite: then nothing is saved.

    Examples
    --------
    Three steps in one run are two steps, and one more on another number of ranks.

    >>> import tempfile
    >>> import numpy as np
    >>> from minipipe import Pipeline, checkpoint, nn, optim, spawn
    >>> model, x = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1)), np.ones((8, 4))
    >>> def train(group, folder, num_steps):
    ...     pipeline = Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=4)
    ...     optimiser = optim.Adam(pipeline.parameters())
    ...     restored = checkpoint.restore(folder, pipeline, optimiser, required=False)
    ...     for step in range(restored.step if restored else 0, num_steps):
    ...         loss = pipeline.step(x, x[:, :1])
    ...         optimiser.step()
    ...     checkpoint.save(folder, pipeline, optimiser, step=num_steps)
    ...     return float(loss)
    >>> with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
    ...     whole = spawn(lambda group: train(group, one, 3), num_ranks=1)
    ...     _ = spawn(lambda group: train(group, two, 2), num_ranks=3)
    ...     parts = spawn(lambda group: train(group, two, 3), num_ranks=2)
    >>> whole[0] == parts[0] == parts[1]
    True
    """
    check_given("save", folder, pipeline)
    part = _begin(folder, pipeline, by_name(optimiser), step, extra, keep)
    parts = gather(pipeline.group, part.write(), "checkpoint.save()")
    finished = _finished(part, parts, keep) if pipeline.group.rank == 0 else None
    finished = broadcast(pipeline.group, 0, finished, "checkpoint.save()")
    raise_first([finished["error"]])
    return Path(folder) / finished["name"]


class BackgroundSaver:
    """Writes checkpoints in the background: a save takes a copy and returns.

    Use it in a ``with`` block: leaving it waits for the last one.

    Parameters
    ----------
    folder, pipeline, optimiser, keep
        As for :func:`save`.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from minipipe import Pipeline, checkpoint, nn, optim, spawn
    >>> def train(group, folder):
    ...     pipeline = Pipeline(nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1)), group, loss=nn.MSELoss())
    ...     optimiser = optim.SGD(pipeline.parameters(), 0.1)
    ...     with checkpoint.BackgroundSaver(folder, pipeline, optimiser) as saver:
    ...         for step in range(4):
    ...             pipeline.step(np.ones((8, 2)), np.ones((8, 1)))
    ...             optimiser.step()
    ...             saver.save(step + 1)
    ...     return checkpoint.restore(folder, pipeline, optimiser).step
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     spawn(lambda group: train(group, folder), num_ranks=2)
    [4, 4]
    """

    __slots__ = ("_failure", "_folder", "_is_elsewhere", "_keep", "_optimisers", "_pipeline", "_thread")

    def __init__(
        self,
        folder: str | Path,
        pipeline: Pipeline,
        optimiser: Optimiser | Mapping[str, Optimiser] | None = None,
        keep: int = 2,
    ) -> None:
        check_given("BackgroundSaver", folder, pipeline)
        self._folder, self._pipeline, self._keep = folder, pipeline, keep
        self._optimisers = by_name(optimiser)
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None
        self._is_elsewhere = False  # whether another rank's error was the cause

    def save(self, step: int, extra: Mapping[str, Any] | None = None) -> None:
        """Take a copy, and begin to write it; wait for the checkpoint before, if that is still being written.

        Collective. Parameters and errors are those of :func:`save`; what goes wrong later is raised by the next call,
        on every rank.
        """
        failure = None
        try:
            self.wait()
        except CheckpointError as error:
            failure = [str(error.code), error.message, self._is_elsewhere]
        failures = [told for told in gather(self._pipeline.group, failure, "checkpoint.save()") if told]
        for code, message, _ in sorted(failures, key=itemgetter(2)):
            raise CheckpointError(code, message)
        part = _begin(self._folder, self._pipeline, self._optimisers, step, extra, self._keep)
        # Not a daemon: at the end of a program Python waits for it.
        self._thread = threading.Thread(target=self._write, args=(part,), name="minipipe checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Wait until this rank has written its part of the last checkpoint and, on rank 0, until that is whole.

        Local.

        Raises
        ------
        CheckpointError
            Codes ``unwritable`` and ``value``, as for :func:`save`.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _write(self, part: _Part) -> None:
        """Write this rank's part and, on rank 0, the rest once all ranks' parts are there."""
        group = self._pipeline.group
        try:
            own = part.write()
            if group.rank:
                # Through a file, since only the main thread may send messages.
                write_whole(part.partial / _name_of_told(group.rank), json.dumps(own))
                raise_first([own["error"]])
            else:
                parts = [own, *_told_by_others(part.partial, group)]
                raise_first([_finished(part, parts, self._keep)["error"]])
        except CheckpointError as error:
            self._failure = error
        except Exception as error:  # such as a lack of memory, too: nothing is lost in a thread
            self._is_elsewhere = not part.partial.exists()
            storage.discard(part.partial)  # which tells the other ranks, on a full disk too
            self._failure = _unwritable(group, part.partial, error) if isinstance(error, OSError) else error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.wait()
        except CheckpointError as failure:
            if error is None:
                raise
            error.add_note(failure.message)  # what went wrong first counts


def _begin(
    folder: str | Path, pipeline: Pipeline, optimisers: Mapping[str, Optimiser], step: int, extra: Any, keep: int
) -> _Part:
    """Check what was given, make the folder on rank 0, and take this rank's part. Collective."""
    for name, number, least in (("step", step, 0), ("keep", keep, 1)):
        if not isinstance(number, int) or isinstance(number, bool) or not least <= number < 2**63:
            raise ArgumentError("value", f"{name} is {quoted(number)}; expected an int, at least {least}.")
    if extra is not None and not isinstance(extra, Mapping):
        raise ArgumentError("type", f"extra is {quoted(extra)}; expected a mapping, such as {{'epoch': 3}}.")
    folder = Path(folder)
    pipeline.wait()  # values that came of a step that was not finite are not to be kept
    group = pipeline.group
    try:
        arrays, told = _own_part(pipeline, optimisers, step, extra)
    except CheckpointError as error:
        arrays, told = {}, _told(error)
    made: Any = None
    if group.rank == 0:
        try:
            made = {"partial": storage.begin(folder, step).name, "step": step, "error": None}
        except OSError as error:
            made = _told(_unwritable(group, folder, error))
    made = broadcast(group, 0, made, "checkpoint.save()")
    raise_first([made["error"]])
    if made["step"] != step:
        message = f"checkpoint.save: step is {step} on rank {group.name()}, and {made['step']} on rank {group.name(0)}."
        raise RankError("disagreement", f"{message} Every rank must save at the same step.")
    partial = folder / made["partial"]
    if not (told["error"] or partial.is_dir()):
        message = f"Rank {group.name()} does not see {partial}, which rank {group.name(0)} has made."
        advice = (
            "Every rank must be given the same folder, on a file system that all hosts share. Or something else has "
        )
        advice += f"deleted it: {_who_else(group)}"
        arrays, told = {}, _told(CheckpointError("unwritable", f"{message} {advice}"))
    return _Part(partial, group, arrays, told)


def _own_part(
    pipeline: Pipeline, optimisers: Mapping[str, Optimiser], step: int, extra: Any
) -> tuple[Arrays, dict[str, Any]]:
    """Return this rank's arrays, and their entries in the manifest. Local."""
    rank, plan = pipeline.group.rank, pipeline.plan
    arrays, told = take(pipeline, optimisers, [name for name, owner in plan.owners.items() if owner == rank])
    keys = (key.partition("/") for key in arrays)
    names = {name: arrays[f"{first}/{name}"] for first, _, name in keys if first == "parameters"}
    mine: dict[str, Any] = {
        "error": None,
        "optimisers": json.loads(encoded(told, "the optimiser's state")),
        "parameters": {name: [array.dtype.name, array.shape] for name, array in names.items()},
    }
    if rank == plan.placement[0]:
        numbers = {"num_steps": pipeline.num_steps, "num_microbatches": pipeline.schedule.num_microbatches}
        numbers |= {"seed": pipeline.seed, "dropout_seed": pipeline.dropout_seed}
        mine["script"] = {"step": step, **numbers, "extra": json.loads(encoded(dict(extra or {}), "extra"))}
    return arrays, mine


def _finished(part: _Part, parts: list[dict[str, Any]], keep: int) -> dict[str, Any]:
    """Write the manifest and give the checkpoint its name; return that, or an error. On rank 0, when all have told."""
    try:
        raise_first([told["error"] for told in parts])
        script = next(told["script"] for told in parts if "script" in told)
        files = {storage.name_of_file(rank): Digest(*told["digest"]) for rank, told in enumerate(parts)}
        parameters = {
            name: (file, *looks) for file, told in zip(files, parts) for name, looks in told["parameters"].items()
        }
        optimisers = merged(told["optimisers"] for told in parts)
        manifest = Manifest(**script, parameters=parameters, optimisers=optimisers, files=files)
        path = storage.finish(part.partial, manifest.to_json())
        _delete_older(path.parent, keep)
        return {"name": path.name, "error": None}
    except CheckpointError as error:
        failure = error
    except OSError as error:
        failure = _unwritable(part.group, part.partial, error)
    storage.discard(part.partial)
    return _told(failure)


def _delete_older(folder: Path, keep: int) -> None:
    """Delete older checkpoints; if that fails, this one is whole all the same, and the next save tries again."""
    try:
        storage.keep_last(folder, keep)
    except OSError as error:
        warnings.warn(f"Older checkpoints in {folder} cannot be deleted: {error.strerror or error}.", stacklevel=2)


def _told_by_others(partial: Path, group: ProcessGroup) -> list[dict[str, Any]]:
    """Wait for the files with the other ranks' entries; return their contents, and delete them."""
    told, give_up = [], time.monotonic() + group.timeout
    for rank in range(1, group.size):
        path = partial / _name_of_told(rank)
        while not path.exists():
            if not partial.exists():
                raise FileNotFoundError(errno.ENOENT, "another rank has deleted it after an error", str(partial))
            if time.monotonic() > give_up:
                storage.discard(partial)
                message = f"Rank {group.name(rank)} has not written its part of {partial} within {group.timeout:g} s."
                raise CheckpointError("unwritable", f"{message} All ranks must see the same folder.")
            time.sleep(_POLL)
        told.append(json.loads(read_text(path)))
        path.unlink()
    return told


def _name_of_told(rank: int) -> str:
    return f"rank-{rank}.json"


def _told(error: CheckpointError) -> dict[str, Any]:
    return {"error": [str(error.code), error.message]}


def _unwritable(group: ProcessGroup, path: Path, error: OSError) -> CheckpointError:
    reason = error.message.rstrip(".") if isinstance(error, FileError) else error.strerror or str(error)
    end = "Earlier checkpoints are as they were."
    if error.errno in (errno.ENOENT, errno.ENOTEMPTY):
        end = f"Something else has changed the folder: {_who_else(group)}"
    return CheckpointError(
        "unwritable", f"Rank {group.name()} could not write {error.filename or path}: {reason}. {end}"
    )


def _who_else(group: ProcessGroup) -> str:
    """Say who else may write to the folder of a group: the rest of its job, where it was split off."""
    if group.size == group.world_size:
        return "does another job write to the same one?"
    own, others = set(group.world_ranks), set(range(group.world_size)) - set(group.world_ranks)
    return (
        f"this pipeline runs on ranks {_listed(own)} of the job; do ranks {_listed(others)} save to the same folder? "
        "Let one of the replicas save, or give each a folder of its own."
    )


def _listed(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(ranks)))
