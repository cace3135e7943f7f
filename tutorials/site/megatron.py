"""Compare the options on the page for users of Megatron-LM with its source: ``python
tutorials/site/megatron.py DIR``.

DIR is a checkout of Megatron-LM. Its options are declared in
``megatron/training/arguments.py``, or follow from the fields of dataclasses:
``recompute_method`` is ``--recompute-method``, unless its metadata has another name.
Fields that ``arguments.py`` excludes count as options here.
"""

import ast
import re
import sys
from pathlib import Path

PAGE = Path(__file__).with_name("coming-from-megatron.md")
ROW = re.compile(r"^\| (`--.+?) \| (.+?) \|", re.MULTILINE)
BLOCK = re.compile(r"^```text\n(.+?)^```", re.MULTILINE | re.DOTALL)
# whose own options come first
LAUNCHER = re.compile(r"torchrun .*?pretrain_gpt\.py", re.DOTALL)
CONFIGS = (
    "core/model_parallel_config.py",
    "core/transformer/transformer_config.py",
    "training/config/*.py",
)


def listed(page: str) -> dict[str, str]:
    """Return the default of each option of the page's table, as the page writes it."""
    rows = [(names, default.replace("\\", "")) for names, default in ROW.findall(page)]
    return {
        name: default
        for names, default in rows
        for name in re.findall(r"--[\w-]+", names)
    }


def used(page: str) -> list[str]:
    """Return the options in the page's commands of Megatron-LM, without options of the
    launcher.
    """
    commands = LAUNCHER.sub("", "\n".join(BLOCK.findall(page)))
    return sorted(set(re.findall(r"--[\w-]+", commands)))


def options(checkout: Path) -> dict[str, str]:
    """Return the default of each option of Megatron-LM, as its source writes it."""
    megatron, found = checkout / "megatron", dict[str, str]()
    for path in (
        path for pattern in CONFIGS for path in sorted(megatron.glob(pattern))
    ):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if (
                isinstance(node, ast.AnnAssign)
                and isinstance(node.target, ast.Name)
                and node.value is not None
            ):
                own = re.search(r"--[\w-]+", ast.unparse(node.value))
                given = (
                    _default(node.value)
                    if isinstance(node.value, ast.Call)
                    else ast.unparse(node.value)
                )
                found[own[0] if own else "--" + node.target.id.replace("_", "-")] = (
                    given.strip("'")
                )
    for node in ast.walk(
        ast.parse((megatron / "training/arguments.py").read_text("utf-8"))
    ):
        if (
            isinstance(node, ast.Call)
            and getattr(node.func, "attr", "") == "add_argument"
        ):
            found |= {
                name.value: _default(node)
                for name in node.args
                if isinstance(name, ast.Constant)
            }
    return found


def _default(call: ast.Call) -> str:
    given = {each.arg: ast.unparse(each.value).strip("'") for each in call.keywords}
    return given.get(
        "default", "False" if given.get("action") == "store_true" else "None"
    )


def problems(page: str, checkout: Path) -> list[str]:
    """Return a sentence for each option that Megatron-LM does not have, or that has
    another default.
    """
    there = options(checkout)
    found = [
        f"{name} is in a command and is no option of Megatron-LM"
        for name in used(page)
        if name not in there
    ]
    for name, default in listed(page).items():
        if name not in there:
            found.append(f"{name} is no option of Megatron-LM")
        elif there[name].replace(" ", "") != default:
            found.append(
                f"{name} is said to be {default} by default; there it is {there[name]}"
            )
    return found


if __name__ == "__main__":
    wrong = problems(PAGE.read_text("utf-8"), Path(sys.argv[1]))
    text = PAGE.read_text("utf-8")
    print(
        "\n".join(wrong)
        or (
            f"{len(listed(text))} options and defaults, and {len(used(text))} "
            "options in commands, exist"
        )
    )
    sys.exit(bool(wrong))
