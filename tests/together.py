"""Run several programs on the ranks of one mpirun: most of the time of a short job goes
into imports.

    mpirun -n 2 python -m tests.together '[["tests.pipeline.random_steps", "5"],
    ["tutorials/train.py"], …]'

Each program, a module or a file, is run as ``python`` runs it, after the one before has
ended on this rank. Afterwards a rank prints one line of JSON, with what each program
printed; tests/launch.py reads it (``mpirun_together``).
"""

import contextlib
import io
import json
import runpy
import sys
from pathlib import Path


def run(program, arguments):
    """Run a program; an exit with another status than 0 ends the job."""
    sys.argv = [program, *arguments]
    try:
        if program.endswith(".py"):
            sys.path.insert(0, str(Path(program).parent))
            runpy.run_path(program, run_name="__main__")
        else:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if ended.code:
            raise


def main():
    printed = []
    for program, *arguments in json.loads(sys.argv[1]):
        with contextlib.redirect_stdout(io.StringIO()) as stream:
            run(program, arguments)
        printed.append(stream.getvalue())
    sys.stdout.write(json.dumps(printed) + "\n")


if __name__ == "__main__":
    main()
