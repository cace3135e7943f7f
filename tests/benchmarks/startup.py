"""How long it takes to begin: imports next to NumPy's, and ``mpirun`` up to the first
step.

    python tests/benchmarks/startup.py
    python tests/benchmarks/startup.py --json

Whole processes by turns, medians: an import counts from the start of the interpreter to
its end, a first step from the start of ``mpirun`` to the end of the first
``pipeline.step`` on rank 0.

Aims: ``import minipipe`` at most 1.3 times ``import numpy``; the first step of four
ranks within 1.5 s.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from statistics import median

IMPORTS = {
    "numpy": "import numpy",
    "minipipe": "import minipipe",
    "minipipe.schedules": "from minipipe import schedules; schedules.zb_h1(4, 8)",
    "Pipeline, nn, optim": "from minipipe import Pipeline, nn, optim, init_process_group",
}
FIRST_STEP = """
import numpy as np, time
from minipipe import Pipeline, init_process_group, nn, optim
with init_process_group() as group:
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8)))
    pipeline = Pipeline(model, group, loss=nn.MSELoss())
    pipeline.step(np.ones((32, 64)), np.ones((32, 64)))
    if group.rank == 0:
        print(time.time())
"""


def seconds_of(code):
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - start


def seconds_to_first_step(mpirun, ranks):
    start = time.time()
    done = subprocess.run(
        [mpirun, "-n", str(ranks), sys.executable, "-c", FIRST_STEP],
        check=True,
        capture_output=True,
    )
    return float(done.stdout) - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--ranks", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    mpirun = shutil.which("mpirun")
    times = {name: [] for name in IMPORTS} | {
        f"first step, {n} ranks": [] for n in options.ranks if mpirun
    }
    for _ in range(options.rounds + 1):
        for name, code in IMPORTS.items():
            times[name].append(seconds_of(code))
        for n in options.ranks if mpirun else ():
            times[f"first step, {n} ranks"].append(seconds_to_first_step(mpirun, n))
    # the first round fills caches
    medians = {name: median(found[1:]) for name, found in times.items()}
    if options.json:
        print(json.dumps(medians, indent=1))
        return
    for name, spent in medians.items():
        print(f"{name:24}{spent:8.3f} s{spent / medians['numpy']:8.2f} times numpy")


if __name__ == "__main__":
    main()
