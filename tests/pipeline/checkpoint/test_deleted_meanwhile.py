"""Another job deletes checkpoints at any moment of a restore: what is gone is not
called damaged.
"""

import os
import shutil
import threading

import pytest

from minipipe import checkpoint, spawn
from minipipe.errors import CheckpointError
from minipipe.pipeline.checkpoint import storage
from tests.launch import for_each, slowly
from tests.pipeline.checkpoint import small

OLD, NEW = "000001-step-1", "000002-step-2"


class AtCall:
    """Calls a function before the k-th look at a file in a folder, once."""

    def __init__(self, patch, folder, number, act):
        self._folder, self._number, self._act = str(folder), number, act
        self.count, self.is_done, self._lock = 0, False, threading.RLock()
        for name in ("open", "stat", "listdir"):
            patch.setattr(os, name, self._wrapped(getattr(os, name)))

    def _wrapped(self, real):
        def call(path, *given, **options):
            with self._lock:
                if isinstance(path, str | os.PathLike) and os.fspath(path).startswith(
                    self._folder
                ):
                    self.count += 1
                    if self.count >= self._number and not self.is_done:
                        self.is_done = True
                        self._act()
            return real(path, *given, **options)

        return call


def saved(folder, num_ranks, steps=(1, 2)):
    def save(group):
        pipeline, optimiser = small.pipeline_of(group)
        for step in steps:
            small.train(pipeline, optimiser)
            checkpoint.save(folder, pipeline, optimiser, step=step, keep=len(steps))

    spawn(save, num_ranks)


def restored(folder, num_ranks, **options):
    """Return the step that each rank resumes with, or the code and the message of its
    error.
    """

    def restore(group):
        pipeline, optimiser = small.pipeline_of(group)
        try:
            return checkpoint.restore(folder, pipeline, optimiser, **options).step
        except CheckpointError as error:
            return error.code, error.message

    return spawn(restore, num_ranks)


def newest(folder, num_ranks):
    try:
        return [checkpoint.newest(folder).step]
    except CheckpointError as error:
        return [(error.code, error.message)]


def deletes_all(folder):
    for name in (NEW, OLD):
        storage._delete(folder / name)


def saves_another(folder):
    """What the last save of a job does: a new checkpoint, and those before it are
    deleted.
    """
    os.rename(folder / "elsewhere", folder / "000003-step-3")
    deletes_all(folder)


def deletes_the_newest(folder):
    storage._delete(folder / NEW)


def removes_by_hand(folder):
    for name in (NEW, OLD):
        shutil.rmtree(folder / name)


# By what another job does: what may come of it, in place of the newest step.
DEEDS = {
    "all": (deletes_all, None),
    "saves another": (saves_another, 3),
    "the newest": (deletes_the_newest, 1),
}
DEEDS["all by hand"] = (removes_by_hand, None)


@pytest.mark.parametrize(
    ("look", "num_ranks"), [(restored, 1), slowly(restored, 2), slowly(newest, 1)]
)
@for_each(name={name: name for name in DEEDS})
def test_a_checkpoint_that_is_deleted_at_any_moment_is_not_called_damaged(
    name, look, num_ranks, tmp_path_factory
):
    act, other = DEEDS[name]
    template = tmp_path_factory.mktemp("template")
    saved(template / "run", num_ranks)
    saved(template / "later", num_ranks, steps=(1, 2, 3))
    shutil.copytree(
        template / "later" / "000003-step-3", template / "run" / "elsewhere"
    )
    number, outcomes = 0, set()
    while True:
        number += 1
        folder = tmp_path_factory.mktemp("run") / "run"
        shutil.copytree(template / "run", folder)
        with pytest.MonkeyPatch.context() as patch:
            seam = AtCall(patch, folder, number, lambda folder=folder: act(folder))
            found = look(folder, num_ranks)
        assert len(set(found)) == 1
        if not seam.is_done:
            break
        if isinstance(found[0], tuple):
            code, message = found[0]
            assert other is None and code == "not-found", found
            is_listed_before = number > 1
            assert ("was deleted while it was read" in message) == is_listed_before, (
                number,
                message,
            )
        outcomes.add(found[0] if isinstance(found[0], int) else None)
    assert number > 3 and other in outcomes


def test_a_checkpoint_given_by_its_path_is_said_to_be_deleted(tmp_path):
    saved(tmp_path, 1)
    with pytest.MonkeyPatch.context() as patch:
        AtCall(patch, tmp_path / NEW, 4, lambda: storage._delete(tmp_path / NEW))
        ((code, message),) = restored(tmp_path / NEW, 1)
    assert (
        code == "not-found"
        and f"The checkpoint {NEW} was deleted while it was read." in message
    )


def test_a_file_that_is_missing_from_a_checkpoint_that_stays_is_damage(tmp_path):
    saved(tmp_path, 1)
    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.warns(UserWarning, match=f"The checkpoint {NEW} is damaged"),
    ):
        AtCall(patch, tmp_path / NEW, 2, (tmp_path / NEW / "rank-0.safetensors").unlink)
        assert restored(tmp_path, 1) == [1]


def test_a_restore_ends_where_every_checkpoint_is_deleted_while_it_is_read(
    tmp_path, monkeypatch
):
    saved(tmp_path, 1, steps=range(1, 8))
    read, left = storage.read_manifest, sorted(tmp_path.iterdir(), reverse=True)

    def deleted_first(path):
        storage._delete(path)
        return read(path)

    monkeypatch.setattr(storage, "read_manifest", deleted_first)
    ((code, message),) = restored(tmp_path, 1)
    assert (
        code == "not-found"
        and "This happened 5 times in a row: another job saves to this folder"
        in message
    )
    assert len(left) == 7 and len(list(tmp_path.glob("0*"))) == 2


def test_training_does_not_begin_anew_where_the_last_checkpoint_was_deleted_meanwhile(
    tmp_path,
):
    saved(tmp_path, 1, steps=(1,))
    with pytest.MonkeyPatch.context() as patch:
        AtCall(patch, tmp_path, 3, lambda: storage._delete(tmp_path / OLD))
        ((code, message),) = restored(tmp_path, 1, required=False)
    assert (
        code == "not-found"
        and f"There is no checkpoint in {str(tmp_path)!r}: The checkpoint {OLD} was"
        in message
    )
