"""PyTorch's own pipeline over gloo, as a contender of pipelining.py, in the same
processes and from the same values.
"""

import io
import os
import socket
from contextlib import redirect_stderr

import numpy as np
import torch
import torch.distributed
from in_torch import linear
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from minipipe import nn

__all__ = ["torch_1f1b"]


def torch_1f1b(model, parts, group, case, inputs, targets, rate):
    """Return the step of PyTorch's 1F1B over the layers of each rank, and its
    state_dict.
    """
    join(group)
    layers = {
        i: linear(layer) if isinstance(layer, nn.Linear) else torch.nn.ReLU()
        for i, layer in enumerate(model)
    }
    own = {i: layers[i] for i in parts[group.rank]}
    network, device = torch.nn.Sequential(*own.values()), torch.device("cpu")
    schedule = Schedule1F1B(
        PipelineStage(network, group.rank, group.size, device),
        case.microbatches,
        loss_fn=torch.nn.MSELoss(),
    )
    optimiser = torch.optim.SGD(network.parameters(), rate)
    x, y = torch.from_numpy(inputs), torch.from_numpy(targets)
    is_last = group.rank == group.size - 1

    def step():
        optimiser.zero_grad()
        schedule.step(
            *[x] * (group.rank == 0), **({"target": y, "losses": []} if is_last else {})
        )
        optimiser.step()

    def state_dict():
        linears = {
            i: layer for i, layer in own.items() if isinstance(layer, torch.nn.Linear)
        }
        weights = {
            f"{i}.weight": layer.weight.detach().numpy().T.copy()
            for i, layer in linears.items()
        }
        return weights | {
            f"{i}.bias": layer.bias.detach().numpy().copy()
            for i, layer in linears.items()
        }

    return step, state_dict


def join(group):
    """Make PyTorch's process group of the same ranks, once."""
    if torch.distributed.is_initialized():
        return
    torch.set_num_threads(1)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = int(
            group.broadcast(
                np.array(found.getsockname()[1]) if group.rank == 0 else None
            )
        )
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with redirect_stderr(io.StringIO()):
        torch.distributed.init_process_group(
            "gloo",
            init_method=f"tcp://127.0.0.1:{port}",
            rank=group.rank,
            world_size=group.size,
        )
