"""One rank's share of an MLP, and three pipelines over it, by hand: NumPy and mpi4py,
every array allocated once.
"""

import numpy as np
from mpi4py import MPI

from minipipe import nn

__all__ = ["blocking_gpipe", "persistent_1f1b", "posted_1f1b", "prepared", "shares"]


class Layers:
    """Linear layers with a ReLU behind each, but not behind the last of all. Holds
    every microbatch.

    Parameters
    ----------
    numbers : range
        Of the Linear layers of this rank, counted over all ranks.
    linears : list of Linear
        All of them, with values; left as they are.
    size, num_microbatches : int
    rate : float
        The learning rate.
    """

    def __init__(self, numbers, linears, size, num_microbatches, rate):
        self.numbers, self.is_last = numbers, numbers.stop == len(linears)
        self.weights = [linears[i].weight.data.copy() for i in numbers]
        self.biases = [linears[i].bias.data.copy() for i in numbers]
        self.width, self.m, self.rate = (
            len(self.weights[0]),
            num_microbatches,
            np.float32(rate),
        )
        self.shape = (size, self.width)
        self.outputs = [
            [np.empty(self.shape, np.float32) for _ in numbers]
            for _ in range(num_microbatches)
        ]
        self.inputs = [None] * num_microbatches
        self.scratch = [np.empty(self.shape, np.float32) for _ in range(2)]
        self.mask, self.ones = np.empty(self.shape, bool), np.ones(size, np.float32)
        self.zeros = np.zeros(
            self.width if size * self.width >= 4096 else (), np.float32
        )
        self.weight_gradients = [np.empty_like(w) for w in self.weights]
        self.bias_gradients = [np.empty_like(b) for b in self.biases]
        self.weight_scratch, self.bias_scratch = (
            np.empty_like(self.weights[0]),
            np.empty_like(self.biases[0]),
        )

    def forward(self, k, x):
        """Return the result for microbatch k."""
        self.inputs[k] = x
        for i, (weight, bias, out) in enumerate(
            zip(self.weights, self.biases, self.outputs[k])
        ):
            x.dot(weight, out=out)
            np.add(out, bias, out=out)
            if not (self.is_last and i == len(self.weights) - 1):
                np.maximum(out, self.zeros, out=out)
            x = out
        return x

    def loss_gradient(self, k, y):
        """Return the loss of microbatch k, and the gradient of the result, in place of
        it.
        """
        g = self.outputs[k][-1]
        np.subtract(g, y, out=g)
        flat = g.reshape(-1)
        loss = float(flat.dot(flat)) / g.size
        np.multiply(g, np.float32(2 / g.size / self.m), out=g)
        return loss, g

    def backward(self, k, g, out):
        """Add the gradients of microbatch k; write that of the input to ``out`` unless
        it is None.
        """
        for i in range(len(self.weights) - 1, -1, -1):
            if not (self.is_last and i == len(self.weights) - 1):
                np.greater(self.outputs[k][i], self.zeros, out=self.mask)
                g = np.multiply(g, self.mask, out=self.scratch[i % 2])
            x = self.outputs[k][i - 1] if i else self.inputs[k]
            if k == 0:
                x.T.dot(g, out=self.weight_gradients[i])
                self.ones.dot(g, out=self.bias_gradients[i])
            else:
                self.weight_gradients[i] += x.T.dot(g, out=self.weight_scratch)
                self.bias_gradients[i] += self.ones.dot(g, out=self.bias_scratch)
            if i:
                g = g.dot(self.weights[i].T, out=self.scratch[(i + 1) % 2])
            elif out is not None:
                g.dot(self.weights[0].T, out=out)

    def update(self):
        """Take a step of gradient descent."""
        for value, gradient in zip(
            self.weights + self.biases, self.weight_gradients + self.bias_gradients
        ):
            np.multiply(gradient, self.rate, out=gradient)
            np.subtract(value, gradient, out=value)

    def state_dict(self):
        """Return this rank's weights under the names that they have in the model."""
        weights = {
            f"{2 * n}.weight": w.copy() for n, w in zip(self.numbers, self.weights)
        }
        return weights | {
            f"{2 * n}.bias": b.copy() for n, b in zip(self.numbers, self.biases)
        }


class Replica(Layers):
    """Layers whose gradients are summed over a communicator before each update: one
    Allreduce of all of them.
    """

    def __init__(self, numbers, linears, size, num_microbatches, rate, comm):
        super().__init__(numbers, linears, size, num_microbatches, rate / comm.size)
        self.comm, gradients = comm, self.weight_gradients + self.bias_gradients
        self.flat = np.zeros(sum(gradient.size for gradient in gradients), np.float32)
        ends = np.cumsum([gradient.size for gradient in gradients])
        views = [
            part.reshape(like.shape)
            for part, like in zip(np.split(self.flat, ends), gradients)
        ]
        self.weight_gradients, self.bias_gradients = (
            views[: len(self.weights)],
            views[len(self.weights) :],
        )

    def update(self):
        self.comm.Allreduce(MPI.IN_PLACE, self.flat)
        super().update()


def shares(model, rank, layers, size, num_microbatches, rate, comm=None):
    """Return the layers of a rank; with a communicator, those of a replica."""
    linears = [layer for layer in model if isinstance(layer, nn.Linear)]
    if comm is not None:
        return Replica(
            range(rank * layers, (rank + 1) * layers),
            linears,
            size,
            num_microbatches,
            rate,
            comm,
        )
    return Layers(
        range(rank * layers, (rank + 1) * layers), linears, size, num_microbatches, rate
    )


def posted_1f1b(layers, rank, num_ranks, inputs, targets, comm=MPI.COMM_WORLD):
    """Return the step of a 1F1B pipeline that posts every receive at its beginning."""
    comm, m, size = comm.Dup(), layers.m, layers.shape[0]
    activations, gradients, backs = (
        [np.empty(layers.shape, np.float32) for _ in range(m)] for _ in range(3)
    )
    parts = [slice(k * size, (k + 1) * size) for k in range(m)]
    is_first, is_last = rank == 0, rank == num_ranks - 1
    warmup = min(num_ranks - 1 - rank, m)
    row = [("F", k) for k in range(warmup)]
    row += [
        (kind, k + warmup * (kind == "F")) for k in range(m - warmup) for kind in "FB"
    ]
    row += [("B", k) for k in range(m - warmup, m)]

    def step():
        sends = []
        from_before = (
            []
            if is_first
            else [comm.Irecv(activations[k], rank - 1, k) for k in range(m)]
        )
        from_next = (
            []
            if is_last
            else [comm.Irecv(gradients[k], rank + 1, m + k) for k in range(m)]
        )
        for kind, k in row:
            if kind == "F":
                if not is_first:
                    from_before[k].Wait()
                out = layers.forward(
                    k, inputs[parts[k]] if is_first else activations[k]
                )
                if not is_last:
                    sends.append(comm.Isend(out, rank + 1, k))
                continue
            if is_last:
                _, gradient = layers.loss_gradient(k, targets[parts[k]])
            else:
                from_next[k].Wait()
                gradient = gradients[k]
            layers.backward(k, gradient, None if is_first else backs[k])
            if not is_first:
                sends.append(comm.Isend(backs[k], rank - 1, m + k))
        MPI.Request.Waitall(sends)
        layers.update()

    return step


class Prepared(Layers):
    """Layers with every view made once, too: an operation reads what it needs from a
    list.

    Parameters and gradients lie side by side, so that an update is two operations.
    """

    def __init__(self, numbers, linears, size, num_microbatches, rate):
        super().__init__(numbers, linears, size, num_microbatches, rate)
        self.flat, values = side_by_side(self.weights + self.biases)
        self.flat_gradient, gradients = side_by_side(
            self.weight_gradients + self.bias_gradients
        )
        count = len(self.weights)
        self.weights, self.biases = values[:count], values[count:]
        self.weight_gradients, self.bias_gradients = (
            gradients[:count],
            gradients[count:],
        )

    def prepare(self, inputs, results, backs):
        """Make the lists, for the arrays that microbatches come in, leave in, and whose
        gradients leave in.
        """
        for k, result in enumerate(results):
            self.outputs[k][-1] = result
        self.inputs = inputs
        self.forwards = [[*self._forward_of(k)] for k in range(self.m)]
        self.backwards = [
            [*self._backward_of(k, backs and backs[k])] for k in range(self.m)
        ]
        self.flat_results = [outputs[-1].reshape(-1) for outputs in self.outputs]
        self.seed = np.float32(2 / self.outputs[0][-1].size / self.m)

    def _has_relu(self, i):
        return not (self.is_last and i == len(self.weights) - 1)

    def _forward_of(self, k):
        x = self.inputs[k]
        for i, (weight, bias, out) in enumerate(
            zip(self.weights, self.biases, self.outputs[k])
        ):
            yield x.dot, weight, bias, out, self._has_relu(i)
            x = out

    def _backward_of(self, k, back):
        for i in range(len(self.weights) - 1, -1, -1):
            x = self.outputs[k][i - 1] if i else self.inputs[k]
            into = self.scratch[(i + 1) % 2] if i else back
            output = self.outputs[k][i] if self._has_relu(i) else None
            gradients = self.weight_gradients[i], self.bias_gradients[i]
            yield (
                output,
                self.scratch[i % 2],
                x.T.dot,
                *gradients,
                self.weights[i].T,
                into,
            )

    def run_forward(self, k):
        for dot, weight, bias, out, has_relu in self.forwards[k]:
            dot(weight, out)
            np.add(out, bias, out)
            if has_relu:
                np.maximum(out, self.zeros, out=out)

    def run_loss(self, k, y):
        """Return the loss, and put its gradient in the place of the result."""
        g, flat = self.outputs[k][-1], self.flat_results[k]
        np.subtract(g, y, g)
        loss = float(flat.dot(flat)) / g.size
        np.multiply(g, self.seed, g)
        return loss

    def run_backward(self, k, g):
        mask, ones = self.mask, self.ones
        for output, masked, dot, of_weight, of_bias, transposed, into in self.backwards[
            k
        ]:
            if output is not None:
                np.greater(output, self.zeros, mask)
                g = np.multiply(g, mask, masked)
            if k == 0:
                dot(g, of_weight)
                ones.dot(g, of_bias)
            else:
                np.add(of_weight, dot(g, self.weight_scratch), of_weight)
                np.add(of_bias, ones.dot(g, self.bias_scratch), of_bias)
            if into is not None:
                g = g.dot(transposed, into)

    def update(self):
        np.multiply(self.flat_gradient, self.rate, self.flat_gradient)
        np.subtract(self.flat, self.flat_gradient, self.flat)


def side_by_side(arrays):
    """Return one array with the contents of all, and its parts in their shapes."""
    flat = np.concatenate([array.reshape(-1) for array in arrays])
    parts = np.split(flat, np.cumsum([array.size for array in arrays])[:-1])
    return flat, [part.reshape(array.shape) for part, array in zip(parts, arrays)]


def prepared(model, rank, layers, size, num_microbatches, rate):
    """Return the layers of a rank for :func:`persistent_1f1b`."""
    linears = [layer for layer in model if isinstance(layer, nn.Linear)]
    return Prepared(
        range(rank * layers, (rank + 1) * layers), linears, size, num_microbatches, rate
    )


def persistent_1f1b(layers, rank, num_ranks, inputs, targets, comm=MPI.COMM_WORLD):
    """Return the step of a 1F1B pipeline over persistent requests, with views and
    slices that are made once.
    """
    comm, m, size = comm.Dup(), layers.m, layers.shape[0]
    activations, results, gradients, backs = (
        [np.empty(layers.shape, np.float32) for _ in range(m)] for _ in range(4)
    )
    parts = [slice(k * size, (k + 1) * size) for k in range(m)]
    is_first, is_last = rank == 0, rank == num_ranks - 1
    layers.prepare(
        [inputs[part] for part in parts] if is_first else activations,
        results,
        None if is_first else backs,
    )
    wanted = [targets[part] for part in parts]
    no_one = MPI.PROC_NULL  # whose messages are over at once
    before, behind = no_one if is_first else rank - 1, no_one if is_last else rank + 1
    receive_x = [comm.Recv_init(activations[k], before, k) for k in range(m)]
    receive_g = [comm.Recv_init(gradients[k], behind, m + k) for k in range(m)]
    send_x = [comm.Send_init(results[k], behind, k) for k in range(m)]
    send_g = [comm.Send_init(backs[k], before, m + k) for k in range(m)]
    receives = [*([] if is_first else receive_x), *([] if is_last else receive_g)]
    sends = [*([] if is_last else send_x), *([] if is_first else send_g)]
    warmup = min(num_ranks - 1 - rank, m)
    row = [(True, k) for k in range(warmup)]
    row += [
        (is_forward, k + warmup * is_forward)
        for k in range(m - warmup)
        for is_forward in (True, False)
    ]
    row += [(False, k) for k in range(m - warmup, m)]

    def step():
        MPI.Prequest.Startall(receives)
        for is_forward, k in row:
            if is_forward:
                if not is_first:
                    receive_x[k].Wait()
                layers.run_forward(k)
                if not is_last:
                    send_x[k].Start()
                continue
            if is_last:
                layers.run_loss(k, wanted[k])
                layers.run_backward(k, results[k])
            else:
                receive_g[k].Wait()
                layers.run_backward(k, gradients[k])
            if not is_first:
                send_g[k].Start()
        MPI.Request.Waitall(sends)
        layers.update()

    return step


def blocking_gpipe(layers, rank, num_ranks, inputs, targets):
    """Return the step of a GPipe loop with blocking messages and two buffers: one for
    each direction.
    """
    comm, m, size = MPI.COMM_WORLD.Dup(), layers.m, layers.shape[0]
    # kept for the backward
    activations = [np.empty(layers.shape, np.float32) for _ in range(m)]
    gradient, back = (
        np.empty(layers.shape, np.float32),
        np.empty(layers.shape, np.float32),
    )
    is_first, is_last = rank == 0, rank == num_ranks - 1

    def step():
        for k in range(m):
            if is_first:
                x = inputs[k * size : (k + 1) * size]
            else:
                comm.Recv(activations[k], rank - 1)
                x = activations[k]
            out = layers.forward(k, x)
            if not is_last:
                comm.Send(out, rank + 1)
        for k in range(m):
            g = gradient
            if is_last:
                _, g = layers.loss_gradient(k, targets[k * size : (k + 1) * size])
            else:
                comm.Recv(gradient, rank + 1)
            layers.backward(k, g, None if is_first else back)
            if not is_first:
                comm.Send(back, rank - 1)
        layers.update()

    return step
