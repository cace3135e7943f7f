"""Tensors and their graph: operations note nodes, and the walk back gives gradients."""

__all__: list[str] = []
