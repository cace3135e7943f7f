"""Two ranks train, and look at every message before it leaves: a header of ours, or the
bytes that it announces.
"""

import numpy as np

from minipipe import Pipeline, init_process_group, nn
from minipipe.core.comm.message import HEADER_SIZE, unpacked


class Watched:
    """A communicator that checks what is sent. Whatever else it is asked for, it hands
    on; what pickles, it refuses.
    """

    def __init__(self, comm):
        self.comm, self.seen, self.announced = comm, 0, {}

    def Isend(self, buffer, destination, tag):
        data = bytes(
            memoryview(buffer[0] if isinstance(buffer, list) else buffer).cast("B")
        )
        if announced := self.announced.pop((destination, tag), None):
            assert len(data) == announced
        else:
            header = unpacked(data[:HEADER_SIZE])  # which raises for anything else
            assert data[:4] == b"mnpp" and header.dtype != object
            assert len(data) in (HEADER_SIZE, HEADER_SIZE + header.nbytes)
            if header.nbytes and len(data) == HEADER_SIZE:
                self.announced[destination, tag] = header.nbytes
        self.seen += 1
        return self.comm.Isend(buffer, destination, tag)

    def __getattr__(self, name):
        assert name[0].isupper() or name in ("rank", "size", "group"), (
            f"comm.{name} pickles"
        )
        return getattr(self.comm, name)


def train(group):
    group.comm = watched = Watched(group.comm)
    model = nn.Sequential(
        nn.Linear(4, 128), nn.Tanh(), nn.Linear(128, 128), nn.Linear(128, 2)
    )
    pipeline = Pipeline(
        model, group, loss=nn.MSELoss(), schedule="zb-h1", num_microbatches=4
    )
    for _ in range(2):
        pipeline.step(np.ones((400, 4)), np.ones((400, 2)))
    pipeline.predict(np.ones((8, 4)))
    pipeline.state_dict()
    pipeline.timeline()
    group.broadcast(np.arange(3), 0)
    group.barrier()
    print(f"rank {group.rank} sent {watched.seen}\n", end="", flush=True)


if __name__ == "__main__":
    with init_process_group() as group:
        train(group)
