"""Restoring: each rank reads the files with data of its stages, and compares them with
the manifest.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from minipipe.comm import ProcessGroup
from minipipe.comm.agreement import compare_arguments, digest
from minipipe.comm.objects import gather
from minipipe.core.autograd import backend
from minipipe.errors import ArgumentError, CheckpointError, RankError, counted, quoted
from minipipe.optim import Optimiser
from minipipe.pipeline import Pipeline
from minipipe.pipeline.checkpoint import storage
from minipipe.pipeline.checkpoint.manifest import (
    Manifest,
    attempt,
    changed,
    damage,
    encoded,
    from_rank_0,
    mismatch,
)
from minipipe.pipeline.checkpoint.state import (
    Arrays,
    begin_call,
    checked,
    everyone,
    named,
    names_of,
    put,
    with_arrays,
)
from minipipe.pipeline.checkpoint.storage import unpacked

_CALL = "checkpoint.restore()"
# of the checkpoints in a folder, where another job deletes some while they are read
_MOST_LISTS = 5


class Restored(NamedTuple):
    """The values that a program needs to resume.

    Attributes
    ----------
    step : int
        The argument of ``save``.
    extra : dict
        The argument of ``save`` on the rank of the first stage, on every rank. Tuples
        and arrays come as lists, the keys of dicts as strings.
    path : Path
        The path of the checkpoint.

    Examples
    --------
    >>> Restored(20, {"epoch": 3}, Path("000001-step-20")).step
    20
    """

    step: int
    extra: dict[str, Any]
    path: Path


def restore(
    folder: str | Path,
    pipeline: Pipeline,
    optimiser: Optimiser | Mapping[str, Optimiser] | None = None,
    *,
    required: bool = True,
) -> Restored | None:
    """Load the newest undamaged checkpoint of a folder: training resumes as if it had
    never stopped.

    Collective. The number of ranks, of replicas and of tensor-parallel ranks, the
    schedule, the partition and the device may differ from the saved run. Each rank
    reads the files with data of its stages, and compares their length and SHA-256 with
    the manifest, before it changes anything.

    Parameters
    ----------
    folder : str or Path
        The folder with all checkpoints of a run, as for :func:`save`; or one
        checkpoint.
    pipeline : Pipeline
        It has the same layers and the same seed. If it has a separate ``dropout_seed``,
        as another replica of the saved pipeline has, it keeps that, and rank 0 reports
        it.
    optimiser : Optimiser, or mapping of str to Optimiser
        As for :func:`save`; None for a pipeline that is no longer trained. Its learning
        rate and its other hyper-parameters are restored from the checkpoint. If the
        program's values differ from the saved ones, a warning on rank 0 names both. To
        keep the program's values, set them afterwards, such as
        ``optimiser.learning_rate = 0.1``; with a ``LearningRateSchedule``, load
        ``{**state, "first_rates": [0.1]}``.
    required : bool
        Whether it is an error that the folder does not exist or has no checkpoint;
        otherwise None is returned. One that cannot be read is an error in any case:
        training must not restart by mistake.

    Returns
    -------
    Restored or None

    Raises
    ------
    CheckpointError
        The same on every rank; then nothing has changed. Codes ``not-found``, also when
        another job deletes all checkpoints while they are read (if it has saved a newer
        one, that is loaded); ``damaged``, when no checkpoint is whole (an earlier whole
        one is loaded, with a warning on rank 0); ``mismatch``, when the layers, the
        optimiser or the seed differ; ``unsupported``.
    RankError
        Code ``disagreement``, when the ranks have read different checkpoints.
    ArgumentError
        Codes ``type`` and ``value``.

    Examples
    --------
    >>> import tempfile
    >>> from minipipe import Pipeline, checkpoint, init_process_group, nn, optim
    >>> with tempfile.TemporaryDirectory() as folder, init_process_group() as group:
    ...     pipeline = Pipeline(nn.Sequential(nn.Linear(2, 1)), group)
    ...     optimiser = optim.Adam(pipeline.parameters())
    ...     checkpoint.save(
    ...         folder, pipeline, optimiser, step=20, extra={"epoch": 3}
    ...     ).name
    ...     restored = checkpoint.restore(folder, pipeline, optimiser)
    ...     restored.step, restored.extra
    '000001-step-20'
    (20, {'epoch': 3})
    """
    optimisers = checked("restore", folder, pipeline, optimiser)
    group = everyone(pipeline)
    begin_call(pipeline, _CALL)
    given = {"required": bool(required), "optimiser": named(optimisers)}
    compare_arguments(group, _CALL, given)
    deleted = ""
    for _ in range(_MOST_LISTS):
        names, reason, is_empty = from_rank_0(group, _CALL, _candidates, Path(folder))
        if is_empty and not required and not deleted:
            return None
        if not names:
            raise _none_in(folder, deleted or reason)
        try:
            found, problems = _first_whole(names, Path(folder), pipeline, optimisers)
        except CheckpointError as error:
            if error.code != "not-found":
                raise
            deleted = error.message
        else:
            return found.load(pipeline, optimisers, problems)
    raise _always_deleted(deleted)


def _first_whole(
    names: Sequence[str],
    folder: Path,
    pipeline: Pipeline,
    optimisers: Mapping[str, Optimiser],
) -> tuple[_Found, list[str]]:
    """Return this rank's part of the first checkpoint that all ranks can read, and the
    problems of those before it.

    Collective.

    Raises
    ------
    CheckpointError
        The same on every rank: code ``not-found``, when one of them was deleted
        meanwhile.
    """
    group = everyone(pipeline)
    problems = list[str]()
    for name in names:
        failure, found = attempt(_Found.read, folder / name, pipeline, optimisers)
        # ranks may have been given other folders
        mark = digest(str(found.manifest)) if found else 0
        attempts = gather(group, [failure, mark], _CALL)
        _check_alike(group, folder, [mark for _, mark in attempts])
        failures = [failure for failure, _ in attempts if failure]
        for code, message in failures:
            if code != "damaged":
                raise CheckpointError(code, message)
        if not failures:
            return found, problems
        problems.append(failures[0][1])
    message = " ".join([*problems, "There is no other checkpoint."])
    raise CheckpointError("damaged", message)


def _none_in(
    folder: str | Path, reason: str, code: str = "not-found"
) -> CheckpointError:
    problem = f"There is no checkpoint in {str(folder)!r}"
    return CheckpointError(code, f"{problem}: {reason.rstrip('.')}.")


def _always_deleted(deleted: str) -> CheckpointError:
    return CheckpointError(
        "not-found",
        f"{deleted} This happened {_MOST_LISTS} times in a row: another job saves to "
        "this folder, and deletes checkpoints before this one can read them. Let that "
        "job keep more, save(…, keep=4), or restore from a copy.",
    )


def _check_alike(group: ProcessGroup, folder: str | Path, marks: list[int]) -> None:
    """Refuse checkpoints of the same name that are not the same.

    Raises
    ------
    RankError
        Code ``disagreement``.
    """
    others = [rank for rank, mark in enumerate(marks) if mark and mark != max(marks)]
    if others:
        one = group.name(marks.index(max(marks)))
        other = group.name(others[0])
        raise RankError(
            "disagreement",
            f"Ranks {one} and {other} have read different checkpoints (this rank in "
            f"{str(folder)!r}). Pass the same "
            "folder on every rank, on a file system that all hosts share.",
        )


def newest(folder: str | Path) -> Restored:
    """Return the manifest's values of the newest checkpoint in a folder, without
    loading arrays.

    Local. A program uses it to make the model that was saved, before it restores the
    checkpoint.

    Parameters
    ----------
    folder : str or Path
        As for :func:`restore`.

    Raises
    ------
    CheckpointError
        Codes ``not-found``, ``damaged`` and ``unsupported``.

    Examples
    --------
    >>> import tempfile
    >>> from minipipe import Pipeline, checkpoint, init_process_group, nn
    >>> with tempfile.TemporaryDirectory() as folder, init_process_group() as group:
    ...     pipeline = Pipeline(nn.Sequential(nn.Linear(2, 5)), group)
    ...     path = checkpoint.save(folder, pipeline, step=1, extra={"width": 5})
    ...     checkpoint.newest(folder).extra
    {'width': 5}
    """
    deleted = ""
    for _ in range(_MOST_LISTS):
        names, reason, _ = _candidates(Path(folder))
        if not names:
            raise _none_in(folder, deleted or reason)
        for path in (Path(folder) / name for name in names):
            failure, manifest = attempt(_manifest_of, path)
            if failure is None:
                return Restored(manifest.step, manifest.extra, path)
            code, reason = failure
            if code == "not-found":
                deleted = reason
                break
            if code != "damaged":
                raise CheckpointError(code, reason)
        else:
            raise _none_in(folder, reason, "damaged")
    raise _always_deleted(deleted)


@contextmanager
def _unless_deleted(path: Path) -> Iterator[None]:
    """Tell a checkpoint that another job deletes from a damaged one: a deletion begins
    with its name (``storage`` [2]).

    Raises
    ------
    CheckpointError
        Code ``not-found``, in place of ``damaged``.
    """
    try:
        yield
    except CheckpointError as error:
        if error.code == "damaged" and not path.exists():
            message = f"The checkpoint {path.name} was deleted while it was read."
            raise CheckpointError("not-found", message) from None
        raise


def _manifest_of(path: Path) -> Manifest:
    with _unless_deleted(path):
        return Manifest.read(path)


def _candidates(folder: Path) -> tuple[list[str], str, bool]:
    """Return the names of the checkpoints in a folder, the newest first, why there is
    none, and whether nothing is.

    Local, on rank 0.
    """
    try:
        found = storage.checkpoints(folder)
    except (OSError, ValueError) as error:  # such as a NUL in its name
        reason = getattr(error, "strerror", None) or str(error)
        return [], reason, isinstance(error, FileNotFoundError)
    names = [str(path.relative_to(folder)) for path in found]
    return names, "no checkpoint in it was finished", not found


@dataclass(frozen=True)
class _Found:
    """This rank's part of a checkpoint, read and checked: its values, and the state
    dicts of its optimisers.
    """

    path: Path
    manifest: Manifest
    values: dict[str, Any]
    states: dict[str, dict[str, Any]]

    @classmethod
    def read(
        cls, path: Path, pipeline: Pipeline, optimisers: Mapping[str, Optimiser]
    ) -> _Found:
        """Read it, and check all of it. Local."""
        with _unless_deleted(path):
            return cls._read(path, pipeline, optimisers)

    @classmethod
    def _read(
        cls, path: Path, pipeline: Pipeline, optimisers: Mapping[str, Optimiser]
    ) -> _Found:
        manifest = Manifest.read(path)
        _check_model(manifest, pipeline)
        _check_optimisers(manifest, pipeline, optimisers)
        own = {name for name, _ in pipeline.named_parameters()}
        missing = [name for name in manifest.files if not os.path.isfile(path / name)]
        if missing:
            files = counted(len(manifest.files), "file")
            names = ", ".join(missing[:9])
            raise damage(path, f"of its {files} these are missing: {names}.")
        arrays: Arrays = {}
        for file in sorted({manifest.parameters[name][0] for name in own}):
            arrays |= _arrays(path, file, manifest, own)
        values = {name: arrays.get(f"parameters/{name}") for name in own}
        for name, value in values.items():
            look = None if value is None else (value.dtype.name, value.shape)
            if look != manifest.parameters[name][1:]:
                problem = f"its files do not hold {name}"
                raise damage(path, f"{problem}, although {storage.MANIFEST} lists it.")
        states = {}
        for key, optimiser in optimisers.items():
            try:
                saved = with_arrays(manifest.optimisers[key], key, arrays)
                states[key] = saved.state_dict(pipeline, optimiser)
            except ArgumentError as error:
                problem = f"the state of {key} cannot be loaded"
                raise mismatch(f"{problem}. {error.message.rstrip('.')}") from None
        return cls(path, manifest, values, states)

    def load(
        self,
        pipeline: Pipeline,
        optimisers: Mapping[str, Optimiser],
        problems: list[str],
    ) -> Restored:
        """Load everything; warn on rank 0 of anything that a user may not expect.
        Local.
        """
        saved = self.manifest
        if everyone(pipeline).rank == 0:
            replaced = " ".join(_replaced(optimisers, self.states))
            for warning in (*self._surprises(pipeline, problems), replaced):
                if warning:
                    warnings.warn(warning, stacklevel=3)
        put(pipeline, optimisers, self.values, self.states)
        pipeline.num_steps = saved.num_steps
        return Restored(saved.step, saved.extra, self.path)

    def _surprises(self, pipeline: Pipeline, problems: list[str]) -> Iterator[str]:
        """Yield what differs from the saved run, other than hyper-parameters."""
        saved = self.manifest
        name = self.path.name
        if problems:
            yield f"{' '.join(problems)} Resuming from {name}, of step {saved.step}."
        if saved.dropout_seed != pipeline.dropout_seed:
            yield (
                f"{name} was trained with dropout_seed={saved.dropout_seed}, and this "
                f"pipeline has dropout_seed={pipeline.dropout_seed}, so dropout draws "
                "other numbers, as in another replica."
            )
        microbatches = saved.num_microbatches, pipeline.schedule.num_microbatches
        blocks = saved.gradient_blocks, pipeline.plan.gradient_blocks
        pairs = {"microbatches": microbatches, "gradient_blocks": blocks}
        for what, (then, now) in pairs.items():
            if then != now:
                yield (
                    f"{name} was trained with {then} {what}, and this pipeline has "
                    f"{now}: its gradients will differ in the last bits."
                )


def _arrays(path: Path, file: str, manifest: Manifest, own: set[str]) -> Arrays:
    """Return the arrays of a file that belong to some parameters."""
    size, sha256 = manifest.files[file]
    try:
        if (found := os.path.getsize(path / file)) != size:
            raise damage(path, f"{file} has {found:,} bytes; {size:,} were written.")
        content = storage.read(path / file, size)
    except OSError as error:
        raise damage(path, str(error)) from None
    if storage.digest_of(content) != (size, sha256):
        raise changed(path, file)
    try:
        arrays = unpacked(content)
    except CheckpointError as error:
        raise damage(path, f"{file}: {error.message}") from None
    wanted = [key for key in arrays if key.rpartition("/")[2] in own]
    return {key: arrays[key] for key in wanted}


def _check_model(manifest: Manifest, pipeline: Pipeline) -> None:
    """Refuse a checkpoint of another model. Local.

    Raises
    ------
    CheckpointError
        Code ``mismatch``.
    """
    model = dict(pipeline.model.named_parameters())
    only = [name for name in manifest.parameters if name not in model]
    missing = [name for name in model if name not in manifest.parameters]
    if only or missing:
        there = f"Only in the checkpoint: {_first_names(only)}"
        here = f"only in this pipeline: {_first_names(missing)}"
        raise mismatch(f"it was saved from a different model. {there}; {here}")
    for name, parameter in model.items():
        _, dtype, shape = manifest.parameters[name]
        looks = backend.numpy_dtype(parameter.dtype).name, parameter.whole_shape
        if looks != (dtype, shape):
            raise mismatch(
                f"its {name} has shape {quoted(shape)} and dtype {_name(dtype)}; in "
                f"this pipeline it has shape {looks[1]} and dtype {looks[0]}"
            )
    if manifest.dropout_seed != pipeline.dropout_seed == pipeline.seed:
        name = "seed" if manifest.dropout_seed == manifest.seed else "dropout_seed"
        there = f"{name}={quoted(manifest.dropout_seed)}"
        here = f"{name}={pipeline.dropout_seed}"
        raise mismatch(
            f"it was trained with {there}, and this pipeline has {here}: dropout would "
            f"draw other numbers. Pass Pipeline(…, {there})"
        )


def _first_names(names: list[str]) -> str:
    return ", ".join(map(_name, names[:3])) + " …" * (len(names) > 3) or "nothing"


def _name(given: str) -> str:
    """Return a name that comes from a file, made safe for a terminal."""
    return quoted(given)[1:-1]


def _check_optimisers(
    manifest: Manifest, pipeline: Pipeline, optimisers: Mapping[str, Optimiser]
) -> None:
    """Refuse a checkpoint of other optimisers, or of optimisers of other parameters of
    this rank. Local.

    Raises
    ------
    CheckpointError
        Code ``mismatch``.
    """
    there = manifest.optimisers
    if optimisers and there.keys() != optimisers.keys():
        saved = ", ".join(map(quoted, there)) or "none"
        raise mismatch(
            f"it has the states of these optimisers: {saved}; this script passes "
            f"{', '.join(map(repr, optimisers))}. Pass all by name, as in save"
        )
    own = {name for name, _ in pipeline.named_parameters()}
    for key, optimiser in optimisers.items():
        kind = optimiser.settings["class"].__qualname__
        if there[key].kind != kind:
            saved = f"its {key} has class {_name(there[key].kind)}"
            raise mismatch(f"{saved}, but the one of this script has class {kind}")
        saved_names = chain(*(group.parameters for group in there[key].groups))
        trained = own.intersection(saved_names)
        differing = sorted(trained ^ set(names_of(pipeline, optimiser.parameters)))
        if differing:
            names = ", ".join(differing[:3])
            problem = f"its {key} trains other parameters than this one"
            raise mismatch(f"{problem}: only one of the two has {names}")


def _replaced(
    optimisers: Mapping[str, Optimiser], states: Mapping[str, Any]
) -> Iterator[str]:
    """Yield a sentence for each hyper-parameter whose value in the program differs from
    the checkpoint. Local.

    A schedule changes them from step to step: the values before the first step are
    compared, of the saved run and of this one.
    """
    for key, optimiser in optimisers.items():
        given = optimiser.first
        if not given:
            given = [group.hyper_parameters for group in optimiser.groups]
        groups = zip(given, states[key]["first"], states[key]["groups"])
        for place, (own, first, now) in enumerate(groups):
            for name, value in own.items():
                saved = [encoded(one.get(name), name) for one in (first, now)]
                if encoded(value, name) not in saved:
                    before = f"({quoted(first.get(name))} before its first step)"
                    there = (
                        f"restored from the checkpoint: {quoted(now[name])} {before}"
                    )
                    keep = f"{key}.groups[{place}].{name} = {value}"
                    here = f"{name} is {value} in this script"
                    yield f"{here}; {there}. To keep it: {keep}"
