"""One job with one fault, as a user's script: ``mpirun -n 4 python tests/faults/job.py
FAULT PLACE RANK with|without``.

FAULT is a deed, which happens at PLACE of the training on RANK, or a scene: a program
of its own.
"""

import os
import sys

from tests.faults import deeds


def main(fault, place, rank, style):
    due = deeds.Due(getattr(deeds, fault, None), place, int(rank))
    due.reach("first line")
    from minipipe import init_process_group  # here, since a script may fail before
    from tests.faults import scenes, training

    if "FAULT_STREAM_EARLY" in os.environ:
        deeds.break_stream(*os.environ["FAULT_STREAM_EARLY"].split())
    due.reach("before the group")
    scene = getattr(scenes, fault, None)
    timeout = float(os.environ["FAULT_TIMEOUT"])

    def act(group):
        if "FAULT_STREAM" in os.environ:
            deeds.break_stream(*os.environ["FAULT_STREAM"].split())
        if scene:
            scene(group, int(rank))
        else:
            training.train(group, due)

    if style == "with":
        with init_process_group(timeout=timeout) as group:
            act(group)
        del group
    else:
        act(init_process_group(timeout=timeout))
    due.reach("exit")
    print("ended well", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
