"""Containing student code: the tree of its processes, and the rights that the process
with the code gives up.

::

    grader ── supervisor ── process 0 ── process 1 ── process 2      with namespaces; 1 is the first process in them
                    └─────────────────────────────── process 2      without

Only process 2 runs the student's code. Orphans are adopted by process 1, whose exit
ends every process of the namespace, or by the supervisor, which ends them one by one.
The supervisor also ends everything when its standard input closes: the grader closes it
at the time limit, and the system closes it when the grader exits.

Namespaces carry the containment if the system grants them. If it does not (in most
containers, an ordinary user may not create any), Landlock alone hides the files, and
for root a user of its own protects the grader's processes. Other systems than Linux
have only limits. There the process that the grader started runs the student's code.

References
----------
The Linux manual: namespaces(7), user_namespaces(7), pid_namespaces(7), pivot_root(2),
mount_setattr(2). The Linux kernel, Documentation/userspace-api/landlock.rst: calls,
rights, and the rights that each version (ABI) knows.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import stat
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from minipipe.comm.job.system_calls import (
    adopt_orphans,
    call,
    end_descendants,
    end_with_parent,
    give_up_privileges,
)

try:
    import resource
except ImportError:  # Windows has no such limits
    resource = None  # type: ignore[assignment]

NAMESPACES = "namespaces"
LANDLOCK = "Landlock"
USER = "a user of its own"
LIMITS = "limits"
LAYERS = (NAMESPACES, LANDLOCK, USER, LIMITS)
"""Every layer that a system may have, the strongest first."""

FILES = "the grader's files"
PROCESSES = "the grader's processes"
NETWORK = "the network"
DATAGRAMS = "the network beyond TCP"
DISK = "any amount of disk space"
NUMBER = "any number of processes"
ESCAPE = "processes that outlive it"
MEMORY = "any amount of memory"
EVERYTHING = (FILES, PROCESSES, NETWORK, DISK, NUMBER, ESCAPE)

MOST_ADDRESSES = 4 << 30
"""Bytes of virtual memory of a process; threads and libraries reserve far more than
they touch.
"""
MOST_BYTES = 64 << 20
"""Bytes of a file; of all files together, if a task has its own file system."""
MOST_PROCESSES = 128
"""Processes and threads of a task."""
_OPEN_FILES = 256


class Containment(NamedTuple):
    """How student code was contained.

    Attributes
    ----------
    layers : tuple of str
        The members of ``LAYERS`` in force.
    exposed : tuple of str
        Resources that student code could still reach or use; empty if the layers close
        everything.

    Examples
    --------
    >>> print(Containment(("namespaces", "limits"), ()))
    contained by namespaces, limits
    >>> print(Containment(("limits",), ("the grader's files", "the network")))
    contained by limits
    warning: student code could reach the grader's files, the network; grade in a container or a virtual machine
    """

    layers: tuple[str, ...]
    exposed: tuple[str, ...]

    def __str__(self) -> str:
        layers = ", ".join(self.layers) or "a process of its own alone"
        if not self.exposed:
            return f"contained by {layers}"
        warning = f"warning: student code could reach {', '.join(self.exposed)}"
        advice = "grade in a container or a virtual machine"
        return f"contained by {layers}\n{warning}; {advice}"


def weakest(each: Iterable[Containment | None]) -> Containment | None:
    """Return the layers that all have in common, and everything that any exposes; None
    if no code was run.

    Examples
    --------
    >>> weakest(
    ...     [
    ...         Containment(("Landlock", "limits"), ()),
    ...         Containment(("limits",), ("the network",)),
    ...         None,
    ...     ]
    ... )
    Containment(layers=('limits',), exposed=('the network',))
    """
    common: Containment | None = None
    for one in each:
        if common is None or one is None:
            common = common or one
            continue
        layers = [layer for layer in common.layers if layer in one.layers]
        exposed = dict.fromkeys(common.exposed + one.exposed)
        common = Containment(tuple(layers), tuple(exposed))
    return common


Events = Iterator[dict[str, Any]]

_FIRST_USER = 2_000_000_000  # above the user ids that systems assign
_REFUSED = 77  # the exit status of a process that the system refused namespaces
_LOOK = 10  # milliseconds between looks at a child

WITHOUT_USER = 0x00020000 | 0x04000000 | 0x08000000 | 0x20000000 | 0x40000000
"""New namespaces of mounts, host name, messages, processes and network; root may create
them.
"""
WITH_USER = WITHOUT_USER | 0x10000000
"""Also a new namespace of users, in which any user may create the others, if the system
allows it.
"""


def contained(job: dict[str, Any], run: Callable[[], Events]) -> Events:
    """Contain student code as well as this system can, run it, and yield the events for
    the grader.

    The generator returns in several processes: each forked process leaves it like the
    one that called it.

    Parameters
    ----------
    job : dict
        ``layers`` that may be used; ``source`` and ``directory`` to hide; ``seconds``
        of processor time.
    run : function
        Runs the student's code, in process 2 alone; its events are passed on.

    Yields
    ------
    dict
        ``{"contained": …}``, the events of ``run``, and ``{"ended": …}``, the exit code
        of process 2.
    """
    if sys.platform != "linux":
        containment = Containment((), (*EVERYTHING, MEMORY))
        if _limit(job["seconds"]):
            containment = Containment((LIMITS,), EVERYTHING)
        yield {"contained": containment}
        yield from run()
        return
    adopt_orphans()
    for flags in _attempts(job["layers"]):
        child = os.fork()
        if child == 0:
            yield from _in_child(job, flags, run)
            return
        code = _wait(child)
        end_descendants()
        if code != _REFUSED or flags is None:
            if code or flags is None:
                yield {"ended": code}
            return


def _attempts(layers: list[str]) -> list[int | None]:
    """Return the namespaces to ask for, in turn until the system grants them; the last
    is none.
    """
    if NAMESPACES not in layers:
        return [None]
    if os.geteuid() != 0:
        return [WITH_USER, None]
    return [WITHOUT_USER, WITH_USER, None]


def _in_child(
    job: dict[str, Any], flags: int | None, run: Callable[[], Events]
) -> Events:
    """Continue as process 0, 1 and 2, or as process 2 at once."""
    with contextlib.suppress(OSError):
        # If memory runs out, the kernel kills this process first, and not the grader.
        Path("/proc/self/oom_score_adj").write_text("1000")
    # Inside a namespace all tasks have the same process number, so take it here.
    user = _FIRST_USER + os.getpid()
    readable = readable_paths(Path(job["source"]), Path(job["directory"]))
    end_with_parent()
    if flags is not None:
        student = _born_in_namespaces(flags, readable)
        if student:
            yield {"ended": _wait(student)}
            return
    yield {"contained": _restrict(job["layers"], job["seconds"], readable, flags, user)}
    yield from run()


def _wait(child: int) -> int:
    """Return a child's exit code, or SIGKILL's once the grader closes standard input;
    reap adopted orphans.
    """
    closed = select.poll()
    # Watch only for the end of the stream: the student's process reads the calls.
    closed.register(sys.stdin.fileno(), 0)
    while True:
        ended, status = os.waitpid(-1, os.WNOHANG)
        if ended == child:
            return os.waitstatus_to_exitcode(status)
        if not ended and closed.poll(_LOOK):
            return -signal.SIGKILL


# -- restricting process 2 -------------------------------------------------------------


def _restrict(
    layers: Sequence[str],
    seconds: float,
    readable: Sequence[Path],
    flags: int | None,
    user: int,
) -> Containment:
    """Put the layers in force for this process and its descendants, and return those
    that the system granted.

    Parameters
    ----------
    layers : sequence of str
        The layers that may be used; limits always apply.
    seconds : float
        The limit of processor time.
    readable : sequence of Path
    flags : int or None
        The namespaces that the process is in.
    user : int
        The id of a user that owns nothing, to become if the grader is root.
    """
    os.setsid()  # a signal to its own group reaches only itself
    granted = set()
    if flags is not None:
        granted.add(NAMESPACES)
    if USER in layers and flags != WITH_USER and _becomes(user, readable):
        granted.add(USER)
    if _limit(seconds):
        granted.add(LIMITS)
    number = MOST_PROCESSES
    if not granted & {NAMESPACES, USER}:
        number += _threads_of_this_user()
    is_unbounded = os.geteuid() == 0 or _refused({"NPROC": number})
    give_up_privileges()
    abi = 0
    if LANDLOCK in layers:
        abi = _landlock(readable)
    if abi:
        granted.add(LANDLOCK)
    exposed = _exposed(granted, abi)
    if is_unbounded:
        exposed.append(NUMBER)
    return Containment(tuple(filter(granted.__contains__, LAYERS)), tuple(exposed))


def _exposed(granted: set[str], abi: int) -> list[str]:
    """Return the resources that the layers leave open."""
    if NAMESPACES in granted:
        return []
    exposed = []
    if not abi:
        exposed.append(FILES)
    if not (USER in granted or abi >= _SIGNALS_ABI):
        exposed += [PROCESSES, ESCAPE]  # it could end the supervisor
    network = DATAGRAMS if abi >= _TCP_ABI else NETWORK
    return [*exposed, network, DISK]


def _becomes(user: int, readable: Sequence[Path]) -> bool:
    """Become a user that owns only the current directory, if permitted, and if that
    user could still import.

    Root needs it in namespaces too: the kernel does not limit the number of root's
    processes.
    """
    try:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.seteuid(user)
        may_read = partial(os.access, mode=os.R_OK, effective_ids=True)
        can_read = all(map(may_read, readable))
        os.seteuid(0)
        if can_read:
            os.chown(".", user, user)
            os.setresuid(user, user, user)
    except OSError:
        return False
    return can_read


# -- limits, which descendants inherit -------------------------------------------------


def _limit(seconds: float) -> bool:
    """Limit this process, without core files; return whether memory and processor time
    (in seconds) are limited.
    """
    refused = _refused({"AS": MOST_ADDRESSES, "CPU": math.ceil(seconds) + 1})
    _refused({"FSIZE": MOST_BYTES, "NOFILE": _OPEN_FILES, "CORE": 0})
    return not refused


def _threads_of_this_user() -> int:
    """Count the processes and threads of this user; Linux only."""
    count = 0
    for process in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has exited meanwhile
            if os.stat(f"/proc/{process}").st_uid == os.geteuid():
                count += len(os.listdir(f"/proc/{process}/task"))
    return count


def _refused(limits: Mapping[str, int]) -> set[str]:
    """Set limits by name, and return the names of those that the system lacks or
    refuses.
    """
    if resource is None:
        return set(limits)
    refused = set()
    for name, limit in limits.items():
        try:
            what = getattr(resource, f"RLIMIT_{name}")
            most = resource.getrlimit(what)[1]
            if most != resource.RLIM_INFINITY:
                limit = min(limit, most)
            resource.setrlimit(what, (limit, limit))
        except (AttributeError, ValueError, OSError):
            refused.add(name)
    return refused


# -- namespaces: a root directory, processes and a network of its own ------------------

_MS_NOSUID = 2
_MS_NODEV = 4
_MS_BIND = 4096
_MS_REC = 16384
_MS_PRIVATE = 1 << 18
_MNT_DETACH = 2
_MOUNT_SETATTR = 442
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_READ_ONLY_NOSUID_NODEV = 0b111


def _born_in_namespaces(flags: int, readable: list[Path]) -> int:
    """Return process 2's number in process 1, and 0 in process 2; process 0 waits here,
    and exits.

    A process enters a new namespace of processes only by being born in it, so there are
    two forks: after the first, process 1 builds the root directory, after the second,
    process 2 runs the code.
    """
    folder = os.getcwd()
    try:
        _enter(flags)
        first = os.fork()
        if first:
            code = os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
            if code < 0:  # a signal
                code = 1
            os._exit(code)
        end_with_parent()
        _replace_root(folder, readable)
    except OSError:
        os._exit(_REFUSED)
    return os.fork()


def _enter(flags: int) -> None:
    """Give this process new namespaces, and its future children one of processes; the
    user stays the same.
    """
    user = os.geteuid()
    group = os.getegid()
    call("unshare", flags)
    if flags == WITH_USER:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def _replace_root(folder: str, readable: Iterable[Path]) -> None:
    """Replace the root directory by one with files to read, and one small directory in
    memory to write: ``folder``.
    """
    os.umask(0o022)
    _mount(None, "/", _MS_REC | _MS_PRIVATE)
    _mount_memory(folder, "size=1m,mode=755")
    for path in readable:
        _mount(os.fsencode(path), _place_for(path, folder), _MS_BIND | _MS_REC)
    # Their places before the root becomes read-only, their mounts after it: the
    # attribute also excludes devices.
    devices = {path: _place_for(path, folder) for path in _devices()}
    writable = _place_for(Path(folder), folder)
    attributes = struct.pack("=4Q", _READ_ONLY_NOSUID_NODEV, 0, 0, 0)
    call(
        "syscall",
        _MOUNT_SETATTR,
        _AT_FDCWD,
        os.fsencode(folder),
        _AT_RECURSIVE,
        attributes,
        len(attributes),
    )
    for device, place in devices.items():
        _mount(os.fsencode(device), place, _MS_BIND)
    _mount_memory(writable, f"size={MOST_BYTES},nr_inodes=4096,mode=700")
    os.chdir(folder)
    call("pivot_root", b".", b".")
    call("umount2", b".", _MNT_DETACH)
    os.chdir(folder)


def _mount(
    source: bytes | None,
    place: str,
    flags: int,
    kind: bytes | None = None,
    options: bytes | None = None,
) -> None:
    call("mount", source, os.fsencode(place), kind, flags, options)


def _mount_memory(place: str, options: str) -> None:
    flags = _MS_NOSUID | _MS_NODEV
    _mount(b"tmpfs", place, flags, b"tmpfs", options.encode())


def _place_for(path: Path, root: str) -> str:
    """Create an empty directory or file under the new root as a mount point."""
    place = Path(f"{root}{path}")
    if path.is_dir():
        place.mkdir(parents=True, exist_ok=True)
    else:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
    return str(place)


# -- Landlock: the same files, without namespaces --------------------------------------

_TCP_ABI = 4  # the first version that refuses TCP; it refuses no other protocol
_SIGNALS_ABI = 6  # the first version that refuses signals to processes outside
_CREATE, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every architecture
_RULE_PATH_BENEATH = 1
_VERSION = 1
_EXECUTE = 1 << 0
_WRITE_FILE = 1 << 1
_READ_FILE = 1 << 2
_READ_DIR = 1 << 3
_TRUNCATE = 1 << 14
_IOCTL = 1 << 15
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL
_NUM_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}  # by ABI; 16 from ABI 5 on
_BIND_AND_CONNECT = 0b11
_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11


def _landlock(readable: Iterable[Path]) -> int:
    """Let this process read and run some files, and change only the current directory;
    return the ABI, or 0.

    It also gives up TCP, abstract sockets and signals to processes outside, as far as
    the kernel can refuse them. Capabilities must be given up before.
    """
    try:
        abi = call("syscall", _CREATE, None, 0, _VERSION)
        rights = (1 << _NUM_RIGHTS.get(abi, 16)) - 1
        attributes = [rights]
        if abi >= _TCP_ABI:
            attributes.append(_BIND_AND_CONNECT)
        if abi >= _SIGNALS_ABI:
            attributes.append(_ABSTRACT_SOCKETS_AND_SIGNALS)
        rules = struct.pack(f"={len(attributes)}Q", *attributes)
        ruleset = call("syscall", _CREATE, rules, len(rules), 0)
        try:
            # threadpoolctl looks for BLAS in /proc/self/maps.
            for path in (*readable, *_existing("/proc/self/maps")):
                _allow(ruleset, path, _EXECUTE | _READ_FILE | _READ_DIR)
            for path in (Path.cwd(), *_devices()):
                _allow(ruleset, path, rights)
            call("syscall", _RESTRICT_SELF, ruleset, 0)
        finally:
            os.close(ruleset)
    except OSError:  # no Landlock, or it is switched off
        return 0
    return abi


def _allow(ruleset: int, path: Path, rights: int) -> None:
    beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(beneath).st_mode):
            rights &= _ON_FILES
        rule = struct.pack("=Qi", rights, beneath)
        call("syscall", _ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, 0)
    finally:
        os.close(beneath)


# -- readable files: Python, its packages and system libraries, but no exercise and no
# submission

_PACKAGE = Path(__file__).resolve().parent.parent
_CLONE = _PACKAGE.parent
_OF_A_PREFIX = ("bin", "lib", "lib64", "pyvenv.cfg")
_DEVICES = "/dev/null /dev/zero /dev/full /dev/random /dev/urandom"
_OF_THE_SYSTEM = """
    /bin /lib /lib32 /lib64 /usr/bin /usr/lib /usr/lib32 /usr/lib64 /usr/libexec
    /usr/local/bin /usr/local/lib /usr/share/zoneinfo /nix/store /gnu/store
    /etc/ld.so.cache /etc/alternatives
"""


def _existing(*paths: str) -> list[Path]:
    return list(filter(Path.exists, map(Path, paths)))


def _devices() -> list[Path]:
    return _existing(*_DEVICES.split())


def readable_paths(source: Path, directory: Path) -> list[Path]:
    """Return the files and directories that a task may read, none of them beneath
    another.

    Parameters
    ----------
    source : Path
        The directory with the solutions. The repository around it is hidden as a whole,
        since its history holds them as well. minipipe's own solutions, which an
        installed package contains, are also hidden; in a clone only the package is
        readable.
    directory : Path
        The student's directory; directories of other students may be beside it.
    """
    students = directory.resolve().parent
    inside = _PACKAGE / "coursework" / "exercises"
    solutions = {inside: inside, _CLONE: _CLONE / "tutorials" / "exercises"}
    repositories = {_repository(source.resolve())}
    repositories |= {place for place, each in solutions.items() if each.is_dir()}
    parts_of_python = product((sys.prefix, sys.base_prefix), _OF_A_PREFIX)
    python = [os.path.join(*part) for part in parts_of_python]
    imports = [
        path
        for path in filter(None, sys.path)
        if not _is_beneath(Path(path).resolve(), repositories)
    ]
    readable = set()
    for path in _existing(*_OF_THE_SYSTEM.split(), *python, *imports, str(_PACKAGE)):
        real = path.resolve()
        if real == students:
            continue
        parts = without(real, [*repositories, students])
        readable.update(parts)
        if parts == [real]:
            readable.add(path)
    return sorted(path for path in readable if not _is_beneath(path.parent, readable))


def without(path: Path, hidden: Iterable[Path]) -> list[Path]:
    """Return a path, or, if it contains hidden ones, its other contents without
    symbolic links.

    Examples
    --------
    >>> without(Path("/usr/lib"), [Path("/home/ada")])
    [PosixPath('/usr/lib')]
    """
    hidden = [each for each in hidden if path in each.parents]
    if not hidden:
        return [path]
    visible = []
    for other in path.iterdir():
        if other not in hidden and not other.is_symlink():
            visible += without(other, hidden)
    return visible


def _is_beneath(path: Path, directories: set[Path]) -> bool:
    return not directories.isdisjoint((path, *path.parents))


def _repository(path: Path) -> Path:
    places = (path, *path.parents)
    return next((place for place in places if (place / ".git").exists()), path)
