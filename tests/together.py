"""Run several programs on the ranks of one mpirun: most of the time of a short job goes into imports.

    mpirun -n 2 python -m tests.together '[["tests.pipeline.random_steps", "5"], …]'

Each program is run as ``python -m`` runs it, after the one before has ended on this rank. Afterwards a rank prints one
line of JSON, with what each program printed; tests/launch.py reads it (``mpirun_together``).
"""

import contextlib
import io
import json
import runpy
import sys


def main():
    printed = []
    for module, *arguments in json.loads(sys.argv[1]):
        sys.argv = [module, *arguments]
        with contextlib.redirect_stdout(io.StringIO()) as stream:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        printed.append(stream.getvalue())
    sys.stdout.write(json.dumps(printed) + "\n")


if __name__ == "__main__":
    main()
