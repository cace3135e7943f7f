"""Replicas on two hosts of four ranks, with 200 Mbit/s between them: the same bits, and
sums as long as predicted.
"""

import json

import pytest

from tests.hosts.network import Network, needs_hosts

pytestmark = [*needs_hosts, pytest.mark.slow]

BITS_PER_SECOND = 200_000_000


def test_sums_over_a_slow_link_are_predicted_from_its_bandwidth():
    """The program asserts that the loss of every step is that of one process, bit for
    bit.

    Its layers sleep, so that their times do not depend on what else this machine does;
    the messages are real.
    """
    with Network(2) as network:
        for host in network.hosts:
            host.send_at(BITS_PER_SECOND)
        done = network.mpirun(
            8, "-m", "tests.hosts.slow_sums", BITS_PER_SECOND / 8, limit=120
        )
    assert (done.code, done.err) == (0, "")
    for replicas, (measured, predicted, alone) in json.loads(done.out).items():
        print(
            f"{8 // int(replicas)} x {replicas} measured {1000 * measured:.0f} "
            f"ms, predicted {1000 * predicted:.0f} ms "
            f"({predicted / measured - 1:+.1%}); without the link {1000 * alone:.0f} ms"
        )
        assert measured > alone or replicas == "1"  # the timeline shows the sums
        # a busy machine is slower than predicted, and never faster
        assert 0.6 < predicted / measured < 1.15
