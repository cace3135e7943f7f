"""Two hosts and four, made once, and put in order after each test."""

import pytest

from tests.hosts.network import Network


@pytest.fixture(scope="session")
def made_once():
    """Return a function of a number of hosts."""
    made = {}

    def network(num_hosts):
        if num_hosts not in made:
            made[num_hosts] = Network(num_hosts).__enter__()
        return made[num_hosts]

    yield network
    for one in made.values():
        one.__exit__()


@pytest.fixture
def two_hosts(made_once):
    yield (network := made_once(2))
    network.put_in_order()


@pytest.fixture
def four_hosts(made_once):
    yield (network := made_once(4))
    network.put_in_order()
