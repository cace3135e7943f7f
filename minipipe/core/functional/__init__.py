"""The operations of the core: each one's forward and its gradients side by side."""

__all__: list[str] = []
