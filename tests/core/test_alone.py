"""The core is a framework by itself: without any other file it trains an MLP, with the
bits of the public pipeline on one process.

The list of its modules, and their lines, fall until they are the package `core`
(core/README.md). A module that is not listed does not exist for the program.
"""

import functools
import json
import shutil
import subprocess
import sys

import minipipe
import pytest
from tests.code_lines import code_lines
from tests.core import alone
from tests.launch import environment, find_mpirun, needs_mpi
from tests.test_house import FILES, SOURCES

MODULES = """
    autograd.backend autograd.calls autograd.graph autograd.modes autograd.operation
    autograd.split autograd.walk comm.job.descriptors comm.job.host comm.job.meeting
    comm.job.mpi_job comm.job.process comm.job.reports comm.job.verdict comm.job.witness
    comm.launch comm.message comm.mpi comm.objects comm.posted comm.process_group
    comm.switchboard comm.thread core.balance core.batch core.dividing core.familiar
    core.flow core.framing core.joints core.legality core.lifetimes core.lowering
    core.memory core.nouns core.objective core.order core.pipeline core.sgd
    core.simulation core.texts core.times core.values errors execution.executor
    execution.handlers execution.payload execution.record execution.stage
    functional.elementwise functional.linear functional.loss functional.operands
    functional.reduction limits nn.basic nn.initialisers nn.losses nn.module
    nn.parameter nn.rebinding nn.sequential nn.untrained pytree schedules.action
    schedules.action_table schedules.analysis.dependencies schedules.analysis.lowering
    schedules.analysis.verifier schedules.analysis.walk schedules.cells
    schedules.collector schedules.fill_drain schedules.interleaved schedules.one_f_one_b
    schedules.placement schedules.straight schedules.text schedules.written
    schedules.zero_bubble specs tensor
"""
MOST_LINES = 10_890


def doors():
    """Return the packages of the modules."""
    found = {""}
    for name in MODULES.split():
        parts = name.split(".")
        found |= {".".join(parts[:i]) for i in range(1, len(parts))}
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the modules of the core, and nothing else of the package."""
    root = tmp_path_factory.mktemp("alone")
    package = FILES["errors"].parent
    for name in MODULES.split():
        target = root / "minipipe" / FILES[name].relative_to(package)
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
            optimiser.step()
        evaluated = float(pipeline.evaluate(alone.INPUTS, targets))
        outputs = pipeline.predict(alone.INPUTS)
        return alone.bits(losses, pipeline.state_dict(), evaluated, outputs)

    return {
        loss: minipipe.spawn(lambda group: train(group, loss), 1)[0]
        for loss in alone.LOSSES
    }


@pytest.mark.parametrize(
    "kind", ["one", "threads", pytest.param("mpi", marks=needs_mpi)]
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
    listed = {*MODULES.split(), *doors()}
    assert {name.removeprefix("minipipe").strip(".") for name in loaded} <= listed


@needs_mpi
def test_the_list_has_no_module_that_nothing_loads(folder):
    """Each is loaded by one of the kinds of groups."""
    used = {name for kind in ("one", "threads", "mpi") for name in run(folder, kind)[2]}
    assert {f"minipipe.{name}" for name in MODULES.split()} <= used


def test_the_lines_of_the_core_fall():
    lines = sum(len(code_lines(SOURCES[name])) for name in MODULES.split())
    print(f"the core: {lines} lines in {len(MODULES.split())} modules")
    assert lines <= MOST_LINES
