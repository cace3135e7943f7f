# %% [markdown]
# # 04 · Cut the model
#
# A network that is too large for one rank can be cut: the first layers on one rank, the next ones on another. Lesson 01
# has shown that the gradient flows backwards through a tape; lesson 03, how to send an array. Put together they train a
# network over a cut, with the same bits as without. What is gained is memory. What is gained in time is, for now,
# nothing at all, and the picture of that is where pipelines begin.

# %%
import numpy as np

from minipipe import Pipeline, Tensor, data, nn, optim, render, schedules, simulate, spawn
from minipipe.testing import same_bits

# %% [markdown]
# ## Without a cut
#
# First what the others must equal: one process, one batch of 64 digits, forward and backward.

# %%
images, labels = data.load_digits()
inputs, targets = images[:64], labels[:64]
loss_of = nn.CrossEntropyLoss()


def make_model():
    widths = [64, 32, 32, 32, 10]
    layers = [nn.Flatten()]
    for width, next_width in zip(widths, widths[1:]):
        layers += [nn.Linear(width, next_width), nn.Tanh()]
    return nn.Sequential(*layers[:-1]).initialise(seed=0)  # no Tanh after the last one


def gradients(layers):
    return [parameter.grad for parameter in layers.parameters()]


def without_a_cut(group):
    model = make_model()
    loss = loss_of(model(inputs), targets)
    loss.backward()
    return loss.item(), gradients(model)


whole_loss, whole_gradients = spawn(without_a_cut, num_ranks=1)[0]
model = make_model()
print(model)
print(f"loss {whole_loss:.2f}, and {len(whole_gradients)} arrays of gradients: a weight and a bias for each Linear")
assert len(model) == 8
assert 2.0 < whole_loss < 3.0
assert len(whole_gradients) == 2 * 4

# %% [markdown]
# ## Where to cut
#
# Each part of the model is a **stage**. What stage 0 computes and stage 1 goes on with is called the **activation**.
# Cut there, and each stage has a tape of its own:
#
#     stage 0:  inputs ── Flatten ── Linear ── Tanh ── Linear ──→ activation
#                                                                  │      ↑
#                                                           values │      │ gradient
#                                                                  ↓      │
#     stage 1:  loss ←── Linear ── Tanh ── Linear ── Tanh ←─────── received
#
# Stage 1 treats the activation as if it were its input, except that it asks for its gradient, too. That gradient is all
# that stage 0 needs in order to walk its own tape: `activation.backward(gradient)` begins the walk there with these
# slopes instead of with 1.


# %%
def with_a_cut(group):
    model = make_model()
    front, back = model[:4], model[4:]

    activation = front(inputs)  # forward of stage 0
    received = Tensor(activation.numpy(), requires_grad=True)  # the same values, on a tape of their own
    loss = loss_of(back(received), targets)  # forward of stage 1
    loss.backward()  # backward of stage 1, which leaves received.grad
    activation.backward(received.grad)  # backward of stage 0

    return loss.item(), gradients(front) + gradients(back)


def same_as_whole(loss, gradients):
    """Tell whether the loss and every gradient have the bits of the model without a cut."""
    return loss == whole_loss and all(same_bits(a, b) for a, b in zip(gradients, whole_gradients, strict=True))


is_same = same_as_whole(*spawn(with_a_cut, num_ranks=1)[0])
print("cut, in one process: the same bits?", is_same)
assert is_same

# %% [markdown]
# ## One stage on each rank
#
# Now the two values that cross the cut become two messages. Each rank makes the whole model and uses only its part.
# That is wasteful, but both then have the same first values. (`Pipeline`, below, fills only what a rank needs.)


# %%
def on_two_ranks(group):
    model = make_model()
    if group.rank == 0:
        front = model[:4]
        activation = front(inputs)
        group.send(activation.numpy(), 1)
        activation.backward(group.recv(1))
        return gradients(front)
    back = model[4:]
    received = Tensor(group.recv(0), requires_grad=True)
    loss = loss_of(back(received), targets)
    loss.backward()
    group.send(received.grad, 0)
    return loss.item(), gradients(back)


front_gradients, (loss, back_gradients) = spawn(on_two_ranks, num_ranks=2)
is_same = same_as_whole(loss, front_gradients + back_gradients)
print("cut, on two ranks: the same bits?", is_same)
assert is_same

# %% [markdown]
# The same bits: no sum has changed its order, and a message changes nothing in an array. The labels were needed on
# rank 1 alone, the images on rank 0 alone.
#
# ## A pipeline does it
#
# `Pipeline` is this for any number of stages. Every rank describes the same model; each is given neighbouring layers,
# such that the number of parameters is balanced. `step` is forward and backward of one batch. In which order each rank
# works is written down in a **schedule**; the plainest one is called `sequential`.


# %%
def pipelined(group):
    pipeline = Pipeline(make_model(), group, loss=loss_of, schedule="sequential", num_microbatches=1)
    loss = pipeline.step(inputs, targets)
    return loss, gradients(pipeline), str(pipeline), pipeline.timeline()


losses, gradients_by_rank, tables, timelines = zip(*spawn(pipelined, num_ranks=4))
print(tables[0])
is_same = same_as_whole(losses[0], [gradient for row in gradients_by_rank for gradient in row])
print("a pipeline of four ranks: the same bits?", is_same)
assert is_same
held = [sum(gradient.size for gradient in row) for row in gradients_by_rank]
print(f"parameters on each rank: {held}; without a cut: {make_model().num_parameters}")
assert held == [2080, 1056, 1056, 330]
assert sum(held) == make_model().num_parameters == 4522
assert all(f"{number:,}" in tables[0] for number in held)

# %% [markdown]
# ## Who works when?
#
# Memory is divided. And time? Below, a row for each rank and time from left to right: `F0` is a forward, `B0` a
# backward, which takes about twice as long, and between them nothing. (The 0 is the number of the part of the batch;
# from the next lesson on there are several.)

# %%
schedule = schedules.sequential(num_ranks=4, num_microbatches=1)
timeline = simulate(schedule)
render.show(timeline)
assert timeline.makespan == 4 * (1 + 2)
assert timeline.bubble_fraction == 0.75

# %% [markdown]
# Rank 1 cannot begin before it has rank 0's activation, and rank 0 cannot go back before it has rank 1's gradient. So
# **one rank works at a time**, and the other three wait. The share of all the ranks' time in which they are idle is the
# **bubble**: here three quarters, 75 %. From first start to last end (the **makespan**) it takes as long as one rank
# would take alone.
#
# That was predicted. The pipeline has also noted when each rank really worked. How long things take depends on your
# computer; that no two of them happen at once does not.

# %%
spans = sorted((span for row in timelines[0].spans for span in row), key=lambda span: span.start)
order = " ".join(str(span.action) for span in spans)
overlaps = sum(later.start < earlier.end for earlier, later in zip(spans, spans[1:]))
print(f"in order of time: {order}")
print(f"{overlaps} of them begin before the one before has ended")
assert order == "0F0 1F0 2F0 3F0 3B0 2B0 1B0 0B0"  # stage 0 forward, stage 1 forward, …
assert overlaps == 0

# %% [markdown]
# ## The tempting mistake
#
# Would it not be simpler if each stage had a loss of its own, and no gradient had to come back? People who write their
# first pipeline do try it, with the sum of squares of the stage's output, say, so that there is something to call
# `backward()` on. It runs, all ranks could even work at once, and some loss falls. Look at the gradients:


# %%
def loss_of_its_own(activation):
    return (activation * activation).sum() / (2 * 64)  # the mistake: what has that to do with digits?


model = make_model()
front, back = model[:4], model[4:]
activation = front(inputs)
loss_of_its_own(activation).backward()
loss_of(back(Tensor(activation.numpy())), targets).backward()

errors = [float(np.abs(a - b).max()) for a, b in zip(gradients(front) + gradients(back), whole_gradients)]
print("stage 0: right?", all(error < 1e-6 for error in errors[:4]))
print("stage 1: right?", all(error < 1e-6 for error in errors[4:]))
assert all(error > 1e-2 for error in errors[:4])
assert all(error < 1e-6 for error in errors[4:])

# %% [markdown]
# Stage 1 is right: it has the real loss. Stage 0 learns something else, and you can guess what: to make its output
# small, which is to say nothing. Here are both ways for a hundred steps. Remember that guessing has a loss of 2.30.


# %%
def hundred_steps(has_own_losses):
    """Return the last loss, and the mean size of the numbers that stage 0 hands on."""
    model = make_model()
    front, back = model[:4], model[4:]
    optimiser = optim.SGD(model.parameters(), learning_rate=0.05)
    for _ in range(100):
        model.zero_grad()
        activation = front(inputs)
        received = Tensor(activation.numpy(), requires_grad=True)
        loss = loss_of(back(received), targets)
        loss.backward()
        if has_own_losses:
            loss_of_its_own(activation).backward()
        else:
            activation.backward(received.grad)
        optimiser.step()
    return loss.item(), float(np.abs(activation.numpy()).mean())


right_loss, right_size = hundred_steps(has_own_losses=False)
wrong_loss, wrong_size = hundred_steps(has_own_losses=True)
print(f"the gradient comes back: loss {right_loss:.2f}, mean size of what stage 0 hands on {right_size:.3f}")
print(f"losses of their own:     loss {wrong_loss:.2f}, mean size of what stage 0 hands on {wrong_size:.3f}")
assert right_loss < 0.5
assert wrong_loss > 1.9
assert wrong_size < right_size / 5

# %% [markdown]
# With losses of its own the network is hardly better than guessing: stage 0 has learnt to fall silent, and stage 1 has
# nothing left to read. The gradient must come back over the cut, and it is the backward of a later stage that an
# earlier one waits for. All schedules of this course are answers to one question: what can a rank do while it waits?
#
# ## Exercise
#
# 1. Two ranks instead of four: what is the bubble of `sequential`? And ten ranks? And four ranks with three batches one
#    after another (`num_microbatches=3`)? Guess, then draw it.
# 2. In `on_two_ranks`, let rank 0 wait for its gradient *before* it sends the activation. What does minipipe say?
# 3. The coursework task that belongs here is `04_stage_gradient`: stages that train on losses of their own. Mend them.
#
# Next, `05_microbatches.py`: cut the batch, too, and the ranks work at the same time.
