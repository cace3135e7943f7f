"""Training that goes on when a rank is lost: nothing is computed twice but the step, and no bit is another.

``training`` holds the loop and says what is kept where, and why nothing is lost. ``pieces`` is the state of a pipeline
and its optimiser by the names of parameters, ``vault`` the copies of it, ``survivors`` the group of MPI processes that
goes on without some of them.
"""

from minipipe.pipeline.elastic.training import Trained, train

__all__ = ["Trained", "train"]
