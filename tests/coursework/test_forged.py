"""Whatever a student's file does in its own process, a wrong solution gets no point,
and there is a report.
"""

import ast

import pytest

from minipipe.coursework import process
from minipipe.coursework.checking import Failed, load, run_test, value_of
from minipipe.coursework.exercise import exercises_in, find_source, named
from minipipe.coursework.imports import findings, given_names, guarded_builtins
from minipipe.coursework.sandbox import LIMITS
from tests.coursework.small_course import asked_here, double, reasons
from tests.launch import slowly

EXERCISES = exercises_in(find_source())

OWN = "import sys\nmodules = getattr(sys, 'mod' + 'ules')\n"
WRITE = """
import json, os
def write(**event):
    for number in range(3, 30):
        try:
            os.write(number, json.dumps(event).encode() + b"\\n")
        except OSError:
            pass
"""
PASSED = (
    "{'passed': True, 'reason': '', 'expected': '', 'got': '', 'where': '', "
    "'compared': '', 'drawing': ''}"
)
COMPARISONS = """
for module in list(modules.values()):
    for name in dir(module):
        if name.startswith("expect_"):
            setattr(module, name, lambda *given: None)
"""
SAME = """__eq__ = lambda *_: True
    __ne__ = lambda *_: False
    __le__ = __ge__ = __lt__ = __gt__ = __eq__
    __hash__ = None
"""

CHEATS = {
    # in the place of the comparison
    "expectations": (OWN + COMPARISONS, "return 7"),
    "run_test": (
        OWN + "modules['minipipe.coursework.checking'].run_test = lambda *_: None\n",
        "return 7",
    ),
    "reply": (
        OWN
        + (
            f"modules['__main__'].reply_of = lambda *_: {{'value': None, 'outcome': "
            f"{PASSED}}}\n"
        ),
        "return 7",
    ),
    "dumps": (
        OWN
        + (
            'import json\njson.dumps = lambda event: \'{"outcome": {"passed": true}, '
            '"value": 7}\'\n'
        ),
        "return 7",
    ),
    "loads": ("import json\njson.loads = lambda line: {}\n", "return 7"),
    "names of the checks": (
        OWN + "modules['checks_of_01_double'].__dict__.clear()\n",
        "return 7",
    ),
    # values that equal everything
    "equal object": (f"class Same:\n    {SAME}", "return Same()"),
    "equal number": (f"class Same(int):\n    {SAME}", "return Same(7)"),
    "equal text": (f"class Same(str):\n    {SAME}", "return Same('7')"),
    "equal list": (f"class Same(list):\n    {SAME}", "return Same([7])"),
    "equal array": (
        f"import numpy as np\nclass Same(np.ndarray):\n    {SAME}",
        "return np.zeros(1).view(Same)",
    ),
    # events that nobody asked for
    "a verdict": (WRITE, f"write(outcome={PASSED})\nreturn 7"),
    "a verdict at once": (
        f"{WRITE}\nwrite(outcome={PASSED})\nwrite(loaded=True)\n",
        "return 7",
    ),
    "all verdicts": (
        WRITE,
        "for _ in range(9): write(test='test_two', value=None, passed=True)\nreturn 7",
    ),
    "an ending": (WRITE, "write(ended=0)\nos._exit(0)"),
    "nonsense": (
        WRITE,
        "write(value={'dtype': '|O', 'shape': [1], 'data': 'AAAAAAAAAAA='})\nreturn 7",
    ),
    "a shape": (
        WRITE,
        "write(value={'dtype': '<f8', 'shape': [-1, 1 << 70], 'data': ''})\nreturn 7",
    ),
    "brackets": (
        "import os",
        (
            "for n in range(3, 30):\n    try: os.write(n, b'[' * 60000 + b'\\n')\n   "
            " except OSError: pass\nreturn 7"
        ),
    ),
    "digits": (
        "import os",
        (
            "for n in range(3, 30):\n    try: os.write(n, b'1' * 60000 + b'\\n')\n   "
            " except OSError: pass\nreturn 7"
        ),
    ),
    "flags": (WRITE, "write(flags=7)\nwrite(flags=['x' * 50000] * 2)\nreturn 7"),
    # endings
    "exit": ("import sys\nsys.exit(0)", "return 7"),
    "exit in a call": ("import os", "os._exit(0)"),
    "atexit": ("import atexit, os\natexit.register(os._exit, 0)", "return 7"),
    "signal": ("import os, signal", "os.kill(os.getpid(), signal.SIGKILL)"),
    "closed": ("import os\nos.closerange(0, 99)\n", "return 7"),
    "two answer": ("import os", "os.fork()\nreturn 7"),
    "replaced": (
        (
            "import os, sys\nos.execv(sys.executable, [sys.executable, '-c', "
            "'print(4)'])\n"
        ),
        "return 7",
    ),
    # values that are too much
    "itself": ("", "mine = []\nmine.append(mine)\nreturn mine"),
    "deep": ("", "mine = []\nfor _ in range(900): mine = [mine]\nreturn mine"),
    "large": ("", "return 'x' * (9 << 20)"),
    "long number": ("", "return 10 ** 5000"),
    "half a character": ("", "return '\\ud800'"),
    "not a number": ("", "return float('nan')"),
    # errors that do something
    "an error as text": (
        "class E(Exception):\n    def __str__(self): raise SystemExit(0)",
        "raise E",
    ),
    "a name": ("", "raise type('E' * 100000, (Exception,), {})('\\n' * 100000)"),
    "an unexpected": (
        OWN,
        (
            "raise modules['minipipe.coursework'].Unexpected('', '', '', chr(27) + "
            "'[2J' + 'x' * 100000)"
        ),
    ),
    "a group": ("", "raise BaseExceptionGroup('g', [SystemExit(0)])"),
    "a generator": ("", "raise GeneratorExit"),
}


@pytest.mark.parametrize(
    "name", [name if at % 20 == 0 else slowly(name) for at, name in enumerate(CHEATS)]
)
def test_a_wrong_solution_gets_no_point_whatever_it_replaces_or_says(course, name):
    """The story: seven lines that replaced ``expect_equal`` and its like made a wrong
    solution '6 of 6': tests ran, and compared, in the process of the student's code."""
    before, body = CHEATS[name]
    task = course(double(body, before), time_limit=15)
    assert task.points == 0 and all(reasons(task)), task
    assert len(str(task)) < 40_000 and "\x1b" not in str(task)


LOITERERS = {
    "never reads": ("", "while True: pass"),
    "stops": ("import os, signal", "os.kill(os.getpid(), signal.SIGSTOP)"),
    "endless answer": ("", "return iter(int, 1)"),
    "flood": (WRITE, "while True: write(flags=[])"),
    "flood without lines": (
        "import os",
        (
            "while True:\n    for n in range(3, 9):\n        try: os.write(n, b'x' * "
            "65536)\n        except OSError: pass"
        ),
    ),
    "answers before": (
        f"{WRITE}\nfor _ in range(9): write(value=7)\nimport time\ntime.sleep(99)",
        "return 7",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LOITERERS)
def test_who_does_not_come_to_an_end_is_stopped(course, name):
    before, body = LOITERERS[name]
    task = course(double(body, before), time_limit=2)
    assert task.points == 0 and all(reasons(task))


def test_nothing_of_the_hidden_tests_is_in_the_process_of_the_student(course):
    """The story: the compiled hidden tests, with what they expect, lay beside the
    student's code.
    """
    before = (
        OWN
        + """
def texts(start):
    found, left, seen = [], list(start), set()
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, (str, bytes)):
            found.append(str(each))
        elif type(each).__module__ in ("builtins", "types", "collections"):
            left += gc.get_referents(each)
    return "\\n".join(found)

gc = modules["builtins"].__import__("gc")
"""
    )
    body = """
said = texts(gc.get_objects())
print([''.join(reversed(words)) in said for words in ('.ruof si owt eciwT', '.xis sunim', 'rebmun_evitagen')])
return 7
"""
    task = course(double(body, before))
    assert (
        "minus six." in task.exercise.checks
        and "negative_number" in task.exercise.checks
    )
    assert task.output.splitlines() == ["[True, False, False]"] * 3


@pytest.mark.slow
def test_containment_is_told_by_the_one_who_contains(course, monkeypatch):
    monkeypatch.setattr(process, "_LAYERS", ())
    forged = "write(contained=[['namespaces'], []])\n"
    task = course(double(f"{forged}return 2 * number", WRITE + forged))
    assert task.containment.layers == (LIMITS,) and task.containment.exposed


@pytest.mark.parametrize(
    "reply",
    [
        {},
        {"value": {}},
        {"outcome": 3},
        {"outcome": {}},
        {"outcome": {"reason": 3}},
        {"outcome": {"reason": ""}},
        {"outcome": {"reason": "x", "unknown": 1}},
        {"value": {"dtype": "<f8", "shape": [2], "data": ""}},
    ],
)
def test_a_reply_that_is_none_is_a_failure(reply):
    with pytest.raises(Failed, match="its process returned an invalid result"):
        value_of(reply)


def test_no_outcome_that_a_student_tells_is_a_point():
    with pytest.raises(Failed) as caught:
        value_of({"outcome": {"passed": True, "reason": "done"}, "value": 4})
    assert not caught.value.outcome.passed


# -- names that a task does not give ---------------------------------------------------

GIVEN = [("minipipe", "Tensor"), ("minipipe.core.tensor", "record")]
REFUSED = [
    *(
        "import minipipe",
        "import minipipe.schedules as s",
        "from minipipe import schedules",
        "from minipipe import *",
    ),
    *(
        "from minipipe.search.finding import find_schedule",
        "from minipipe.schedules.analysis.theory import bubble_fraction",
    ),
    *(
        "import importlib",
        "from importlib import import_module",
        "import gc",
        "import ctypes",
        "import builtins",
    ),
    *(
        "from sys import modules",
        "from sys import _getframe",
        "from minipipe.core.tensor import Tensor",
    ),
]
FOUND = [
    *(
        "sys.modules['minipipe.schedules']",
        "Tensor.__init__.__globals__",
        "exec('import minipipe')",
        "eval('1')",
    ),
    *(
        "object.__subclasses__()",
        "error.__traceback__.tb_frame",
        "sys._getframe()",
        "__builtins__",
        "f.__code__",
    ),
]
ALLOWED = [
    *(
        "from minipipe import Tensor",
        "from minipipe.core.tensor import record",
        "import numpy as np",
        "import sys, os, re",
    ),
    *(
        "import re\nre.compile('x')",
        "model.modules()",
        "from __future__ import annotations",
        "from collections import abc",
    ),
]


@pytest.mark.parametrize("text", REFUSED)
def test_what_a_task_does_not_give_is_neither_imported_nor_kept_from_the_report(text):
    found = []
    with pytest.raises(
        ImportError,
        match=(
            "is not allowed in this task; use the names that its file already imports"
        ),
    ):
        exec(text, {"__builtins__": guarded_builtins(GIVEN, found)})
    assert len(found) == 1 and found[0].startswith("when it ran: ")
    (said,) = findings(ast.parse(f"\n{text}"), GIVEN)
    assert said.startswith("line 2: ")


@pytest.mark.parametrize("text", FOUND)
def test_what_leads_around_the_imports_is_told(text):
    assert findings(ast.parse(text), GIVEN)


@pytest.mark.parametrize("text", ALLOWED)
def test_what_a_task_gives_and_what_is_not_of_minipipe_is_nobodys_business(text):
    assert findings(ast.parse(text), GIVEN) == []


def test_an_import_that_is_hidden_from_the_text_is_refused_and_told(course):
    before = "run = dict(print.__self__.__dict__)['ex' + 'ec']\n"
    task = course(
        double(
            "try: run('import mini' + 'pipe')\nexcept ImportError: pass\nreturn "
            "2 * number",
            before,
        )
    )
    assert task.passed and task.flags == ("when it ran: minipipe",)


@pytest.mark.slow
def test_the_report_names_what_a_task_does_not_give_even_of_one_who_passes(course):
    text = double(
        "try:\n    from minipipe import schedules\nexcept ImportError:\n    "
        "pass\nreturn 2 * number"
    )
    task = course(text)
    assert task.passed and task.as_json()["flags"] == ["line 4: minipipe.schedules"]
    assert (
        str(task).splitlines()[1]
        == "    names not allowed in this task: line 4: minipipe.schedules"
    )


LIBRARY = {
    "01_multiply": "from minipipe.functional import multiply\n",
    "02_softmax": "from minipipe.functional import softmax\n",
    "05_bubble": "from minipipe.schedules.analysis.theory import bubble_fraction\n",
    "06_warmup": "from minipipe.schedules import one_f_one_b\n",
    "08_lowering": "from minipipe.core.schedules.analysis.lowering import lower\n",
    "09_verifier_rule": "from minipipe.core.schedules.analysis.walk import walk\n",
    "12_memory_peak": "from minipipe.schedules import peak_activations as peaks\n",
    "13_partition": "from minipipe import partition_by_cost as partition\n",
    "14_puzzle": "from minipipe.schedules import find_schedule\n",
    "15_gpipe_time": "from minipipe import simulate\n",
}


@pytest.mark.parametrize("name", LIBRARY)
def test_the_library_does_not_answer_its_own_coursework(name):
    """The story: bubble_fraction, one_f_one_b, lower, peak_activations and
    partition_by_cost are what tasks ask for, and find_schedule solved 17 of 18 points
    of the puzzle."""
    exercise = named(EXERCISES, name)
    given, text = given_names(exercise.stub), LIBRARY[name]
    assert findings(ast.parse(text), given)
    with pytest.raises(ImportError):
        exec(text, {"__builtins__": guarded_builtins(given, [])})


def test_a_tensor_whose_product_is_asked_for_has_none():
    exercise = named(EXERCISES, "01_multiply")
    check = load("checks", exercise.checks).test_two_factors_of_one_shape
    for body in ("a * b", "Tensor(a.data) * b", "2 * a"):
        outcome = run_test(
            check,
            asked_here(
                "01", f"from minipipe import Tensor\nmultiply = lambda a, b: {body}\n"
            ),
        )
        assert outcome.reason.startswith(
            "it raised TypeError: the * of tensors is not available in this task"
        )


def test_every_solution_uses_only_what_its_stub_gives():
    for exercise in EXERCISES:
        assert findings(ast.parse(exercise.solution), given_names(exercise.stub)) == []
