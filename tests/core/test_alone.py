"""The core is a framework by itself: without any other file it trains an MLP, with the
bits of the public pipeline on one process.

Only the package `core` exists for the program.
"""

import functools
import json
import shutil
import subprocess
import sys
from dataclasses import replace

import minipipe
import pytest
from minipipe import schedules
from minipipe.core.pipeline import Pipeline
from minipipe.errors import ScheduleError
from tests.code_lines import code_lines
from tests.core import alone
from tests.launch import environment, find_mpirun, needs_mpi, slowly
from tests.test_house import FILES, PACKAGE, SOURCES

MODULES = [name for name in FILES if name.startswith("core.")]
MOST_LINES = 8_956


def doors():
    """Return the packages of the modules."""
    found = {""}
    for name in MODULES:
        parts = name.split(".")
        found |= {".".join(parts[:i]) for i in range(1, len(parts))}
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the modules of the core, and nothing else of the package."""
    root = tmp_path_factory.mktemp("alone")

    for name in MODULES:
        target = root / "minipipe" / FILES[name].relative_to(PACKAGE)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(FILES[name], target)
    for name in doors():  # empty: the files of the core import from files
        (root / "minipipe" / name.replace(".", "/") / "__init__.py").touch()
    shutil.copy(alone.__file__, root)
    return root


@functools.cache
def run(folder, kind):
    """Return what the program prints on one kind of group."""
    launcher = (find_mpirun(), "-n", "4") if kind == "mpi" else ()
    done = subprocess.run(
        [*launcher, sys.executable, "alone.py", kind],
        cwd=folder,
        env=environment(PYTHONPATH=str(folder)),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def of_one_process():
    """The bits of the public pipeline on one rank, by loss."""

    def train(group, loss):
        function, targets = alone.LOSSES[loss]
        pipeline = minipipe.Pipeline(
            alone.model(), group, loss=function, num_microbatches=alone.NUM_MICROBATCHES
        )
        optimiser = alone.sgd(pipeline.parameters())
        losses = []
        for _ in range(alone.NUM_STEPS):
            losses.append(float(pipeline.step(alone.INPUTS, targets)))
            if loss == "noise":
                step = pipeline.num_steps - 1
                alone.add_noise(pipeline.named_parameters(), step)
            optimiser.step()
        evaluated = float(pipeline.evaluate(alone.INPUTS, targets))
        outputs = pipeline.predict(alone.INPUTS)
        return alone.bits(losses, pipeline.state_dict(), evaluated, outputs)

    return {
        loss: minipipe.spawn(lambda group: train(group, loss), 1)[0]
        for loss in alone.LOSSES
    }


@pytest.mark.parametrize(
    "kind",
    [slowly("one"), slowly("threads"), pytest.param("mpi", marks=needs_mpi)],
)
def test_the_core_alone_trains_with_the_bits_of_one_process(
    kind, folder, of_one_process
):
    results, predicted, loaded = run(folder, kind)
    assert len(results) == len(alone.BUILDERS) * len(alone.LOSSES)
    for name, ranks in results.items():
        loss = name.partition(", ")[2]
        assert ranks == [of_one_process[loss]] * len(ranks), name
    num_ranks = 1 if kind == "one" else 4
    for name, build in alone.BUILDERS.items():
        timeline = minipipe.simulate(build(num_ranks, alone.NUM_MICROBATCHES))
        assert predicted[name] == [timeline.makespan, *timeline.peak_activations]
    listed = {*MODULES, *doors()}
    assert {name.removeprefix("minipipe").strip(".") for name in loaded} <= listed


BLOCKED = """
import sys, time
from minipipe.core.comm.launch import init_process_group, spawn
def wait(group):
    if group.rank == 0:
        group.recv(1)
    {deed}
if sys.argv[1:] == ["mpi"]:
    with init_process_group(timeout=100) as group:
        wait(group)
else:
    spawn(wait, 2, timeout=0.1)
"""


def blocked(folder, deed, *launcher, kind=""):
    """Run two ranks of the core alone, of which one waits for the other's deed."""
    return subprocess.run(
        [*launcher, sys.executable, "-c", BLOCKED.format(deed=deed), kind],
        cwd=folder,
        env=environment(PYTHONPATH=str(folder)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_without_a_watch_a_late_message_is_named_and_no_cause(folder):
    done = blocked(folder, "time.sleep(1)")
    last = done.stderr.splitlines()[-2]
    assert last.startswith("minipipe.errors.MessageError: Rank 0 has waited 0.1 s, ")
    assert last.endswith("for a message with tag 0 from rank 1.")


@needs_mpi
@pytest.mark.parametrize(
    ("deed", "code", "message"),
    [
        ("raise ValueError('broken')", 1, "ValueError: broken"),
        ("sys.exit(3)", 3, ""),
    ],
)
def test_without_a_watch_a_failed_rank_ends_the_others(deed, code, message, folder):
    done = blocked(folder, deed, find_mpirun(), "-n", "2", kind="mpi")
    assert done.returncode == code and message in done.stderr


@needs_mpi
def test_the_list_has_no_module_that_nothing_loads(folder):
    """Each is loaded by one of the kinds of groups."""
    used = {name for kind in ("one", "threads", "mpi") for name in run(folder, kind)[2]}
    assert {f"minipipe.{name}" for name in MODULES} <= used


def test_the_core_chooses_no_gpu_and_says_so(folder):
    program = "from minipipe.core.nn.basic import Linear; Linear(2, 2).to('gpu')"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env=environment(PYTHONPATH=str(folder)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        "minipipe.errors.LaunchError: device is 'gpu'; the core alone"
    )


@pytest.mark.parametrize(
    ("schedule", "named"),
    [
        (schedules.seq1f1b(1, 2, num_slices=2), "2 slices of each sequence"),
        (replace(schedules.gpipe(1, 2, 2), tied=((0, 1),)), "tied stages"),
        (schedules.data_parallel(schedules.gpipe(1, 2), 2), "a stage on several ranks"),
    ],
)
def test_its_pipeline_refuses_what_only_the_public_one_runs(schedule, named):
    function, _ = alone.LOSSES["mse"]

    def make(group):
        with pytest.raises(ScheduleError, match=f"{named}; .*use minipipe.Pipeline"):
            Pipeline(alone.model(), group, schedule, function)

    minipipe.spawn(make, schedule.num_ranks)


def test_the_lines_of_the_core_fall():
    lines = sum(len(code_lines(SOURCES[name])) for name in MODULES)
    print(f"the core: {lines} lines in {len(MODULES)} modules")
    assert lines <= MOST_LINES
