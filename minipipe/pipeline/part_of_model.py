"""The parameters of a pipeline: those of this rank, and with the other ranks' those of the whole model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from minipipe import backend
from minipipe.comm import ProcessGroup
from minipipe.nn import Parameter, Sequential
from minipipe.nn.module import check_state
from minipipe.optim.clipping import clip_gradients, squared_norms, total_norm
from minipipe.pipeline.agreement import Calls, part_of
from minipipe.schedules.program import Program

__all__ = ["PartOfModel"]


class PartOfModel:
    """The part of a :class:`minipipe.Pipeline` that has the parameters; it adds no state."""

    _model: Sequential
    _group: ProcessGroup
    _program: Program
    _partition: Sequence[range]
    _calls: Calls
    _parameters: dict[str, Parameter]
    _timeout: float | None

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Yield this rank's parameters, named as in the model. Local.

        Examples
        --------
        >>> from minipipe import Pipeline, nn, spawn
        >>> def names(group):
        ...     model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        ...     return [name for name, _ in Pipeline(model, group, loss=nn.MSELoss()).named_parameters()]
        >>> spawn(names, num_ranks=2)
        [['0.weight', '0.bias'], ['2.weight', '2.bias']]
        """
        yield from self._parameters.items()

    def parameters(self) -> Iterator[Parameter]:
        """Yield this rank's parameters. Local.

        Examples
        --------
        >>> from minipipe import Pipeline, nn, optim, spawn
        >>> def count(group):
        ...     model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        ...     pipeline = Pipeline(model, group, loss=nn.MSELoss())
        ...     optimiser = optim.SGD(pipeline.parameters(), learning_rate=0.1)
        ...     return sum(parameter.size for parameter in optimiser.parameters)
        >>> spawn(count, num_ranks=2)
        [40, 9]
        """
        yield from self._parameters.values()

    def clip_grad_norm(self, max_norm: float) -> float:
        """Scale the gradients of all ranks by one factor, so that their norm is at most ``max_norm``.

        Collective. The norm has the same bits for any partition, and as :func:`minipipe.optim.clip_grad_norm` finds it
        in one process; a parameter that several ranks share counts once.

        Parameters
        ----------
        max_norm : float
            Above 0; ``float("inf")`` only measures.

        Returns
        -------
        float
            The norm before, the same on every rank.

        Raises
        ------
        ValueError
            When max_norm is not above 0.
        ParameterError
            Code ``not-finite``, on every rank, when the norm is infinite or not a number.

        Examples
        --------
        >>> import numpy as np
        >>> from minipipe import Pipeline, nn, optim, spawn
        >>> def clip(group):
        ...     model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
        ...     pipeline = Pipeline(model, group, loss=nn.MSELoss())
        ...     pipeline.step(np.ones((8, 2)), 100 * np.ones((8, 1)))
        ...     before = pipeline.clip_grad_norm(max_norm=1.0)
        ...     return before > 1, round(pipeline.clip_grad_norm(float("inf")), 4)
        >>> spawn(clip, num_ranks=2)
        [(True, 1.0), (True, 1.0)]
        """
        self._calls.begin("clip_grad_norm")
        owned = [self._parameters[name] for name, owner in self._owners() if owner == self._group.rank]
        squares = self._group.all_gather(
            np.array(squared_norms(owned)), timeout=self._timeout, what=part_of("clip_grad_norm")
        )
        norm = total_norm(np.concatenate(squares).tolist())
        clip_gradients(self.parameters(), norm, max_norm)
        return norm

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return the whole model's values on every rank, named as in the model. Collective.

        Examples
        --------
        >>> from minipipe import Pipeline, nn, spawn
        >>> def names(group):
        ...     model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        ...     return list(Pipeline(model, group, loss=nn.MSELoss()).state_dict())
        >>> spawn(names, num_ranks=2)[1]
        ['0.weight', '0.bias', '2.weight', '2.bias']
        """
        self._calls.begin("state_dict")
        state = {}
        for name, owner in self._owners():
            mine = backend.to_numpy(self._parameters[name].data) if owner == self._group.rank else None
            state[name] = np.array(
                self._group.broadcast(mine, owner, timeout=self._timeout, what=part_of("state_dict"))
            )
        return state

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Take this rank's part of the whole model's values.

        Collective in this sense: every rank gives the same state.

        Raises
        ------
        ParameterError
            Codes ``missing``, ``unexpected`` and ``shape``.

        Examples
        --------
        From one rank to two.

        >>> import numpy as np
        >>> from minipipe import Pipeline, nn, spawn
        >>> model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
        >>> state = spawn(lambda group: Pipeline(model, group, loss=nn.MSELoss(), seed=1).state_dict(), num_ranks=1)[0]
        >>> def load(group):
        ...     pipeline = Pipeline(model, group, loss=nn.MSELoss())
        ...     pipeline.load_state_dict(state)
        ...     return all(np.array_equal(values, state[name]) for name, values in pipeline.state_dict().items())
        >>> spawn(load, num_ranks=2)
        [True, True]
        """
        check_state(dict(self._model.named_parameters()), state)
        for name, parameter in self.named_parameters():
            parameter.load(np.asarray(state[name]), name)

    def _owners(self) -> list[tuple[str, int]]:
        """Return the name of every parameter of the model with the rank that has it."""
        stage_of = {str(layer): stage for stage, layers in enumerate(self._partition) for layer in layers}
        names = [name for name, _ in self._model.named_parameters()]
        return [(name, self._program.placement[stage_of[name.partition(".")[0]]]) for name in names]
