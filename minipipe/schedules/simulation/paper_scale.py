"""The time of a training iteration on thousands of GPUs, from the shape of a
transformer and rates of the hardware.

Nothing is fitted to a published time: the rates of products, memory and links were each
measured alone, by others. The work and the messages of a stage follow from the shape of
the model; they give the times of a :class:`Costs`, and the simulator runs the schedule
of the paper with them. ``published.csv`` has the rows of three tables to compare with.

The model omits the loading of data, gaps between kernels, stragglers, clocks that fall
under load, and processors that a collective operation takes from the products.

References
----------
Narayanan et al. (2021), "Efficient large-scale language model training on GPU clusters
using Megatron-LM", tables 1 and 2; sizes of microbatches and chunks, and which sums are
hidden, from examples/sc21/run_table_1.sh of NVIDIA/Megatron-LM. Korthikanti et al.
(2022), "Reducing activation recomputation in large transformer models", table 5.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from importlib.resources import files
from itertools import zip_longest
from math import prod
from typing import NamedTuple

from minipipe.core.schedules.action_table import Schedule
from minipipe.core.schedules.interleaved import interleaved_1f1b
from minipipe.core.schedules.one_f_one_b import one_f_one_b
from minipipe.errors import ArgumentError, quoted
from minipipe.io import parse_csv, parse_whole
from minipipe.schedules.simulation.costs import Costs
from minipipe.schedules.simulation.simulator import simulate

TERMS = {
    "recomputation": "repeating the forward before each backward",
    "memory": "reads and writes of normalisation, dropout, GELU and residuals",
    "attention": "scores, softmax, and the product with the values",
    "operands": "reads and writes of matrix products",
    "tensor-sums": "all-reduces among tensor-parallel GPUs",
    "bubble": "idle time of the pipeline",
    "head": "output projection to the vocabulary, and the loss",
    "accumulation": "adding the gradients of each microbatch",
    "optimiser": "update by Adam",
    "latency": "start-up time of each message and all-reduce",
    "replica-sums": "gradient all-reduces over replicas",
    "messages": "activations and gradients between stages",
}
"""The terms that :func:`predict` can leave out, to show their effect."""


# Tokens of a sequence, and different tokens, in all three tables
SEQUENCE = 2048
VOCABULARY = 51200
TABLES = ("megatron-table-1", "megatron-table-2", "korthikanti-table-5")


class Link(NamedTuple):
    """A link of one GPU: latency in seconds, and bandwidth in bytes per second."""

    latency: float
    bandwidth: float


class Hardware(NamedTuple):
    """The rates of one GPU and its links.

    Attributes
    ----------
    products : float
        Operations per second of a matrix product, without the time to read its
        operands.
    memory : float
        Bytes per second.
    node : Link
        The link to the other GPUs of its host, in an all-reduce of activations.
    network : Link
        The link to another host.
    """

    products: float
    memory: float
    node: Link
    network: Link


A100 = Hardware(
    products=260e12,
    memory=0.75 * 2039e9,
    node=Link(80e-6, 225e9),
    network=Link(20e-6, 0.9 * 25e9),
)
SOURCES = {
    "260 TF/s of a matrix product": "EleutherAI/cookbook, median of five",
    "0.75 of 2,039 GB/s of memory": "calculon-ai/calculon, its A100 at 10 MB",
    "80 us, 225 GB/s over NVLink": "all-reduces in the A100 traces of vTrain",
    "20 us, 0.9 of 25 GB/s between hosts": "calculon; NVIDIA/nccl-tests issue 119",
    "22 + 20/t B of an element forward": "derived; 46 + 48/t backward",
    "9 B of a score forward": "derived; 11 backward",
    "52 B of a parameter in Adam": "derived; 6 in an accumulation",
    "50 B of a logit": "derived",
}
_TEXTS = {  # by column, a pattern, and what is expected
    "published": (
        r"((?=.*[1-9])\d+(\.\d+)?(s|TF))?",
        "a value such as 138TF or 1.42s, or nothing",
    ),
    "recompute": ("full|selective", "full or selective"),
    "overlap": ("nothing|replicas|tensor", "nothing or replicas or tensor"),
}


class Run(NamedTuple):
    """One row of a table: a model, its partition, and the published time or rate of an
    iteration.

    Attributes
    ----------
    table, model : str
    heads, hidden, layers : int
        The shape of the model, whose sequences have 2,048 tokens of 51,200.
    tensor, pipeline, chunks : int
        Tensor-parallel GPUs of a layer; ranks of the pipeline; stages on each rank.
    gpus, batch, microbatch : int
        All GPUs; sequences of an iteration; sequences of a microbatch.
    recompute : str
        The part that a backward recomputes: ``"full"``, the whole layer;
        ``"selective"``, attention only, with the sequence divided among the
        tensor-parallel GPUs.
    overlap : str
        The communication that overlaps with the backward: ``"nothing"``;
        ``"replicas"``, the gradient all-reduces over replicas; ``"tensor"``, the
        all-reduces over tensor-parallel GPUs, with gradient accumulation as part of the
        product.
    published : str
        ``"138TF"`` for 138e12 operations per second and GPU, ``"1.42s"`` for seconds,
        or nothing.
    """

    table: str
    model: str
    heads: int
    hidden: int
    layers: int
    tensor: int
    pipeline: int
    chunks: int
    gpus: int
    batch: int
    microbatch: int
    recompute: str
    overlap: str
    published: str

    @property
    def replicas(self) -> int:
        """The number of copies of the pipeline."""
        return self.gpus // (self.tensor * self.pipeline)

    @property
    def num_microbatches(self) -> int:
        """The microbatches of one replica in an iteration."""
        return self.batch // (self.replicas * self.microbatch)

    @property
    def operations(self) -> float:
        """The operations of an iteration, recomputation counted: equation 3 of
        Narayanan et al.
        """
        h = self.hidden
        layers = self.layers
        # The products of layers, attention and head
        parts = 1 + SEQUENCE / (6 * h) + VOCABULARY / (16 * layers * h)
        return 96 * self.batch * SEQUENCE * layers * h**2 * parts

    def seconds(self) -> float | None:
        """Return the published time of an iteration."""
        if not self.published:
            return None
        number = float(self.published.rstrip("sTF"))
        if self.published.endswith("s"):
            return number
        return self.operations / self.gpus / (number * 1e12)

    def schedule(self) -> Schedule:
        """Return the schedule of one replica: 1F1B, or interleaved 1F1B if a rank has
        several chunks.
        """
        if self.chunks == 1:
            return one_f_one_b(self.pipeline, self.num_microbatches)
        return interleaved_1f1b(self.pipeline, self.num_microbatches, self.chunks)


_COUNTS = Run._fields[2:-3]  # those with whole numbers


def published_runs(table: str) -> list[Run]:
    """Return the rows of a published table.

    Examples
    --------
    >>> [run.model for run in published_runs("korthikanti-table-5")][::2]
    ['22B', '175B', '530B', '1T']
    """
    text = (files("minipipe.schedules.simulation") / "published.csv").read_text()
    return [run for run in read_runs(text) if run.table == table]


def read_runs(text: str) -> list[Run]:
    """Return the rows of a table in the form of ``published.csv``.

    Raises
    ------
    ArgumentError
        Code ``value``: a column is missing, or the numbers of a row do not fit each
        other.
    """
    lines = (cells for _, cells in parse_csv(text) if any(map(str.strip, cells)))
    head, *rows = [*lines] or [[]]
    if tuple(head) != Run._fields:
        given = quoted(",".join(head))
        expected = ",".join(Run._fields)
        message = f"The first line is {given}; expected {expected}."
        raise ArgumentError(message)
    return [_run_of(dict(zip_longest(Run._fields, row))) for row in rows]


def _run_of(row: dict[str, str]) -> Run:
    """Return one row, or raise an error that names the wrong cell."""
    where = f"The row of {quoted(row['model'])}"
    try:
        numbers = {name: parse_whole(row[name] or "") for name in _COUNTS}
    except ArgumentError:
        numbers = {}
    if not numbers or None in row.values() or len(row) > len(Run._fields):
        hint = f"expected whole numbers in {', '.join(_COUNTS)}"
        raise ArgumentError(f"{where} has a wrong cell; {hint}.")
    for name, (pattern, expected) in _TEXTS.items():
        if not re.fullmatch(pattern, row[name]):
            message = f"{where}: {name} is {quoted(row[name])}; expected {expected}."
            raise ArgumentError(message)
    run = Run(**{**row, **numbers})  # type: ignore[arg-type]
    if min(numbers.values()) < 1:
        raise ArgumentError(f"{where} has a number below 1.")
    products: list[tuple[tuple[str, ...], str]] = [
        (("tensor", "pipeline"), "gpus"),
        (("pipeline", "chunks"), "layers"),
        (("tensor",), "heads"),
        (("heads",), "hidden"),
        (("replicas", "microbatch"), "batch"),
    ]
    if run.chunks > 1:
        products.append((("pipeline",), "num_microbatches"))
    for product, of in products:
        divisor = prod(getattr(run, name) for name in product)
        if getattr(run, of) % divisor:
            names = " times ".join(product)
            hint = f"expected a multiple of {names}, {divisor}"
            raise ArgumentError(f"{where}: {of} is {getattr(run, of)}; {hint}.")
    return run


@dataclass(frozen=True)
class _Model:
    """The times of the parts of a run, in seconds, without the terms that are left
    out.
    """

    run: Run
    hardware: Hardware
    without: Collection[str]

    def costs(self) -> Costs:
        """Return the times of each stage; a message occupies both of its ranks, as in
        the measured programs.
        """
        num_stages = self.run.pipeline * self.run.chunks
        layers = self.run.layers // num_stages
        message = self._message()
        forward, inputs, weights = self._layer()
        forwards = [layers * forward + message] * num_stages
        backwards = [layers * inputs + message] * num_stages
        of_weights = [layers * weights] * num_stages
        for of_kind, head in zip((forwards, backwards, of_weights), self._head()):
            of_kind[-1] += head
        forwards[0] += self._moved(15 * self._elements)  # the embedding
        return Costs(forwards, backwards, of_weights, unit="s")

    def after_the_last_backward(self) -> float:
        """Return the time of the gradient all-reduces over replicas and of the
        optimiser.
        """
        run = self.run
        of_layer = 12 * run.hidden**2 + 13 * run.hidden
        parameters = of_layer * run.layers / (run.tensor * run.pipeline)
        parameters += VOCABULARY * run.hidden / run.tensor
        sums = 0.0
        if run.replicas > 1 and run.overlap != "replicas":
            part = (run.replicas - 1) / run.replicas
            sums = self._sent(self.hardware.network, 2 * part * 2 * parameters)
        update = self._kept("optimiser", self._moved(52 * parameters))
        return self._kept("replica-sums", sums) + update

    def _kept(self, term: str, seconds: float) -> float:
        if term in self.without:
            return 0.0
        return seconds

    def _moved(self, size: float) -> float:
        return size / self.hardware.memory

    def _sent(self, link: Link, size: float) -> float:
        return self._kept("latency", link.latency) + size / link.bandwidth

    @property
    def _elements(self) -> int:
        """Number of elements of one activation."""
        return self.run.microbatch * SEQUENCE * self.run.hidden

    def _product(
        self, rows: float, inner: float, columns: float, count: float = 1
    ) -> float:
        """Return the time of matrix products, whose operands and results have two
        bytes.
        """
        moved = self._moved(2 * (rows * inner + inner * columns + rows * columns))
        computed = 2 * rows * inner * columns / self.hardware.products
        return count * (computed + self._kept("operands", moved))

    def _layer(self) -> tuple[float, float, float]:
        """Return the times of F, I and W of a layer."""
        run = self.run
        t = self.run.tensor
        h = self.run.hidden
        n = self._elements
        rows = run.microbatch * SEQUENCE
        is_selective = run.recompute == "selective"
        into = (rows, h, 3 * h / t)
        out = (rows, h / t, h)
        shapes = [into, out, (rows, h, 4 * h / t), (rows, 4 * h / t, h)]
        products = [sum(self._product(*shape) for shape in shapes)]
        products += [sum(self._product(m, columns, k) for m, k, columns in shapes)]
        products += [sum(self._product(k, m, columns) for m, k, columns in shapes)]
        attention, attention_backward = self._attention()
        # Under sequence parallelism nothing is replicated.
        replicated = n / t if is_selective else n
        moved = self._moved(22 * replicated + 20 * n / t)
        forward = products[0] + attention + self._kept("memory", moved)
        forward += 2 * self._tensor_sum()
        moved = self._moved(46 * replicated + 48 * n / t)
        inputs = products[1] + attention_backward + self._kept("memory", moved)
        # The all-gather of a divided all-reduce hides behind the weights' products, as
        # does a whole all-reduce.
        num_sums = 2
        if run.overlap == "tensor":
            num_sums = int(is_selective)
        inputs += num_sums * self._tensor_sum()
        recomputed = attention if is_selective else forward
        inputs += self._kept("recomputation", recomputed)
        accumulation = 0.0
        if run.overlap != "tensor":
            accumulation = self._kept("accumulation", self._moved(6 * 12 * h**2 / t))
        return forward, inputs, products[2] + accumulation

    def _attention(self) -> tuple[float, float]:
        """Return the times of attention forward and backward, as products of each head
        and work by score.
        """
        run = self.run
        s = SEQUENCE
        heads = run.microbatch * run.heads / run.tensor
        width = run.hidden / run.heads
        products = self._product(s, width, s, heads) + self._product(s, s, width, heads)
        scores = heads * s**2
        forward = self._moved(9 * scores)
        backward = self._moved(11 * scores)
        times = products + forward, 2 * products + backward
        return self._kept("attention", times[0]), self._kept("attention", times[1])

    def _tensor_sum(self) -> float:
        """Return the time of an all-reduce of one activation over the tensor-parallel
        GPUs, or of its two halves.
        """
        t = self.run.tensor
        if t == 1:
            return 0.0
        size = 2 * (t - 1) / t * 2 * self._elements
        return self._kept("tensor-sums", self._sent(self.hardware.node, size))

    def _message(self) -> float:
        """Return the time of a message between stages: each GPU sends its part, and the
        receivers gather them.
        """
        run = self.run
        size = 2 * self._elements
        if run.pipeline == 1:
            return 0.0
        seconds = self._sent(self.hardware.network, size / run.tensor)
        if run.recompute == "full" and run.tensor > 1:
            gathered = (run.tensor - 1) / run.tensor * size
            seconds += self._sent(self.hardware.node, gathered)
        return self._kept("messages", seconds)

    def _head(self) -> tuple[float, float, float]:
        """Return the times of F, I and W of the product with the vocabulary and of the
        loss.
        """
        run = self.run
        columns = VOCABULARY / self.run.tensor
        rows = run.microbatch * SEQUENCE
        h = run.hidden
        accumulation = 0.0
        if run.overlap != "tensor":
            accumulation = self._kept("accumulation", self._moved(6 * h * columns))
        times = (
            self._product(rows, h, columns) + self._moved(50 * rows * columns),
            self._product(rows, columns, h),
            self._product(h, rows, columns) + accumulation,
        )
        forward, inputs, weights = (self._kept("head", seconds) for seconds in times)
        return forward, inputs, weights


def costs_of(
    run: Run, hardware: Hardware = A100, without: Collection[str] = ()
) -> Costs:
    """Return the times of F, I and W of each stage of a run, in seconds, for any
    schedule over its stages.
    """
    return _Model(run, hardware, without).costs()


def predict(
    run: Run, hardware: Hardware = A100, without: Collection[str] = ()
) -> float:
    """Return the time of an iteration, in seconds: the simulated schedule, then
    all-reduces and the optimiser.

    Parameters
    ----------
    run : Run
    hardware : Hardware
    without : collection of str
        Names of :data:`TERMS` to leave out.

    Examples
    --------
    >>> run = published_runs("korthikanti-table-5")[0]
    >>> print(
    ...     f"{predict(run):.2f} s, published {run.published}; {predict(run, without=['attention']):.2f} s"
    ... )
    1.43 s, published 1.42s; 1.20 s
    """
    model = _Model(run, hardware, without)
    timeline = simulate(run.schedule(), model.costs())
    in_pipeline = timeline.makespan
    if "bubble" in without:
        in_pipeline = max(map(timeline.busy, range(run.pipeline)))
    return in_pipeline + model.after_the_last_backward()
