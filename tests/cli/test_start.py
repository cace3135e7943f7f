"""What a command loads before it answers: most of its time goes there."""

import subprocess
import sys

from tests.launch import ROOT


def loaded_by(*words):
    """Return the modules that a command has loaded when it ends, without those of a
    bare Python.
    """
    program = (
        f"import sys; bare = {{*sys.modules}}; from minipipe.cli import main; "
        f"main({list(words)!r})"
    )
    program += "; print(*{*sys.modules} - bare)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return set(done.stdout.splitlines()[-1].split())


def test_a_drawing_as_text_loads_nothing_that_it_does_not_need():
    """The story: half of the time went to compressors, to random numbers, to URLs, and
    to all other schedules.

    Annotations loaded comparisons and bounds, and asking a package that loads on demand
    for a file loaded hints.
    """
    loaded = loaded_by("show", "1f1b")
    schedules = {
        "v_shaped",
        "bidirectional",
        "asynchronous",
        "zero_bubble",
        "sliced",
        "cells",
        "text",
        "search",
    }
    without = {
        "hints",
        "render.files",
        "render.layout",
        "render.palette",
        "tuning",
        *(f"schedules.{name}" for name in schedules),
    }
    without |= {
        "schedules.simulation.comparison",
        "schedules.simulation.fitting",
        "schedules.analysis.bounds",
    }
    without |= {
        "schedules.simulation.explanation",
        "simulation.shared",
        "schedules.analysis.data_parallel",
    }
    without |= {"schedules.analysis.workload", "core.schedules.analysis.lowering"}
    assert (
        "minipipe.render.text" in loaded
        and not {f"minipipe.{name}" for name in without} & loaded
    )
    library = {
        "json",
        "csv",
        "shutil",
        "pathlib",
        "urllib.parse",
        "statistics",
        "random",
        "decimal",
        "fractions",
        "textwrap",
    }
    assert not library & loaded
