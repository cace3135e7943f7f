"""The names of variables in a function of a stand-alone file."""

from __future__ import annotations

from minipipe.compile.export.loops import relative
from minipipe.compile.statements import Statement, written


class Names:
    """The names of variables in a function.

    Parameters
    ----------
    layer : int or None
        In the function of a repeated part, the layer of its first call.
    """

    def __init__(self, layer: int | None) -> None:
        self.own: dict[str, str] = {}
        self._layer = layer

    def of(self, name: str) -> str:
        """Return the name of a variable; a new one for a new variable."""
        if name not in self.own:
            used = set(self.own.values())
            number = next(n for n in range(len(used) + 1) if f"v{n}" not in used)
            self.own[name] = f"v{number}"
        return self.own[name]

    def written(self, statement: Statement) -> str:
        """Return a statement with the names of this function."""
        for name in statement.makes:
            self.of(name)
        return written(statement.text, self._written)

    def _written(self, name: str) -> str:
        kind, _, rest = name.partition(":")
        if kind == "layer":
            return str(rest) if self._layer is None else self._relative(int(rest))
        if kind not in ("w", "d"):
            return self.of(name)
        text = f'"{rest}"'
        if self._layer is not None:
            layer, _, own = rest.partition(".")
            text = f'f"{{{self._relative(int(layer))}}}.{own}"'
        return f"w[{text}]" if kind == "w" else text

    def _relative(self, layer: int) -> str:
        assert self._layer is not None
        return relative("layer", layer - self._layer)
