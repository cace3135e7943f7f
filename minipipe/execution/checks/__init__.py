"""The checks around a step: do all ranks run the same program, and is every value
finite?
"""

__all__: list[str] = []
