# %% [markdown]
# # 04 · Split the model into stages
#
# In this lesson you divide a network between two ranks, and later between four, and
# train it with the same bits as on one rank. This is for networks that are too large
# for one rank: the first layers go to one rank, the next ones to another. It uses the
# gradient of lesson 01 and the messages of lesson 03.
#
# Each rank then needs less memory. The step does not become faster yet, and a picture
# shows why. In the next lesson the ranks work at the same time.

# %%
import numpy as np

from minipipe import (
    Pipeline,
    Tensor,
    data,
    nn,
    optim,
    render,
    schedules,
    simulate,
    spawn,
    watch_everything,
)
from minipipe.testing import same_bits

# raise an error if an array is modified while its old values are still needed
watch_everything()

# %% [markdown]
# ## The whole model
#
# First the reference that everything else must match: one process, one batch of 64
# digits, forward and backward.

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


def whole_model(group):
    model = make_model()
    loss = loss_of(model(inputs), targets)
    loss.backward()
    return loss.item(), gradients(model)


whole_loss, whole_gradients = spawn(whole_model, num_ranks=1)[0]
model = make_model()
print(model)
print(
    f"loss {whole_loss:.2f}, and {len(whole_gradients)} arrays of gradients: a "
    "weight and a bias for each Linear"
)
assert len(model) == 8
assert 2.0 < whole_loss < 3.0
assert len(whole_gradients) == 2 * 4

# %% [markdown]
# ## Two stages
#
# Each part of the model is a **stage**, and the place between two stages is a **stage
# boundary**. The output of stage 0, which is the input of stage 1, is called the
# **activation**. Each stage has its own tape:
#
#     stage 0:  inputs ── Flatten ── Linear ── Tanh ── Linear ──→ activation
#                                                                  │      ↑
#                                                           values │      │ gradient
#                                                                  ↓      │
#     stage 1:  loss ←── Linear ── Tanh ── Linear ── Tanh ←─────── received
#
# Stage 1 treats the activation like any other input, except that it also computes its
# gradient. Stage 0 needs only this gradient to walk its own tape:
# `activation.backward(gradient)` starts the walk with these slopes instead of with 1.


# %%
def two_stages(group):
    model = make_model()
    front, back = model[:4], model[4:]

    activation = front(inputs)  # forward of stage 0
    # the same values, with a separate tape
    received = Tensor(activation.numpy(), requires_grad=True)
    loss = loss_of(back(received), targets)  # forward of stage 1
    loss.backward()  # backward of stage 1, which leaves received.grad
    activation.backward(received.grad)  # backward of stage 0

    return loss.item(), gradients(front) + gradients(back)


def same_as_whole(loss, gradients):
    """Tell whether the loss and every gradient equal the results of the whole model, bit for bit."""
    return loss == whole_loss and all(
        same_bits(a, b) for a, b in zip(gradients, whole_gradients, strict=True)
    )


is_same = same_as_whole(*spawn(two_stages, num_ranks=1)[0])
print("two stages in one process: the same bits?", is_same)
assert is_same

# %% [markdown]
# ## One stage on each rank
#
# Now the two values that cross the stage boundary become two messages. Each rank builds
# the whole model and uses only its part. This is wasteful, but it gives both ranks the
# same initial parameters. (`Pipeline`, below, fills only the layers that a rank needs.)


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
print("two stages on two ranks: the same bits?", is_same)
assert is_same

# %% [markdown]
# The bits are the same, because no sum has changed its order and sending an array does
# not change it. Only rank 1 needed the labels, and only rank 0 the images.
#
# ## The same with a pipeline
#
# `Pipeline` does this for any number of stages. Every rank describes the same model.
# Each rank gets a run of consecutive layers, chosen so that the numbers of parameters
# are balanced. `step` is the forward and backward of one batch. The order in which each
# rank works is called a **schedule**; the simplest one is `sequential`.


# %%
def pipelined(group):
    pipeline = Pipeline(
        make_model(), group, loss=loss_of, schedule="sequential", num_microbatches=1
    )
    loss = pipeline.step(inputs, targets)
    return loss, gradients(pipeline), str(pipeline), pipeline.timeline()


losses, gradients_by_rank, tables, timelines = zip(*spawn(pipelined, num_ranks=4))
print(tables[0])
is_same = same_as_whole(
    losses[0], [gradient for row in gradients_by_rank for gradient in row]
)
print("a pipeline of four ranks: the same bits?", is_same)
assert is_same
held = [sum(gradient.size for gradient in row) for row in gradients_by_rank]
print(
    f"parameters on each rank: {held}; of the whole model: "
    f"{make_model().num_parameters}"
)
assert held == [2080, 1056, 1056, 330]
assert sum(held) == make_model().num_parameters == 4522
assert all(f"{number:,}" in tables[0] for number in held)

# %% [markdown]
# ## A layer of your own
#
# A layer is a module: it has parameters and other modules as attributes, and a method
# `forward`. A parameter is declared with its shape and an *initialiser*, which draws
# its first values on the rank that gets the layer. The initialiser is required, because
# no default works for all layers.
#
# As an example, take a layer whose weight is a product of two thin matrices. (Their
# common dimension is called `rank` in linear algebra. It has nothing to do with the
# ranks of a group.) The gradient of each factor is a product with the other factor. So
# if both start with zeros, both gradients are zero and remain zero. `optim.Adam` is
# another optimiser, which adapts the step of each parameter to its recent gradients.


# %%
class LowRank(nn.Module):
    def __init__(self, in_features, out_features, rank, initialiser=None):
        self.down = nn.Parameter(
            (in_features, rank),
            initialiser or nn.initialisers.lecun_normal(in_features),
        )
        self.up = nn.Parameter(
            (rank, out_features), initialiser or nn.initialisers.lecun_normal(rank)
        )

    def forward(self, x):
        return x @ self.down @ self.up


def losses_of(first, last):
    def train(group):
        pipeline = Pipeline(
            nn.Sequential(nn.Flatten(), first, nn.Tanh(), last),
            group,
            loss=loss_of,
            seed=0,
        )
        optimiser = optim.Adam(pipeline.parameters(), learning_rate=0.01)
        losses = []
        for _ in range(30):
            losses.append(pipeline.step(inputs, targets))
            optimiser.step()
        return losses

    return spawn(train, num_ranks=2)[0]


zeros = nn.initialisers.constant(0.0)
drawn = losses_of(LowRank(64, 32, 8), LowRank(32, 10, 8))
dead = losses_of(LowRank(64, 32, 8, zeros), LowRank(32, 10, 8, zeros))
print(
    f"drawn: loss {drawn[0]:.2f} to {drawn[-1]:.2f}, parameters "
    f"{LowRank(64, 32, 8).num_parameters} for {64 * 32}"
)
print(f"zeros: loss {dead[0]:.2f} to {dead[-1]:.2f}")
assert drawn[-1] < drawn[0] / 2
assert abs(dead[-1] - np.log(10)) < 1e-6  # no better than guessing
assert LowRank(64, 32, 8).num_parameters == 8 * (64 + 32)

# %% [markdown]
# ## Which rank works when?
#
# A pipeline divides the memory of the model among the ranks. Does it also divide the
# time? `simulate` predicts when each rank works. In the picture each rank has a row,
# and time runs from left to right. `F0` is a forward, which takes one unit of time.
# `B0` is a backward, which takes about twice as long, so two units. (The 0 is the
# number of the microbatch, a part of the batch; from the next lesson on there are
# several.)
#
# The rest is idle time, drawn as dots in a terminal and as hatching in a notebook. In a
# notebook, a grey band under each row shows how many activations the rank holds. The
# line below the picture gives the *peak activations*: the largest number of activations
# that each rank holds at once.

# %%
schedule = schedules.sequential(num_ranks=4, num_microbatches=1)
timeline = simulate(schedule)
render.show(timeline)
assert timeline.makespan == 4 * (1 + 2)
assert timeline.bubble_fraction == 0.75

# %% [markdown]
# Rank 1 cannot start until it has the activation of rank 0, and rank 0 cannot start its
# backward until it has the gradient of rank 1. Such a constraint is a **data
# dependency**. Because of the data dependencies, **only one rank works at a time**
# while the other three wait.
#
# The **makespan** is the time from the first start to the last end: here 12 units, as
# long as one rank alone would take. The **total rank time** is the makespan times
# the number of ranks, and the **bubble** is its idle fraction: here 36 of 48 units, or
# 75 %.
#
# ## Prediction and recording
#
# The picture was a prediction. The pipeline has also recorded when each rank really
# worked. The durations depend on your computer, but no two of the actions overlap. In
# the output, the number in front of F or B is the stage: `1F0` is the forward of
# microbatch 0 on stage 1.

# %%
spans = sorted(
    (span for row in timelines[0].spans for span in row), key=lambda span: span.start
)
order = " ".join(str(span.action) for span in spans)
overlaps = sum(later.start < earlier.end for earlier, later in zip(spans, spans[1:]))
print(f"in order of time: {order}")
print(f"{overlaps} of them begin before the previous one has ended")
assert order == "0F0 1F0 2F0 3F0 3B0 2B0 1B0 0B0"  # stage 0 forward, stage 1 forward, …
assert overlaps == 0

# %% [markdown]
# ## A common mistake: a loss for each stage
#
# Would it not be simpler if each stage had a loss, so that no gradient had to come
# back? Many people try this when they write their first pipeline. They take, for
# example, the sum of squares of the stage's output, just to have a number for
# `backward()`. The program runs, all ranks could even work at the same time, and some
# loss falls. But look at the gradients:


# %%
def separate_loss(activation):
    # the mistake: this has nothing to do with digits
    return (activation * activation).sum() / (2 * 64)


model = make_model()
front, back = model[:4], model[4:]
activation = front(inputs)
separate_loss(activation).backward()
loss_of(back(Tensor(activation.numpy())), targets).backward()

errors = [
    float(np.abs(a - b).max())
    for a, b in zip(gradients(front) + gradients(back), whole_gradients)
]
print("stage 0: right?", all(error < 1e-6 for error in errors[:4]))
print("stage 1: right?", all(error < 1e-6 for error in errors[4:]))
assert all(error > 1e-2 for error in errors[:4])
assert all(error < 1e-6 for error in errors[4:])

# %% [markdown]
# Stage 1 is right, because it has the real loss. Stage 0 learns something else: to make
# its output small. Here are both variants after a hundred steps. Remember that guessing
# has a loss of 2.30.


# %%
def hundred_steps(has_separate_losses):
    """Return the last loss and the mean magnitude of the activation of stage 0."""
    model = make_model()
    front, back = model[:4], model[4:]
    optimiser = optim.SGD(model.parameters(), learning_rate=0.05)
    for _ in range(100):
        model.zero_grad()
        activation = front(inputs)
        received = Tensor(activation.numpy(), requires_grad=True)
        loss = loss_of(back(received), targets)
        loss.backward()
        if has_separate_losses:
            separate_loss(activation).backward()
        else:
            activation.backward(received.grad)
        optimiser.step()
    return loss.item(), float(np.abs(activation.numpy()).mean())


right_loss, right_size = hundred_steps(has_separate_losses=False)
wrong_loss, wrong_size = hundred_steps(has_separate_losses=True)
print(
    f"the gradient comes back:   loss {right_loss:.2f}, mean magnitude of the "
    f"activation {right_size:.3f}"
)
print(
    f"a separate loss per stage: loss {wrong_loss:.2f}, mean magnitude of the "
    f"activation {wrong_size:.3f}"
)
assert right_loss < 0.5
assert wrong_loss > 1.9
assert wrong_size < right_size / 5

# %% [markdown]
# With a separate loss for each stage, the network is hardly better than guessing. Stage
# 0 has learnt to output almost nothing, which leaves stage 1 nothing to work with. The
# gradient has to come back across the stage boundary, and so an earlier stage has to
# wait for the backward of a later one. Every schedule in this course answers the same
# question: what can a rank do while it waits?
#
# ## The same in PyTorch and in Megatron-LM
#
# In PyTorch, each rank builds its own part of the model and wraps it in
# `torch.distributed.pipelining.PipelineStage(part, stage_index, num_stages, device)`.
# In Megatron-LM, `--pipeline-model-parallel-size 4` divides the transformer blocks into
# four stages of equal length. Lesson 06 has the whole programs and commands.
#
# ## What you have learnt
#
# - A model is divided into stages. Activations cross a stage boundary forward, and
#   their gradients cross it backward.
# - The result has the same bits as one process, and each rank stores only its own
#   layers.
# - With a single batch only one rank works at a time: the bubble on p ranks is 1 - 1/p.
#
# ## Exercise
#
# 1. What is the bubble of `sequential` with two ranks instead of four? With ten ranks?
#    With four ranks and three batches one after another (`num_microbatches=3`)? Guess
#    first, then draw it.
# 2. In `on_two_ranks`, let rank 0 wait for its gradient *before* it sends the
#    activation. What does minipipe report?
# 3. The coursework task for this lesson is `04_stage_gradient`: stages that each train
#    on a separate loss. Fix them.
#
# <details>
# <summary>Answers</summary>
#
# 1. It is 1 - 1/p, since one of p ranks works at a time: 50 % with two ranks and 90 %
#    with ten. With three batches one after another it is 75 %, as with one:
#    `sequential` takes one batch through all stages and back before the next one
#    enters.
#
# ```python
# for num_ranks, num_microbatches, bubble in ((2, 1, 0.5), (10, 1, 0.9), (4, 3, 0.75)):
#     timeline = simulate(schedules.sequential(num_ranks, num_microbatches))
#     assert abs(timeline.bubble_fraction - bubble) < 1e-12
# ```
#
# 2. It is a deadlock. Rank 0 waits for the gradient of an activation that rank 1 does
#    not have yet, and rank 1 waits for that activation.
#
# ```python
# from minipipe.errors import MessageError
#
#
# def in_the_wrong_order(group):
#     model = make_model()
#     if group.rank == 0:
#         activation = model[:4](inputs)
#         gradient = group.recv(1)
#         group.send(activation.numpy(), 1)
#         activation.backward(gradient)
#     else:
#         received = Tensor(group.recv(0), requires_grad=True)
#         loss_of(model[4:](received), targets).backward()
#         group.send(received.grad, 0)
#
#
# try:
#     spawn(in_the_wrong_order, num_ranks=2)
# except MessageError as error:
#     complaint = error
# assert complaint.code == "deadlock"
# assert "rank 0 waits for a message with tag 0 from rank 1" in str(complaint)
# ```
#
# </details>
#
# Next, `05_microbatches.py`: split the batch as well, and the ranks work at the same
# time.
