"""The same bits under every environment variable and every switch that is not meant to
change a number.
"""

import ast
import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import minipipe
from minipipe import Pipeline, nn, spawn
from minipipe.testing import same_bits
from tests.code_lines import parsed
from tests.launch import covering, mpirun, needs_mpi
from tests.strategies import batch, build

PACKAGE = Path(minipipe.__file__).parent

# What the package reads, and a value under which it does something else.
VARIABLES = {
    "MINIPIPE_DEBUG": "1",
    "MINIPIPE_TIMEOUT": "50",
    "MINIPIPE_RESTART": "3",
    "MINIPIPE_QUESTION": "{}",
    "NO_COLOR": "1",
    "FORCE_COLOR": "1",
    "TERM": "dumb",
    "COLUMNS": "50",
}
# which tell the truth about the job, or there is none
OF_LAUNCHERS = ("PMI", "OMPI_", "SLURM_", "MPI_", "MV2_")
OF_PYTHON = {"PYTHONPATH", "COMP_LINE"}  # the latter is of argcomplete
SWITCHES = {
    "recompute": {"recompute": True},
    "check_finite": {"check_finite": "off"},
    "check_finite, warn": {"check_finite": "warn"},
    "check_agreement": {"check_agreement": False},
    "compile": {"compile": True},
    "inputs_require_grad": {"inputs_require_grad": True},
    "measures_memory": {"measures_memory": True},
    "wait": {"wait": False},
    "outputs": {"outputs": "everywhere"},
    "metrics": {
        "metrics": {"largest": lambda outputs, targets: float(np.abs(outputs).max())}
    },
    "take_turns": {"take_turns": True},
}
# What is meant to change numbers, or says what runs; the same bits over those are tests
# of their own.
OTHERS = {
    *(
        "self",
        "model",
        "group",
        "loss",
        "seed",
        "dropout_seed",
        "stack_weight_gradients",
        "loss_weight",
        "device",
    ),
    *(
        "sample",
        "memory_limit",
        "optimiser",
        "progress",
        "inputs",
        "targets",
        "accumulate",
        "scale",
        "schedule",
        "num_ranks",
        "num_microbatches",
    ),
    *(
        "chunks_per_rank",
        "partition",
        "layer_costs",
        "function",
        "timeout",
        "blas_threads",
    ),
    *("replicas", "gradient_blocks"),
}


def read_variables():
    """Return the names of environment variables in the package: keys of what is called
    environ, and MINIPIPE_…
    """
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(parsed(path)):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "get"
            ):
                holder, keys = node.func.value, node.args[:1]
            elif isinstance(node, ast.Subscript):
                holder, keys = node.value, [node.slice]
            else:
                holder, keys = None, [node]
            for key in keys:
                name = (
                    key.value
                    if isinstance(key, ast.Constant) and isinstance(key.value, str)
                    else ""
                )
                if not re.fullmatch("[A-Z][A-Z0-9_]+", name):
                    continue
                is_read = holder is not None and re.search(
                    "environ|variables", ast.unparse(holder)
                )
                if is_read or name.startswith("MINIPIPE_"):
                    found.add(name)
    return found


def test_every_variable_that_the_package_reads_is_among_those_tested():
    read = read_variables()
    assert {"MINIPIPE_DEBUG", "MINIPIPE_TIMEOUT", "NO_COLOR"} <= read
    assert {name for name in read if not name.startswith(OF_LAUNCHERS)} <= set(
        VARIABLES
    ) | OF_PYTHON


def test_every_switch_is_among_those_tested():
    functions = (Pipeline, Pipeline.step, minipipe.Plan, spawn)
    known = {
        name
        for function in functions
        for name in inspect.signature(function).parameters
    }
    assert known <= {name.partition(",")[0] for name in SWITCHES} | OTHERS


def trained(
    schedule="1f1b",
    wait=True,
    outputs=False,
    metrics=None,
    take_turns=False,
    measures_memory=False,
    **options,
):
    """Return the losses of two steps with dropout, and the gradients of all ranks."""
    layers = [
        layer
        for _ in range(3)
        for layer in (nn.Linear(6, 6), nn.Tanh(), nn.Dropout(0.3))
    ]

    def run(group):
        built = build(schedule, group.size, 4)
        pipeline = Pipeline(
            nn.Sequential(*layers, nn.Linear(6, 2)),
            group,
            loss=nn.MSELoss(),
            schedule=built,
            **options,
        )
        pipeline.measures_memory = measures_memory
        losses = []
        for number in range(2):
            losses.append(
                pipeline.step(
                    *batch(9, 6, seed=number),
                    wait=wait,
                    outputs=outputs,
                    metrics=metrics,
                )
            )
        return list(map(float, losses)), {
            name: p.grad for name, p in pipeline.named_parameters()
        }

    found = spawn(run, 2, take_turns=take_turns)
    return [losses for losses, _ in found], {
        name: grad for _, grads in found for name, grad in grads.items()
    }


def check_same(found, expected):
    assert found[0] == expected[0]
    assert found[1].keys() == expected[1].keys() and len(expected[1]) == 8
    assert all(
        grad is not None and same_bits(grad, found[1][name])
        for name, grad in expected[1].items()
    )


@pytest.mark.parametrize(
    ("schedule", "name"), covering(["1f1b", "zb-h1"], VARIABLES, strength=1)
)
def test_no_variable_of_the_environment_changes_a_bit(name, schedule, monkeypatch):
    """The story: of a journal that told of each action and ran none of them no test
    knew.
    """
    for other in VARIABLES:
        monkeypatch.delenv(other, raising=False)
    expected = trained(schedule)
    monkeypatch.setenv(name, VARIABLES[name])
    check_same(trained(schedule), expected)


@pytest.mark.parametrize("name", SWITCHES)
def test_no_switch_changes_a_bit(name):
    check_same(trained(**SWITCHES[name]), trained())


@needs_mpi
@pytest.mark.slow
def test_so_it_is_in_processes_that_tell_of_every_action():
    job = mpirun(2, "-m", "tests.pipeline.random_steps", 5, limit=120, **VARIABLES)
    assert job.code == 0 and "the same bits in 5 steps" in job.out, job
    assert "[rank 1]" in job.err
