"""Which files student code may read: Python, its packages, and what programs need, but no exercise and no student."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

DEVICES = tuple(Path("/dev", name) for name in ("null", "zero", "full", "random", "urandom"))

_PACKAGE = Path(__file__).resolve().parent.parent
_CLONE = _PACKAGE.parent
_OF_A_PREFIX = ("bin", "lib", "lib64", "pyvenv.cfg")
_OF_THE_SYSTEM = (
    *("/bin", "/lib", "/lib32", "/lib64", "/usr/bin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libexec"),
    *("/usr/local/bin", "/usr/local/lib", "/usr/share/zoneinfo", "/nix/store", "/gnu/store"),
    *("/etc/ld.so.cache", "/etc/alternatives"),
)


def readable_paths(source: Path, directory: Path) -> list[Path]:
    """Return the files and directories that a task may read, none of which lies beneath another.

    Parameters
    ----------
    source : Path
        The directory with the solutions. A repository around it is hidden as a whole, since its history has the
        solutions, too. Of a clone of minipipe, which has solutions of its own, the package alone is readable.
    directory : Path
        The student's, beside which others may lie.
    """
    students = directory.resolve().parent
    repositories = {_repository(source.resolve()), *([_CLONE] if (_CLONE / "tutorials").is_dir() else [])}
    python = [Path(prefix, part) for prefix in (sys.prefix, sys.base_prefix) for part in _OF_A_PREFIX]
    imports = [path for path in map(Path, filter(None, sys.path)) if not _is_beneath(path.resolve(), repositories)]
    found = set()
    for path in filter(Path.exists, [*map(Path, _OF_THE_SYSTEM), *python, *imports, _PACKAGE]):
        real = path.resolve()
        parts = [] if real == students else without(real, [*repositories, students])
        found |= {path, real} if parts == [real] else set(parts)
    return outermost(found)


def without(path: Path, hidden: Iterable[Path]) -> list[Path]:
    """Return a path, or, where something hidden lies beneath it, what else does; symbolic links are left out there.

    Examples
    --------
    >>> without(Path("/usr/lib"), [Path("/home/ada")])
    [PosixPath('/usr/lib')]
    """
    hidden = [each for each in hidden if path in each.parents]
    if not hidden:
        return [path]
    others = [other for other in path.iterdir() if other not in hidden and not other.is_symlink()]
    return [part for other in others for part in without(other, hidden)]


def outermost(paths: Iterable[Path]) -> list[Path]:
    """Return the paths that lie beneath no other one.

    Examples
    --------
    >>> outermost([Path("/usr/lib/python3"), Path("/usr/lib"), Path("/usr/bin"), Path("/usr/lib")])
    [PosixPath('/usr/bin'), PosixPath('/usr/lib')]
    """
    every = set(paths)
    return sorted(path for path in every if not _is_beneath(path.parent, every))


def _is_beneath(path: Path, directories: Iterable[Path]) -> bool:
    return not {path, *path.parents}.isdisjoint(directories)


def _repository(path: Path) -> Path:
    return next((place for place in (path, *path.parents) if (place / ".git").exists()), path)
