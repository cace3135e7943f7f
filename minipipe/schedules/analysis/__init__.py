"""Properties of a schedule: dependencies, activations held, legality, lowering, closed
forms. No NumPy.

``dependencies`` states the data dependencies, ``activations`` the memory held; all
other files ask these two. Files of these packages import from each other. Everywhere
else, public names come from :mod:`minipipe.schedules`.
"""

__all__: list[str] = []
