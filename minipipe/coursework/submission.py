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

# Other methods may allocate as much memory as the archive asks for.
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
        self.path = path
        self.name = name_of(path)
        self.files = sorted(file for file in os.listdir(path) if file.endswith(".py"))

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
        self.path = path
        self.name = name_of(path)
        content = read_bytes(path, LONGEST_ARCHIVE, pipes=False, links=False)
        try:
            self._zip = zipfile.ZipFile(io.BytesIO(content))
        # A forged archive may raise any exception in zipfile.
        except Exception as error:
            raise self._damaged(f"it is not a zip archive ({error})") from None
        members = self._zip.infolist()
        files = [(PurePosixPath(each.filename), each) for each in members]
        files = [each for each in files if not each[1].filename.startswith("__MACOSX/")]
        folders = {str(path.parent) for path, _ in files if path.name in tasks}
        if len(folders) > 1:
            both = " and in ".join(map(quoted, sorted(folders)[:2]))
            raise self._damaged(f"tasks are in {both}; keep one folder")
        files = [each for each in files if str(each[0].parent) in folders]
        self._members = {path.name: member for path, member in files}
        self.files = sorted(name for name in self._members if name.endswith(".py"))
        if len(self._members) < len(files):
            raise self._damaged("two of its files have the same name")

    def read(self, file: str) -> bytes:
        """Return the content of a file; raise ``FileError``."""
        member = self._members[file]
        kind = stat.S_IFMT(member.external_attr >> 16)
        if kind not in (0, stat.S_IFREG) or member.is_dir():
            raise FileError.of(self.path, f"{file} is not a regular file")
        if member.compress_type not in _METHODS or member.flag_bits & 1:
            how = "compressed by another method than deflate"
            raise self._damaged(f"{file} is encrypted, or {how}")
        try:
            with self._zip.open(member) as stream:
                # The size in the list of members may be forged.
                content = stream.read(LONGEST_FILE + 1)
        except Exception as error:
            raise self._damaged(f"{file} is damaged ({error})") from None
        if len(content) > LONGEST_FILE:
            reason = f"{file} has more than {LONGEST_FILE:,} bytes, the limit"
            raise FileError.of(self.path, reason, "too-large")
        return content

    def _damaged(self, reason: str) -> FileError:
        return FileError.of(self.path, reason, "damaged")


Submission = Folder | Archive


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
    # For a link this is the name of the link, not of its target.
    name = os.path.basename(os.path.abspath(path))
    if is_archive(path):
        return name[:-4]
    return name


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
    elif os.path.exists(path):
        how = "name its directory, a zip archive, or the file of a task"
        raise CourseworkError("not-found", f"'{path}' is a file; {how}.")
    else:
        how = f"`minipipe coursework {path}` writes one"
        raise CourseworkError("not-found", f"There is no directory '{path}'; {how}.")
    if set(tasks).intersection(submission.files):
        return submission
    around = []
    if path.is_dir():
        around = [*sorted(filter(Path.is_dir, path.iterdir())), path.absolute().parent]
    where = "`minipipe coursework DIR` writes a directory that does"
    for place in around:
        if _any_holds([place], tasks):
            where = f"'{place}' does: grade that"
            break
    first, *_, last = [*tasks] * 2
    problem = f"'{path}' holds none of {first} … {last}"
    raise CourseworkError("not-found", f"{problem}; {where}.")


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
    every = list(map(Path, paths))
    files: dict[Path, set[str]] = {}  # by directory: the tasks whose files are named
    for path in every:
        is_beside_tasks = any(os.path.lexists(path.parent / task) for task in tasks)
        if path.name in tasks and is_beside_tasks and not os.path.isdir(path):
            files.setdefault(path.parent, set()).add(path.stem)
        else:
            files.setdefault(path, set())
    named = set().union(*files.values())
    if not named:
        return every, only
    if only is not None:
        reason = f"The file names its task, {min(named)}"
        raise CourseworkError("not-found", f"{reason}; leave --only out.")
    if any(each != named for each in files.values()):
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
    submissions = []
    for path in map(Path, paths):
        inside = []
        if os.path.isdir(path) and not _any_holds([path], tasks):
            inside = [each for each in path.iterdir() if not each.name.startswith(".")]
            inside = sorted(
                each for each in inside if each.is_dir() or is_archive(each)
            )
        if any(map(is_archive, inside)) or _any_holds(inside, tasks):
            submissions += inside
        else:
            submissions.append(path)
    return submissions


def _any_holds(folders: Iterable[Path], tasks: Collection[str]) -> bool:
    return any(os.path.lexists(folder / file) for folder in folders for file in tasks)
