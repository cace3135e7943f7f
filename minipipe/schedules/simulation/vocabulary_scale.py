"""Pipelines whose last stage also has the output layer of a large vocabulary: the
published efficiency of 24 of them, and the loss of efficiency that follows from shapes.

Nothing is fitted. A larger vocabulary makes the last stage slower than the others, and
the others wait for it. The model omits everything else: messages, memory, kernels of
different efficiency, and the first stage's embedding.

The published numbers were read second hand: they agree with a copy of the table in
deep-diver/ai-paper-reviewer on GitHub, and were not compared with the paper. Sizes of
the models come from notes about it.

References
----------
Yeung et al. (2024), "Balancing pipeline parallelism with vocabulary parallelism",
arXiv 2411.05288, table 5, rows of the baseline (1F1B with equal layers on each rank).
"""

from __future__ import annotations

from dataclasses import dataclass

from minipipe.schedules.simulation.costs import Costs

NUM_MICROBATCHES = 128
"""Microbatches of a batch, in all rows."""

_SHAPES = ((8, 3072, 32), (16, 4096, 48), (32, 5120, 64))  # ranks, hidden, layers
_VOCABULARIES = (32, 64, 128, 256)  # in thousands of 1,024
_PUBLISHED = {  # by tokens of a sequence, the rows of the shapes
    2048: (
        (46.16, 40.48, 33.11, 25.23),
        (45.66, 40.09, 32.44, 24.21),
        (42.81, 37.28, 28.97, 20.86),
    ),
    4096: (
        (47.05, 41.87, 35.00, 26.75),
        (47.56, 41.21, 33.88, 25.33),
        (43.68, 38.11, 30.05, 21.63),
    ),
}


@dataclass(frozen=True)
class VocabularyRun:
    """One row: a transformer, its pipeline, and the published efficiency.

    Attributes
    ----------
    ranks, hidden, layers : int
        Ranks of the pipeline; numbers of each token; layers of all ranks.
    sequence, vocabulary : int
        Tokens of a sequence, and different tokens.
    published : float
        Model FLOPs utilisation (MFU) of the baseline, in percent.
    """

    ranks: int
    hidden: int
    layers: int
    sequence: int
    vocabulary: int
    published: float

    @property
    def name(self) -> str:
        """Ranks, hidden size and layers, as the options of a command name them."""
        return f"{self.ranks}/{self.hidden}/{self.layers}"

    @property
    def stage(self) -> float:
        """Operations of the layers of a rank for one sequence, forward and backward."""
        of_layer = 72 * self.hidden + 12 * self.sequence
        return self.layers / self.ranks * self.sequence * self.hidden * of_layer

    @property
    def head(self) -> float:
        """Operations of the output layer for one sequence, forward and backward."""
        return 6.0 * self.sequence * self.hidden * self.vocabulary

    @property
    def efficiency(self) -> float:
        """The part of all rank time that computes, if operations take equal times.

        One microbatch passes all ranks, and each other one takes the time of the last
        rank more.
        """
        work = self.ranks * self.stage + self.head
        time = work + (NUM_MICROBATCHES - 1) * (self.stage + self.head)
        return NUM_MICROBATCHES * work / (self.ranks * time)

    def costs(self) -> Costs:
        """Return the times of F, I and W of each stage, for any schedule; each takes
        one unit on the first stage.
        """
        times = [1.0] * self.ranks
        times[-1] += self.head / self.stage
        return Costs(times, times, times)


def vocabulary_runs() -> list[VocabularyRun]:
    """Return the rows of the published table.

    Each fourth row, beginning with the first, has the vocabulary of 32,768 tokens with
    which the next three are compared.

    Examples
    --------
    >>> base, *others = vocabulary_runs()[:4]
    >>> [round(run.published / base.published, 3) for run in others]
    [0.877, 0.717, 0.547]
    >>> [round(run.efficiency / base.efficiency, 3) for run in others]
    [0.884, 0.726, 0.553]
    """
    runs = []
    for sequence, rows in _PUBLISHED.items():
        for shape, row in zip(_SHAPES, rows):
            for size, published in zip(_VOCABULARIES, row):
                runs.append(VocabularyRun(*shape, sequence, 1024 * size, published))
    return runs
