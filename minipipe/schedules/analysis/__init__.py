"""What follows from a schedule: dependencies, activations held, legality, lowering, closed forms. No NumPy.

``dependencies`` says who produces what for whom, ``activations`` what a rank holds; all other files ask these two.
Import from the files; public names can also be called from :mod:`minipipe.schedules`.
"""

__all__: list[str] = []
