"""Build the playground: the page of ``minipipe edit`` with Python in the browser, as
static files of the site.

The build fetches Pyodide from npm; the finished page fetches only its own files. The
build also starts Python once in Node.js and saves its memory. The page starts from this
copy in a third of the time of a normal start.
"""

import base64
import gzip
import hashlib
import json
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from sphinx.errors import SphinxError

from minipipe.render.editor import Editor, draw_editor

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parents[2] / "minipipe"
PYODIDE = "314.0.7"
INTEGRITY = "sha512-0YvXxEhfEdpLfb/XkM2BFAeMROq0iMUX2bzzH9pOttyMcWkwq+HbE5uyuGD82LN7y2q+SNvi/6V5JEsOlD2R1A=="
# The files that the page loads, and package.json, which names the licence and the
# source.
NEEDED = (
    *(
        "pyodide.mjs",
        "pyodide.asm.mjs",
        "pyodide.asm.wasm",
        "python_stdlib.zip",
        "pyodide-lock.json",
    ),
    "package.json",
)
# The parts of minipipe that the editor needs. The page has no NumPy.
PARTS = (
    *(
        "__init__.py",
        "_lazy.py",
        "errors.py",
        "hints.py",
        "hints.toml",
        "io.py",
    ),
    *("core", "passes", "render", "schedules", "search", "simulation"),
)
# The half of the core that trains: files and folders.
TRAINING = {
    *("batch.py", "joints.py", "objective.py", "pipeline.py", "pytree.py", "sgd.py"),
    *("tensor.py", "autograd", "comm", "execution", "functional", "nn"),
}


class CannotBuild(SphinxError):
    """Something is missing. The message says what to do."""

    category = "The playground cannot be built"


def build(destination: Path) -> None:
    """Write the playground into a folder, and delete the previous content of the
    folder.

    Parameters
    ----------
    destination : Path
        A folder beside the first page of the site.

    Raises
    ------
    CannotBuild
        If npm or Node.js is missing, or if Pyodide cannot be fetched or has the wrong
        checksum.
    """
    shutil.rmtree(destination, ignore_errors=True)
    destination.mkdir(parents=True)
    unpack_pyodide(destination / "pyodide")
    with zipfile.ZipFile(
        destination / "minipipe.zip", "w", zipfile.ZIP_DEFLATED
    ) as archive:
        for path in files():
            archive.write(path, Path("minipipe", path.relative_to(PACKAGE)))
    memory = destination / "memory.bin"
    run("node", HERE / "snapshot.mjs", destination, memory)
    # level 9 saves 1 % in five times the time
    memory.write_bytes(gzip.compress(memory.read_bytes(), 6, mtime=0))
    shutil.copy(HERE / "worker.js", destination)
    page = draw_editor(Editor(), "worker", home="../index.html")
    (destination / "index.html").write_text(page, encoding="utf-8")


def unpack_pyodide(destination: Path) -> None:
    """Fetch Pyodide from npm or its cache, check it, and unpack the needed files."""
    with tempfile.TemporaryDirectory() as folder:
        listed = run(
            "npm",
            "pack",
            "--json",
            "--prefer-offline",
            f"pyodide@{PYODIDE}",
            cwd=folder,
        )
        path = Path(folder, json.loads(listed)[0]["filename"])
        check_integrity(path)
        destination.mkdir()
        with tarfile.open(path) as archive:
            for name in NEEDED:
                with (
                    archive.extractfile(f"package/{name}") as source,
                    open(destination / name, "wb") as target,
                ):
                    shutil.copyfileobj(source, target)


def check_integrity(path: Path) -> None:
    """Refuse an archive with another checksum."""
    found = f"sha512-{base64.b64encode(hashlib.sha512(path.read_bytes()).digest()).decode()}"
    if found != INTEGRITY:
        raise CannotBuild(f"{path.name} from npm is {found}; expected {INTEGRITY}.")


def files() -> Iterator[Path]:
    """Yield the files of minipipe that are part of the page."""
    for part in PARTS:
        top = PACKAGE / part
        for path in (
            sorted(top.rglob("*")) if top.is_dir() else (top, top.with_suffix(".pyi"))
        ):
            if part == "core" and path.relative_to(top).parts[0] in TRAINING:
                continue
            if path.is_file() and path.suffix not in (".pyc", ".md"):
                yield path


def run(program: str, *arguments: str | Path, cwd: str | Path | None = None) -> str:
    """Return the output of a program of Node.js."""
    found = shutil.which(program)
    if found is None:
        raise CannotBuild(
            f"{program} is missing; the playground needs Node.js and its npm. "
            "Install them (apt-get install npm), or"
            " build the site without the playground: sphinx-build -D playground=0 …"
        )
    done = subprocess.run(
        [found, *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise CannotBuild(
            f"{program} {' '.join(map(str, arguments))} failed:\n{done.stderr.strip()}"
        )
    return done.stdout
