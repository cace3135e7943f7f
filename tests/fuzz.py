"""Random and mutated inputs for every parser: only documented errors, in bounded time
and memory.

    python -m tests.fuzz --inputs 100000

The suite runs a few hundred of them (tests/test_fuzz.py). Each input comes from its
number alone, so a failure is repeated by ``--only PARSER --first NUMBER --inputs 1``.
"""

import argparse
import contextlib
import functools
import io
import json
import random
import resource
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import NamedTuple

from minipipe import Costs, Schedule, schedules, simulate, verify
from minipipe.cli import main as command
from minipipe.cli.supervision.launching import parse_hosts
from minipipe.errors import ArgumentError, MinipipeError
from minipipe.render.editor import Editor
from minipipe.schedules import Action, Program, read_schedule, schedule_of_text
from minipipe.schedules.analysis.workload import Objective
from minipipe.schedules.simulation.evaluation import Claim, check_claim
from minipipe.schedules.simulation.paper_scale import Run, read_runs
from minipipe.search.brute_force import solve_by_branch_and_bound
from minipipe.search.certificate import read_certificate
from tests.pipeline.checkpoint import forging

MOST_SECONDS, MOST_GROWTH = 10.0, 1 << 30  # for one input, and in bytes for all of them
SEEDS = [
    "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n",
    "# 1f1b (frozen: 0): 2 ranks\nrank 0: 0F0 0F1 0B0 0B1\nrank 1: 1F0 1B0 1F1 1B1\n",
    "F0 F1 B0 B1\nF0 B0 F1 B1",
    "rank 0: 0F0 0SEND_F0 0RECV_B0 0B0\nrank 1: 1RECV_F0 1F0 1B0 1SEND_B0",
    "0F0,(0F1;0B0)OVERLAP_F_B,0UNSHARD,,0B1",
    '"0F0","0B0"',
    "F=1,I=1,W=0.5:1,latency=0.1,bandwidth=3,message_size=2,update=1",
]
CERTIFICATE = solve_by_branch_and_bound(
    Costs(latency=0.5).workload((0, 1), 2, 2), Objective.SPAN
).to_json()
HOSTS = ["# two\nfirst:4\nsecond : 2\n", "first slots=4 max_slots=8\nsecond\n"]
RUNS = (
    ",".join(Run._fields)
    + "\nmine,1.7B,24,2304,24,1,1,1,32,512,16,full,replicas,137TF\n"
)
MESSAGES = [
    '{"do":"costs","costs":"F=2,I=1,W=0.5,latency=0.25"}',
    '{"do":"text","text":"0F0 0F1 0B0 0B1\\n1F0 1B0 1F1 1B1"}',
    '{"do":"open","name":"gpipe","ranks":2,"microbatches":3}',
    '{"do":"cut","time":12.5}',
]
WORDS = [
    *("0F0", "0B0", "1I1", "0W0", "rank 0:", "rank", ":", ",", " ", "\n", "\r", "\r\n", "\t", "#", "(", ";", ")", '"'),
    *("OVERLAP_F_B", "UNSHARD", "frozen: ", "\ufeff", "\0", "\x1b[2J", "\u2028", "\x85", "\x1c", "\ud800"),
    *("9" * 9, "9" * 10, "9" * 5000, "999999999F0", "0F999999999", "-1F0", "٣F٣", "0f0", "1e400", "nan", "inf", "="),
    *("F=", "latency=", "bandwidth=0", ":", "F=1:2", "1" * 400, "(" * 500, "," * 2000, "0F0," * 2000, "\n" * 2000),
]  # fmt: skip
ARGUMENTS = [
    *("show", "check", "simulate", "step", "schedules", "sweep", "--ranks", "--microbatches", "--chunks", "--group"),
    *("--freeze", "--schedules", "--joined"),
    *("--steps", "--costs", "--format", "--width", "--font-size", "--messages", "--json", "--memory-limit", "--at"),
    *("--title", "--no-legend", "--sends-block", "--wait", "--all", "--from", "--to", "--help", "--version", "--"),
    *("1f1b", "gpipe", "zb-v", "interleaved-1f1b", "csv", "svg", "html", "text", "perfetto", "rows", "0", "1", "2"),
    *("-1", "9" * 20, "9" * 5000, "1e400", "nan", "a" * 300, "a\0b", "\x1b[2J", "\udcff", "/dev/zero", ".", "", "F=1"),
]  # fmt: skip


class Found(NamedTuple):
    """What a parser did with its inputs."""

    inputs: int
    refused: int
    slowest: float  # seconds
    peak: int  # bytes, of the process


def text_of(number, seeds=SEEDS):
    """Return the input of a number: random words, or a legal text with some characters
    changed.
    """
    draw = random.Random(number)
    if draw.random() < 0.4:
        return "".join(draw.choices(WORDS, k=draw.randint(0, 12)))
    text = draw.choice(seeds)
    for _ in range(draw.randint(1, 6)):
        first, length = draw.randint(0, len(text)), draw.choice((0, 0, 1, 2, 5, 40))
        new = draw.choice(
            (
                draw.choice(WORDS),
                text[first : first + 9],
                chr(draw.randrange(0x110000)),
                "",
            )
        )
        text = text[:first] + new + text[first + length :]
    return text


def bytes_of(number):
    """Return the same as the content of a file, sometimes in another encoding or with
    bytes changed.
    """
    draw = random.Random(number)
    encoding = draw.choice(("utf-8", "utf-8", "utf-8", "utf-16", "latin-1"))
    content = bytearray(text_of(number).encode(encoding, "replace"))
    for _ in range(draw.choice((0, 0, 1, 8))):
        content.insert(draw.randint(0, len(content)), draw.randrange(256))
    return bytes(content)


def whole(read):
    """Return a parser that goes on with what was read: it must not fail later in
    another way.
    """

    def reads(number):
        table = read(text_of(number))
        table.to_text(), table.to_csv(), repr(table)
        verify(table)

    return reads


def read_a_file(number):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "given.csv")
        path.write_bytes(bytes_of(number))
        read_schedule(path)


def read_costs(number):
    costs = Costs.parse(text_of(number))
    simulate(schedules.gpipe(2, 2), costs)


def read_and_check_a_certificate(number):
    certificate, _ = read_certificate(text_of(number, [CERTIFICATE]))
    claim = Claim(
        certificate.objective,
        certificate.value,
        certificate.bound,
        certificate.bound_by,
    )
    check_claim(certificate.schedule, certificate.workload, claim)


@functools.cache
def forge():
    folder = tempfile.TemporaryDirectory()
    made = forging.Forge(folder.name)
    made.folder = folder  # deleted with it
    return made


def restore_a_checkpoint(number):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # another number of microbatches is worth one
        forge().restore(forging.text_of(forge().manifest, number))


def ask_the_editor(number):
    answer = json.loads(Editor().ask(text_of(number, MESSAGES)))
    if answer["isRefused"]:
        raise ArgumentError("value", answer["said"])


def run_command(number):
    draw = random.Random(number)
    words = draw.choices(ARGUMENTS, k=draw.randint(0, 6))
    if draw.random() < 0.8:
        words = [
            draw.choice(ARGUMENTS[:5]),
            draw.choice(("1f1b", "gpipe", "zb-v")),
            *words,
        ]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = command([word for word in words if word not in ("-o", "-")])
        except SystemExit as end:
            status = end.code
    assert status in (0, 1, 2), (words, status)
    assert all(c.isprintable() or c == "\n" for c in out.getvalue() + err.getvalue()), (
        words
    )


PARSERS = {
    "Action.parse": lambda number: Action.parse(text_of(number)),
    "Schedule.from_text": whole(Schedule.from_text),
    "Schedule.from_csv": whole(Schedule.from_csv),
    "Program.from_text": whole(Program.from_text),
    "schedule_of_text": whole(schedule_of_text),
    "read_schedule": read_a_file,
    "Costs.parse": read_costs,
    "certificate": read_and_check_a_certificate,
    "manifest": restore_a_checkpoint,
    "hosts": lambda number: parse_hosts(text_of(number, HOSTS), "hosts"),
    "published runs": lambda number: read_runs(text_of(number, [RUNS])),
    "message of the editor": ask_the_editor,
    "command line": run_command,
}


def fuzz(parser, inputs, first=0):
    """Give a parser its inputs. Anything but a documented error, or a slow input, is an
    AssertionError.
    """
    refused, slowest = 0, 0.0
    for number in range(first, first + inputs):
        started = time.process_time()
        try:
            PARSERS[parser](number)
        except MinipipeError:
            refused += 1
        except Exception as error:
            raise AssertionError(
                f"{parser}, input {number}: {type(error).__name__}: {error}"
            ) from error
        slowest = max(slowest, time.process_time() - started)
        assert slowest < MOST_SECONDS, f"{parser}, input {number}: {slowest:.1f} s"
    return Found(
        inputs,
        refused,
        slowest,
        1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", choices=PARSERS)
    options = parser.parse_args()
    before = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name in [options.only] if options.only else PARSERS:
        found = fuzz(name, options.inputs, options.first)
        assert found.peak - before < MOST_GROWTH, f"{name}: {found.peak >> 20} MiB"
        print(
            f"{name:20} {found.inputs:7} inputs, {found.refused:7} refused, "
            f"slowest {1000 * found.slowest:.1f} ms, peak {found.peak >> 20} MiB",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
