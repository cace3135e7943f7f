"""A training step on a GPU: minipipe, eager and compiled, beside PyTorch.

    python tests/benchmarks/gpu.py
    python tests/benchmarks/gpu.py --quick
    python tests/benchmarks/gpu.py --case GPT --rounds 21 --json

The cases are three language models of GPT's form, trained by AdamW, and three MLPs of
Linear and ReLU, trained by SGD; gpu_models.py has their sizes. A step is forward and
backward of all microbatches, the update, and a read of the loss::

    torch, eager            PyTorch's eager step, with a fused update
    torch, graph            forward and backward of all microbatches in one CUDA graph; a fused update
    minipipe, eager         Pipeline(…, device="gpu")
    minipipe, compiled      Pipeline(…, device="gpu", compile="where-possible")
    …, tf32                 the same, with products in TF32

Each contender is a process. They begin with the same weights, and must have nearly the
same losses. Then they take turns on the GPU, a round each, so that other load affects
all of them. Shown are the median and the lowest time of a step, the median of the
ratios round by round, and the aim. A batch of minipipe's comes from the memory of the
host in every step; PyTorch has it on the GPU.

Then ranks share the GPU, with messages through pinned memory: the same losses, and the
time of one rank and of four (with mpirun); and the rates of copies between the host and
the GPU.

All of it takes about six minutes. Nothing runs for longer than ``--seconds``: each part
gets what is left of them, two and a half minutes at most. A part that fails, or is left
out, is a row that says why. A part's row is printed at once; with ``--json`` it is a line.
Without PyTorch minipipe alone is timed.
"""

import argparse
import gc
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from statistics import median
from time import perf_counter

import numpy as np
from gpu_models import AIM_OF_EAGER, CASES, TINY, seconds_of, step_of

from minipipe import gpu, init_process_group
from minipipe.core.autograd import backend
from minipipe.errors import LaunchError

CONTENDERS = {
    "torch, eager": None,
    "torch, graph": None,
    "minipipe, eager": "torch, eager",
    "minipipe, compiled": "torch, graph",
    "torch, eager, tf32": None,
    "torch, graph, tf32": None,
    "minipipe, eager, tf32": "torch, eager, tf32",
    "minipipe, compiled, tf32": "torch, graph, tf32",
}
"""The contenders, each with the one that it is compared with."""
LONGEST = 150  # seconds, of a part: the first one compiles kernels
ROUND = 0.12  # seconds, at least a step


def aim_of(case, name):
    """Return the aim of a contender's ratio, or None."""
    if not name.startswith("minipipe"):
        return None
    if "eager" in name:
        return AIM_OF_EAGER
    return case.aim_of_tf32 if "tf32" in name else case.aim


# -- the process of a contender --------------------------------------------------------


class Contender:
    """The steps of one contender, in its own process."""

    def __init__(self, name, device):
        self.is_ours = name.startswith("minipipe")
        self.is_compiled = "eager" not in name
        self.device = device
        self.step = None
        if self.is_ours:
            gpu.allow_tf32("tf32" in name)
            self.group = init_process_group()
            self.xp = backend.module_for(device)
        else:
            from gpu_in_torch import torch

            self.torch = torch
            torch.set_num_threads(1)
            torch.backends.cuda.matmul.allow_tf32 = "tf32" in name

    def wait(self):
        """Wait until the device has done its work."""
        if self.is_ours:
            backend.synchronise(self.xp)
        elif self.device != "cpu":
            self.torch.cuda.synchronize()

    def begin(self, case):
        """Prepare a case; return its first losses, and a note."""
        self.step = None
        gc.collect()  # which frees the memory of the case before
        note = ""
        if self.is_ours:
            self.step, pipeline = step_of(
                case, self.group, self.device, self.is_compiled
            )
        else:
            import gpu_in_torch

            self.torch.cuda.empty_cache()
            if self.is_compiled:
                self.step = gpu_in_torch.graph_step(case)
            else:
                device = "cpu" if self.device == "cpu" else "cuda"
                self.step = gpu_in_torch.eager_step(case, device)
        losses = [self.step() for _ in range(5)]
        if self.is_ours and self.is_compiled:
            note = str(pipeline.compile_report())
        return losses, note

    def round(self, count):
        """Return the seconds of some steps."""
        return seconds_of(self.step, self.wait, count)


def serve(connection, name, device):
    """Answer what the parent asks of a contender, until it asks for nothing."""
    contender = None
    while (asked := connection.recv()) is not None:
        try:
            contender = contender or Contender(name, device)
            method, given = asked
            connection.send((True, getattr(contender, method)(given)))
        except Exception as error:
            connection.send((False, f"{type(error).__name__}: {error}"[:300]))


class Process:
    """A contender's process, as the parent sees it."""

    def __init__(self, name, device):
        context = multiprocessing.get_context("spawn")
        self._own, other = context.Pipe()
        self._process = context.Process(
            target=serve, args=(other, name, device), daemon=True
        )
        self._process.start()

    def ask(self, method, given):
        with suppress(OSError):  # it has ended, as its answer will say
            self._own.send((method, given))

    def answer(self, seconds):
        """Return whether it went well, and the result or a message."""
        if not self._own.poll(seconds):
            return False, f"no answer within {seconds:.0f} s"
        try:
            return self._own.recv()
        except (EOFError, OSError):
            self._process.join(1)
            return False, f"its process ended, with {self._process.exitcode}"

    def end(self):
        self._process.kill()
        self._process.join(10)


# -- cases -----------------------------------------------------------------------------


class Limit:
    """The time that is left."""

    def __init__(self, seconds):
        self._end = perf_counter() + seconds

    def left(self):
        """Return seconds, 0 if the end has come."""
        return max(0.0, self._end - perf_counter())

    def of_part(self):
        """Return the limit of a part that begins now."""
        return Limit(min(LONGEST, self.left()))


def compared(case, processes, rounds, limit):
    """Return {name: figures or a message} of a case."""
    rows = {}
    limit = limit.of_part()
    for process in processes.values():  # together, since this takes the longest
        process.ask("begin", case)
    found = {name: each.answer(limit.left()) for name, each in processes.items()}
    begun = {name: answer for name, (is_well, answer) in found.items() if is_well}
    rows |= {name: answer for name, (is_well, answer) in found.items() if not is_well}
    rows |= others_than_the_first({name: losses for name, (losses, _) in begun.items()})
    times = {name: [] for name in begun}
    for i in range(rounds + 1):
        for name in sorted(begun.keys() - rows.keys(), reverse=i % 2):
            count = max(1, round(ROUND / times[name][0])) if i else 1
            processes[name].ask("round", count)
            is_well, answer = processes[name].answer(limit.left())
            if is_well:
                times[name].append(answer / count)
            else:
                rows[name] = answer
    times = {name: own[1:] for name, own in times.items() if name not in rows}
    for name in times:
        rows[name] = {**figures_of(case, name, times), "note": begun[name][1]}
    return {name: rows[name] for name in processes}


def figures_of(case, name, times):
    """Return the times of a contender and its ratio, with the aim."""
    row = {"ms": 1e3 * median(times[name]), "lowest": 1e3 * min(times[name])}
    other = times.get(CONTENDERS[name])
    if other:
        row["ratio"] = median(map(np.divide, times[name], other))
        row["aim"] = aim_of(case, name)
    return row


def others_than_the_first(losses):
    """Return messages for contenders whose losses are not nearly those of the first."""
    rows = {}
    first = next(iter(losses.values()), None)
    for name, found in losses.items():
        limit = 2e-2 if "tf32" in name else 1e-3
        if not np.allclose(found, first, rtol=limit):
            rows[name] = f"has the losses {found}, and others have {first}"
    return rows


def show(case, rows):
    """Print the table of a case."""
    print(f"\n{case}\n{'':26}{'ms':>9}{'lowest':>9}{'ratio':>8}{'aim':>7}")
    for name, row in rows.items():
        if isinstance(row, str):
            print(f"{name:26} {row}")
            continue
        line = f"{name:26}{row['ms']:9.3f}{row['lowest']:9.3f}"
        if "ratio" in row:
            line += f"{row['ratio']:8.2f}"
        if row.get("aim"):
            verdict = "met" if row["ratio"] <= row["aim"] else "not met"
            line += f"{row['aim']:7.2f} {verdict}"
        print(line)
        for note in row["note"].splitlines():
            if not note.endswith(("is compiled", "as graphs")):
                print(f"{'':26} {note}")
    sys.stdout.flush()


# -- ranks that share the GPU ----------------------------------------------------------


def as_rank(case, device, rounds):
    """Train as one rank of several; rank 0 prints its figures."""
    with init_process_group() as group:
        step, _ = step_of(case, group, device, compiles=True)
        xp = backend.module_for(device)
        losses = [step() for _ in range(5)]
        times = [
            seconds_of(step, lambda: backend.synchronise(xp), 5) / 5
            for _ in range(rounds)
        ]
        if group.rank == 0:
            print(json.dumps({"losses": losses, "ms": 1e3 * median(times)}))


def shared(case, device, rounds, limit):
    """Return the figures of one rank and of four on the same GPU, or a message."""
    limit = limit.of_part()
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        return "there is no mpirun: pip install -e '.[mpi]'"
    found = {}
    for count in (1, 4):
        options = ["--case", case.name, "--device", device, "--rounds", str(rounds)]
        command = [mpirun, "-n", str(count), sys.executable, __file__, *options]
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        try:
            done = subprocess.run(
                [*command, "--as-rank"],
                capture_output=True,
                text=True,
                timeout=limit.left(),
                env=environment,
            )
        except subprocess.TimeoutExpired:
            return f"{count} ranks: no answer in time"
        if done.returncode:
            return f"{count} ranks: {done.stderr.strip()[-300:]}"
        found[count] = json.loads(done.stdout.splitlines()[-1])
    alone, four = found.values()
    is_same = alone["losses"] == four["losses"]
    ratio = four["ms"] / alone["ms"]
    return {"1": alone["ms"], "4": four["ms"], "ratio": ratio, "same losses": is_same}


def show_shared(title, row):
    same = "the same losses" if row["same losses"] else "OTHER losses"
    print(f"{title}: {row['1']:.3f} ms on one rank, {row['4']:.3f} on four; {same}")


def show_rates(title, row):
    print(f"\n{title}")
    print("\n".join(f"{name:32}{rate:7.1f} GB/s" for name, rate in row.items()))


def rates(device, size=64 << 20):
    """Return the gigabytes per second of copies to the host and back."""
    xp = backend.module_for(device)
    array = xp.ones(size // 4, dtype=xp.float32)
    found = {}
    host = backend.to_numpy(array)
    ways = {
        "to pinned memory, as messages": lambda: backend.to_numpy(array),
        "to other memory": lambda: array.get(),
        "from pinned memory": lambda: backend.moved(host, xp),
        "from other memory": lambda: backend.moved(host.copy(), xp),
    }
    for name, way in ways.items():
        way()
        seconds = [
            seconds_of(way, lambda: backend.synchronise(xp), 1) for _ in range(7)
        ]
        found[name] = size / median(seconds) / 1e9
    return found


# -- the program -----------------------------------------------------------------------


def parsed(arguments=None):
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--case", action="append", help="only cases with this in their name")
    add("--rounds", type=int, help="by default 11; with --quick 3")
    add("--quick", action="store_true", help="the smallest GPT and MLP, few rounds")
    add("--seconds", type=float, default=540, help="of all parts together")
    add("--json", action="store_true")
    add("--device", default="gpu", help="cpu is for a test of this program")
    add("--as-rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (3 if options.quick else 11)
    if options.rounds < 1:
        parser.error("--rounds is at least 1")
    cases = TINY if options.device == "cpu" else CASES
    if options.quick and not options.case:
        cases = [
            next(each for each in cases if each.is_text == k) for k in (True, False)
        ]
    wanted = options.case or [""]
    options.cases = [
        case for case in cases if any(part in case.name for part in wanted)
    ]
    if not options.cases:
        names = ", ".join(case.name for case in cases)
        parser.error(f"no case has {' or '.join(wanted)} in its name: {names}")
    return options


def names_of(device):
    """Return the contenders: a CPU has neither CUDA graphs nor TF32."""
    names = list(CONTENDERS)
    if device == "cpu":
        names = [n for n in names if "tf32" not in n and n != "torch, graph"]
    if missing := what_is_missing_of_torch(device):
        print(missing, file=sys.stderr)
        names = [n for n in names if n.startswith("minipipe")]
    return names


def what_is_missing_of_torch(device):
    """Return why PyTorch cannot be compared here, or an empty text."""
    try:
        import torch
    except ImportError:
        return "There is no PyTorch to compare with: pip install torch."
    if device != "cpu" and not torch.cuda.is_available():
        return f"PyTorch {torch.__version__} sees no GPU."
    return ""


class Report:
    """Prints the row of each part as soon as it is there."""

    def __init__(self, options):
        self._is_json = options.json
        self._limit = Limit(options.seconds)

    def part(self, title, run, show):
        """Run a part if time is left, and print its row; an error is a row as well."""
        row = "left out: no time is left"
        if self._limit.left():
            try:
                row = run(self._limit)
            except Exception as error:
                row = f"{type(error).__name__}: {error}"[:300]
        if self._is_json:
            print(json.dumps({"part": title, "row": row}), flush=True)
        elif isinstance(row, str):
            print(f"{title}: {row}", flush=True)
        else:
            show(title, row)
        return row


def compare_all(options, report):
    """Run all cases; a contender that fails begins the next case in a new process."""
    names = names_of(options.device)
    processes = {name: Process(name, options.device) for name in names}
    try:
        for case in options.cases:
            rows = report.part(
                str(case),
                lambda limit, c=case: compared(c, processes, options.rounds, limit),
                show,
            )
            for name in names:
                if isinstance(rows, str) or isinstance(rows[name], str):
                    processes[name].end()
                    processes[name] = Process(name, options.device)
    finally:
        for process in processes.values():
            process.end()


def main():
    options = parsed()
    if options.as_rank:
        as_rank(options.cases[0], options.device, options.rounds)
        return
    try:
        backend.module_for(options.device)
    except LaunchError as error:
        print(error)
        return
    report = Report(options)
    compare_all(options, report)
    for case in options.cases[:2]:
        report.part(
            f"{case.name}, compiled, on ranks that share the device",
            lambda limit, c=case: shared(c, options.device, options.rounds, limit),
            show_shared,
        )
    if options.device != "cpu":
        report.part("copies", lambda limit: rates(options.device), show_rates)


if __name__ == "__main__":
    main()
