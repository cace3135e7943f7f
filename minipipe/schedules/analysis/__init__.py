"""What follows from a schedule: dependencies, activations held, legality, lowering, closed forms. No NumPy.

``dependencies`` states the data dependencies, ``activations`` the memory held; all other files ask these two.
Import from the files; public names can also be called from :mod:`minipipe.schedules`.
"""

__all__: list[str] = []
