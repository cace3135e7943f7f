"""Several hosts train as one process does, and each knows its own ranks. Real TCP,
between namespaces of the kernel.
"""

import json
import os
import sys
import time

import pytest

from tests.hosts.network import Network, needs_hosts
from tests.launch import ROOT, run

pytestmark = [*needs_hosts, pytest.mark.slow]

EPOCHS, IMAGES, WIDTH = 2, 1438, 192
TRAIN = ("tutorials/train.py", "--epochs", str(EPOCHS))


def loss_line(out):
    return next(line for line in out.splitlines() if line.startswith("test loss"))


@pytest.fixture(scope="module")
def one_process():
    return run([sys.executable, *TRAIN])


@pytest.mark.parametrize("hosts", ["two_hosts", "four_hosts"])
def test_several_hosts_train_with_the_bits_of_one_process(hosts, one_process, request):
    network = request.getfixturevalue(hosts)
    before = [host.bytes_sent() for host in network.hosts]
    done = network.mpirun(4, *TRAIN)
    sent = [
        host.bytes_sent() - bytes_before
        for host, bytes_before in zip(network.hosts, before)
    ]
    print(f"{hosts}: {done.seconds:.1f} s, bytes over each wire: {sent}")
    assert (done.code, done.err) == (0, "")
    assert f"{IMAGES} training images" in done.out and loss_line(done.out) == loss_line(
        one_process.out
    )
    # float32: activations to the next host, or gradients back
    assert min(sent) > EPOCHS * IMAGES * WIDTH * 4


COMPILED = {
    "stages": ("tests.compile.all_schedules_over_mpi", "1f1b", 4, "plain", "wait"),
    "replicas of stages": (
        *("tests.compile.all_schedules_over_mpi", "zb-h1", 2, "replicas"),
    ),
    "replicas": ("tests.compile.replicas_over_mpi", "1f1b", "chimera"),
}


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_steps_on_two_hosts_have_the_bits_of_eager_ones(two_hosts, name):
    done = two_hosts.mpirun(4, "-m", *map(str, COMPILED[name]), limit=120)
    assert (done.code, done.err) == (0, "")
    assert "the same bits" in done.out


def test_no_process_and_no_device_outlives_the_hosts():
    devices = set(os.listdir("/sys/class/net"))
    with pytest.raises(ZeroDivisionError), Network(2) as network:
        job = network.start(2, "-m", "tests.hosts.job")
        assert job.stdout.readline() == "training\n"
        assert len(network.processes("tests.hosts.job")) >= 2
        raise ZeroDivisionError
    job.communicate()
    deadline = time.perf_counter() + 5.0
    while network.processes() or any(
        os.path.exists(f"/proc/{host.pid}") for host in network.hosts
    ):
        assert time.perf_counter() < deadline  # the kernel removes them
        time.sleep(0.01)
    assert set(os.listdir("/sys/class/net")) == devices


def test_a_host_counts_its_own_ranks(two_hosts):
    """For GPUs by the number within the host, for the way of waiting by its cores; one
    BLAS thread for each rank.
    """
    done = two_hosts.mpirun(4, "-m", "tests.hosts.neighbours")
    assert (done.code, done.err) == (0, "")
    told = sorted(
        map(json.loads, done.out.splitlines()), key=lambda facts: facts["rank"]
    )
    assert [facts["host"] for facts in told] == ["node0", "node0", "node1", "node1"]
    assert [facts["local_rank"] for facts in told] == [0, 1, 0, 1]
    assert {facts["blas_threads"] for facts in told} == {1}
    assert {facts["spins"] for facts in told} == {facts["cores"] >= 2 for facts in told}


def test_without_a_common_file_system_rank_0_writes_and_names_its_host(two_hosts):
    """/dev/shm is each host's own."""
    trace = "/dev/shm/traces/step.html"
    # and not on the other host
    two_hosts.hosts[0].run("mkdir", "-p", "/dev/shm/traces")
    done = two_hosts.mpirun(4, "tutorials/train.py", "--epochs", "1", "--trace", trace)
    assert (done.code, done.err) == (0, "")
    assert f"wrote {trace} on node0" in done.out
    assert two_hosts.hosts[0].run("ls", "/dev/shm/traces") == "step.html\n"
    assert "traces" not in two_hosts.hosts[1].run("ls", "/dev/shm")


def test_a_folder_that_rank_0_lacks_is_refused_with_the_name_of_its_host(two_hosts):
    two_hosts.hosts[1].run("mkdir", "-p", "/dev/shm/elsewhere")
    done = two_hosts.mpirun(
        4,
        "tutorials/train.py",
        "--epochs",
        "1",
        "--trace",
        "/dev/shm/elsewhere/step.html",
    )
    assert done.code == 2
    assert "--trace: there is no folder '/dev/shm/elsewhere'" in done.err
    assert "rank 0 writes it, on node0" in done.err


def test_the_script_that_shows_where_ranks_sit_names_the_hosts(two_hosts):
    done = two_hosts.mpirun(4, str(ROOT / "tutorials/cluster/where.py"))
    assert (done.code, done.err) == (0, "")
    assert [
        line.split()[:2] for line in done.out.splitlines() if line[:4].strip().isdigit()
    ] == [
        ["0", "node0"],
        ["1", "node0"],
        ["2", "node1"],
        ["3", "node1"],
    ]
