"""Rows 13, 14 and 16 of what must hold when things break: a forged checkpoint is
refused before it takes memory.

Whoever can write the files can make the digests fit, so nothing in them is believed.
"""

import io
import json
import pickle
import random
import struct
import sys
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe.errors import CheckpointError, MinipipeError
from minipipe.pipeline.checkpoint.storage import pieces, unpacked
from tests.launch import run, slowly
from tests.pipeline.checkpoint import small
from tests.pipeline.checkpoint.forging import JUNK, PART, Forge, changed, places
from tests.strategies import examples

pytestmark = pytest.mark.filterwarnings(
    "ignore:.* was trained with .* microbatches", "ignore:.* in this script"
)


@pytest.fixture(scope="module")
def forge(tmp_path_factory):
    return Forge(tmp_path_factory.mktemp("runs"))


def refused(forge, restore, *given, code="damaged"):
    """Return the message of the error that restoring must raise; nothing may have
    changed, nor reach a terminal.
    """
    before = small.bits(forge.pipeline, optimiser=forge.optimiser)
    with pytest.raises(CheckpointError) as caught:
        restore(*given)
    assert caught.value.code == code, caught.value
    assert small.bits(forge.pipeline, optimiser=forge.optimiser) == before
    assert len(str(caught.value)) < 1000 and str(caught.value).isprintable()
    return str(caught.value)


NAMES = [
    "../../x",
    "/etc/passwd",
    "a/b",
    "..",
    "",
    "rank-0",
    "rank-0.safetensors\0",
    "rank-٣.safetensors",
    "x" * 10_000,
]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_name_that_leads_elsewhere_is_refused(forge, name):
    files = {**forge.manifest["files"], name: forge.manifest["files"][PART]}
    assert "is not the name of a file in a checkpoint" in refused(
        forge, forge.restore, {**forge.manifest, "files": files}
    )


def test_a_part_that_is_missing_is_named(forge):
    files = {**forge.manifest["files"], "rank-1.safetensors": [10, "0" * 64]}
    message = refused(forge, forge.restore, {**forge.manifest, "files": files})
    assert "of its 2 files these are missing: rank-1.safetensors." in message


@pytest.mark.parametrize(
    ("change", "words", "code"),
    [
        ({"format": "zip"}, "it is not a manifest of minipipe", "damaged"),
        (
            {"version": 2},
            "has version 2 of the format; this minipipe supports 1",
            "unsupported",
        ),
        ({"version": "\x1b[2J" * 999}, "has version '\\x1b[2J", "unsupported"),
        (
            {"files": {PART: [10**18, "0" * 64]}},
            "1,000,000,000,000,000,000 were written",
            "damaged",
        ),
        (
            {"num_steps": 2**63},
            "'num_steps' is 9223372036854775808; expected a whole number",
            "damaged",
        ),
        ({"num_steps": True}, "'num_steps' is True", "damaged"),
        (
            {"parameters": {}},
            (
                "it was saved from a different model. Only in the checkpoint: "
                "nothing; only in this pipeline: 0.weight"
            ),
            "mismatch",
        ),
        (
            {"parameters": {"\x1b[2J": [PART, "a", []]}},
            "Only in the checkpoint: \\x1b[2J; only in",
            "mismatch",
        ),
        (
            {"seed": 10**30, "dropout_seed": 10**30},
            f"it was trained with seed={10**30}",
            "mismatch",
        ),
        (
            {"optimisers": {}},
            (
                "it has the states of these optimisers: none; this script passes "
                "'optimiser'. Pass all by name, as in save"
            ),
            "mismatch",
        ),
    ],
)
def test_a_manifest_of_something_else_is_refused(forge, change, words, code):
    assert words in refused(
        forge, forge.restore, {**forge.manifest, **change}, code=code
    )


def with_kept(manifest, kept):
    optimiser = manifest["optimisers"]["optimiser"]
    changed = {**optimiser, "kept": {**optimiser["kept"], "0.weight": kept}}
    return {**manifest, "optimisers": {"optimiser": changed}}


@pytest.mark.parametrize(
    "number", [-1, 0, 2.5, 1e30, 2**63, True, float("inf"), float("nan"), 1.0]
)
def test_a_count_of_steps_that_no_optimiser_counts_is_refused(forge, number):
    """The story: -1 and 1e30 failed in the next ``optimiser.step()``; 0, 2.5, True and
    inf changed its numbers.
    """
    message = refused(
        forge,
        forge.restore,
        with_kept(forge.manifest, {"num_steps": number}),
        code="mismatch",
    )
    assert (
        f"for parameter 0, the state keeps num_steps = {number!r}; expected a "
        "whole number, at least 1"
    ) in message


@pytest.mark.parametrize("kept", [{}, {"steps": 1}, {"num_steps": 1, "more": 1.0}])
def test_other_names_than_the_optimiser_keeps_are_refused(forge, kept):
    """The story: a state without its count was taken, and failed in the next
    ``optimiser.step()``.
    """
    message = refused(
        forge, forge.restore, with_kept(forge.manifest, kept), code="mismatch"
    )
    assert "expected num_steps, mean, mean_square" in message


@pytest.mark.parametrize("name", ["learning_rate", "weight_decay", "epsilon"])
@pytest.mark.parametrize("number", [True, float("nan"), float("inf"), -1.0, "1", None])
def test_hyper_parameters_out_of_their_range_are_refused(forge, name, number):
    manifest = json.loads(json.dumps(forge.manifest))
    manifest["optimisers"]["optimiser"]["groups"][0]["numbers"][name] = number
    assert f"{name} is {number!r}; expected" in refused(
        forge, forge.restore, manifest, code="mismatch"
    )


ARRAYS = {
    "an array of another shape": (
        "mean",
        lambda mean: mean[:1],
        "an array of shape (1, 3) and dtype float32; expected",
    ),
    "an array of another dtype": (
        "mean",
        lambda mean: mean.astype(int),
        "and dtype int64; expected an array of shape",
    ),
    "a mean of squares below 0": (
        "mean_square",
        lambda mean: mean - 1,
        "an array with elements below 0.0",
    ),
    "no array": (
        "mean_square",
        lambda mean: None,
        "'mean', 'num_steps'; expected num_steps, mean, mean_square",
    ),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_that_no_optimiser_keeps_are_refused(forge, name):
    """The story: they failed in the next ``optimiser.step()``, or made parameters that
    are no numbers.
    """
    what, change, words = ARRAYS[name]
    arrays = unpacked(forge.part)
    array = change(arrays.pop(f"optimiser/{what}/0.weight"))
    if array is not None:
        arrays[f"optimiser/{what}/0.weight"] = array
    assert words in refused(
        forge, forge.restore_part, b"".join(pieces(arrays)), code="mismatch"
    )


def test_a_shape_that_no_memory_holds_is_refused(forge):
    parameters = {
        **forge.manifest["parameters"],
        "0.weight": [PART, "float32", [10**9, 10**9]],
    }
    message = refused(
        forge,
        forge.restore,
        {**forge.manifest, "parameters": parameters},
        code="mismatch",
    )
    assert (
        "its 0.weight has shape (1000000000, 1000000000) and dtype float32; in "
        "this pipeline it has shape"
    ) in message


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[]", b"null", b"\xff", b"1" * 5000, b"[" * 100_000, b'{"a":' * 9999],
)
def test_nonsense_in_the_place_of_a_manifest_is_refused(forge, content):
    refused(forge, forge.restore, content)


@pytest.mark.parametrize("every", [11, slowly(1)])
def test_every_field_of_a_manifest_may_be_anything(forge, every):
    """Every part of it in turn is each kind of junk, or is not there. The story:
    digests of the wrong type, shapes of text and groups without a place were TypeErrors
    or passed, and a learning rate below 0 left half of it restored."""
    everywhere, accepted = places(forge.manifest), 0
    assert len(everywhere) > 60
    for *way, last in everywhere:
        for junk in [*JUNK, ...][len(way) % every :: every]:
            manifest = json.loads(json.dumps(forge.manifest))
            owner = manifest
            for key in way:
                owner = owner[key]
            owner[last] = junk
            if junk is ...:
                del owner[last]
            try:
                forge.restore(manifest)
                # what is taken can be gone on from
                small.train(forge.pipeline, forge.optimiser)
                accepted += 1
            except CheckpointError:
                pass
    # numbers such as step may be others
    assert 0 < accepted < len(everywhere) * len(JUNK) / 4 / every


@pytest.mark.slow
@given(number=st.integers(0, 2**32))
@examples(2000)
def test_several_changes_at_once_get_documented_errors(forge, number):
    try:
        forge.restore(changed(forge.manifest, random.Random(number)))
    except MinipipeError as error:
        assert isinstance(error, CheckpointError), error


def header(told, data=b"", length=None):
    text = told if isinstance(told, bytes) else json.dumps(told).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def of(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def bomb():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a", bytes(10**8))
    return buffer.getvalue()


class Deed:
    def __reduce__(self):
        return exit, (3,)


PARTS = {
    "empty": b"",
    "a header of 2**63 bytes": header({"a": of()}, bytes(8), 2**63),
    "a header longer than the file": header({"a": of()}, bytes(8), 10**7),
    "no JSON": header(b"x" * 100, bytes(8)),
    "nested": header(b"[" * 10**6, bytes(8)),
    "overlapping": header({"a": of(), "b": of()}, bytes(8)),
    "a hole": header({"a": of(), "b": of(offsets=(16, 24))}, bytes(24)),
    "offsets outside": header(
        {"a": of(offsets=(0, 10**12), shape=(10**12 // 4,))}, bytes(8)
    ),
    "offsets backwards": header({"a": of(offsets=(8, 0))}, bytes(8)),
    "a shape that overflows": header({"a": of(shape=(2**40, 2**40))}, bytes(8)),
    "a dtype nobody knows": header({"a": of(dtype="F7")}, bytes(8)),
    "a dtype NumPy has not": header({"a": of(dtype="F8_E4M3", shape=(8,))}, bytes(8)),
    "nothing of what should be there": header({"a": of()}, bytes(8)),
    "the right name, another shape": header({"parameters/0.weight": of()}, bytes(8)),
    "the right name, another dtype": header(
        {"parameters/0.weight": of("I32", (4, 3), (0, 48))}, bytes(48)
    ),
    "a pickle": pickle.dumps(Deed()),
    "a zip bomb": bomb,  # takes as long as the import of many files
    "an array of NumPy": (
        b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': "
        b"(1,), }\n"
    )
    + b"." * 99,
}


@pytest.mark.parametrize("name", PARTS)
def test_another_file_in_the_place_of_the_arrays_is_refused(forge, name):
    assert forge.restore_part(forge.part).step == 1
    part = PARTS[name]
    if callable(part):
        part = part()
    refused(forge, forge.restore_part, part)


FAT = {
    "manifest": "b'[' * 10**8, None",
    "manifest of lists": "b'[' + b'[],' * 5 * 10**6 + b'0]', None",
    "header": "None, header(b' ' * 6 * 10**7 + b'{}')",
    "header of arrays": (
        "None, header({i: of(offsets=(8 * i, 8 * i + 8)) for i in range(10**5)}, "
        "bytes(8 * 10**5))"
    ),
    "zip": "None, bomb() * 300",
    "shape": (
        "None, header({'a': of(shape=(10**9,), offsets=(0, 4 * 10**9))}, bytes(10**7))"
    ),
}
CONSTANT = 450 << 20  # bytes: JSON of 16 MiB, the limit, in lists of Python
PROGRAM = """
import resource, sys, tempfile
from minipipe.errors import CheckpointError
from tests.pipeline.checkpoint.forging import Forge
from tests.pipeline.checkpoint.test_forged import bomb, header, of
forge = Forge(tempfile.mkdtemp(dir=sys.argv[1]))
manifest, part = {given}
size = len(manifest or part)
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    forge.restore(manifest) if manifest else forge.restore_part(part)
except CheckpointError as error:
    assert error.code == "damaged", error
    print(1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before), size)
"""


@pytest.mark.parametrize("name", [slowly(name) for name in FAT])
def test_what_is_forged_takes_at_most_twice_its_size(tmp_path, name):
    done = run(
        [sys.executable, "-c", PROGRAM.replace("{given}", FAT[name]), str(tmp_path)]
    )
    assert done.code == 0, done.err
    growth, size = map(int, done.out.split())
    print(f"{name}: {size >> 20} MiB, and {growth >> 20} MiB taken")
    assert growth < 2 * size + (CONSTANT if "of" in name else 32 << 20)
