"""Files and mappings that cannot be compared are refused with what is expected."""

import json
import struct

import numpy as np
import pytest

from minipipe.cli import main
from minipipe.errors import ArgumentError, FileError
from minipipe.pipeline.checkpoint.storage import pieces
from minipipe.referee.formats import BFLOAT16
from minipipe.testing import Verdict, referee

GOOD = {"loss": np.linspace(3.0, 2.0, 20), "gradients/0.weight": np.arange(1.0, 50.0)}


def refusal(a, b, **options):
    """Return code and message of the refusal."""
    with pytest.raises((ArgumentError, FileError)) as caught:
        referee(a, b, **options)
    return caught.value.code, str(caught.value)


@pytest.mark.parametrize(
    ("a", "b", "code", "words"),
    [
        (
            GOOD,
            {"loss": GOOD["loss"]},
            "name",
            "only A has gradients/0.weight, step 1",
        ),
        (
            {"loss": [1, 2]},
            {"loss": [1, 2, 3]},
            "shape",
            "loss has the shapes (2,) and (3,); expected",
        ),
        ({"loss": [[1, 2]]}, GOOD, "shape", "one loss for each step, shape (steps,)"),
        ({"loss": [1, np.nan]}, GOOD, "not-finite", "the first is nan at (1,)"),
        (GOOD, {"loss": [np.inf]}, "not-finite", "'loss' of B has 1 values"),
        ({"loss": ["x"]}, GOOD, "dtype", "expected real numbers"),
        ({"0.weight": [1.0]}, GOOD, "name", "--kind gradients or --kind weights"),
        ({}, GOOD, "missing", "A has no numbers"),
        (
            {"microbatch/0/gradients/0.weight": [1.0]},
            {"microbatch/1/gradients/0.weight": [1.0]},
            "name",
            "only A has gradients/0.weight, step 1, microbatch 0; only B has",
        ),
        (
            {f"microbatch/{k}/gradients/0.weight": [1.0] for k in range(3)},
            {f"microbatch/{k}/gradients/0.weight": [1.0] for k in range(2)},
            "name",
            "only A has gradients/0.weight, step 1, microbatch 2",
        ),
        ({"step/0/gradients/w": [1.0]}, GOOD, "name", "steps count from 1"),
        ({1: [1.0]}, GOOD, "name", "the array '1' has no kind"),
        (
            {"gradients/w": [1.0], "step/2/gradients/w": [1.0, 2.0]},
            {"gradients/w": [1.0], "step/2/gradients/w": [1.0]},
            "shape",
            "has the shapes (1,) and (2,); expected the same in both runs, and in all",
        ),
        (lambda variation: None, GOOD, "type", "A gives NoneType; expected a mapping"),
        ({"loss": []}, {"loss": []}, "missing", "A has no numbers"),
        (3, GOOD, "type", "A is int; expected the path of a file"),
        ({"loss": [1], "losses": [1]}, GOOD, "duplicate", "record it once"),
        (lambda variation: GOOD, GOOD, "not-repeatable", "variation.nudge(weights)"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(a, b, code, words):
    assert refusal(a, b)[0] == code and words in refusal(a, b)[1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"precision": "tf32"}, "precision is 'tf32'; expected"),
        ({"terms": 0}, "terms is 0; expected a whole number, at least 1"),
        ({"optimiser": "lion"}, "optimiser is 'lion'; expected"),
        ({"kind": "loss"}, "kind is 'loss'; expected"),
        ({"repeats": 0}, "repeats is 0"),
    ],
)
def test_an_option_that_does_not_exist_is_refused(options, words):
    assert words in refusal(GOOD, GOOD, **options)[1]


def test_files_that_are_none_are_refused_with_their_names(tmp_path):
    good = tmp_path / "good.npz"
    np.savez(good, **GOOD)
    contents = {
        "losses.csv": (b"1,2", "neither .npz nor .safetensors"),
        "text.npz": (b"no archive", "it is not an .npz file"),
        "cut.npz": (good.read_bytes()[:-40], "it is not an .npz file"),
        "text.safetensors": (b"no tensors", "it is not a safetensors file"),
    }
    for name, (content, words) in contents.items():
        path = tmp_path / name
        path.write_bytes(content)
        code, message = refusal(path, good)
        assert (code, name in message, words in message) == ("unreadable", True, True)
    np.savez(tmp_path / "pickled.npz", loss=np.array([{}], dtype=object))
    assert "cannot be read" in refusal(tmp_path / "pickled.npz", good)[1]
    flipped = bytearray(good.read_bytes())
    flipped[flipped.index(GOOD["loss"].tobytes()) + 9] ^= 1
    (tmp_path / "flipped.npz").write_bytes(flipped)
    assert refusal(tmp_path / "flipped.npz", good)[0] == "unreadable"


def test_both_kinds_of_files_are_read_and_bfloat16_without_its_type(tmp_path):
    weights = np.random.default_rng(0).standard_normal(200).astype(np.float32)
    np.savez(tmp_path / "a.npz", **{"0.weight": weights})
    (tmp_path / "a.safetensors").write_bytes(b"".join(pieces({"0.weight": weights})))
    rounded = BFLOAT16.rounded(weights.astype(np.float64)).astype(np.float32)
    bits = (rounded.view(np.uint32) >> 16).astype(np.uint16)
    np.savez(tmp_path / "b.npz", **{"0.weight": bits.view("V2")})
    a = tmp_path / "a.npz"
    both = referee(a, tmp_path / "a.safetensors", kind="weights")
    assert both.verdict is Verdict.EQUAL
    stored = referee(a, tmp_path / "b.npz", kind="weights")
    assert stored.verdict is Verdict.ROUNDING
    assert "bfloat16 gives 200 of 200 values to the bit" in stored.evidence
    # safetensors names the type, which NumPy has only with another package
    entry = {"dtype": "BF16", "shape": [200], "data_offsets": [0, 400]}
    header = json.dumps({"0.weight": entry}).encode()
    content = struct.pack("<Q", len(header)) + header + bits.tobytes()
    (tmp_path / "b.safetensors").write_bytes(content)
    of_torch = referee(a, tmp_path / "b.safetensors", kind="weights")
    assert of_torch.differences == stored.differences


def test_the_verb_prints_the_report_and_its_status_says_whether_a_bug_is_possible(
    tmp_path, capsys
):
    a, b, c = (str(tmp_path / f"{name}.npz") for name in "abc")
    np.savez(a, **GOOD)
    np.savez(b, loss=GOOD["loss"], **{"gradients/0.weight": 2 * np.arange(1.0, 50.0)})
    np.savez(c, loss=GOOD["loss"] * (1 + 1e-7))
    assert main(["referee", a, a]) == 0
    assert capsys.readouterr().out.startswith("verdict: no difference\n")
    assert main(["referee", "--json", a, b]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["verdict"] == "bug" and data["evidence"].startswith("B is 2 times A")
    assert data["first"] == "gradients/0.weight, layer 0, step 1"
    assert data["unseen"] == "a bug elsewhere is not seen"
    assert main(["referee", a, c]) == 2
    assert "the runs record different arrays" in capsys.readouterr().err
