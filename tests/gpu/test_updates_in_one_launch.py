"""Updates of all parameters in one launch, by a kernel that runs on the CPU here: the
bits of the rules.
"""

import copy

import numpy as np
import pytest

from minipipe import Pipeline, nn, optim, spawn
from minipipe.core.autograd.backend import to_numpy
from minipipe.nn.arena import Arena
from tests.compile import device
from tests.compile.test_other_modules import both
from tests.gpu.emulated import Kernel, installed, needs_compiler

pytestmark = [needs_compiler, pytest.mark.slow]  # a stage of its own

SHAPES = [(5,), (3, 4), (), (4096,), (0, 2), (4097,), (2, 5000), (1,)]


@pytest.fixture(autouse=True)
def kernels():
    """Compute by kernels on the stand-in for a device."""
    with installed():
        yield


def parameters(xp, dtype=np.float32, shapes=SHAPES):
    random = np.random.default_rng(0)
    arrays = [random.normal(size=shape).astype(dtype) for shape in shapes]
    return [nn.Parameter(xp.asarray(array)) for array in arrays]


def set_gradients(given, xp, step, without=()):
    """Give each parameter new gradients, in other memory than before."""
    random = np.random.default_rng(step)
    for number, each in enumerate(given):
        array = random.normal(size=each.shape).astype(each.dtype)
        each.grad = None if number in without else xp.asarray(array)


def bits(optimiser):
    """Return all that an optimiser has changed."""
    states = optimiser.state_dict()["states"]
    found = [to_numpy(each.data) for each in optimiser.parameters]
    for state in states:
        found += list(state)
        found += [np.asarray(value) for value in state.values()]
    return [x if isinstance(x, str) else (x.dtype, x.shape, x.tobytes()) for x in found]


def steps(xp, make, dtype=np.float32, num_steps=3, change=None):
    """Return what an optimiser changes in some steps, and its launches in each."""
    given = parameters(xp, dtype)
    optimiser = make(given)
    found, launches = [], []
    for step in range(num_steps):
        # not all have gradients, so that some states are older than others
        set_gradients(given, xp, step, without=[1, 4] if step == 1 else [])
        if change is not None:
            change(optimiser, step)
        before = Kernel.num_launches
        optimiser.step()
        launches.append(Kernel.num_launches - before)
        found.append(bits(optimiser))
    return found, launches


RULES = {
    "sgd": lambda p: optim.SGD(p, 0.1),
    "sgd decay": lambda p: optim.SGD(p, 0.1, weight_decay=0.3),
    "sgd momentum": lambda p: optim.SGD(p, 0.1, momentum=0.9),
    "sgd nesterov": lambda p: optim.SGD(p, 0.1, 0.9, 0.2, nesterov=True),
    "adam": lambda p: optim.Adam(p, 0.01),
    "adam decay": lambda p: optim.Adam(p, 0.01, (0.7, 0.9), 1e-3, 0.3),
    "adam nesterov": lambda p: optim.Adam(p, 0.01, weight_decay=0.1, nesterov=True),
    "adam without means": lambda p: optim.Adam(p, 0.01, (0.0, 0.0), nesterov=True),
    "adamw": lambda p: optim.AdamW(p, 0.01),
    "adamw without decay": lambda p: optim.AdamW(p, 0.01, weight_decay=0.0),
    "adamw nesterov": lambda p: optim.AdamW(p, 0.01, weight_decay=0.5, nesterov=True),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rule", RULES)
def test_a_launch_has_the_bits_of_the_rule(rule, dtype):
    found, launches = steps(device, RULES[rule], dtype)
    assert found == steps(np, RULES[rule], dtype)[0]
    has_corrections = rule.startswith("adam") and rule != "adam without means"
    # in the third step some states are a step behind the others
    assert launches == ([1, 1, 2] if has_corrections else [1, 1, 1])


@pytest.mark.parametrize("seed", range(8))
def test_any_numbers_have_the_bits_of_the_rule(seed):
    def run(xp):
        random = np.random.default_rng(seed)
        given = parameters(xp, shapes=[(50,), (9,)])
        rate, decay, *betas = random.random(4).tolist()
        optimisers = [
            optim.SGD(given, rate, betas[0], decay, nesterov=True),
            optim.Adam(given, rate, betas, 1e-6, decay, nesterov=seed % 2 == 0),
            optim.AdamW(given, rate, betas, 1e-6, decay, nesterov=True),
        ]
        for step in range(12):
            set_gradients(given, xp, step)
            assert optimisers[step % 3].apply()
        return [bits(each) for each in optimisers]

    assert run(device) == run(np)


def test_parameters_of_several_dtypes_need_a_launch_each():
    def run(xp):
        given = [
            *parameters(xp, np.float64, [(3,), (2, 2)]),
            *parameters(xp, np.float32, [(5,)]),
            *parameters(xp, np.float64, [(4,)]),
        ]
        set_gradients(given, xp, 0)
        optimisers = [RULES[name](given) for name in ("sgd momentum", "adamw")]
        before = Kernel.num_launches
        for optimiser in optimisers:
            optimiser.step()
        return [bits(each) for each in optimisers], Kernel.num_launches - before

    assert run(device) == (run(np)[0], 4)


def test_groups_and_numbers_that_change_have_the_bits_of_the_rule():
    def make(given):
        first, second = {"parameters": given[:3]}, {"parameters": given[3:]}
        return optim.AdamW([first, {**second, "weight_decay": 0.3}], 0.01)

    def change(optimiser, step):
        optimiser.groups[step % 2].learning_rate = 0.1 / (step + 1)

    found, launches = steps(device, make, change=change)
    assert (found, launches[0]) == (steps(np, make, change=change)[0], 2)


def test_special_numbers_have_the_bits_of_the_rule():
    special = np.array([np.inf, -np.inf, np.nan, -0.0, 1e-30, 3e38], np.float32)

    def found(xp, make):
        given = [nn.Parameter(xp.asarray(np.repeat(special, 6)))]
        given[0].grad = xp.asarray(np.tile(special, 6))
        optimiser = make(given)
        with np.errstate(all="ignore"):
            optimiser.step()
        return to_numpy(given[0].data)

    for make in RULES.values():
        np.testing.assert_array_equal(found(device, make), found(np, make))


@pytest.mark.parametrize(("dtype", "tiny"), [("f4", 1e-40), ("f8", 1e-310)])
def test_denormal_float32_are_0_as_in_all_kernels_that_cupy_compiles(dtype, tiny):
    parameter = nn.Parameter(device.asarray(np.full(3, tiny, dtype)))
    parameter.grad = device.asarray(np.zeros(3, dtype))
    optim.SGD([parameter], 0.1).step()
    expected = {"f4": 0, "f8": tiny}[dtype]
    assert to_numpy(parameter.data).tolist() == [expected] * 3


def test_an_optimiser_that_is_loaded_or_copied_goes_on_with_the_same_bits():
    def run(xp):
        optimiser = RULES["adamw"](parameters(xp))
        for step in range(4):
            set_gradients(optimiser.parameters, xp, step)
            optimiser.step()
            if step == 1:
                state = optimiser.state_dict()
            if step == 2:
                optimiser.load_state_dict(state)
                for each in optimiser.parameters:  # other memory
                    each.data = each.data.copy()
        return bits(optimiser)

    assert run(device) == run(np)


def test_what_a_kernel_cannot_change_is_changed_by_the_rule():
    """Arrays in another order, and gradients of another dtype."""

    def run(xp):
        given = parameters(xp, shapes=[(3, 4), (6,), (2, 3)])
        given[0].data = xp.asarray(np.ones((4, 3), np.float32)).T
        set_gradients(given, xp, 0)
        optimiser = RULES["adamw"](given)
        before = Kernel.num_launches
        optimiser.step()
        return bits(optimiser), Kernel.num_launches - before

    assert run(device) == (run(np)[0], 1)


def test_muon_needs_one_launch_for_all_that_is_no_matrix():
    def make(given):
        matrices = {"parameters": [given[1], given[6], given[0]]}
        others = {"parameters": [*given[2:6], given[7]], "orthogonal": False}
        return optim.Muon([matrices, others], 0.01, weight_decay=0.2)

    found, launches = steps(device, make)
    # the bits of its matrices depend on the products of a module
    assert (found, launches) == (steps(np, make)[0], [2, 2, 3])


def test_a_rule_that_changes_a_rule_is_not_launched():
    class Halved(optim.AdamW):
        def _update(self, data, gradient, state, group):
            super()._update(data, gradient / 2, state, group)

    found, launches = steps(device, lambda p: Halved(p, 0.1))
    assert (found, launches) == (steps(np, lambda p: Halved(p, 0.1))[0], [0, 0, 0])


def test_halves_are_changed_one_by_one():
    def run(xp):
        given = parameters(xp, np.float16, [(3,), (4,)])
        set_gradients(given, xp, 0)
        optimiser = RULES["adamw"](given)
        optimiser.step()
        return bits(optimiser)

    assert run(device) == run(np)


def test_frozen_parameters_and_those_without_gradients_stay():
    given = parameters(device)
    optimiser = RULES["adamw"](given)
    before = [each.data.get().tobytes() for each in given]
    set_gradients(given, device, 0, without=range(1, len(given)))
    optimiser.step()
    after = [each.data.get().tobytes() for each in given]
    changed = [one != other for one, other in zip(before, after)]
    assert changed == [True, *[False] * (len(given) - 1)]
    assert [bool(state) for state in optimiser.state_dict()["states"]] == changed


def test_parameters_of_an_arena_are_changed_by_one_launch():
    def run(xp):
        layers = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2), nn.Linear(2, 2))
        layers.initialise(0)
        layers.to(xp)
        arena = Arena(layers.parameters())
        optimiser = RULES["adamw"](layers.parameters())
        launches = []
        for step in range(3):
            random = np.random.default_rng(step)
            for array in arena.gradients:
                array[...] = xp.asarray(random.normal(size=array.shape), np.float32)
            arena.assign_gradients()
            before = Kernel.num_launches
            optimiser.step()
            launches.append(Kernel.num_launches - before)
        return bits(optimiser), launches

    expected, _ = run(np)
    assert run(device) == (expected, [1, 1, 1])


def test_a_copy_of_an_optimiser_changes_its_own_parameters():
    optimiser = RULES["sgd momentum"](parameters(device))
    set_gradients(optimiser.parameters, device, 0)
    optimiser.step()
    before = bits(optimiser)
    other = copy.deepcopy(optimiser)
    set_gradients(other.parameters, device, 1)
    other.step()
    assert bits(optimiser) == before != bits(other)


SHARDED = {
    "sgd": (optim.SGD, {"learning_rate": 0.1, "momentum": 0.9}),
    "adamw": (optim.AdamW, {"learning_rate": 0.01}),
}


def trained(group, xp, rule, is_sharded, dtype):
    """Train on replicas; return losses, values and states, and launches of steps."""
    layers = [nn.Linear(6, 7, dtype=dtype), nn.Tanh(), nn.Linear(7, 6, dtype=dtype)]
    options = {"loss": nn.MSELoss(), "gradient_blocks": 4, "device": xp}
    options |= {"replicas": group.size, "num_microbatches": 8 // group.size}
    pipeline = Pipeline(nn.Sequential(*layers), group, **options)
    kind, numbers = SHARDED[rule]
    if is_sharded:
        optimiser = pipeline.sharded(kind, **numbers)
    else:
        optimiser = kind(pipeline.parameters(), **numbers)
    x, y = np.random.default_rng(0).normal(size=(2, 16, 6)).astype(np.float32)
    found, launches = [], []
    for step in range(4):
        found.append(float(pipeline.step(x, y)))
        optimiser.groups[0].learning_rate = 0.1 / (step + 1)
        if step == 2:
            optimiser.load_state_dict(optimiser.state_dict())
        group.barrier()
        before = Kernel.num_launches
        group.barrier()  # the ranks are threads, and count together
        optimiser.step()
        group.barrier()
        launches.append(Kernel.num_launches - before)
    values = [to_numpy(each.data).tobytes() for each in optimiser.parameters]
    return (found, values, bits(optimiser)), launches


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rule", SHARDED)
def test_each_rank_changes_its_shard_by_one_launch(rule, dtype):
    def run(xp, is_sharded, num_ranks=2):
        return spawn(
            lambda group: trained(group, xp, rule, is_sharded, dtype), num_ranks
        )

    ((expected, _),) = run(np, False, num_ranks=1)
    assert run(device, False) == [(expected, [2] * 4)] * 2
    assert run(device, True) == [(expected, [2] * 4)] * 2
    assert run(np, True) == [(expected, [0] * 4)] * 2


def test_shards_of_halves_have_the_bits_of_whole_parameters():
    def run(xp, is_sharded):
        return spawn(
            lambda group: trained(group, xp, "adamw", is_sharded, np.float16)[0], 2
        )

    assert run(device, True) == run(np, False)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_steps_of_a_compiled_pipeline_have_eager_bits(schedule):
    eager, compiled, _ = both("mlp", schedule, device, 2)
    assert eager == compiled
