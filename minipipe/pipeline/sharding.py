"""ZeRO-1: the state of an optimiser divided among the ranks that have the same
parameters, such as replicas of a stage.

Their gradients are summed, so every one of them could make the whole update. Each
updates its shard of the elements instead, keeps the state of these alone, and sends the
values to the others::

    rank 0   gradients of a stage   updates shard 0 --.   .-- takes shard 1   the values of a whole update
                                                       \\ /
    rank 2   gradients of a stage   updates shard 1 ----'---- takes shard 0

The result has the bits of a whole update if the rule updates each element
independently. A parameter that its rule reads as a whole, such as a matrix of Muon, is
in the shard of one of the ranks. A rank sends 2 (n - 1) / n of the gradients for their
sum, and in addition (n - 1) / n of the values.

References
----------
Rajbhandari, Rasley, Ruwase, He 2020, "ZeRO: memory optimizations toward training
trillion parameter models", section 5.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from minipipe.comm import ProcessGroup
from minipipe.core.autograd import backend
from minipipe.core.autograd.backend import Array
from minipipe.core.comm.message import finish
from minipipe.core.comm.process_group import OwnTag
from minipipe.errors import ArgumentError, not_copyable
from minipipe.execution.plan import Plan
from minipipe.nn import Parameter
from minipipe.nn.shards import ShardedParameter
from minipipe.optim import Optimiser, ParameterGroup
from minipipe.optim.optimiser import takes_parts
from minipipe.parallel.reduction import AllGather, Channel, equal_parts


class Sharing(NamedTuple):
    """Parameters that the same ranks have, each of which updates a shard of their
    elements.

    Attributes
    ----------
    ranks : list of int
    parameters : list of Parameter
        In the order of the model.
    are_whole : bool
        Whether each parameter is in the shard of one rank, as a whole.
    """

    ranks: list[int]
    parameters: list[Parameter]
    are_whole: bool = False

    def share(self, place: int) -> list[slice]:
        """Return the elements of each parameter in the shard of one of the ranks."""
        sizes = tuple(parameter.size for parameter in self.parameters)
        if self.are_whole:
            owners = _owners(sizes, len(self.ranks))
            own = zip(sizes, owners)
            return [slice(0, size * (owner == place)) for size, owner in own]
        found = dict(equal_parts(sizes, len(self.ranks))[place])
        return [found.get(i, slice(0, 0)) for i in range(len(self.parameters))]


def _owners(sizes: Sequence[int], count: int) -> list[int]:
    """Return which of so many ranks owns each parameter: the largest first, each to the
    rank with the fewest elements so far.
    """
    elements = [0] * count
    owners = [0] * len(sizes)
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        owners[i] = elements.index(min(elements))
        elements[owners[i]] += sizes[i]
    return owners


def sharings_of(
    plan: Plan, own: Mapping[str, Parameter], optimiser: Optimiser
) -> Iterator[Sharing]:
    """Yield the parameters of an optimiser that this rank has in common with others.

    Frozen parameters, which have no state, are divided separately, so that the others
    are divided equally; and so are those that the optimiser takes whole.
    """
    wanted = {
        id(parameter.owner): optimiser.takes_whole(parameter, group)
        for group in optimiser.groups
        for parameter in group.parameters
    }
    found = dict[tuple, Sharing]()
    for name, stages in plan.uses.items():
        if name in own and id(own[name].owner) in wanted:
            ranks = sorted(
                {
                    pipeline[stage]
                    for pipeline in plan.pipelines
                    for stage in stages.values()
                }
            )
            is_whole = wanted[id(own[name].owner)]
            kind = (*ranks, own[name].requires_grad, is_whole)
            sharing = found.setdefault(kind, Sharing(ranks, [], is_whole))
            sharing.parameters.append(own[name])
    yield from found.values()


class ShardedOptimiser(Optimiser):
    """An optimiser that keeps the state of a shard of its parameters' elements;
    :meth:`minipipe.Pipeline.sharded`.

    ``step`` and ``state_dict`` are collective among the ranks that have the same
    parameters. The state equals the state of a plain optimiser, so any number of
    replicas can load it, sharded or not.

    Parameters
    ----------
    sharings : list of Sharing
    group : ProcessGroup
    rule : type
        A class of optimisers.
    parameters : list of Parameter, or of dict
    numbers : mapping
        The hyper-parameters.
    """

    __slots__ = ("_pieces", "_process_group", "_sharded", "_sharings", "_whole")

    def __init__(
        self,
        sharings: list[Sharing],
        group: ProcessGroup,
        rule: type[Optimiser],
        parameters: list[Any],
        numbers: Mapping[str, Any],
    ) -> None:
        super().__init__([])
        # whose groups count; it takes no step and has no state
        self._whole = rule(parameters, **numbers)
        self.groups = self._whole.groups
        self._followers = self._whole._followers
        self._states = {id(parameter): {} for parameter in self.parameters}
        self._process_group = group
        self._sharings = sharings
        # by parameter: its elements in this rank's shard
        self._pieces: dict[int, tuple[Parameter, slice]] = {}
        for sharing in sharings:
            own = sharing.share(sharing.ranks.index(group.rank))
            for parameter, elements in zip(sharing.parameters, own):
                piece = _piece_of(parameter, elements, sharing.are_whole)
                self._pieces[id(parameter)] = piece, elements
        if foreign := [
            parameter.shape
            for parameter in self.parameters
            if id(parameter) not in self._pieces
        ]:
            message = (
                f"pipeline.sharded was given a parameter of shape {foreign[0]} that is "
                "not of this pipeline"
            )
            raise ArgumentError(f"{message}; expected some of pipeline.parameters().")
        groups = []
        for one in self.groups:
            pieces = [self._pieces[id(each)][0] for each in one.parameters]
            groups.append({"parameters": pieces, **one.hyper_parameters})
        # which has the state, and takes the numbers of the groups above
        self._sharded = rule(groups, **numbers)

    def __copy__(self) -> NoReturn:
        self.__reduce_ex__(4)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse to be copied and pickled."""
        raise not_copyable(
            self,
            "each rank has a shard of its state",
            "state_dict() and load_state_dict() move it.",
        )

    @property
    def settings(self) -> dict[str, Any]:
        """Values that must be equal on all ranks."""
        return {**self._whole.settings, "sharded": True}

    @property
    def numbers(self) -> list[Any]:
        """The rule, and its numbers."""
        return [type(self._whole), *self._whole.numbers]

    @property
    def nbytes(self) -> int:
        """The bytes of the state on this rank."""
        return self._sharded.nbytes

    def step(self) -> None:
        """Update this rank's shard of all parameters; receive the values of the others.
        Collective among them.
        """
        super().step()
        trained = [
            [
                (i, _flat(parameter))
                for i, parameter in enumerate(one.parameters)
                if parameter.requires_grad
            ]
            for one in self._sharings
        ]
        self._gather(trained, "the values")

    def apply(self) -> bool:
        """Change this rank's elements of every parameter that has a gradient; return
        whether one has.
        """
        pairs = [(each, each.grad) for each in self.parameters]
        changed = [(each, gradient) for each, gradient in pairs if gradient is not None]
        for parameter, gradient in changed:
            piece, elements = self._pieces[id(parameter)]
            xp = backend.array_module(gradient)
            piece.data = _reshaped(_flat(parameter)[elements], piece)  # a view
            piece.grad = _reshaped(xp.reshape(gradient, (-1,))[elements], piece)
        for group, own in zip(self.groups, self._sharded.groups):
            vars(own).update(group.hyper_parameters)
        self._sharded.apply()
        for parameter, _ in changed:
            self._pieces[id(parameter)][0].grad = None
            parameter.note_change()
        return bool(changed)

    def _update(
        self, data: Array, gradient: Array, state: dict[str, Any], group: ParameterGroup
    ) -> None:
        raise NotImplementedError  # apply leaves it to the rule

    def state_dict(self) -> dict[str, Any]:
        """Return the state as of a plain optimiser, on every rank. Collective among
        those that share parameters.
        """
        pieces = self._sharded.state_dict()["states"]
        states = dict(zip(map(id, self.parameters), pieces))
        wholes: list[list[tuple[int, Array]]] = [[] for _ in self._sharings]
        for sharing, found in zip(self._sharings, wholes):
            for i, parameter in enumerate(sharing.parameters):
                state = states[id(parameter)]
                elements = self._pieces[id(parameter)][1]
                for name, value in state.items():
                    if backend.is_array(value):
                        xp = backend.array_module(value)
                        found.append((i, xp.zeros(parameter.size, dtype=value.dtype)))
                        found[-1][1][elements] = xp.reshape(value, (-1,))
                        # a view
                        state[name] = xp.reshape(found[-1][1], parameter.shape)
        self._gather(wholes, "the optimiser's state")
        return {
            **super().state_dict(),
            "states": [states[id(parameter)] for parameter in self.parameters],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load this rank's shard of the state of a plain optimiser. Local."""
        self.check_state(state)
        super().load_state_dict({**state, "states": [{} for _ in self.parameters]})
        states = []
        for parameter, kept in zip(self.parameters, state["states"]):
            piece, elements = self._pieces[id(parameter)]
            cut = {}
            for name, value in kept.items():
                if backend.is_array(value) and value.shape == parameter.shape:
                    flat = backend.array_module(value).reshape(value, (-1,))
                    value = _reshaped(flat[elements], piece)
                cut[name] = value
            states.append(cut)
        groups = [group.hyper_parameters for group in self._sharded.groups]
        self._sharded.load_state_dict({"groups": groups, "states": states})

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Refuse a state of another optimiser, or of other parameters. Local."""
        self._whole.check_state(state)

    def _gather(self, wholes: list[list[tuple[int, Array]]], what: str) -> None:
        """Complete arrays that have this rank's shards. Collective.

        Parameters
        ----------
        wholes : list of list of (int, array)
            For each sharing, arrays of one axis, with the number of the parameter whose
            size each has.
        what : str
        """
        begun = list[AllGather]()
        for sharing, arrays in zip(self._sharings, wholes):
            shares = [sharing.share(place) for place in range(len(sharing.ranks))]
            parts = [
                [(k, of_rank[i]) for k, (i, _) in enumerate(arrays)]
                for of_rank in shares
            ]
            words = f"{what} of shard {{}} of {len(sharing.ranks)}"
            whole = [array for _, array in arrays]
            # a state that is saved is NumPy's, whatever the device
            xp = backend.array_module(next(iter(whole), None))
            channel = Channel(self._process_group, OwnTag.COPY, xp=xp)
            begun.append(AllGather(channel, sharing.ranks, whole, parts, words))
        for gathering in begun:
            gathering.wait()
        finish(send for gathering in begun for send in gathering.exchange.sends)


def check_elementwise(rule: Any) -> type[Optimiser]:
    """Return a class of optimisers that update each element independently, or say which
    parameters they take whole.

    Raises
    ------
    ArgumentError
        Code ``type``, for any other object.
    """
    if not (isinstance(rule, type) and issubclass(rule, Optimiser)):
        message = (
            f"pipeline.sharded was given {rule!r:.60}; expected a class of optimisers, "
            "such as optim.Adam."
        )
        raise ArgumentError(
            "type",
            f"{message} Pass its settings by name: pipeline.sharded(optim.SGD, "
            "learning_rate=0.1).",
        )
    if not takes_parts(rule):
        raise ArgumentError(
            "type",
            f"{rule.__name__} may read a parameter as a whole, such as its norm; a "
            "rank that updates a shard of its elements cannot. If its update of an "
            "element follows from that element's own value, gradient and state, write "
            "is_elementwise = True into the class; otherwise use it without "
            "pipeline.sharded.",
        )
    return rule


def _piece_of(parameter: Parameter, elements: slice, is_whole: bool) -> Parameter:
    """Return this rank's elements of a parameter, which are none or all if it stays
    whole.
    """
    own = _flat(parameter)[elements]
    if not is_whole:
        return Parameter(own)
    if own.size == 0:
        rows = backend.array_module(own).zeros(
            (0, *parameter.shape[1:]), dtype=own.dtype
        )
        return Parameter(rows)
    if not parameter.is_divided:
        return Parameter(backend.reshape(own, parameter.shape))
    # the other parts of the matrix are of the same owner, among other replicas
    owner: Any = parameter.owner
    piece = ShardedParameter(owner.shard, None, parameter.dtype)
    piece.data = backend.reshape(own, parameter.shape)
    return piece


def _reshaped(elements: Array, piece: Parameter) -> Array:
    return backend.reshape(elements, piece.shape)


def _flat(parameter: Parameter) -> Array:
    """Return a view of the values in one row."""
    parameter.data = backend.contiguous(parameter.data)
    return backend.array_module(parameter.data).reshape(parameter.data, (-1,))
