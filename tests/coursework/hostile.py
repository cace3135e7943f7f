"""Student files that attack: each prints what it could do, and answers rightly, so that
its points tell, too.
"""

import contextlib
from pathlib import Path

from tests.coursework.small_course import double


def attacker(body):
    """Return a student's file that runs a body once, at the first call, and then
    answers.
    """
    indented = "\n".join(f"    {line}" for line in body.strip().splitlines())
    before = f"import os, sys\n\ndef attack():\n{indented}\n\nattacks = [attack]\n"
    return double("if attacks:\n    attacks.pop()()\nreturn 2 * number", before)


def tries(**attempts):
    """Return the body of an attack that tries expressions or statements, and prints the
    names of those that worked.
    """
    lines = [
        (
            f"try:\n    exec({code!r}, globals())\n    print('did', "
            f"{name!r})\nexcept OSError: pass"
        )
        for name, code in attempts.items()
    ]
    return "\n".join(lines)


def daemon(mark):
    """Return the body of an attack that leaves a program running: detached twice, in a
    session of its own.
    """
    return f"""
ready, started = os.pipe()  # both close when the program starts
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", "{mark}"])
    os._exit(0)
os.close(started)
os.wait()
os.read(ready, 1)
print("did start")
"""


def running(mark):
    """Return the processes with a mark among the words of their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += (
                [path.parent.name]
                if mark.encode() in path.read_bytes().split(b"\0")
                else []
            )
    return found


FORK_BOMB = """
if os.getuid() == 0 or os.getpid() != 2:  # only where it is harmless
    raise SystemExit("not contained")
print("did begin", flush=True)
while True:
    try:
        os.fork()
    except OSError:
        pass
"""

FORKS = """
import time
if os.getuid() == 0 or os.getpid() != 2:  # only where it is harmless
    raise SystemExit("not contained")
for count in range(1000):
    try:
        if os.fork() == 0:
            time.sleep(100)
    except BlockingIOError:
        print("did fork", count)
        break
"""

KILL_EVERYBODY = """
if os.getuid() == 0 or os.getpid() != 2:  # only where it is harmless
    raise SystemExit("not contained")
child = os.fork()
while child == 0:
    pass
os.kill(-1, 9)
print("did all", os.waitpid(child, 0)[1], flush=True)
"""

FILL = """
import errno
written = 0
try:
    for number in range(12):
        with open(f"file {number}", "wb", 0) as file:
            for _ in range(8):
                written += file.write(bytes(1 << 20))
except OSError as error:
    print("did", written >> 20, errno.errorcode[error.errno])
try:
    with open("one file", "r+b" if os.path.exists("one file") else "wb") as file:
        file.truncate(65 << 20)
except OSError as error:
    print("did", errno.errorcode[error.errno])
try:
    files = [open(os.devnull) for _ in range(1000)]
except OSError as error:
    print("did", errno.errorcode[error.errno])
"""
