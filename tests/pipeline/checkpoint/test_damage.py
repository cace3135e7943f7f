"""Rows 11 and 13 of what must hold when things break: no damage of a checkpoint goes
unnoticed, whatever it is.
"""

import os
import random
import shutil
import warnings

import pytest

from minipipe import checkpoint, spawn
from minipipe.errors import CheckpointError
from minipipe.pipeline.checkpoint import storage
from tests.launch import slowly
from tests.pipeline.checkpoint import small

OLD, NEW = "000001-step-1", "000002-step-2"
FILES = ["rank-0.safetensors", "rank-1.safetensors", storage.MANIFEST, storage.MARKER]


def replaced(content):
    def damage(path):
        path.write_bytes(content)

    return damage


def remove(path):
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def flips(files, number):
    """Yield random bit flips: the file and what happens to it."""
    draw = random.Random(0)
    for _ in range(number):
        name = draw.choice(list(files))
        changed = bytearray(files[name])
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
        yield name, replaced(bytes(changed))


def truncations(files, every):
    for name, content in files.items():
        for length in range(0, len(content), every):
            yield name, replaced(content[:length])
        yield name, replaced(content + b"\0")


def replacements(files, others):
    """Yield what may lie in the place of a file: nothing, something else, or its like
    of another step or run.
    """

    def instead(act):
        def damage(path):
            path.unlink()
            act(path)

        return damage

    for name in files:
        yield name, instead(lambda path: None)
        yield name, instead(os.mkdir)
        yield name, instead(os.mkfifo)
        yield name, instead(lambda path: path.symlink_to("/dev/zero"))
        yield name, instead(lambda path: path.symlink_to(path.name))
        for other in others:
            yield name, replaced((other / name).read_bytes())


def check(folder, other_run, damages):
    """Do each damage to the newest checkpoint; it must be noticed, and the older one be
    restored, bit for bit.

    ``damages`` takes the files by name, and checkpoints whose files are like them.
    """
    newest = folder / NEW
    seen = 0

    def ranks(group):
        nonlocal seen
        small.save_two(group, other_run, seed=group.size)
        pipeline, optimiser, saved = small.save_two(group, folder)
        files = {name: (newest / name).read_bytes() for name in FILES}
        group.barrier()
        for name, damage in damages(files, [folder / OLD, other_run / NEW]):
            path = newest / name
            if group.rank == 0:
                damage(path)
                caught.clear()
            small.scramble(pipeline, optimiser)
            group.barrier()
            restored = checkpoint.restore(folder, pipeline, optimiser)
            assert restored == (1, small.EXTRA, folder / OLD), name
            assert small.bits(pipeline, optimiser=optimiser) == saved[1], name
            if group.rank == 0:
                (warning,) = caught
                assert f"The checkpoint {NEW} is damaged: " in str(warning.message)
                assert f"Resuming from {OLD}, of step 1." in str(warning.message)
                seen += 1
            before = small.bits(pipeline, optimiser=optimiser)
            with pytest.raises(
                CheckpointError, match="is damaged.*There is no other checkpoint"
            ) as refused:
                # this one, and no other
                checkpoint.restore(newest, pipeline, optimiser)
            assert refused.value.code == "damaged"
            assert small.bits(pipeline, optimiser=optimiser) == before
            if group.rank == 0:
                remove(path) if os.path.lexists(path) else None
                path.write_bytes(files[name])
        small.scramble(pipeline, optimiser)
        assert checkpoint.restore(folder, pipeline, optimiser).step == 2
        assert small.bits(pipeline, optimiser=optimiser) == saved[2]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        spawn(ranks, 2)
    return seen


@pytest.mark.parametrize("number", [100, slowly(1_000)])
def test_no_flipped_bit_goes_unnoticed(tmp_path, number):
    assert (
        check(tmp_path / "a", tmp_path / "b", lambda files, _: flips(files, number))
        == number
    )


@pytest.mark.parametrize("every", [97, slowly(5)])
def test_no_missing_or_added_byte_goes_unnoticed(tmp_path, every):
    seen = check(
        tmp_path / "a", tmp_path / "b", lambda files, _: truncations(files, every)
    )
    assert seen > 2500 // every


def test_nothing_in_the_place_of_a_file_goes_unnoticed(tmp_path):
    """The stories: a checkpoint without its marker was passed over in silence; a pipe
    was waited for, 20 s.
    """
    assert check(tmp_path / "a", tmp_path / "b", replacements) == 7 * len(FILES)


def test_without_the_digest_a_flipped_bit_loads_silently(tmp_path, monkeypatch):
    """A mutant: safetensors itself notices nothing."""
    monkeypatch.setattr(
        storage,
        "digest_of",
        lambda *content: storage.Digest(sum(map(len, content)), 64 * "0"),
    )
    with pytest.raises(AssertionError):
        check(
            tmp_path / "a",
            tmp_path / "b",
            lambda files, _: flips({FILES[0]: files[FILES[0]]}, 20),
        )
