"""Stand-alone files of ranks import no minipipe, and leave the bits of the program."""

import re
import sys
from typing import NamedTuple

import numpy as np
import pytest

from minipipe import Pipeline, nn, optim, spawn
from minipipe.compile.export.following import Follower, noting
from tests.launch import ROOT, find_mpirun, needs_mpi, run, slowly

WITHOUT_MINIPIPE = (
    "import runpy, sys; sys.modules['minipipe'] = None; runpy.run_path(sys.argv[1])"
)


class Case(NamedTuple):
    """A training program: its model, schedule and optimiser."""

    model: str
    schedule: str = "1f1b"
    num_ranks: int = 1
    optimiser: str = "sgd"
    num_microbatches: int = 4
    options: dict = {}

    def __str__(self):
        return "-".join(map(str, self[:5]))


def mlp(num_layers=8, dropout=0.0):
    layers = [nn.Flatten()]
    for _ in range(num_layers):
        layers += [nn.Linear(8, 8), nn.ReLU()]
        layers += [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(*layers)


def language_model(is_tied=False, dropout=0.0):
    embedding = nn.Embedding(20, 16)
    block = {"is_causal": True, "dropout": dropout}
    blocks = [nn.TransformerBlock(16, 2, **block) for _ in range(3)]
    head = nn.Unembedding(embedding) if is_tied else nn.Linear(16, 20)
    position = nn.PositionalEmbedding(8, 16)
    return nn.Sequential(embedding, position, *blocks, nn.LayerNorm(16), head)


def blocks_first():
    """Return layers of which the first has a shorter backward than its equals."""
    blocks = [nn.TransformerBlock(4, 2) for _ in range(3)]
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(8, 8))


MODELS = {
    "mlp": mlp,
    "blocks": blocks_first,
    "dropout": lambda: mlp(4, 0.2),
    "language": language_model,
    "tied": lambda: language_model(is_tied=True),
    "noisy language": lambda: language_model(dropout=0.1),
}
OPTIMISERS = {
    "sgd": lambda p: optim.SGD(p, 0.1),
    "momentum": lambda p: optim.SGD(p, 0.1, momentum=0.9, weight_decay=1e-3),
    "nesterov": lambda p: optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: optim.Adam(p, 0.01, weight_decay=0.1),
    "nadam": lambda p: optim.Adam(p, 0.01, nesterov=True),
    "adamw": lambda p: optim.AdamW(p, 0.01),
    "clipped": lambda p: optim.AdamW(p, 0.01, betas=(0.9, 0.99)),
}


def files_of(case, num_samples=None):
    """Train, and return the files of all ranks as (source, arrays)."""
    followers = {}
    size = num_samples or 2 * case.num_microbatches

    def train(group):
        model, loss = MODELS[case.model](), nn.CrossEntropyLoss()
        own = {"num_microbatches": case.num_microbatches, "schedule": case.schedule}
        pipeline = Pipeline(
            model, group, loss=loss, compile=True, **own, **case.options
        )
        optimiser = OPTIMISERS[case.optimiser](pipeline.parameters())
        falling = optim.LearningRateSchedule(optimiser, optim.cosine(20))
        follower = followers[id(pipeline)] = Follower(pipeline, "train.py", 3)
        random = np.random.default_rng(0)
        while not follower.begin_step():
            if "Embedding" in type(model[0]).__name__:
                inputs = targets = random.integers(0, 20, size=(size, 8))
            else:
                inputs = random.normal(size=(size, 2, 4)).astype(np.float32)
                targets = random.integers(0, 8, size=size)
            pipeline.step(inputs, targets)
            if case.optimiser == "clipped":
                pipeline.clip_grad_norm(0.01)
            optimiser.step()
            falling.step()
        made = follower.finished()
        return made.source, made.arrays

    with noting(followers):
        return spawn(train, num_ranks=case.num_ranks)


def write(files, folder):
    for rank, (source, arrays) in enumerate(files):
        (folder / f"rank{rank}.py").write_text(source)
        np.savez(folder / f"rank{rank}.npz", **arrays)


def run_alone(folder, num_ranks):
    """Run the files where minipipe cannot be imported."""
    command = [find_mpirun()] if num_ranks > 1 else []
    for rank in range(num_ranks):
        command += [":"] * (rank > 0) + ["-n", "1"] * (num_ranks > 1)
        command += [
            sys.executable,
            "-c",
            WITHOUT_MINIPIPE,
            str(folder / f"rank{rank}.py"),
        ]
    return run(command, PYTHONPATH="")


def check(case, folder, num_samples=None):
    files = files_of(case, num_samples)
    write(files, folder)
    done = run_alone(folder, case.num_ranks)
    assert done.code == 0, done.err
    assert done.out.count("the same bits") == case.num_ranks
    assert len(re.findall("step 2: .*loss", done.out)) >= 1
    assert "minipipe" not in done.err
    return [source.splitlines() for source, _ in files]


@pytest.mark.parametrize(
    "case",
    [
        slowly(Case("mlp")),
        Case("blocks", "zb-h1"),
        slowly(Case("mlp", "1f1b", 1, "nesterov")),
        slowly(Case("mlp", "1f1b", 1, "adam")),
        slowly(Case("mlp", "1f1b", 1, "nadam")),
        slowly(Case("dropout", "1f1b", 1, "momentum", 16)),
        slowly(Case("language", "1f1b", 1, "adamw")),
        slowly(Case("tied", "zb-h1", 1, "clipped")),
        slowly(Case("mlp", options={"recompute": True})),
    ],
    ids=str,
)
def test_one_rank_leaves_the_bits_of_the_program(case, tmp_path):
    check(case, tmp_path)


@needs_mpi
@pytest.mark.parametrize(
    "case",
    [
        Case("dropout", "zb-h1", 2, "adamw"),
        slowly(Case("mlp", "1f1b", 2, "sgd", 16)),
        slowly(Case("mlp", "gpipe", 4, "momentum")),
        slowly(Case("mlp", "1f1b", 2, "sgd", options={"replicas": 2})),
        slowly(Case("mlp", "zb-h1", 4, "clipped", options={"replicas": 2})),
        slowly(Case("mlp", "chimera", 2)),
        slowly(Case("mlp", "dualpipe", 2, "momentum")),
        slowly(Case("dropout", "1f1b", 2, "sgd", 8, {"gradient_blocks": 4})),
        slowly(Case("dropout", "interleaved-1f1b", 2, "clipped")),
        slowly(Case("dropout", "zb-v", 2, "sgd")),
        slowly(Case("noisy language", "1f1b", 2, "clipped")),
        slowly(Case("language", "zb-h1", 2, "adamw", 16)),
        slowly(Case("language", "gpipe", 1, "adamw", 16)),
        slowly(Case("tied", "1f1b", 2, "clipped")),
        slowly(Case("tied", "interleaved-1f1b", 2, "sgd")),
    ],
    ids=str,
)
def test_all_ranks_leave_the_bits_of_the_program(case, tmp_path):
    check(case, tmp_path)


@pytest.mark.slow
@needs_mpi
def test_microbatches_of_several_sizes_share_their_functions(tmp_path):
    lines = check(Case("mlp", "1f1b", 2), tmp_path, num_samples=11)
    for own in lines:
        assert sum(line.startswith("def forward_") for line in own) == 1


@pytest.mark.slow
def test_a_microbatch_of_one_sample_has_its_own_functions(tmp_path):
    check(Case("mlp"), tmp_path, num_samples=7)


@pytest.mark.parametrize(
    "model", ["mlp", *map(slowly, ("language", "tied")), "noisy language"]
)
def test_lines_are_short_and_layers_are_printed_once(model):
    lines = [source.splitlines() for source, _ in files_of(Case(model, "1f1b", 2))]
    assert max(len(line) for own in lines for line in own) <= 88
    heads = [line.partition("(")[0] for line in lines[-1] if line.startswith("def ")]
    assert len(heads) == len({*heads})
    if model != "mlp":
        assert (
            "def transformer_block" in heads
            and "def transformer_block_backward" in heads
        )
    assert all(len(own) <= (150 if model == "mlp" else 400) for own in lines)


def test_a_file_imports_numpy_and_the_standard_library_alone():
    ((source, arrays),) = files_of(Case("mlp"))
    imports = {
        line for line in source.splitlines() if line.startswith(("import", "from"))
    }
    known = {
        "import hashlib",
        "import os",
        "from pathlib import Path",
        "import numpy as np",
    }
    assert imports == known
    assert all(array.dtype != object for array in arrays.values())  # no pickle


def test_a_file_sets_the_number_of_threads_before_it_imports_numpy(exported):
    """The story: the number replaced the end of the name of a variable."""
    ((source, _),) = exported
    (line,) = [line for line in source.splitlines() if "os.environ" in line]
    assert 'fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "' in line
    assert source.index(line) < source.index("import numpy")


MUTANTS = {
    "a bias is left alone": ('add_gradient("1.bias", ', 'add_gradient("1.weight", '),
    "two steps change places": ('saved[f"x{n}"]', 'saved[f"x{(n + 1) % 3}"]'),
    "another seed": ("seed = np.array(weight", "seed = np.array(2 * weight"),
    "another rate": ("update(rates[n])", "update(rates[0])"),
    "a backward is left out": ("    backward_0(2, seed)", "    pass"),
}


@pytest.fixture(scope="module")
def exported():
    return files_of(Case("mlp"))


@pytest.mark.parametrize("mutant", [*[*MUTANTS][:2], *map(slowly, [*MUTANTS][2:])])
def test_a_changed_line_changes_the_bits(mutant, exported, tmp_path):
    ((source, arrays),) = exported
    before, after = MUTANTS[mutant]
    assert before in source
    write([(source.replace(before, after, 1), arrays)], tmp_path)
    done = run_alone(tmp_path, 1)
    assert done.code == 1 and "rank 0: other bits" in done.err


# -- the command -----------------------------------------------------------------------


def export(folder, num_ranks, *words):
    command = [
        sys.executable,
        "-m",
        "minipipe",
        "export",
        str(ROOT / "tutorials" / words[0]),
    ]
    own = ["--ranks", str(num_ranks), "-o", str(folder)]
    return run([*command, *own, "--", *words[1:]])


@pytest.mark.slow
@pytest.mark.parametrize(
    "limit, num_ranks, words",
    [
        (150, 1, ["train.py"]),
        slowly(150, 2, ["train.py"]),
        slowly(150, 2, ["train.py", "--schedule", "zb-h1"]),
        slowly(400, 1, ["train_lm.py"]),
        slowly(400, 2, ["train_lm.py"]),
        slowly(400, 2, ["train_lm.py", "--tied", "--dropout", "0.1"]),
    ],
)
def test_the_training_programs_are_exported_in_few_lines(
    limit, num_ranks, words, tmp_path
):
    if num_ranks > 1 and find_mpirun() is None:
        pytest.skip("no mpirun here")
    done = export(tmp_path / "out", num_ranks, *words)
    assert done.code == 0, done.err
    assert "wrote rank0.py" in done.out
    for rank in range(num_ranks):
        lines = (tmp_path / "out" / f"rank{rank}.py").read_text().splitlines()
        assert len(lines) <= limit and max(map(len, lines)) <= 88
    assert (
        run_alone(tmp_path / "out", num_ranks).out.count("the same bits") == num_ranks
    )


@pytest.mark.slow
def test_a_program_with_another_number_of_ranks_is_refused(tmp_path):
    program = tmp_path / "two.py"
    program.write_text(
        "import numpy as np\n"
        "from minipipe import Pipeline, nn, spawn\n"
        "def train(group):\n"
        "    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))\n"
        "    pipeline = Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=2)\n"
        "    pipeline.step(np.ones((2, 2)), np.ones((2, 2)))\n"
        "spawn(train, num_ranks=2)\n"
    )
    done = export(tmp_path / "out", 1, program)
    assert done.code == 2
    assert "uses 2 ranks of the 1 of --ranks" in done.err
