"""What hints recommend can be called so: each call of hints.toml fits the signature of
what it calls.
"""

import ast
import inspect
import re
import tomllib

import numpy as np
import pytest

import minipipe
from minipipe import (
    Grid,
    Pipeline,
    Tensor,
    autograd,
    data,
    functional,
    init_process_group,
    nn,
    no_grad,
    optim,
    spawn,
)
from minipipe.comm import OneRankGroup
from tests.launch import ROOT

TABLES = tomllib.loads((ROOT / "minipipe" / "hints.toml").read_text())
OF_A_READER = ("describe", "train")  # functions of the reader's own


def names():
    """Return what the names in the hints stand for."""
    group = OneRankGroup()
    model = nn.Sequential(nn.Linear(2, 1))
    pipeline = Pipeline(model, group, loss=nn.MSELoss())
    optimiser = optim.SGD(pipeline.parameters(), learning_rate=0.1)
    parameter = nn.Parameter([0.0])
    parameter.grad = np.zeros(1)
    packages = {
        "nn": nn,
        "functional": functional,
        "optim": optim,
        "minipipe": minipipe,
        "numpy": np,
    }
    packages |= {
        "data": data,
        "autograd": autograd,
        "ml_dtypes": pytest.importorskip("ml_dtypes"),
    }
    callables = (
        Pipeline,
        Grid,
        Tensor,
        init_process_group,
        spawn,
        no_grad,
        data.batches,
        print,
        float,
        dict,
        next,
        type,
    )
    made = {
        "x": Tensor([1.0]),
        "pipeline": pipeline,
        "optimiser": optimiser,
        "module": model,
        "model": model,
    }
    made |= {
        "group": group,
        "parameter": parameter,
        "p": parameter,
        "gradient": np.zeros(1),
    }
    made |= {"mask": Tensor([1.0]), "loss_scale": optim.LossScale()}
    return {**packages, **{each.__name__: each for each in callables}, **made}


NAMES = names()


def texts(tables=TABLES):
    """Yield the texts of all tables, for each name that leads to them."""
    for key, value in tables.items():
        if isinstance(value, dict):
            yield from texts(value)
        else:
            yield from (value.replace("{name}", name) for name in key.split())


def expressions(text):
    """Yield the expressions of a text that begin with a name: names with dots, and
    calls.
    """
    # "… for nn.utils.clip_grad_norm_", a foreign name
    text = re.sub(r"\bfor [\w.]+$", "", text.replace("…", "..."))
    at = 0
    while found := re.compile(r"(?<![\w.=\"'-])[A-Za-z_]\w*(?=\(|\.[A-Za-z_])").search(
        text, at
    ):
        end = found.end()
        while more := re.compile(r"\.[A-Za-z_]\w*|\(").match(text, end):
            end = closed(text, end) if more[0] == "(" else more.end()
        yield text[found.start() : end]
        at = end


def closed(text, start):
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] == "(") - (text[at] == ")")
        if not depth:
            return at + 1
    raise AssertionError(f"no ) in {text[start:]!r}")


class Unknown(Exception):
    """Names something that is not there."""


def value_of(node):
    """Return what an expression is, or of a call what has the same methods; check the
    calls in it.
    """
    if isinstance(node, ast.Name):
        if node.id in OF_A_READER:
            return lambda *arguments: None
        # A name alone, such as "step(…)", may be a method of what the hint is about.
        owners = (
            each
            for each in NAMES.values()
            if not isinstance(each, type) and hasattr(type(each), node.id)
        )
        if node.id not in NAMES and (owner := next(owners, None)) is None:
            raise Unknown(node.id)
        return NAMES[node.id] if node.id in NAMES else getattr(owner, node.id)
    if isinstance(node, ast.Attribute):
        return getattr(value_of(node.value), node.attr)
    assert isinstance(node, ast.Call), ast.unparse(node)
    function = value_of(node.func)
    check_call(function, node)
    if function in (next, type):
        return NAMES["x"]
    if function is Pipeline:
        return NAMES["pipeline"]
    is_of_a_tensor = isinstance(getattr(function, "__self__", None), Tensor)
    if is_of_a_tensor and function.__name__ == "numpy":
        return np.ones(1)
    return NAMES["x"] if is_of_a_tensor else None


def check_call(function, node):
    given = [
        each
        for each in node.args
        if not (isinstance(each, ast.Constant) and each.value is ...)
    ]
    keywords = {each.arg: None for each in node.keywords}
    for each in ast.walk(
        ast.Tuple([*given, *(each.value for each in node.keywords)], ast.Load())
    ):
        if isinstance(each, ast.Call):
            value_of(each)
    if not node.args and not keywords:  # f() names a function as well
        return
    try:
        signature = inspect.signature(function)
    except ValueError:  # of a builtin, such as dict
        return
    # A "…" stands for arguments that the reader knows.
    bind = signature.bind if len(given) == len(node.args) else signature.bind_partial
    bind(*given, **keywords)


def check(text):
    """Raise for a call that cannot be made so; return the number of expressions."""
    count = 0
    for expression in expressions(text):
        node = ast.parse(expression, mode="eval").body
        value_of(node)
        count += 1
    return count


def test_every_call_and_every_name_that_a_hint_recommends_is_there():
    """The story: ``minipipe.checkpoint.save(folder, pipeline, optimiser)`` was
    recommended, and needs a step.
    """
    total, wrong = 0, []
    for text in texts():
        try:
            total += check(text)
        except Unknown as error:
            wrong.append(f"{text}: {error} is no name of NAMES")
        except (AttributeError, TypeError, SyntaxError) as error:
            wrong.append(f"{text}: {error}")
    assert not wrong, "\n".join(wrong)
    assert total > 90


@pytest.mark.parametrize(
    "wrong",
    [
        "minipipe.checkpoint.save(folder, pipeline, optimiser)",
        "pipeline.stepp(x, y)",
        "Pipeline(model, group, lossy=…)",
        "optim.SGD(pipeline.parameter(), …)",
        "x.var(…).root()",
        "Pipeline(model, Grid(group, width=2), …)",
        "group.ranks and group.size",
        "step(…, accumulates=True)",
        "nn.Sequentially",
    ],
)
def test_a_call_that_cannot_be_made_is_found(wrong):
    with pytest.raises((AttributeError, TypeError)):
        check(wrong)


def test_saving_and_loading_have_texts_of_their_own():
    save, load = (
        minipipe.hints.instead_of("Pipeline")[name] for name in ("save", "load")
    )
    assert (
        "checkpoint.save(" in save
        and "step=" in save
        and "checkpoint.restore(" in load
        and "save" not in load
    )
