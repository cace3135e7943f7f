"""Row 12 of what must hold when things break: killed at any point of a save, or the
disk full: the old or the new.

Nothing is mixed or half, and the next save leaves nothing partial behind.
"""

import shutil
import threading
import warnings
from itertools import count

import pytest

from minipipe import checkpoint, spawn
from minipipe.errors import CheckpointError
from minipipe.pipeline.checkpoint import saving, storage
from tests.launch import sample_of, slowly
from tests.pipeline.checkpoint import small
from tests.pipeline.checkpoint.seam import Crash, Seam, crashes, fails_once, is_full

WHOLE = {storage.MANIFEST, storage.MARKER, *map(storage.name_of_file, range(2))}


@pytest.fixture
def base(tmp_path):
    """Return a folder with checkpoints of steps 1 and 2, and the bits of steps 2 and 3
    on both ranks.
    """
    folder = tmp_path / "base"

    def ranks(group):
        pipeline, optimiser, saved = small.save_two(group, folder)
        small.train(pipeline, optimiser)
        return {2: saved[2], 3: small.bits(pipeline, optimiser=optimiser)}

    return folder, spawn(ranks, 2)


def saves(group, folder, keep, in_background, seam):
    """Go on from step 2 to step 3, and save that while the seam is armed."""
    pipeline, optimiser = small.pipeline_of(group)
    assert checkpoint.restore(folder, pipeline, optimiser).step == 2
    small.train(pipeline, optimiser)
    group.barrier()
    seam.is_armed = True
    if in_background:
        with checkpoint.BackgroundSaver(folder, pipeline, optimiser, keep) as saver:
            saver.save(3)
            saver.save(4)  # which raises the error of the one before, on every rank
    else:
        checkpoint.save(folder, pipeline, optimiser, step=3, keep=keep)


def step_of(group, folder, expected):
    """Restore; what comes must be whole, and without a word. Return its step."""
    pipeline, optimiser = small.pipeline_of(group)
    small.scramble(pipeline, optimiser)
    restored = checkpoint.restore(folder, pipeline, optimiser)
    step = min(restored.step, 3)  # steps 3 and 4 of the background are the same
    assert small.bits(pipeline, optimiser=optimiser) == expected[group.rank][step]
    return restored.step, pipeline, optimiser


def goes_on(group, folder, keep, expected):
    step, pipeline, optimiser = step_of(group, folder, expected)
    checkpoint.save(folder, pipeline, optimiser, step=9, keep=keep)
    assert checkpoint.restore(folder, pipeline, optimiser).step == 9
    return step


def run(monkeypatch, folder, expected, act, keep, in_background):
    """Save with a seam, then go on. Return the number of calls, the error, and the step
    that was found.
    """
    failure = None
    with monkeypatch.context() as patch, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Older checkpoints")
        patch.setattr(saving, "_POLL", 0.001)
        patch.setattr(threading, "excepthook", lambda args: None)
        seam = Seam(patch, folder, act)
        try:
            spawn(lambda group: saves(group, folder, keep, in_background, seam), 2)
        except (CheckpointError, Crash) as error:
            failure = error
        for thread in threading.enumerate():
            if thread.name == "minipipe checkpoint":
                thread.join()
        seam.is_armed = False
    if seam.is_dead:
        failure = Crash()  # perhaps of a thread alone
        seam.lose_what_was_not_forced()
        # another process goes on
        monkeypatch.setattr(storage, "_THIS_JOB", storage.token_hex(4))
    for path in folder.glob("[!.]*"):  # what is being deleted has another name
        assert {each.name for each in path.iterdir()} == WHOLE, path
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is damaged
        steps = spawn(lambda group: goes_on(group, folder, keep, expected), 2)
    names = sorted(path.name for path in folder.iterdir())
    assert len(names) == keep and not any(name.startswith(".") for name in names), names
    return seam.calls, failure, steps[0]


ACTS = {"crashes": crashes, "fails_once": fails_once, "is_full": is_full}
# Each call in the foreground and in the background; of the others, each third.
AT_LENGTH = {("crashes", 1, False): 1, ("crashes", 2, True): 1}
OTHERS = dict.fromkeys(sample_of(ACTS, (1, 2), (False, True), strength=1), 3)
EVERY = [slowly(*cell, every) for cell, every in (OTHERS | AT_LENGTH).items()]


@pytest.mark.parametrize(
    ("name", "keep", "in_background", "every"), [("crashes", 1, False, 8), *EVERY]
)
def test_after_a_failure_at_any_call_it_is_the_old_or_the_new(
    base, tmp_path, monkeypatch, name, keep, in_background, every
):
    """The stories: of a checkpoint that was being deleted the rest stayed for ever,
    without its marker; one of a job with the same number of its process, as in a
    container, was taken for this job's; the error of a file that could not be deleted
    hid that the save had succeeded."""
    folder, expected = base
    found, calls, last = set(), None, 0
    for number in count(1, every):
        if calls is not None and len(calls) < last:
            break  # that went well to its end
        last = number
        copy = tmp_path / f"{number}"
        shutil.copytree(folder, copy)
        calls, failure, step = run(
            monkeypatch, copy, expected, ACTS[name](number), keep, in_background
        )
        shutil.rmtree(copy)
        assert failure is not None or step > 2, number
        if isinstance(failure, CheckpointError):
            assert failure.code == "unwritable"
            assert "could not write" in str(failure) and (
                "error" in str(failure) or "No space" in str(failure)
            )
        found.add((type(failure), step > 2))
    assert number > 20
    kind = Crash if name == "crashes" else CheckpointError
    # it failed, and at the end it did not
    assert {(kind, False), (type(None), True)} <= found


def test_a_rank_that_writes_nothing_is_named_after_the_timeout(tmp_path, monkeypatch):
    """As where the ranks do not see the same folder."""
    real = saving.write_whole
    monkeypatch.setattr(
        saving, "write_whole", lambda path, text: real(tmp_path / "elsewhere", text)
    )

    def ranks(group):
        pipeline, optimiser = small.pipeline_of(group)
        saver = checkpoint.BackgroundSaver(tmp_path / "runs", pipeline, optimiser)
        saver.save(1)
        if group.rank == 0:
            with pytest.raises(
                CheckpointError,
                match=(
                    r"Rank 1 has not written its part of \S+ within 0.2 s. All ranks "
                    r"must"
                ),
            ):
                saver.wait()

    spawn(ranks, 2, timeout=0.2)
    assert list((tmp_path / "runs").iterdir()) == []


def test_no_rank_writes_into_what_another_one_discards(tmp_path, monkeypatch):
    """The story: a rank that failed in the background deleted the folder while rank 0
    was writing into it. A file came in between, the folder stayed, and rank 0 waited
    for the other's word until the timeout."""
    partial, rmtree = storage.begin(tmp_path, 3), shutil.rmtree

    def late(path, **options):
        with pytest.raises(FileNotFoundError):
            storage.write(partial / storage.name_of_file(0), b"late")
        rmtree(path, **options)

    monkeypatch.setattr(shutil, "rmtree", late)
    storage.discard(partial)
    storage.discard(partial)  # the other rank, too
    assert list(tmp_path.iterdir()) == []
