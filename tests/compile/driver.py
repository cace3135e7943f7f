"""Run a computation over several microbatches: eagerly, and by its compiled sections.

Before each section all memory that it may not read is filled with NaN, and so is a slot
before its first use: whatever reads too late, or too early, has other bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from inspect import unwrap
from typing import Any, NamedTuple

import numpy as np

from minipipe import Tensor, autograd
from minipipe.autograd import StageInput
from minipipe.autograd.memory import buffer_of
from minipipe.compile.sections import Pool, Sections
from minipipe.compile.trace import NotingLeaf, Trace, key_of
from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import is_array, to_numpy
from minipipe.core.autograd.modes import RandomKey, at, current_mode, mode, setting
from minipipe.core.nn.parameter import HalfLeaf
from minipipe.core.tensor import record

SECTIONS = {
    "F": "forward",
    "B": "backward",
    "I": "backward_input",
    "W": "backward_weight",
}


class Job(NamedTuple):
    """A stage: a function of tensors, its parameters, and the arrays of a microbatch.

    ``inputs`` are pairs of array and whether its gradient is wanted; ``seeds`` returns
    the gradients of results from these.
    """

    compute: Callable[[list[Tensor]], Sequence[Tensor]]
    parameters: list[Any]
    inputs: Callable[[int], list[tuple[np.ndarray, bool]]]
    seed_of: Callable[[int, int, np.ndarray], np.ndarray | None]


def seeds(k: int, i: int, result: np.ndarray) -> np.ndarray:
    """Return the gradient of result i of microbatch k."""
    made = np.random.default_rng((k, i)).normal(size=result.shape)
    return made.astype(result.dtype)


@contextmanager
def place(k: int):
    """Draw the random numbers of a microbatch; watch no arrays, unlike other tests."""
    unwatched = setting(current_mode, mode()._replace(watch=None))
    with at(RandomKey(0, 3, k)), unwatched:
        yield


def forward(job: Job, arrays: list[Any], wanted: list[bool]):
    """Return what a backward needs, and the results."""
    tensors, nodes = [], []
    for array, is_wanted in zip(arrays, wanted):
        tensor = record(array)
        tensor.node = StageInput(is_wanted, array)
        tensors.append(tensor)
        nodes.append(tensor.node)
    results = job.compute(tensors)
    contiguous = [backend.contiguous(result.data) for result in results]
    return (nodes, [result.node for result in results]), contiguous


def roots_of(held: Any, gradients: list[Any]) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for node, gradient in zip(held[1], gradients):
        if node is not None and gradient is not None and node not in found:
            found[node] = gradient
    return found


def eager(job: Job, row: Sequence[tuple[str, int]]) -> list[bytes | None]:
    """Return the bits of all results and gradients."""
    found: list[Any] = []
    held: dict[int, Any] = {}
    for p in job.parameters:
        p.node.grad = None
    for kind, k in row:
        with place(k):
            if kind == "F":
                arrays, wanted = zip(*job.inputs(k))
                held[k], results = forward(job, list(arrays), list(wanted))
                found += results
                gradients = [job.seed_of(k, i, y) for i, y in enumerate(results)]
                held[k] = held[k], gradients
            elif kind == "W":
                held.pop(k).run()
            else:
                roots = roots_of(*held[k])
                nodes = held.pop(k)[0][0]
                if kind == "B":
                    autograd.backward(roots)
                else:
                    held[k] = autograd.backward_input(roots)
                found += [node.grad for node in nodes]
    found += [p.node.grad for p in job.parameters]
    return [None if each is None else np.asarray(each).tobytes() for each in found]


TRACED = 7
"""The microbatch that is traced, unless another is named."""


def traced(job: Job, is_split: bool, k: int = TRACED) -> Trace:
    """Return the trace of a microbatch."""
    trace = Trace(key_of(0, 3, k))
    uses = [(p, p.node, p.node.grad) for p in job.parameters]
    owners = [(owner, owner.data) for owner in owners_of(job)]
    leaves = [NotingLeaf(node, f"l{i}", trace) for i, (_, node, _) in enumerate(uses)]
    arrays, wanted = zip(*job.inputs(k))

    def begin(section: str) -> None:
        trace.begin(section)
        for i, (owner, data) in enumerate(owners):
            owner.data = trace.named(f"p{i}", data)
        for (p, *_), leaf in zip(uses, leaves):
            p.node = leaf

    try:
        with place(k):
            begin("forward")
            given = [trace.input(f"x{i}", array) for i, array in enumerate(arrays)]
            held, results = forward(job, given, list(wanted))
            plain = [trace.returned(y) for y in results]
            begin("backward_input" if is_split else "backward")
            found = [job.seed_of(k, i, y) for i, y in enumerate(plain)]
            gradients = [trace.input(f"g{i}", each) for i, each in enumerate(found)]
            roots = roots_of(held, gradients)
            if is_split:
                work = autograd.backward_input(roots)
            else:
                autograd.backward(roots)
            for node in held[0]:
                trace.returned(node.grad)
            if is_split:
                begin("backward_weight")
                work.run()
    finally:
        for owner, data in owners:
            owner.data = data
        for p, node, gradient in uses:
            p.node = node
            node.grad = gradient
    if trace.reason is None and have_changed(trace):
        trace.graph_break("a constant was changed")
    return trace


def have_changed(trace: Trace) -> bool:
    """Return whether a constant has changed since a line used it."""
    return any(
        to_numpy(value).tobytes() != key[-1]
        for key, (_, value) in trace.constants.items()
        if is_array(value) and hasattr(value, "dtype")
    )


def dtype_of_gradient(parameter: Any) -> Any:
    """Return float32 for a parameter in half precision, whose gradients add up so."""
    is_half = isinstance(parameter.node, HalfLeaf)
    return np.float32 if is_half else parameter.data.dtype


def owners_of(job: Job) -> list[Any]:
    """Return the parameters that have arrays of their own."""
    owners = [getattr(p, "owner", p) for p in job.parameters]
    return list({id(owner): owner for owner in owners}.values())


class Compiled:
    """Sections of a job, bound for a row, with the buffers of its microbatches."""

    def __init__(
        self, job: Job, sections: Sections, row: Sequence[tuple[str, int]]
    ) -> None:
        self.job, self.sections = job, sections
        self.pool = Pool(sections.temporary_bytes)
        self.slots: dict[tuple[int, int], int] = {}
        self.free: list[list[int]] = [[] for _ in sections.lifetimes]
        num = [num_in_flight(row, *lifetime) for lifetime in sections.lifetimes]
        self.free = [list(range(n)) for n in num]
        self.num_slots = num
        arrays = [owner.data for owner in owners_of(job)]
        shapes = [(p.data.shape, dtype_of_gradient(p)) for p in job.parameters]
        self.gradients = [np.full(shape, np.nan, dtype) for shape, dtype in shapes]
        self.is_static = not sections.has_leaves
        given = self.gradients if self.is_static else [p.node for p in job.parameters]
        self.functions = sections.bind(arrays, given, num, self.pool)
        self.has_contributed: set[int] = set()

    def slot(self, i: int, section: str, k: int) -> int:
        first, last = self.sections.lifetimes[i]
        if section == first:
            self.slots[i, k] = self.free[i].pop()
            self._poison(i, self.slots[i, k])
        number = self.slots[i, k]
        if section == last:
            self.free[i].append(number)
        return number

    def _poison(self, i: int, slot: int) -> None:
        for function in map(unwrap, self.functions.values()):
            for name, kept in function.__globals__.items():
                if name.startswith(f"kept{i}_"):
                    for array in kept[slot]:
                        if array.flags.writeable:
                            array.fill(np.nan if array.dtype.kind == "f" else 1)

    def stashed_bytes(self, known: Sequence[np.ndarray]) -> int:
        """Return the size of NumPy's arrays that are kept between sections."""
        names = unwrap(self.functions["forward"]).__globals__
        stashes = [each for name, each in names.items() if name.startswith("stash")]
        buffers = {
            id(buffer_of(array)): buffer_of(array).nbytes
            for stash in stashes
            for kept in stash
            for array in kept or ()
            if isinstance(array, np.ndarray)
        }
        for array in known:
            buffers.pop(id(buffer_of(array)), None)
        return sum(buffers.values())

    def call(self, section: str, k: int, known: dict[str, Any]) -> Any:
        """Call a function with what it names."""
        self.pool.memory(0).fill(255)
        given = []
        for name in self.sections.parameters[section]:
            if name.startswith("slot"):
                given.append(self.slot(int(name[4:]), section, k))
            elif name == "first":
                given.append(not self.has_contributed)
            elif name == "key":
                given.append(key_of(0, 3, k))
            else:
                given.append(known[name])
        if "first" in self.sections.parameters[section]:
            self.has_contributed.add(k)
        return self.functions[section](*given)


def compiled(
    job: Job,
    trace: Trace,
    row: Sequence[tuple[str, int]],
    sections: Sections | None = None,
) -> list[bytes | None]:
    """Return the bits of all results and gradients, in the order of :func:`eager`."""
    assert trace.reason is None, trace.reason
    sections = sections or Sections(trace, 0)
    for p in job.parameters:
        p.node.grad = None
    program = Compiled(job, sections, row)
    found: list[Any] = []
    known: dict[int, dict[str, Any]] = {}
    for kind, k in row:
        section = SECTIONS[kind]
        if kind == "F":
            arrays, _ = zip(*job.inputs(k))
            known[k] = {f"x{i}": array for i, array in enumerate(arrays)}
        results = trace.results[section]
        outs = [buffer_for(trace, name) for name in results]
        known[k] |= {f"out{i}": out for i, out in enumerate(outs)}
        returned = program.call(section, k, known[k])
        returned = list(returned) if isinstance(returned, tuple) else [returned]
        values = [
            None if name == "None" else (returned.pop(0) if out is None else out)
            for name, out in zip(results, outs)
        ]
        if kind == "F":
            known[k] |= {f"y{i}": out for i, out in enumerate(outs)}
            for i, value in enumerate(values):
                known[k][f"g{i}"] = job.seed_of(k, i, np.asarray(value))
        if kind != "W":
            found += [None if value is None else value.copy() for value in values]
    if not program.is_static:
        program.gradients = [p.node.grad for p in job.parameters]
    contributed = leaves_of(trace)
    found += [
        gradient if i in contributed else None
        for i, gradient in enumerate(program.gradients)
    ]
    return [None if each is None else np.asarray(each).tobytes() for each in found]


def buffer_for(trace: Trace, name: str) -> np.ndarray | None:
    if name == "None" or trace.variables[name].shape == ():
        return None
    variable = trace.variables[name]
    buffer = np.empty(variable.shape, variable.dtype)
    buffer.view(np.uint8).fill(255)
    return buffer


def leaves_of(trace: Trace) -> set[int]:
    lines = (line for section in trace.sections.values() for line in section)
    return {line.leaf for line in lines if line.leaf is not None}


def num_in_flight(row: Sequence[tuple[str, int]], first: str, last: str) -> int:
    """Return how many microbatches are between two sections at most."""
    now, most = 0, 0
    for kind, _ in row:
        now += SECTIONS[kind] == first
        most = max(most, now)
        now -= SECTIONS[kind] == last
    return most
