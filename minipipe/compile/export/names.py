"""The names of variables in a function of a stand-alone file."""

from __future__ import annotations

from minipipe.compile.export.loops import relative
from minipipe.compile.statements import Statement, written


class Names:
    """The names of variables in a function.

    Parameters
    ----------
    layer : int or None
        The layer of the first call, in the function of repeated layers.
    """

    def __init__(self, layer: int | None) -> None:
        self.local: dict[str, str] = {}
        self._layer = layer

    def of(self, name: str) -> str:
        """Return the name of a variable, which may be new."""
        if name not in self.local:
            used = set(self.local.values())
            number = next(n for n in range(len(used) + 1) if f"v{n}" not in used)
            self.local[name] = f"v{number}"
        return self.local[name]

    def written(self, statement: Statement) -> str:
        """Return a statement with the names of this function."""
        for name in statement.makes:
            self.of(name)
        return written(statement.text, self._written)

    def _written(self, name: str) -> str:
        prefix, _, rest = name.partition(":")
        if prefix == "layer":
            return self._number(int(rest))
        if prefix == "w":
            return f"w[{self._quoted(rest)}]"
        if prefix == "d":
            return self._quoted(rest)
        return self.of(name)

    def _quoted(self, parameter: str) -> str:
        """Return the name of a parameter such as ``2.bias`` as an expression."""
        if self._layer is None:
            return f'"{parameter}"'
        layer, _, rest = parameter.partition(".")
        return f'f"{{{self._number(int(layer))}}}.{rest}"'

    def _number(self, layer: int) -> str:
        """Return the number of a layer, or its distance from the argument ``layer``."""
        if self._layer is None:
            return str(layer)
        return relative("layer", layer - self._layer)
