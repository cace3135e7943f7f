"""What people who know PyTorch write: it works here, or an error names the
equivalent.
"""

import doctest
import inspect
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest

import minipipe
from minipipe import Tensor, data, functional, nn, optim
from minipipe.comm import OneRankGroup
from minipipe.core.functional import reduction
from minipipe.errors import ArgumentError
from tests.launch import for_each

X = np.ones((8, 4), dtype=np.float32)
Y = np.ones((8, 1), dtype=np.float32)


def scope():
    """Return what an idiom finds: a tensor, a model with a gradient, an optimiser, and
    the packages.
    """
    x = Tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)).initialise(0)
    model(X).sum().backward()
    made = {
        "x": x,
        "model": model,
        "p": model[0].weight,
        "optimizer": optim.SGD(model.parameters(), 0.1),
    }
    made |= {"torch": minipipe, "nn": nn, "optim": optim, "data": data, "F": functional}
    return {**made, "np": np, "X": X, "Y": Y}


def said(idiom):
    """Return what an idiom ends with: the message of its error, or None."""
    try:
        exec(idiom, scope())
    except Exception as error:
        return str(error)
    return None


WORK = """
x.shape[0]
x.reshape(-1)
x.transpose(1, 0)
x.T
x.ndim
x.dtype
x.detach().numpy()
x.sum().item()
x.sum().backward()
x.mean(-1)
x.max(1)
x[:, None]
x @ x
x ** 2
x > 1
x += 1
int(x.sum())
float(x.sum())
x.requires_grad
p.data -= 0.1 * p.grad
p.grad = None
p.requires_grad = False
model.parameters()
dict(model.named_parameters())
model.train()
model.eval()
model.zero_grad()
model.state_dict()
model.load_state_dict(model.state_dict())
model.to("cpu")
len(model)
model[0:2]
optimizer.zero_grad()
optimizer.step()
nn.Conv2d(3, 8, kernel_size=3, padding="same", bias=False)
nn.Linear(4, 4, bias=False)
nn.Embedding(10, 4)
nn.GELU(approximate="tanh")
nn.CrossEntropyLoss(ignore_index=-100, label_smoothing=0.1)
nn.MSELoss(reduction="mean")
nn.Parameter(torch.Tensor([1.0]))
torch.no_grad()
F.softmax(x, -1)
F.cross_entropy(x, np.array([0, 1]), reduction="sum")
F.where(x > 1, x, x)
F.masked_fill(x, x > 1, 0)
"""

# Each idiom, and what its error names.
INSTEAD = {
    # tensors
    "torch.tensor([1.0])": "minipipe.Tensor(data)",
    "torch.zeros(3)": "Tensor(numpy.zeros(…))",
    "torch.randn(3)": "numpy.random.default_rng",
    "torch.manual_seed(0)": "seed=",
    "torch.cat([x, x])": "functional.concatenate",
    "torch.exp(x)": "functional.exp",
    "torch.float32": "numpy.float32",
    "torch.cuda.is_available()": 'device="gpu"',
    "torch.device('cuda')": 'device="gpu"',
    "torch.compile(model)": "compile=True",
    "torch.utils.data.DataLoader(X)": "minipipe.data: batches",
    "torch.distributed.init_process_group()": "minipipe.init_process_group()",
    "torch.save(model, 'x')": "minipipe.checkpoint",
    "torch.SGD": "minipipe.optim.SGD",
    "torch.Parameter": "minipipe.nn.Parameter",
    "x.view(-1)": "x.reshape",
    "x.permute(1, 0)": "x.transpose",
    "x.unsqueeze(0)": "x[:, None]",
    "x.expand(2, 2)": "broadcasts",
    "x.contiguous()": "functional.contiguous(x)",
    "x.clone()": "x.detach()",
    "x.sum(dim=0)": "axis=",
    "x.mean(dim=-1)": "axis=",
    "x.sum(axis=0, keepdim=True)": "keepdims=",
    "x.var(unbiased=False)": "correction=1",
    "x.argmax(dim=1)": "x.numpy().argmax",
    "x.softmax(dim=-1)": "functional.softmax",
    "x.cuda()": 'model.to("gpu")',
    "x.cpu().numpy()": "x.numpy()",
    "x.long()": "astype(long)",
    "x.pow(2)": "x ** 2",
    "x.abs()": "functional.where(x < 0, -x, x)",
    "abs(x)": "functional.where(x < 0, -x, x)",
    "x.add_(1)": "x = x + 1",
    "x[0] = 1": "functional.where(mask, a, x)",
    "(x > 1) & (x < 3)": "numpy.logical_and",
    "x // 2": "numpy.floor_divide",
    "x.mm(x)": "x @ y",
    "x.gather(0, x)": "x[indices]",
    "x.isnan().any()": "numpy.isnan",
    "x.device": "Pipeline(…, device=…)",
    "x.sum().backward(retain_graph=True)": "backward() releases the graph",
    "torch.Tensor([1.0], device='cuda')": 'model.to("gpu")',
    "nn.Parameter([1.0], requires_grad=False)": "parameter.requires_grad = False",
    # layers and losses
    "nn.functional.relu(x)": "minipipe.functional",
    "nn.utils.clip_grad_norm_(model.parameters(), 1.0)": "optim.clip_grad_norm",
    "nn.init.xavier_uniform_(p)": "nn.initialisers",
    "nn.initialisers.xavier_uniform_(p)": "nn.initialisers.glorot_uniform",
    "nn.LayerNorm([8, 8])": "the length of one axis, the last",
    "nn.LayerNorm(8, elementwise_affine=False)": "always are a weight and a bias",
    "nn.BatchNorm2d(8)": "nn.GroupNorm",
    "nn.ReLU(inplace=True)": "leave it out",
    "nn.ReLU(True)": "takes no arguments; it got",
    "nn.LeakyReLU(0.1)": "functional.where(x > 0, x, 0.01 * x)",
    "nn.Softplus()": "nn.Function(function)",
    "nn.Dropout(p=0.5)": "probability=",
    "nn.Flatten(start_dim=1)": "x.reshape",
    "nn.LSTM(4, 8, num_layers=2)": "nn.Sequential",
    "nn.ModuleList([])": "set a list of modules as an attribute",
    "nn.Sequential([nn.ReLU()])": "Sequential(*layers)",
    "nn.Linear(4, 4, device='cuda')": 'model.to("gpu")',
    "nn.Linear(4)": "Linear(in_features, out_features, bias=True",
    "nn.Conv2d(3, 8, 3, in_channels=3)": "Conv2d(in_channels, out_channels, kernel_size",
    "nn.Conv2d(3, 8)": "Conv2d: missing a required argument: 'kernel_size'",
    "nn.Conv2d(3, 8, 3, padding_mode='zeros')": "around the input are zeros",
    "nn.MaxPool2d()": "MaxPool2d(kernel_size, stride=None)",
    "nn.MaxPool2d(2, ceil_mode=True)": "windows lie within the input",
    "nn.Embedding(10, 4, padding_idx=0)": "every symbol has a vector",
    "nn.CrossEntropyLoss(weight=[1.0, 2.0])": "class_weights=",
    "nn.BCEWithLogitsLoss()": "any function that returns a mean",
    "nn.TransformerBlock(8, 2, activation='gelu')": "the activation is GELU",
    "model.cuda()": 'module.to("gpu")',
    "model.to('mps')": "expected 'cpu', 'gpu'",
    "model.to(np.float16)": "nn.Linear(…, dtype=…)",
    "model.training": "module.is_training",
    "model.children()": "module.modules()",
    "model.append(nn.ReLU())": "nn.Sequential(*layers)",
    "model.weight": "model[0].weight",
    "model.load_state_dict(model.state_dict(), strict=False)": "every parameter must be there",
    "model.zero_grad(set_to_none=True)": "leave it out",
    "model.register_forward_hook(print)": "a module of your own",
    # optimisers
    "optim.SGD(model.parameters(), lr=0.1)": "learning_rate=",
    "optim.SGD(model, 0.1)": "model.parameters()",
    "optim.SGD(model.parameters())": "SGD: missing a required argument: 'learning_rate'",
    "optim.Adam(model.parameters(), eps=1e-8)": "epsilon=",
    "optim.Adam(model.parameters(), amsgrad=True)": "no such variant",
    "optim.RMSprop(model.parameters())": "optim.Adam",
    "optim.lr_scheduler.StepLR(optimizer, 10)": "optim.LearningRateSchedule",
    "optim.StepLR(optimizer, 10)": "optim.step_decay",
    "optim.cosine(T_max=10)": "num_steps=",
    "optim.LossScale(init_scale=2.0)": "initial=",
    "optim.LearningRateSchedule(optimizer, optim.cosine(9)).get_last_lr()": "optimiser.learning_rate",
    "optimizer.zero_grad(set_to_none=True)": "leave it out",
    "optimizer.step(lambda: 1)": "Optimiser.step: too many positional arguments",
    "optimizer.param_groups[0]['lr'] = 1": "optimiser.groups[0].learning_rate",
    "optimizer.groups[0]['lr']": "optimiser.groups[0].learning_rate",
    "optimizer.groups[0].lr = 0.1": "optimiser.groups[0].learning_rate",
    "optimizer.lr = 0.1": "optimiser.learning_rate",
    # data, functional and autograd
    "data.DataLoader(X, batch_size=4)": "data.batches",
    "data.random_split(X, [4, 4])": "data.split_examples",
    "data.batches(X, Y, 4, shuffle=True)": "by seed= and epoch=",
    "data.batches(X, Y, 4, drop_last=True)": "differ by at most one",
    "data.batches(X, Y)": "batches(inputs, targets, batch_size, seed=0",
    "data.split_examples(X, Y, test_size=0.3)": "test_fraction=",
    "F.softmax(x, dim=-1)": "axis=",
    "F.concatenate([x, x], dim=1)": "axis=",
    "F.relu(x, inplace=True)": "nothing is changed in place",
    "F.dropout(x, p=0.5)": "probability=",
    "F.dropout(x, 0.5, training=True)": "nn.Dropout",
    "F.mse_loss(x, x)": "functional.mean_squared_error",
    "F.cross_entropy(x, x, weight=[1.0])": "class_weights=",
    "F.layer_norm(x, x, x, eps=1e-6)": "epsilon=",
    "F.pad(x, (1, 1))": "functional.concatenate",
    "F.flatten(x)": "functional.reshape",
    "F.leaky_relu(x)": "functional.where",
    "F.transpose(x, 0, 1)": "transpose(a, axes=None)",
    "F.clip(x, min=0)": "low=",
    "torch.autograd.grad(x.sum(), x)": "x.grad after backward()",
    "torch.autograd.set_detect_anomaly(True)": "check_finite",
    # imports
    "import minipipe.nn.functional as F": "import minipipe.functional",
    "from minipipe.nn import functional": "import minipipe.functional",
    "from minipipe.nn.utils import clip_grad_norm_": "optim.clip_grad_norm",
    "import minipipe.nn.init": "nn.initialisers",
    "from minipipe.nn.modules import Linear": "minipipe.nn itself",
    "from minipipe.data import DataLoader, TensorDataset": "data.batches",
    "from minipipe.utils.data import DataLoader": "minipipe.data: batches",
    "from minipipe.optim.lr_scheduler import StepLR": "optim.LearningRateSchedule",
    "import minipipe.distributed as dist": "minipipe.init_process_group()",
    "from minipipe.distributed.pipelining import ScheduleGPipe": "minipipe.init_process_group()",
    "from minipipe.autograd import Function": "@minipipe.op()",
    "from minipipe import cuda": 'device="gpu"',
    "from minipipe import softmax": "minipipe.functional.softmax",
}


@for_each(idiom={line: line for line in WORK.split("\n") if line})
def test_an_idiom_of_pytorch_works(idiom):
    assert said(idiom) is None


@for_each(case={idiom: (idiom, names) for idiom, names in INSTEAD.items()})
def test_an_idiom_of_pytorch_ends_with_an_error_that_names_the_equivalent(case):
    idiom, names = case
    message = said(idiom)
    assert message is not None and names in message, message


CLASSES = [
    getattr(package, name) for package in (nn, optim) for name in package.__all__
]
CLASSES = [
    kind
    for kind in CLASSES
    if inspect.isclass(kind) and issubclass(kind, nn.Module | optim.Optimiser)
]


@for_each(
    kind={kind.__name__: kind for kind in CLASSES if not inspect.isabstract(kind)}
)
def test_an_error_about_arguments_names_the_public_class(kind):
    first = next(iter(inspect.signature(kind).parameters), "none")
    for positional, given in (
        ((), {"strange": 1}),
        ((1,) * 30, {}),
        ((1,), {first: 1}),
        ((), {}),
    ):
        try:
            kind(*positional, **given)
        except TypeError as error:
            assert not re.search(r"\b_[A-Z]", str(error)), error
            assert "strange" not in given or str(error).startswith(
                f"{kind.__name__} takes no "
            ), error


def test_a_module_that_nobody_else_has_is_missing_in_the_words_of_python():
    for statement in (
        "import minipipe.strange",
        "from minipipe import strange",
        "from minipipe.nn import strange",
    ):
        with pytest.raises(
            ImportError,
            match=r"No module named 'minipipe.strange'|cannot import name 'strange'",
        ):
            exec(statement)


def test_an_import_of_another_name_loads_no_numpy():
    program = (
        "import sys\ntry: from minipipe import exp\nexcept ImportError as error: "
        "print(error, 'numpy' in sys.modules)"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert (
        found.stdout
        == "minipipe has no 'exp'; instead: minipipe.functional.exp. False\n"
    )


# -- what carries the hints changes nothing --------------------------------------------


def test_an_error_that_comes_from_inside_stays_what_it_is():
    with pytest.raises(TypeError, match="'int' object is not iterable"):
        functional.concatenate(3)
    with pytest.raises(ArgumentError, match="batch_size is 0"):
        list(data.batches(X, Y, 0))


def test_a_function_with_hints_shows_its_own_signature_and_its_examples_run():
    assert list(inspect.signature(functional.mean).parameters) == [
        "a",
        "axis",
        "keepdims",
    ]
    assert pickle.loads(pickle.dumps(functional.softmax)) is functional.softmax
    found = {
        test.name for test in doctest.DocTestFinder().find(reduction) if test.examples
    }
    assert {
        "minipipe.core.functional.reduction.total",
        "minipipe.core.functional.reduction.mean",
    } <= found


# -- what only Python or NumPy can refuse gets a note where it passes a layer or leaves
# a group -------------------

NOTES = {
    "x.size(0)": "x.shape[0] for one",
    "x.size()": "x.shape for the lengths",
    "group.size()": "group.size",
    "group.rank()": "group.rank",
    "weight.grad.zero_()": "optimiser.zero_grad()",
    "weight.grad.norm()": "optim.gradient_norm(parameters)",
    "weight.grad.clone().detach()": "gradient.copy()",
    "weight.data.copy_(1)": "gradient[...] = value",
    "float(weight.sum()).backward()": "step() has run backward already",
    "Tensor([1.0], requires_grad=True).grad.zero_()": "a gradient is None before backward()",
}


def weight_with_gradient():
    weight = Tensor([1.0, 2.0], requires_grad=True)
    (weight * 2).sum().backward()
    return weight


@for_each(case={idiom: (idiom, names) for idiom, names in NOTES.items()})
def test_an_error_of_python_that_leaves_a_group_has_a_note_with_the_equivalent(
    case, tmp_path
):
    idiom, names = case
    program = tmp_path / "program.py"  # a traceback shows its lines
    program.write_text(f"def train(group, x, weight):\n    {idiom}\n")
    scope = {"Tensor": Tensor}
    exec(compile(program.read_text(), str(program), "exec"), scope)
    for run in (
        lambda function: minipipe.spawn(function, 1),
        lambda function: alone(function),
        lambda function: (
            nn.Function(function)(OneRankGroup())
            if "size" in idiom
            else minipipe.spawn(function, 1)
        ),
    ):
        with pytest.raises((AttributeError, TypeError)) as caught:
            run(
                lambda group: scope["train"](
                    group, Tensor([1.0]), weight_with_gradient()
                )
            )
        (note,) = [
            note for note in caught.value.__notes__ if note.startswith("Instead: ")
        ]
        assert names in note


def alone(function):
    with minipipe.init_process_group() as group:
        function(group)


def test_an_error_that_has_no_equivalent_has_no_note():
    wrongs = (
        lambda group: np.ones(1).strange,
        lambda group: None.strange,
        lambda group: len()(),
        lambda group: 1 / 0,
    )
    for wrong in wrongs:
        with pytest.raises((AttributeError, TypeError, ZeroDivisionError)) as caught:
            alone(wrong)
        assert not [
            note
            for note in getattr(caught.value, "__notes__", ())
            if note.startswith("Instead: ")
        ]
