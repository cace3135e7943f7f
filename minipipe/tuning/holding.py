"""Which buffers one microbatch holds in each layer, and so in each stage: a buffer that two layers hold counts once."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

Buffers = Mapping[Hashable, int]  # bytes, by what tells a buffer apart


class Passed(NamedTuple):
    """The values that pass over one cut, in one direction.

    Attributes
    ----------
    buffers : mapping
    packed : int
        The bytes of the message that they are packed into, where a single array does not travel as it is; otherwise 0.
    """

    buffers: Buffers
    packed: int

    def where(self, message: str) -> dict[Hashable, tuple[Hashable, int]]:
        """Return by buffer where it lies after it has come from another rank, and the bytes of that."""
        return {key: (message, self.packed) for key in self.buffers if self.packed}


class Holding(NamedTuple):
    """What one microbatch holds in a layer, or in the loss.

    Attributes
    ----------
    inputs, gradients : Passed
        What it receives from the layer before, and from the one behind.
    after_forward, after_input : mapping
        The buffers that its graph keeps alive after F and after I.
    transient : int
        Bytes beyond ``after_forward`` while its I runs: recomputed activations.
    has_graph : bool
        Whether a gradient goes through it. None does before the first layer that is trained.
    """

    inputs: Passed
    gradients: Passed
    after_forward: Buffers
    after_input: Buffers
    transient: int
    has_graph: bool = True


def held_by_stage(
    layers: Sequence[Holding],
    loss: Sequence[Holding],
    recompute: bool = False,
    came: Passed | None = None,
    came_back: Passed | None = None,
    batch: Buffers | None = None,
) -> tuple[int, int, int]:
    """Return the bytes that a stage of layers holds after F, after I, and beyond the first while its I runs.

    Parameters
    ----------
    layers : sequence of Holding
        Neighbours, at least one.
    loss : sequence of Holding
        Of the loss, where it follows; otherwise empty.
    recompute : bool
        Whether the stage keeps only its input between F and I.
    came, came_back : Passed, optional
        The values, and the gradients, that came in a message to this stage, or to a neighbour on the same rank, which
        may have handed them on.
    batch : mapping, optional
        The buffers of the batch, where it has come here without a message. They do not count.

    Examples
    --------
    A layer holds its result, and the next one its input, which is the same; it holds a gradient of 8 bytes after I.

    >>> first = Holding(Passed({"batch": 4}, 0), Passed({}, 0), {"result": 8}, {}, 0)
    >>> gradient = Passed({"gradient": 8}, 0)
    >>> second = Holding(Passed({"result": 8}, 0), gradient, {"result": 8}, {"result": 8, "gradient": 8}, 0)
    >>> held_by_stage([first, second], [])
    (8, 16, 0)
    >>> held_by_stage([first, second], [], recompute=True)
    (4, 16, 4)
    """
    counted = [*layers, *loss]
    lies_in: dict[Hashable, tuple[Hashable, int]] = dict.fromkeys(batch or (), ("batch", 0))
    lies_in |= {} if came is None else came.where("message")
    lies_in |= {} if came_back is None else came_back.where("gradient message")

    def num_bytes(held: Sequence[Buffers]) -> int:
        """Return the bytes of buffers that may occur several times."""
        return sum(dict(lies_in.get(buffer, (buffer, size)) for part in held for buffer, size in part.items()).values())

    has_graph = any(part.has_graph for part in layers)
    kept = [layers[0].inputs.buffers] if recompute and has_graph else []
    activation = num_bytes([*kept, *(part.after_forward for part in (loss if recompute else counted))])
    recomputed = layers if recompute else counted
    # A backward comes to the last layer first, and computes it again while those before hold what they hold.
    during = [
        num_bytes([before.after_forward for before in recomputed[: i + 1]]) + part.transient
        for i, part in enumerate(recomputed)
    ]
    transient = max(0, max(during) - activation) if has_graph else 0
    return activation, num_bytes([part.after_input for part in counted]), transient
