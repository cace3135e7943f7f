"""The core is a framework by itself: without any other file it trains an MLP, with the
bits of the public pipeline on one process.

The list of its modules, and their lines, fall until they are the package `core`
(core/README.md). A module that is not listed does not exist for the program.
"""

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
    _lazy autograd.backend autograd.calls autograd.graph autograd.memory autograd.modes
    autograd.operation autograd.recompute autograd.split autograd.walk comm.channel
    comm.job.descriptors comm.job.host comm.job.meeting comm.job.mpi_job
    comm.job.process comm.job.reports comm.job.verdict comm.job.witness comm.launch
    comm.message comm.mpi comm.objects comm.persistent comm.process_group
    comm.switchboard comm.thread core.balance core.batch core.dividing core.flow
    core.framing core.legality core.lifetimes core.lowering core.memory core.nouns
    core.objective core.order core.pipeline core.times core.values errors
    execution.executor execution.handlers execution.payload execution.record
    execution.stage functional.attention functional.contraction functional.distributed
    functional.elementwise functional.embedding functional.gelu functional.linear
    functional.loss functional.operands functional.operators functional.reduction
    functional.shape hints io limits nn.collected_losses nn.initialisers nn.layers
    nn.losses nn.module nn.parameter nn.rebinding nn.recompute nn.sequential nn.slices
    nn.untrained optim.nothing optim.optimiser optim.rules optim.runs pytree
    schedules.action schedules.action_table schedules.analysis.activations
    schedules.analysis.dependencies schedules.analysis.lowering
    schedules.analysis.verifier schedules.analysis.walk schedules.cells
    schedules.collector schedules.interleaved schedules.one_f_one_b schedules.placement
    schedules.sequential schedules.simulation.costs schedules.simulation.simulator
    schedules.simulation.slice_work schedules.simulation.span
    schedules.simulation.timeline schedules.text schedules.transforms schedules.written
    schedules.zero_bubble simulation.hosts specs tensor
"""
MOST_LINES = 15_200


def doors():
    """Return the packages of the modules."""
    names = MODULES.split()
    found = {"__init__"}
    for name in names:
        parts = name.split(".")
        found |= {".".join(parts[:i]) for i in range(1, len(parts))}
    return found - {*names}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the modules of the core, and nothing else of the package."""
    root = tmp_path_factory.mktemp("alone")
    package = FILES["errors"].parent
    for name in [*MODULES.split(), *doors()]:
        source = FILES[name]
        target = root / "minipipe" / source.relative_to(package)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
        if source.name == "__init__.py" and source.with_suffix(".pyi").exists():
            shutil.copy(source.with_suffix(".pyi"), target.with_suffix(".pyi"))
    shutil.copy(package / "hints.toml", root / "minipipe")
    shutil.copy(alone.__file__, root)
    return root


def run(folder, kind, *launcher):
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


KINDS = {
    "one": (),
    "threads": (),
    "mpi": (find_mpirun(), "-n", "4"),
}


@pytest.mark.parametrize(
    "kind", ["one", "threads", pytest.param("mpi", marks=needs_mpi)]
)
def test_the_core_alone_trains_with_the_bits_of_one_process(
    kind, folder, of_one_process
):
    results, makespans, loaded = run(folder, kind, *KINDS[kind])
    assert len(results) == len(alone.BUILDERS) * len(alone.LOSSES)
    for name, ranks in results.items():
        loss = name.partition(", ")[2]
        assert ranks == [of_one_process[loss]] * len(ranks), name
    num_ranks = 1 if kind == "one" else 4
    assert makespans == {
        name: minipipe.simulate(build(num_ranks, alone.NUM_MICROBATCHES)).makespan
        for name, build in alone.BUILDERS.items()
    }
    listed = {*MODULES.split(), *doors()}
    assert {name.removeprefix("minipipe.") for name in loaded} <= {"minipipe", *listed}


def test_the_list_has_no_module_that_nothing_loads(folder):
    """Each is loaded by one of the kinds of groups."""
    used = set()
    for kind, launcher in KINDS.items():
        if kind != "mpi" or None not in launcher:
            used |= {*run(folder, kind, *launcher)[2]}
    assert {f"minipipe.{name}" for name in MODULES.split()} <= used


def test_the_lines_of_the_core_fall():
    lines = sum(len(code_lines(SOURCES[name])) for name in [*MODULES.split(), *doors()])
    print(f"the core: {lines} lines in {len(MODULES.split())} modules")
    assert lines <= MOST_LINES
