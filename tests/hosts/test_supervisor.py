"""A host is lost, and ``minipipe run`` starts the job again on the others: four ranks,
two on each, over real TCP.
"""

import os
import re
import shlex
import signal
import sys

import pytest

from tests.hosts.job import TIMEOUT
from tests.hosts.network import needs_hosts

pytestmark = [*needs_hosts, pytest.mark.slow]

# Trains until it is disturbed, or as a second attempt three steps.
PROGRAM = f"""
import os
import numpy as np
from minipipe import Pipeline, init_process_group, nn

with init_process_group() as group:
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
    pipeline = Pipeline(model, group, loss=nn.MSELoss(), num_microbatches=4)
    samples = np.ones((8, 8), np.float32)
    for step in range(100_000 if os.environ["MINIPIPE_RESTART"] == "0" else 3):
        pipeline.step(samples, samples)
        if step == 2:
            group.barrier()
            group.timeout = {TIMEOUT}
            if group.rank == 0:
                print(group.size, "ranks train", flush=True)
"""


# A host whose kernel answers, if only that nobody listens there, is not gone.
KNOCK = """
import socket, sys
from contextlib import suppress

with suppress(ConnectionRefusedError):
    socket.create_connection((sys.argv[1], 22), timeout=2)
"""


@pytest.mark.parametrize(
    "deed", ["all its processes are killed", "the cable is pulled"]
)
def test_the_job_goes_on_without_a_host_that_is_gone_and_with_one_that_answers(
    deed, two_hosts, tmp_path
):
    lost = two_hosts.hosts[1]
    (tmp_path / "hosts").write_text(
        "".join(f"{host.address}:2\n" for host in two_hosts.hosts)
    )
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "knock.py").write_text(KNOCK)
    probe = shlex.join([sys.executable, str(tmp_path / "knock.py"), "HOST"])
    options = [
        "--hostfile",
        tmp_path / "hosts",
        "--launcher",
        shlex.join(two_hosts.launcher),
        "--probe",
        probe,
    ]
    command = [
        sys.executable,
        "-m",
        "minipipe",
        "run",
        "--restarts",
        "1",
        *options,
        tmp_path / "train.py",
    ]
    job = two_hosts.start_on_login(*command)
    assert job.stdout.readline() == "4 ranks train\n", two_hosts.finish(
        job, limit=60
    ).err
    if deed == "the cable is pulled":
        two_hosts.unplug(lost)
    else:
        for process in lost.processes():
            os.kill(process.pid, signal.SIGKILL)
    done = two_hosts.finish(job, limit=90)  # and nothing is left on any host
    print(f"{deed}: T = {done.seconds:.1f} s")
    print(done.err)
    ranks, words = (
        (2, f"2 of 4 ranks, without {lost.address}")
        if "cable" in deed
        else (4, "4 ranks")
    )
    assert done.code == 0 and done.out.endswith(f"{ranks} ranks train\n")
    assert re.search(
        rf"^minipipe: .*: attempt 0 failed with .*; restart 1 of 1 on {words}",
        done.err,
        re.MULTILINE,
    )
