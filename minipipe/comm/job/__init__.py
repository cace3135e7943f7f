"""How the processes of a job start, watch each other and end; ``comm/README.md`` has
the reading order.
"""

__all__: list[str] = []
