"""Random stages of which parts are computed again, and the bits that they compute. For
the tests of Recompute.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from minipipe import Tensor, autograd, nn, random_key
from minipipe.autograd import StageInput
from tests.numerics.stages import (
    ROWS,
    WIDTH,
    Microbatch,
    Step,
    bits,
    first_half,
    fresh_weights,
    numbers,
    programs,
    run,
)

Wrap = Callable[[nn.Module], nn.Module]


def unchanged(module: nn.Module) -> nn.Module:
    return module


# -- random stages: parts one after another, some of which are computed again ----------


class Program(nn.Module):
    """Runs a program of stages.py with weights that other parts use, too."""

    def __init__(self, program: list[Step], weights: list[nn.Parameter]) -> None:
        self.program, self.weights = program, weights

    def forward(self, x: Tensor) -> Tensor:
        return run(self.program, x, self.weights)


class Parts(nn.Module):
    """Parts one after another; a list of parts is computed again, beside its input (x +
    f(x)) or not.

    A part is a program, a probability (of Dropout), or (whether beside, list of parts).
    """

    def __init__(self, parts: list, weights: list[nn.Parameter], wrap: Wrap) -> None:
        self.modules_of_parts, self.weights = [], weights
        for part in parts:
            if isinstance(part, float):
                self.modules_of_parts.append((False, nn.Dropout(part)))
            elif isinstance(part, tuple):
                self.modules_of_parts.append(
                    (part[0], wrap(Parts(part[1], weights, wrap)))
                )
            else:
                self.modules_of_parts.append((False, Program(part, weights)))

    def forward(self, x: Tensor) -> Tensor:
        for is_beside, module in self.modules_of_parts:
            x = x + module(x) if is_beside else module(x)
        return x


programs_or_dropout = programs | st.sampled_from([0.25, 0.5])


parts = st.recursive(
    st.lists(programs_or_dropout, min_size=1, max_size=2),
    lambda inner: st.lists(
        programs_or_dropout | st.tuples(st.booleans(), inner), min_size=1, max_size=3
    ),
    max_leaves=8,
)


stages = st.lists(
    programs_or_dropout | st.tuples(st.booleans(), parts), max_size=2
).flatmap(
    lambda before: st.tuples(st.booleans(), parts).map(lambda again: [*before, again])
)


def everything(
    stage: list,
    wrap: Wrap,
    num_microbatches: int = 1,
    is_split: bool = False,
    needs_gradient: bool = True,
) -> list[bytes | None]:
    """Return the bits of all results, and of the gradients of all weights and inputs.

    F0 B0 F1 B1 …, or F0 F1 … I0 I1 … W0 W1 …
    """
    weights = [nn.Parameter(weight.data) for weight in fresh_weights()]
    model = Parts(stage, weights, wrap)
    microbatches, postponed = [], []
    for k in range(num_microbatches):
        x = Tensor(numbers(ROWS, WIDTH, seed=100 + k))
        x.node = StageInput(needs_gradient)
        with random_key(5, step=1, microbatch=k):
            y = model(x)
        microbatches.append(Microbatch(x, y, numbers(*y.shape, seed=200 + k)))
        if not is_split:
            autograd.backward({y.node: microbatches[-1].upstream})
    if is_split:
        postponed = [first_half(microbatch) for microbatch in microbatches]
        assert all(weight.grad is None for weight in weights), (
            "I has touched the gradient of a weight"
        )
    for work in postponed:
        work.run()
    gradients = bits([weight.grad for weight in weights]) + bits(
        [m.x.grad for m in microbatches]
    )
    return bits([microbatch.y.data for microbatch in microbatches]) + gradients


# -- a stage on which most of it can be seen -------------------------------------------

USED_EVERYWHERE: list = [
    [Step("matmul", (0, 0, 0)), Step("tanh", (0, 0, 0))],
    0.5,
    (
        True,
        [
            [Step("one weight twice", (0, 0, 0)), Step("tanh", (0, 0, 0))],
            0.25,
            (False, [[Step("matmul", (0, 0, 0)), Step("softmax", (0, 0, 0))], 0.25]),
            [Step("matmul", (0, 0, 0))],
        ],
    ),
    [Step("matmul", (0, 0, 0)), Step("tanh", (0, 0, 0)), Step("matmul", (0, 0, 0))],
]


# -- parameters that layers share ------------------------------------------------------


def shared_gradients(wrap: Wrap) -> list[bytes | None]:
    """Return the gradients of a weight that three layers share, together and use by
    use, and those of its bias.
    """
    tied = nn.Linear(WIDTH, WIDTH)
    model = nn.Sequential(
        tied,
        nn.Tanh(),
        wrap(nn.Sequential(tied, nn.Dropout(0.5), nn.Tanh())),
        wrap(nn.Residual(tied)),
        nn.Tanh(),
    ).initialise(1)
    for k in range(2):
        with random_key(0, microbatch=k):
            result = model(Tensor(numbers(ROWS, WIDTH, seed=k)))
        result.backward(numbers(ROWS, WIDTH, seed=10 + k))
    return bits(
        [
            tied.weight.grad,
            tied.bias.grad,
            *(tied.weight.grad_of_use(i) for i in range(4)),
        ]
    )


# -- memory ----------------------------------------------------------------------------


def deep(num_layers: int = 6) -> nn.Sequential:
    layers = [
        layer
        for _ in range(num_layers)
        for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())
    ]
    return nn.Sequential(*layers).initialise(0)
