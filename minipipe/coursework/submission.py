"""A student's files, in a folder or a zip archive, read as bytes of bounded size;
nothing is unpacked or followed.

The kind of a path is determined with ``os.path``, because the methods of ``Path`` raise
if a name is too long.
"""

from __future__ import annotations

import io
import os
import stat
import zipfile
from collections.abc import Collection, Iterable
from pathlib import Path, PurePosixPath

from minipipe.errors import CourseworkError, FileError, quoted
from minipipe.io import read_bytes

LONGEST_FILE = 1 << 20
"""Bytes of a student's file; the solutions have 5,000 at most."""

LONGEST_ARCHIVE = 8 << 20
"""Bytes of a zip archive: its list of members, which is parsed as a whole, is no
longer.
"""

# others take as much memory as the archive asks for
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class Folder:
    """A student's directory. Its author chose the kind and the target of each file.

    Attributes
    ----------
    path : Path
    name : str
        The name of the student or group.
    files : list of str
        Names of Python files, in order.

    Examples
    --------
    >>> Folder(Path("tutorials/exercises")).name
    'exercises'
    """

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, name_of(path)
        self.files = sorted(
            entry for entry in os.listdir(path) if entry.endswith(".py")
        )

    def read(self, file: str) -> bytes:
        """Return the content of a file, with the grader's rights; raise
        ``FileError``.
        """
        return read_bytes(self.path / file, LONGEST_FILE, pipes=False, links=False)


class Archive:
    """A zip archive with the same files, in one of its folders; attributes as in
    :class:`Folder`.
    """

    def __init__(self, path: Path, tasks: Collection[str]) -> None:
        self.path, self.name = path, name_of(path)
        content = read_bytes(path, LONGEST_ARCHIVE, pipes=False, links=False)
        try:
            self._zip = zipfile.ZipFile(io.BytesIO(content))
        # a forged archive may cause any exception in zipfile
        except Exception as error:
            raise self._damaged(f"it is not a zip archive ({error})") from None
        members = [
            each
            for each in self._zip.infolist()
            if not each.filename.startswith("__MACOSX/")
        ]
        named = (each for each in members if _name(each) in tasks)
        folders = sorted(set(map(_folder, named)))
        if len(folders) > 1:
            raise self._damaged(
                "tasks are in "
                f"{' and in '.join(quoted(each) for each in folders[:2])}; keep one "
                "folder"
            )
        found = [(_name(each), each) for each in members if _folder(each) in folders]
        self._members = dict(found)
        self.files = sorted(name for name, _ in found if name.endswith(".py"))
        if len(self._members) < len(found):
            raise self._damaged("two of its files have the same name")

    def read(self, file: str) -> bytes:
        """Return the content of a file; raise ``FileError``."""
        member = self._members[file]
        if (
            stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG)
            or member.is_dir()
        ):
            raise FileError.of(self.path, f"{file} is not a regular file")
        if member.compress_type not in _METHODS or member.flag_bits & 1:
            raise self._damaged(
                f"{file} is encrypted, or compressed by another method than deflate"
            )
        try:
            with self._zip.open(member) as stream:
                # whatever size the list of members claims
                content = stream.read(LONGEST_FILE + 1)
        except Exception as error:
            raise self._damaged(f"{file} is damaged ({error})") from None
        if len(content) > LONGEST_FILE:
            raise FileError.of(
                self.path,
                f"{file} has more than {LONGEST_FILE:,} bytes, the limit",
                "too-large",
            )
        return content

    def _damaged(self, reason: str) -> FileError:
        return FileError.of(self.path, reason, "damaged")


Submission = Folder | Archive


def _name(member: zipfile.ZipInfo) -> str:
    return PurePosixPath(member.filename).name


def _folder(member: zipfile.ZipInfo) -> str:
    return str(PurePosixPath(member.filename).parent)


def is_archive(path: Path) -> bool:
    """Return whether a path names a zip archive."""
    return path.suffix.lower() == ".zip" and not os.path.isdir(path)


def name_of(path: Path) -> str:
    """Return the name of a submission: the last part of its path, without .zip.

    Examples
    --------
    >>> name_of(Path("class/ada.zip")), name_of(Path("class/ada/."))
    ('ada', 'ada')
    """
    # of the link itself, not of its target
    name = os.path.basename(os.path.abspath(path))
    return name[:-4] if is_archive(path) else name


def open_submission(
    path: Path, tasks: Collection[str], *, links: bool = True
) -> Submission:
    """Open a folder or an archive that holds at least one of the tasks' files.

    Parameters
    ----------
    path : Path
    tasks : collection of str
        The names of the tasks' files, in order.
    links : bool
        Whether the path may be a symbolic link; False if somebody else has filled the
        folder around it.

    Raises
    ------
    CourseworkError
        Code ``not-found``.
    FileError
        For an archive that cannot be read, and a refused link.
    """
    if os.path.islink(path) and not links:
        raise FileError.of(path, "it is a link; expected a submission")
    if is_archive(path):
        submission: Submission = Archive(path, tasks)
    elif os.path.isdir(path):
        submission = Folder(path)
    else:
        if os.path.exists(path):
            what = f"'{path}' is a file"
            how = "name its directory, a zip archive, or the file of a task"
        else:
            what = f"There is no directory '{path}'"
            how = f"`minipipe coursework {path}` writes one"
        raise CourseworkError("not-found", f"{what}; {how}.")
    if not set(tasks).intersection(submission.files):
        if path.is_dir():
            around = [
                *sorted(filter(Path.is_dir, path.iterdir())),
                path.absolute().parent,
            ]
        else:
            around = []
        holding = (place for place in around if _any_holds([place], tasks))
        right = next(holding, None)
        if right:
            where = f"'{right}' does: grade that"
        else:
            where = "`minipipe coursework DIR` writes a directory that does"
        first, *_, last = [*tasks] * 2
        problem = f"'{path}' holds none of {first} … {last}"
        raise CourseworkError("not-found", f"{problem}; {where}.")
    return submission


def directories_of(
    paths: Iterable[str | Path],
    tasks: Collection[str],
    only: str | Iterable[str] | None,
) -> tuple[list[Path], str | Iterable[str] | None]:
    """Return paths with the directory in place of each file of a task, and the tasks
    that are to be graded.

    Raises
    ------
    CourseworkError
        Code ``not-found``: a file is combined with names of tasks, or with a path that
        has other tasks.

    Examples
    --------
    >>> directories_of(["tutorials/exercises/05_bubble.py"], ["05_bubble.py"], None)
    ([PosixPath('tutorials/exercises')], ['05_bubble'])
    """
    given = list(map(Path, paths))
    files: dict[Path, set[str]] = {}  # by directory: the tasks whose files are named
    for path in given:
        is_beside_tasks = any(os.path.lexists(path.parent / task) for task in tasks)
        is_file = path.name in tasks and is_beside_tasks and not os.path.isdir(path)
        directory = path.parent if is_file else path
        files.setdefault(directory, set()).update([path.stem] if is_file else [])
    named = set().union(*files.values())
    if not named:
        return given, only
    if only is not None:
        reason = f"The file names its task, {min(named)}"
        raise CourseworkError("not-found", f"{reason}; leave --only out.")
    if any(own != named for own in files.values()):
        how = "name the same files of each, or directories with --only"
        reason = "All submissions need the same selection of tasks"
        raise CourseworkError("not-found", f"{reason}; {how}.")
    return list(files), sorted(named)


def submissions_in(paths: Iterable[str | Path], tasks: Collection[str]) -> list[Path]:
    """Return the submissions among paths; a folder that holds none of the tasks stands
    for those in it, by name.

    Examples
    --------
    >>> submissions_in(["tutorials/exercises"], ["05_bubble.py"])
    [PosixPath('tutorials/exercises')]
    """
    found = []
    for path in map(Path, paths):
        inside = []
        if os.path.isdir(path) and not any(
            os.path.lexists(path / file) for file in tasks
        ):
            inside = sorted(
                each for each in path.iterdir() if each.is_dir() or is_archive(each)
            )
            inside = [each for each in inside if not each.name.startswith(".")]
        found += (
            inside
            if any(map(is_archive, inside)) or _any_holds(inside, tasks)
            else [path]
        )
    return found


def _any_holds(folders: Iterable[Path], tasks: Collection[str]) -> bool:
    return any(os.path.lexists(folder / file) for folder in folders for file in tasks)
