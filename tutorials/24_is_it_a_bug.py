# %% [markdown]
# # 24 · Is my loss difference a bug?
#
# You train the same model twice: on one process, and with a pipeline, on another
# machine, or in another precision. The losses differ. In this lesson you learn how
# large the difference may be, let `minipipe.testing.referee` judge it, and see which
# evidence it needs.
#
# Within minipipe, the question has a short answer: a schedule changes no bit, so a bit
# that differs is a bug. Most comparisons are not so lucky. Another number of
# microbatches, replicas, or another program add the same numbers in another order.

# %%
import tempfile
from pathlib import Path

import numpy as np

from minipipe import nn
from minipipe.testing import Verdict, one_process_step, referee

# %% [markdown]
# ## The order of additions
#
# Each addition in float32 rounds its result, with a relative error of at most the
# **unit roundoff** u = 2^-24, about 6e-8. So the order matters:

# %%
numbers = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
exact = numbers.astype(np.float64).sum()
sums = {
    "one by one": np.add.accumulate(numbers)[-1],
    "backwards": np.add.accumulate(numbers[::-1])[-1],
    "in pairs": numbers.sum(),
}
u = 2.0**-24
magnitude = np.abs(numbers).sum()
errors = {name: abs(value - exact) / magnitude / u for name, value in sums.items()}
for name, error in errors.items():
    print(f"{name:12} error {error:8.3f} u times the sum of absolute values")
worst = len(numbers) - 1
typical = len(numbers) ** 0.5
print(f"proven bound {worst} u, usual size below {typical:.0f} u")
assert max(errors.values()) < typical < worst
assert errors["in pairs"] < max(errors["one by one"], errors["backwards"])

# %% [markdown]
# A sum of n terms has an error of at most (n-1) u times the sum of the absolute values
# (Higham 2002, section 4.2). Errors have random signs, so that they grow as the square
# root of n (Higham and Mary 2019). A wrong gradient differs by a percent, or by half.
# Between the two are five decimal digits, and there the referee draws its line.
#
# ## Two runs
#
# This training adds the gradients of its microbatches itself, so that you can spoil it.
# It records losses, gradients of the first step, and what each microbatch added.

# %%
generator = np.random.default_rng(1)
x = generator.standard_normal((48, 8)).astype(np.float32)
y = np.tanh(x @ generator.standard_normal((8, 4))).astype(np.float32)
SIZES = (20, 12, 10, 6)  # samples of each microbatch


def right_weights(sizes):
    """Return the weight of each microbatch in the mean over all samples."""
    return [size / sum(sizes) for size in sizes]


def make_model():
    """Return a model with first values that depend on nothing."""
    layers = [nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh()]
    model = nn.Sequential(*layers, nn.Linear(32, 4))
    model.initialise(0)
    return model


def train(sizes=SIZES, weights_of=right_weights, steps=12, nudge=0, skip=None):
    """Return what a run records: ``nudge`` moves first weights to the next number, and
    the microbatch ``skip`` is left out.
    """
    model, record, losses = make_model(), {}, []
    values = model.state_dict()
    if nudge:
        values = {name: np.nextafter(w, np.float32(9)) for name, w in values.items()}
    ends = np.cumsum(sizes)
    for step in range(1, steps + 1):
        model.load_state_dict(values)
        total, loss = {}, 0.0
        for k, (size, weight) in enumerate(zip(sizes, weights_of(sizes))):
            if k == skip:
                continue
            part = slice(ends[k] - size, ends[k])
            result = one_process_step(model, nn.MSELoss(), x[part], y[part], 1)
            loss += weight * result.loss
            for name, gradient in result.gradients.items():
                term = np.float32(weight) * gradient
                total[name] = total.get(name, 0) + term
                if step == 1:
                    record[f"microbatch/{k}/gradients/{name}"] = term
        if step == 1:
            record |= {f"gradients/{name}": value for name, value in total.items()}
        rate = np.float32(0.2)
        values = {name: values[name] - rate * total[name] for name in values}
        losses.append(loss)
    return {"loss": np.array(losses), **record}


def only(run, *kinds):
    """Return the arrays of a run whose names begin with one of these words."""
    return {name: array for name, array in run.items() if name.startswith(kinds)}


one = train()
other = train(sizes=(12, 12, 12, 12))
differences = np.abs(one["loss"] - other["loss"])
print(f"losses {one['loss'][0]:.4f} to {one['loss'][-1]:.4f}")
print(f"they differ by at most {differences.max():.1e}")
assert 0 < differences.max() < 1e-6
assert one["loss"][-1] < 0.7 * one["loss"][0]

# %% [markdown]
# The second run has other microbatches, of 12 samples each. The referee compares arrays
# of the same name. Of each it gives the size of the difference, relative to the norm of
# the array, and the bound:

# %%
report = referee(only(one, "loss", "gradients"), only(other, "loss", "gradients"))
print(report)
assert report.verdict is Verdict.ORDER

# %% [markdown]
# ## Differences grow
#
# The training of a large network is chaotic: a difference in the last digit grows
# exponentially. After thousands of steps two honest curves part visibly, so a large
# difference late in training proves nothing. The *first steps* decide. A rounding
# difference begins at u, and no step multiplies it by much. A bug begins at its own
# size, in one step. Here one run starts from weights moved to the next float32, and in
# another run microbatch 2 is missing. (This small network is not chaotic: the first
# difference stays as small as it is.)

# %%
nudged = train(nudge=1)
missing = train(skip=2)
print("step   nudged  missing")
parts = {}
for name, run in (("nudged", nudged), ("missing", missing)):
    parts[name] = np.abs(run["loss"] / one["loss"] - 1)
for step in (1, 2, 4, 8, 12):
    print(
        f"{step:4} {parts['nudged'][step - 1]:8.1e} {parts['missing'][step - 1]:8.1e}"
    )
assert step == len(one["loss"])
assert parts["nudged"].max() < 1e-5 and parts["missing"].min() > 1e-3

# %% [markdown]
# ## Bugs
#
# Three common ones. `microbatch/…` in the first run is what finds the cause: the
# difference is a combination of the microbatches' gradients, which rounding errors never
# are.

# %%
BUGS = {
    "missing microbatch": missing,
    "mean of means": train(weights_of=lambda sizes: [1 / len(sizes)] * len(sizes)),
    "scaled twice": train(weights_of=lambda s: [w / 4 for w in right_weights(s)]),
}
verdicts = {}
for name, run in BUGS.items():
    report = referee(only(one, "micro", "grad"), only(run, "gradients"))
    verdicts[name] = report.verdict
    print(f"{name}: {report.verdict}\n    {report.evidence}")
    losses_alone = referee(only(one, "loss"), only(run, "loss")).verdict
    assert losses_alone is Verdict.BUG
assert set(verdicts.values()) == {Verdict.BUG}
assert "scaled" in report.evidence

# %% [markdown]
# ## Fewer digits are no bug, if they explain the difference
#
# bfloat16 has 8 significant bits, u = 2^-8. A gradient that is accumulated in it differs
# by half a percent: as much as a small bug. So the bound is no proof here. The referee
# *repeats* the rounding: it adds the recorded microbatches in bfloat16 and compares
# bits. Without the microbatches it cannot, and says so.


# %%
def to_bfloat16(values):
    """Return float32 values with the upper 16 bits only, rounded to the nearest."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32)


rounded = {}
for name in only(one, "gradients"):
    total = np.zeros_like(one[name])
    for k in range(len(SIZES)):
        total = to_bfloat16(total + one[f"microbatch/{k}/{name}"])
    rounded[name] = total
with_parts = referee(only(one, "micro", "grad"), rounded)
without = referee(only(one, "grad"), rounded)
print(f"with microbatches: {with_parts.verdict}\n    {with_parts.evidence}")
print(f"without: {without.verdict}\n    missing: {without.missing}")
assert with_parts.verdict is Verdict.ROUNDING
assert without.verdict is Verdict.CANNOT_TELL and "microbatch/K" in without.missing

# %% [markdown]
# ## In doubt
#
# Losses alone can hide a bug. Adam divides a gradient by its size, so a gradient that is
# twice too large trains alike. Therefore two curves that agree up to rounding prove
# nothing, unless you state that the optimiser is SGD, or add gradients of one step:

# %%
curves = only(one, "loss"), only(other, "loss")
unknown = referee(*curves)
stated = referee(*curves, optimiser="sgd")
print(f"unknown optimiser: {unknown.verdict}\n    missing: {unknown.missing}")
print(f"SGD: {stated.verdict}")
assert unknown.verdict is Verdict.CANNOT_TELL
assert stated.verdict is Verdict.ORDER

# %% [markdown]
# ## Your own runs
#
# Record in both programs, in whatever framework, the losses of some ten steps, and the
# gradients of the first one before clipping:
#
# ```python
# import numpy as np
#
# gradients = {
#     f"gradients/{name}": p.grad.float().cpu().numpy()
#     for name, p in model.named_parameters()
# }
# np.savez("mine.npz", loss=losses, **gradients)
# ```
#
# Fix what is random: the same first weights, the same batches, no dropout, or the same
# masks. Then compare the files. The exit status is 0 if no bug is possible.

# %%
with tempfile.TemporaryDirectory() as folder:
    for name, run in (("one", one), ("other", other)):
        np.savez(Path(folder, f"{name}.npz"), **only(run, "loss", "gradients"))
    from_files = referee(Path(folder, "one.npz"), Path(folder, "other.npz"))
print(from_files.verdict)
assert from_files.verdict is Verdict.ORDER

# %% [markdown]
# ```sh
# minipipe referee one.npz other.npz --terms 48
# ```
#
# ## What you have learnt
#
# - The order of additions moves the last digits: sqrt(n) u, seldom more.
# - Rounding differences start at u and grow step by step; a bug starts at its size.
# - A few digits explain a difference only if repeating the rounding gives its bits.
# - Gradients of one step decide more than a thousand losses.

# %% [markdown]
# ## Exercise
#
# 1. Weigh the microbatches by `[0.25, 0.25, 0.25, 0.25]` in both runs. The bug is still
#    there. What does the referee say, and why?
# 2. How large is the difference of the gradients if microbatches have 1,000 samples each,
#    but one has 999, and a mean of means is taken? Would the referee notice?
# 3. The coursework task for this lesson is `16_token_mean`: count every token once.
#
# ```sh
# minipipe coursework mine               # once: writes mine/
# minipipe grade mine/16_token_mean.py
# ```
#
# <details>
# <summary>Answers</summary>
#
# 1. No difference. A referee compares; a bug that both runs share is invisible. Compare
#    with a run that you trust, such as one without microbatches.
#
# ```python
# def equal_weights(sizes):
#     return [0.25] * 4
#
#
# same = referee(train(weights_of=equal_weights), train(weights_of=equal_weights))
# assert same.verdict is Verdict.EQUAL
# ```
#
# 2. The weights change by a thousandth or less of themselves: 1/4 instead of 1000/3999,
#    a relative error of 2.5e-4, and of 7.5e-4 for the short one. The gradient changes by
#    less than that, but far more than by rounding. The referee notices, and with the
#    microbatches it also knows the cause.
#
# ```python
# def slightly_wrong(sizes):
#     return [w * f for w, f in zip(right_weights(sizes), (0.99975, 0.99975, 0.99975, 1.00075))]
#
#
# spoilt = train(weights_of=slightly_wrong)
# report = referee(only(one, "micro", "grad"), only(spoilt, "gradients"))
# assert report.verdict is Verdict.BUG and "weighs the microbatches" in report.evidence
# ```
#
# </details>
#
# This was the last lesson. To continue, record two of your own runs that should agree,
# and let the referee look at them.
