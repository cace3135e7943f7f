"""``minipipe export``: what each rank of a training program does, as a stand-alone
file.
"""

from __future__ import annotations

import argparse

from minipipe.cli.declaring import NUM_RANKS, RANKS, adder, file_path
from minipipe.cli.output import ExitStatus, answer
from minipipe.core.specs import COUNT
from minipipe.errors import LaunchError, counted, misuse, quoted
from minipipe.io import printable

PASSES_ON = True
"""Whether arguments after ``--`` belong to a program."""

_STEPS = COUNT._replace(maximum=1000)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = adder(parser, "export")
    add("--ranks", spec=RANKS, default=NUM_RANKS)
    add("--steps", spec=_STEPS, default=3)
    add("-o", "--output", type=file_path)
    add("program", nargs="?")


def run(options: argparse.Namespace) -> ExitStatus:
    """Run the program, and write the files of its ranks."""
    if options.program is None:
        example = "minipipe export train.py --ranks 2 -o exported"
        problem = "Expected a training program, as in"
        raise LaunchError("not-found", f"{problem}: {example}.")
    if options.output is None:
        raise misuse("Expected a folder to write to: -o DIR.")
    if options.output.exists() and not options.output.is_dir():
        problem = f"{quoted(str(options.output), 200)} is a file"
        raise misuse(f"{problem}; expected a folder.")
    from minipipe.cli.export_program import exported
    from minipipe.cli.ranks import check_memory

    check_memory(options.ranks)
    files = exported(
        options.program, options.passed_on, options.ranks, options.steps, options.output
    )
    folder = printable(str(options.output))
    command = f"python {files[0]}"
    if len(files) > 1:
        command = "mpirun " + " : ".join(f"-n 1 python {name}" for name in files)
    steps = counted(options.steps, "step")
    text = f"wrote {', '.join(files)} to {folder}, {steps}; run them there: {command}"
    data = {
        "wrote": [str(options.output / name) for name in files],
        "steps": options.steps,
        "command": command,
    }
    return answer(options, data, text)
