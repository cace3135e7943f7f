"""Jobs under supervision, with real processes: what starts again, what does not, and
that nothing is left.
"""

import os
import re
import signal
import sys

import pytest

from tests.cli.supervision.jobs import lines_of, run, supervised
from tests.launch import needs_mpi, slowly

pytestmark = [
    needs_mpi,
    pytest.mark.skipif(sys.platform != "linux", reason="counts processes in /proc"),
]


@pytest.fixture
def script(tmp_path):
    """Return a function that writes a script."""

    def written(text):
        path = tmp_path / "script.py"
        path.write_text(text)
        return path

    return written


GOES_ON = """
import os, signal, sys
from pathlib import Path
from minipipe import init_process_group

progress = Path(sys.argv[1])
with init_process_group() as group:
    begin = int(progress.read_text()) if progress.exists() else 0
    group.barrier()
    for step in range(begin, 6):
        group.barrier()
        if step == 2 * int(os.environ["MINIPIPE_RESTART"]) + 1 < 5 and group.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        group.barrier()
        if group.rank == 0:
            progress.write_text(str(step + 1))
            print("step", step, flush=True)
"""


@pytest.mark.slow
def test_a_job_whose_rank_is_killed_twice_goes_on_each_time_from_where_it_was(
    script, tmp_path
):
    done = run(
        "-n",
        2,
        "--restarts",
        3,
        script(GOES_ON),
        tmp_path / "progress",
        "--restarts",
        "9",
    )
    assert done.code == 0 and re.findall(r"step (\d)", done.out) == list("012345")
    first, second = lines_of(done)
    said = (
        r"attempt 0 failed with exit code \d+ after \d\.\d s; restart 1 of 3 on 2 ranks"
    )
    assert re.fullmatch(rf"minipipe: [\d-]{{10}} [\d:]{{8}}: {said}", first)
    assert "attempt 1 failed" in second and "restart 2 of 3" in second


@pytest.mark.parametrize(
    "text",
    ["raise SystemExit(7)", slowly("def broken(:"), slowly("import no_such_module")],
)
def test_a_program_that_fails_alike_at_once_three_times_is_given_up(text, script):
    done = run("-n", 2, "--restarts", 9, script(text))
    assert done.code == (7 if "7" in text else 1)
    *_, last = lines_of(done)
    assert len(lines_of(done)) == 3
    assert (
        "not restarted: it failed 3 times in a row within 5 s, with the same exit code"
        in last
    )


def test_when_the_restarts_are_used_it_says_so_and_returns_the_last_exit_code(script):
    done = run(
        "-n",
        1,
        "--restarts",
        1,
        script("import os, sys\nsys.exit(3 + int(os.environ['MINIPIPE_RESTART']))"),
    )
    assert done.code == 4
    assert [line.partition("; ")[2] for line in lines_of(done)] == [
        "restart 1 of 1 on 1 rank",
        "not restarted: 1 restart of 1 used",
    ]


@pytest.mark.parametrize(("code", "restarts"), [slowly(0, 3), (2, 3), slowly(1, 0)])
def test_success_bad_usage_and_a_job_without_restarts_run_once(
    code, restarts, script, tmp_path
):
    text = "import sys\nprint('ran', *sys.argv[1:])\nsys.exit(int(sys.argv[-1]))"
    done = run(
        "-n", 1, "--restarts", restarts, script(text), "--restarts", "-n", "--", code
    )
    assert (done.code, done.out) == (code, f"ran --restarts -n -- {code}\n")
    assert [line.partition("; ")[2] for line in lines_of(done)] == [
        "not restarted: exit code 2 means a wrong command line"
    ] * (code == 2)


def test_with_json_the_result_is_the_last_line(script):
    done = run("--json", "-n", 1, script("import sys\nprint(repr(sys.stdin.read()))"))
    assert (done.code, done.out) == (
        0,
        '\'\'\n{"exit_code": 0, "restarts": 0, "ranks": 1}\n',
    )


# -- nothing is left -------------------------------------------------------------------

WAITS = "import time\nprint('waits', flush=True)\ntime.sleep(100)"
DEAF = (
    "import signal\nfor number in (signal.SIGINT, signal.SIGTERM): "
    f"signal.signal(number, signal.SIG_IGN)\n{WAITS}"
)


@pytest.mark.parametrize(
    ("text", "number", "limit"),
    [
        (WAITS, signal.SIGINT, 5.0),
        (WAITS, signal.SIGTERM, 5.0),
        slowly(WAITS, signal.SIGHUP, 5.0),
        slowly(DEAF, signal.SIGINT, 15.0),
        slowly(DEAF, signal.SIGTERM, 15.0),
    ],
)
def test_a_signal_to_the_supervisor_ends_the_job_which_does_not_start_again(
    text, number, limit, script
):
    with supervised("-n", 2, "--restarts", 3, script(text)) as job:
        job.read("waits")
        job.process.send_signal(number)
        done = job.finish(limit=3 * limit)
    print(f"{number!r}: T = {done.seconds:.2f} s, promised {limit} s")
    assert done.code == 128 + number and not lines_of(done)


def test_a_signal_in_the_pause_between_two_attempts_ends_it_at_once():
    program = (
        "import os, signal, sys, threading, time\nfrom minipipe.comm.job.guard "
        "import Attempts\n"
        "with Attempts() as attempts:\n"
        "    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()\n"
        "    begun = time.monotonic(); attempts.pause(50); "
        "print(time.monotonic() - begun < 10, attempts.stopped_by)\n"
        "    print(attempts.run([sys.executable, '-c', 'import time; "
        "time.sleep(50)']).code)\n"
        "print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)"
    )
    assert run(python=("-c", program)).out == "True 15\n-15\nTrue\n"


GOES_ON_AS = "import os, sys\nos.execv(sys.executable, [sys.executable, *sys.argv[1:]])"


@pytest.mark.slow
def test_a_signal_that_was_ignored_from_the_beginning_stays_so(script):
    """As under nohup."""
    deaf = f"import signal\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\n{GOES_ON_AS}"
    # alive while the signal comes
    text = "import time\nprint('waits', flush=True)\ntime.sleep(1)"
    command = ("-c", deaf, "-m", "minipipe", "run")
    with supervised("-n", 1, script(text), python=command) as job:
        job.read("waits")
        job.process.send_signal(signal.SIGHUP)
        assert job.finish().code == 0


WITHOUT_DEATH = (
    "-c",
    "import sys\nfrom minipipe.cli import main\nfrom minipipe.comm.job import guard\n"
    "guard.end_with = lambda *_: None\nsys.exit(main(['run', *sys.argv[1:]]))",
)


def child_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        (number,) = file.read().split()
    return int(number)


@pytest.mark.parametrize("text", [WAITS, slowly(DEAF)])
@pytest.mark.parametrize("is_guard", [True, False])
def test_when_the_guard_or_the_supervisor_is_killed_the_whole_job_ends(
    is_guard, text, script
):
    """The story: tied to the supervisor by SIGKILL alone, an mpirun of Open MPI left
    its ranks as orphans.
    """
    with supervised("-n", 2, "--restarts", 3, script(text)) as job:
        job.read("waits")
        os.kill(job.pid if is_guard else child_of(job.pid), signal.SIGKILL)
        done = job.finish(grace=30.0)
    assert done.code == (-signal.SIGKILL if is_guard else 137) and not lines_of(done)


@pytest.mark.slow
def test_without_a_word_from_the_kernel_the_job_would_outlive_its_guard(script):
    """The mutant of the test above."""
    with supervised("-n", 2, script(WAITS), python=WITHOUT_DEATH) as job:
        job.read("waits")
        job.process.kill()
        job.process.wait()
        with pytest.raises(Exception, match="timed out"):  # its output is still open
            job.finish(limit=2.0)


def test_when_mpirun_is_killed_the_job_starts_again(script):
    text = (
        f"import os, signal\n{WAITS}if os.environ['MINIPIPE_RESTART'] == '0' else "
        "print('ended well')"
    )
    with supervised("-n", 1, "--restarts", 1, script(text)) as job:
        job.read("waits")
        os.kill(child_of(child_of(job.pid)), signal.SIGKILL)
        done = job.finish()
    assert done.code == 0 and "ended well" in done.out
    assert "attempt 0 failed with SIGKILL of the launcher after" in lines_of(done)[0]


@pytest.mark.slow
def test_what_a_job_leaves_running_in_a_session_of_its_own_is_ended(script):
    text = (
        "import subprocess\nsubprocess.Popen(['sleep', '100'], start_new_session=True, "
        "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\nprint('ended well')"
    )
    done = run("-n", 1, script(text))  # which counts
    assert (done.code, done.out) == (0, "ended well\n")


@pytest.mark.slow
def test_with_stderr_on_a_full_disk_the_job_starts_again_all_the_same(script):
    text = (
        "import os, sys\nprint('attempt', os.environ['MINIPIPE_RESTART'])\nsys.exit(1)"
    )
    full = f"import os\nos.dup2(os.open('/dev/full', os.O_WRONLY), 2)\n{GOES_ON_AS}"
    done = run(
        "-n",
        1,
        "--restarts",
        1,
        script(text),
        python=("-c", full, "-m", "minipipe", "run"),
    )
    assert done.code != 0 and done.out == "attempt 0\nattempt 1\n"


# -- hosts -----------------------------------------------------------------------------

SSH = """#!/bin/sh
# In place of ssh: hosts that are none, but this one. FOLDER/NAME.gone is in place of a cable that is pulled.
while [ "${1#-}" != "$1" ]; do shift; done
if [ -e "$FOLDER/$1.gone" ]; then exit 255; fi
shift
exec sh -c "$*"
"""
LOSES_ITS_HOST = """
import os, signal, sys
from pathlib import Path
from minipipe import init_process_group

restart, losses = int(os.environ["MINIPIPE_RESTART"]), sys.argv[1:]
with init_process_group() as group:
    group.barrier()
    if group.rank == 0:
        print(group.size, "ranks", flush=True)
    if restart < len(losses):
        group.barrier()
        if group.rank == group.size - 1:
            mark = Path(os.environ["FOLDER"], losses[restart].removeprefix("-") + ".gone")
            mark.unlink() if losses[restart].startswith("-") else mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        group.barrier()
"""


@pytest.fixture
def on_hosts(tmp_path, script):
    """Return a function that supervises a job on hosts that are none."""
    ssh, hosts = tmp_path / "ssh", tmp_path / "hosts"
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    hosts.write_text("# two ranks each\nnode0:2\nnode1:2\n")
    options = (
        "--launcher",
        f"mpirun -launcher ssh -launcher-exec {ssh}",
        "--probe",
        f"{ssh} HOST true",
    )

    def ran(*arguments, gone=("node1",)):
        path = script(LOSES_ITS_HOST)
        return run(
            *options, "--hostfile", hosts, *arguments, path, *gone, FOLDER=str(tmp_path)
        )

    return ran


def sizes_of(done):
    return [int(size) for size in re.findall(r"^(\d) ranks$", done.out, re.MULTILINE)]


@pytest.mark.slow
def test_a_host_that_does_not_answer_is_left_out_with_its_ranks(on_hosts):
    done = on_hosts("--restarts", 3)
    assert done.code == 0 and sizes_of(done) == [4, 2]
    (line,) = lines_of(done)
    assert re.search(
        r"; restart 1 of 3 on 2 of 4 ranks, without node1 \(\S+/ssh: exit code 255\)$",
        line,
    )


@pytest.mark.parametrize(
    ("options", "gone", "why"),
    [
        slowly(
            ("--min-ranks", 3),
            ["node1"],
            "only 2 of 4 ranks are left, and --min-ranks is 3",
        ),
        slowly(
            (), ["node1", "node0"], "only 0 of 4 ranks are left, and --min-ranks is 1"
        ),
    ],
)
def test_with_too_few_ranks_it_does_not_start_again(options, gone, why, on_hosts):
    done = on_hosts("--restarts", 3, *options, gone=gone)
    assert done.code != 0 and f"not restarted: {why}, without " in lines_of(done)[-1]


@pytest.mark.slow
def test_every_host_is_asked_before_every_restart_and_takes_part_again_once_it_answers(
    on_hosts,
):
    done = on_hosts("--restarts", 3, gone=["node1", "-node1"])
    assert done.code == 0 and sizes_of(done) == [4, 2, 4]
    assert ["without" in line for line in lines_of(done)] == [True, False]


@pytest.mark.slow
def test_a_host_that_is_gone_from_the_beginning_is_noticed_when_the_first_attempt_fails(
    on_hosts, tmp_path
):
    (tmp_path / "node1.gone").touch()
    done = on_hosts("--restarts", 1, gone=[])
    assert done.code == 0 and sizes_of(done) == [2]
