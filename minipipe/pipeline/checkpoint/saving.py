"""Saving: each rank writes a separate file, and rank 0 completes the checkpoint when
all exist.

Ranks on several hosts need one folder, so it must be on a file system that they share.
"""

from __future__ import annotations

import errno
import json
import threading
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from minipipe.comm import ProcessGroup
from minipipe.comm.agreement import compare_arguments
from minipipe.comm.objects import gather
from minipipe.core.specs import COUNT, INDEX, Spec
from minipipe.errors import CheckpointError, FileError, RankError, not_copyable
from minipipe.io import read_text, write_whole
from minipipe.optim import Optimiser
from minipipe.pipeline import Pipeline
from minipipe.pipeline.checkpoint import storage
from minipipe.pipeline.checkpoint.manifest import (
    Manifest,
    attempt,
    encoded,
    from_rank_0,
    results,
)
from minipipe.pipeline.checkpoint.state import (
    MOST,
    Arrays,
    begin_call,
    checked,
    everyone,
    named,
    take,
)
from minipipe.pipeline.checkpoint.storage import pieces

_CALL = "checkpoint.save()"
_POLL = 0.02  # seconds between polls for the other ranks' files, in the background
_EXTRA = Spec(Mapping | None, expected="a mapping, such as {'epoch': 3}", code="type")


@dataclass(frozen=True)
class _Part:
    """One rank's part of a checkpoint: the attempt to take its arrays, and a manifest
    of them.
    """

    partial: Path
    group: ProcessGroup
    own: list[Any]

    def write(self) -> str:
        """Write the file; return the manifest of it."""
        ((arrays, manifest),) = results([self.own])
        path = self.partial / storage.name_of_file(self.group.rank)
        try:
            content = pieces(arrays)
            storage.write(path, *content)
        except OSError as error:
            raise _unwritable(self.group, path, error) from None
        files = {path.name: storage.digest_of(*content)}
        return replace(manifest, files=files).to_json()

    def finish(self, parts: list[Any], keep: int) -> str:
        """Write the manifest and give the checkpoint its name, which is returned. On
        rank 0, when all have written.

        Parameters
        ----------
        parts : list
            Each rank's attempt to write.
        keep : int
        """
        try:
            manifest = Manifest.merged(list(map(Manifest.from_json, results(parts))))
            path = storage.finish(self.partial, manifest.to_json().encode())
            _delete_older(path.parent, keep)
            return path.name
        except OSError as error:
            failure = _unwritable(self.group, self.partial, error)
        except CheckpointError as error:
            failure = error
        storage.discard(self.partial)
        raise failure


def save(
    folder: str | Path,
    pipeline: Pipeline,
    optimiser: Optimiser | Mapping[str, Optimiser] | None = None,
    *,
    step: int,
    extra: Mapping[str, Any] | None = None,
    keep: int = 2,
) -> Path:
    """Write a checkpoint: the complete state of training, between an update and the
    next step.

    Collective; returns when it is complete and on the disk. Gradients are not saved, so
    call it after ``optimiser.step()``. The state of other objects, such as a
    ``LearningRateSchedule``, is not saved either: pass ``extra={"rates":
    rates.state_dict()}``, and after :func:`restore` call
    ``rates.load_state_dict(restored.extra["rates"])``. Each rank writes the parameters
    of its stages and their optimiser state. Of replicas only the first one writes; of
    tensor-parallel ranks only one, after their parts are concatenated. Any number of
    ranks and replicas, with any schedule and partition, resumes from the checkpoint
    with the same bits (:func:`restore`), if the microbatches and ``gradient_blocks``
    are the same; another number of tensor-parallel ranks resumes within rounding.

    Parameters
    ----------
    folder : str or Path
        The folder of all checkpoints of a run; made if it does not exist. On several hosts all ranks
        must see the same folder. One job at a time writes into it.
    pipeline : Pipeline
    optimiser : Optimiser, or mapping of str to Optimiser
        Several optimisers have names, by which :func:`restore` identifies them.
    step : int
        The number of finished steps; the same on every rank.
    extra : mapping
        The state of the program, in numbers, strings, lists and dicts: the epoch, the
        position in the data, the state of a generator. The argument on the first
        stage's rank is saved; other ranks may pass None. JSON has no tuples or arrays,
        and no numbers as keys: they come back as lists and strings.
    keep : int
        How many checkpoints to keep, at least 1. Older ones of no later step are
        deleted once this one is whole; checkpoints of later steps, from a run that this
        one did not resume, stay. With 2 an earlier one remains, should the disk damage
        one.

    Returns
    -------
    Path
        The path of this checkpoint, a folder in ``folder``.

    Raises
    ------
    CheckpointError
        On every rank: codes ``unwritable``, such as for a full disk, which leaves
        earlier checkpoints as they were; ``value``, for something in ``extra`` that
        JSON cannot hold.
    RankError
        Code ``disagreement``, when the ranks give different steps.
    ArgumentError
        Codes ``value`` and ``type``.
    NotFiniteError
        Code ``not-found``, when a step that was not waited for was not finite: then
        nothing is saved.

    Examples
    --------
    Three steps in one run are two steps, and one more on another number of ranks.

    >>> import tempfile
    >>> import numpy as np
    >>> from minipipe import Pipeline, checkpoint, nn, optim, spawn
    >>> model, x = (
    ...     nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1)),
    ...     np.ones((8, 4)),
    ... )
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
    part = _begin(
        folder,
        pipeline,
        checked("save", folder, pipeline, optimiser),
        step,
        extra,
        keep,
    )
    parts = gather(part.group, attempt(part.write), _CALL)
    return Path(folder) / from_rank_0(part.group, _CALL, part.finish, parts, keep)


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
    ...     pipeline = Pipeline(
    ...         nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1)),
    ...         group,
    ...         loss=nn.MSELoss(),
    ...     )
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

    __slots__ = (
        "_failure",
        "_folder",
        "_is_elsewhere",
        "_keep",
        "_optimisers",
        "_pipeline",
        "_thread",
    )

    def __init__(
        self,
        folder: str | Path,
        pipeline: Pipeline,
        optimiser: Optimiser | Mapping[str, Optimiser] | None = None,
        keep: int = 2,
    ) -> None:
        self._optimisers = checked("BackgroundSaver", folder, pipeline, optimiser)
        self._folder = folder
        self._pipeline = pipeline
        self._keep = keep
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None
        self._is_elsewhere = False  # whether another rank's error was the cause

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse to be copied and pickled."""
        how = "Make a new one for another pipeline or folder."
        raise not_copyable(self, "it may be writing a checkpoint", how)

    def save(self, step: int, extra: Mapping[str, Any] | None = None) -> None:
        """Take a copy, and begin to write it; wait for the checkpoint before, if that
        is still being written.

        Collective. Parameters and errors are as in :func:`save`; the next call raises
        later errors, on every rank.
        """
        begin_call(self._pipeline, "BackgroundSaver.save()")
        own = [*attempt(self.wait), self._is_elsewhere]
        attempts = gather(everyone(self._pipeline), own, _CALL)
        # the cause first
        results(one[:2] for one in sorted(attempts, key=itemgetter(2)))
        part = _begin(
            self._folder, self._pipeline, self._optimisers, step, extra, self._keep
        )
        begun = gather(part.group, [part.own[0], None], _CALL)
        if part.group.rank == 0 and any(error for error, _ in begun):
            storage.discard(part.partial)
        # now, since rank 0 would wait for the file of a rank that does not see the
        # folder
        results(begun)
        # Not a daemon: at the end of a program Python waits for it.
        self._thread = threading.Thread(
            target=self._write, args=(part,), name="minipipe checkpoint"
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait until this rank has written its part of the last checkpoint and, on rank
        0, until that is whole.

        Local.

        Raises
        ------
        CheckpointError
            Codes ``unwritable`` and ``value``, as for :func:`save`.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        failure = self._failure
        self._failure = None
        if failure is not None:
            raise failure

    def _write(self, part: _Part) -> None:
        """Write this rank's part and, on rank 0, the rest once all ranks' parts
        exist.
        """
        group = part.group
        try:
            own = attempt(part.write)
            if group.rank:
                # Through a file, since only the main thread may send messages.
                write_whole(part.partial / f"rank-{group.rank}.json", json.dumps(own))
                results([own])
            else:
                part.finish([own, *_parts_of_others(part.partial, group)], self._keep)
        except CheckpointError as error:
            self._failure = error
        # such as a lack of memory, too: nothing is lost in a thread
        except Exception as error:
            self._is_elsewhere = not part.partial.exists()
            # this also informs the other ranks if the disk is full
            storage.discard(part.partial)
            self._failure = error
            if isinstance(error, OSError):
                self._failure = _unwritable(group, part.partial, error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.wait()
        except CheckpointError as failure:
            if error is None:
                raise
            error.add_note(failure.message)  # the first error counts


def _begin(
    folder: str | Path,
    pipeline: Pipeline,
    optimisers: Mapping[str, Optimiser],
    step: int,
    extra: Any,
    keep: int,
) -> _Part:
    """Check the arguments, make the folder on rank 0, and collect this rank's part.
    Collective.
    """
    group = everyone(pipeline)
    folder = Path(folder)
    begin_call(pipeline, _CALL)
    compare_arguments(group, _CALL, {"keep": keep, "optimiser": named(optimisers)})
    step = INDEX._replace(maximum=MOST).check("step", step)
    COUNT.check("keep", keep)
    _EXTRA.check("extra", extra)
    pipeline.wait()  # values that came of a step that was not finite are not to be kept
    # of an error the others learn when all have written
    own = attempt(_own_part, pipeline, optimisers, step, extra)
    name, first_step = from_rank_0(group, _CALL, _made, group, folder, step)
    if first_step != step:
        raise RankError(
            "disagreement",
            f"checkpoint.save: step is {step} on rank {group.name()}, and {first_step} "
            f"on rank {group.name(0)}. Every rank must save at the same step.",
        )
    partial = folder / name
    if not (own[0] or partial.is_dir()):
        message = (
            f"Rank {group.name()} does not see {partial}, which rank {group.name(0)} "
            "has made. Pass the same folder on every rank, on a file system that all "
            "hosts share. Or another process has deleted it: "
        )
        own = [("unwritable", message + _who_else(group)), None]
    return _Part(partial, group, own)


def _made(group: ProcessGroup, folder: Path, step: int) -> tuple[str, int]:
    try:
        return storage.begin(folder, step).name, step
    except OSError as error:
        raise _unwritable(group, folder, error) from None


def _own_part(
    pipeline: Pipeline, optimisers: Mapping[str, Optimiser], step: int, extra: Any
) -> tuple[Arrays, Manifest]:
    """Return this rank's arrays, and the manifest of them. Local, unless parameters are
    divided.
    """
    plan = pipeline.plan
    is_first_part = pipeline.grid is None or pipeline.grid.tensor.rank == 0
    # the other parts write nothing
    rank = pipeline.group.rank if is_first_part else None
    names = [name for name, owner in plan.owners.items() if owner == rank]
    arrays, states = take(pipeline, optimisers, names)
    values = {name: arrays[f"parameters/{name}"] for name in names}
    file = storage.name_of_file(everyone(pipeline).rank)
    parameters = {
        name: (file, one.dtype.name, one.shape) for name, one in values.items()
    }
    its = {}
    if rank == plan.pipelines[0][0]:
        its = json.loads(encoded(dict(extra or {}), "extra"))
    manifest = Manifest(
        step,
        pipeline.num_steps,
        pipeline.seed,
        pipeline.dropout_seed,
        pipeline.schedule.num_microbatches,
        plan.gradient_blocks,
        its,
        parameters,
        states,
        files={},
    )
    return arrays, manifest


def _delete_older(folder: Path, keep: int) -> None:
    """Delete older checkpoints; if that fails, this one is whole all the same, and the
    next save tries again.
    """
    try:
        storage.keep_last(folder, keep)
    except OSError as error:
        problem = f"Older checkpoints in {folder} cannot be deleted"
        warnings.warn(f"{problem}: {error.strerror or error}.", stacklevel=2)


def _parts_of_others(partial: Path, group: ProcessGroup) -> list[Any]:
    """Wait for the files with the other ranks' attempts to write; return their
    contents, and delete them.
    """
    parts = []
    give_up = time.monotonic() + group.timeout
    for rank in range(1, group.size):
        path = partial / f"rank-{rank}.json"
        while not path.exists():
            if not partial.exists():
                reason = "another rank has deleted it after an error"
                raise FileNotFoundError(errno.ENOENT, reason, str(partial))
            if time.monotonic() > give_up:
                storage.discard(partial)
                raise CheckpointError(
                    "unwritable",
                    f"Rank {group.name(rank)} has not written its part of {partial} "
                    f"within {group.timeout:g} s. All ranks must see the same folder.",
                )
            time.sleep(_POLL)
        parts.append(json.loads(read_text(path)))
        path.unlink()
    return parts


def _unwritable(group: ProcessGroup, path: Path, error: OSError) -> CheckpointError:
    reason = error.strerror or str(error)
    if isinstance(error, FileError):
        reason = error.message.rstrip(".")
    end = "Earlier checkpoints are unchanged."
    if error.errno in (errno.ENOENT, errno.ENOTEMPTY):
        end = f"Another process has changed the folder: {_who_else(group)}"
    problem = f"Rank {group.name()} could not write {error.filename or path}"
    return CheckpointError("unwritable", f"{problem}: {reason}. {end}")


def _who_else(group: ProcessGroup) -> str:
    """Describe who else may write to the folder of a group: the rest of its job, if it
    was split off.
    """
    if group.size == group.world_size:
        return "does another job write to the same folder?"
    here = set(group.world_ranks)
    own = ", ".join(map(str, sorted(here)))
    others = ", ".join(map(str, sorted({*range(group.world_size)} - here)))
    return (
        f"this pipeline runs on ranks {own} of the job; do ranks {others} save to the "
        "same folder? Let one of the replicas save, or pass a separate folder to each."
    )
