"""The core knows no kind of instruction that a pass declares."""

import ast

from minipipe.core.schedules.action import ActionKind
from minipipe.passes.kinds import ADDED
from tests.test_house import TREES

OF_PASSES = {"REDUCE_GRAD", "R", "O", "L", *ADDED} - {"HANDSHAKE", "FINITE", "LOSS"}
# The letters of all kinds; the kinds that a call covers; those that CSV cannot say.
NAMING = {"core.schedules.action", "core.framing", "core.schedules.written"}


def names_in(tree):
    """Return the texts and the imported names of a file."""
    nodes = list(ast.walk(tree))
    texts = {node.value for node in nodes if isinstance(node, ast.Constant)}
    return texts | {node.name for node in nodes if isinstance(node, ast.alias)}


def test_no_other_file_of_the_core_names_a_kind_of_a_pass():
    assert set(ActionKind) >= OF_PASSES - set(ADDED)
    core = {name: tree for name, tree in TREES.items() if name.startswith("core.")}
    naming = {name for name, tree in core.items() if names_in(tree) & OF_PASSES}
    assert naming == NAMING
