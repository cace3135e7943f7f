"""Stepping through a training in a notebook: a kernel asks for what one types, and
stops where a terminal does.
"""

import pytest

from tests.tutorials.test_stepping import PROGRAM, SESSION, TYPED


@pytest.fixture
def kernel():
    """Start a kernel of Jupyter's."""
    manager = pytest.importorskip(
        "jupyter_client.manager", reason="needs Sphinx (pip install -e '.[docs]')"
    )
    started, client = manager.start_new_kernel(kernel_name="python3")
    yield client
    client.stop_channels()
    started.shutdown_kernel(now=True)


def run_in(kernel, program):
    """Run a program in a cell and type the page's commands; return the prompts
    answered, and what was printed.
    """
    prompts, printed, typed = [], [], iter(TYPED)

    def answer(message):
        prompts.append(message["content"]["prompt"])
        kernel.input(next(typed))

    def note(message):
        printed.append(message["content"].get("text", ""))

    reply = kernel.execute_interactive(
        program, allow_stdin=True, stdin_hook=answer, output_hook=note, timeout=60
    )
    assert reply["content"]["status"] == "ok"
    return prompts, "".join(printed)


def test_in_a_notebook_it_stops_where_a_terminal_does(kernel):
    prompts, printed = run_in(kernel, PROGRAM)
    assert prompts == ["ipdb> "] * len(TYPED)
    values = [line for line in SESSION.splitlines() if line.startswith(("'", "('"))]
    assert [line for line in printed.splitlines() if line in values] == values


def test_a_kernel_does_not_stop_at_breakpoint_as_the_page_says(kernel):
    prompts, printed = run_in(
        kernel, PROGRAM.replace("pdb.set_trace()", "breakpoint()")
    )
    assert prompts == [] and printed.startswith("[")
