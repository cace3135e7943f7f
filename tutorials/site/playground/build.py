"""The playground: the page of ``minipipe edit`` with Python inside, as static files beside the pages of the site.

Pyodide comes from npm while the site is built. Later, the page fetches nothing but these files. Python starts here
once, in Node; the page goes on from a copy of its memory, which takes a third of the time of a start.
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
# What the page loads; package.json says what the licence is and where the source.
NEEDED = (
    *("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json"),
    "package.json",
)
# The rooms of the editor; there is no NumPy in the page.
ROOMS = ("__init__.py", "_lazy.py", "errors.py", "hints.py", "hints.toml", "io.py", "render", "schedules")


class CannotBuild(SphinxError):
    """What is missing, and what to do."""

    category = "The playground cannot be built"


def build(destination: Path) -> None:
    """Write the playground into a folder, in place of what is there.

    Parameters
    ----------
    destination : Path
        Its parent has the first page of the site.

    Raises
    ------
    CannotBuild
        If npm or Node is missing, or Pyodide cannot be had, or is another than the one that was tried.
    """
    shutil.rmtree(destination, ignore_errors=True)
    destination.mkdir(parents=True)
    unpack_pyodide(destination / "pyodide")
    with zipfile.ZipFile(destination / "minipipe.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in files():
            archive.write(path, Path("minipipe", path.relative_to(PACKAGE)))
    memory = destination / "memory.bin"
    run("node", HERE / "snapshot.mjs", destination, memory)
    memory.write_bytes(gzip.compress(memory.read_bytes(), 6, mtime=0))  # 9 saves a hundredth, in five times the time
    shutil.copy(HERE / "worker.js", destination)
    page = draw_editor(Editor(), "worker", home="../index.html")
    (destination / "index.html").write_text(page, encoding="utf-8")


def unpack_pyodide(destination: Path) -> None:
    """Fetch Pyodide from npm, or from npm's cache, check it, and unpack what is needed."""
    with tempfile.TemporaryDirectory() as folder:
        listed = run("npm", "pack", "--json", "--prefer-offline", f"pyodide@{PYODIDE}", cwd=folder)
        path = Path(folder, json.loads(listed)[0]["filename"])
        check_integrity(path)
        destination.mkdir()
        with tarfile.open(path) as archive:
            for name in NEEDED:
                with archive.extractfile(f"package/{name}") as source, open(destination / name, "wb") as target:
                    shutil.copyfileobj(source, target)


def check_integrity(path: Path) -> None:
    """Refuse an archive other than the one that was tried."""
    found = f"sha512-{base64.b64encode(hashlib.sha512(path.read_bytes()).digest()).decode()}"
    if found != INTEGRITY:
        raise CannotBuild(f"{path.name} from npm is {found}; expected {INTEGRITY}.")


def files() -> Iterator[Path]:
    """Yield the files of the package that go into the page."""
    for room in ROOMS:
        top = PACKAGE / room
        for path in sorted(top.rglob("*")) if top.is_dir() else (top, top.with_suffix(".pyi")):
            if path.is_file() and path.suffix not in (".pyc", ".md"):
                yield path


def run(program: str, *arguments: str | Path, cwd: str | Path | None = None) -> str:
    """Return what a program of Node.js prints."""
    found = shutil.which(program)
    if found is None:
        raise CannotBuild(
            f"{program} is missing; the playground needs Node.js and its npm. Install them (apt-get install npm), or"
            " build the site without the playground: sphinx-build -D playground=0 …"
        )
    done = subprocess.run([found, *map(str, arguments)], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotBuild(f"{program} {' '.join(map(str, arguments))} failed:\n{done.stderr.strip()}")
    return done.stdout
