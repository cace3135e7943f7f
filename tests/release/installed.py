"""Commands in environments that have another minipipe than this checkout: an installed
one.
"""

import os
import shutil
import subprocess

from tests.launch import ROOT


def called(command, folder, **changes):
    """Run a command in a folder, with nothing of this checkout in its environment;
    return it with what it printed.
    """
    hidden = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONSAFEPATH", "COLUMNS")
    environment = {
        name: value for name, value in os.environ.items() if name not in hidden
    }
    options = {
        "cwd": folder,
        "capture_output": True,
        "text": True,
        "timeout": 120,
        "check": False,
    }
    return subprocess.run(
        [str(word) for word in command], env={**environment, **changes}, **options
    )


def succeeded(command, folder, **changes):
    done = called(command, folder, **changes)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def tracked():
    """Return the files of the project."""
    listed = succeeded(["git", "ls-files", "-z"], ROOT).stdout
    return {name for name in listed.split("\0") if name and (ROOT / name).is_file()}


def copy_of_the_project(folder):
    """Copy what a clone of the project has."""
    for name in tracked():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
