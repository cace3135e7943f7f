"""A process chooses a GPU in several threads, and more than once."""

from concurrent.futures import ThreadPoolExecutor
from time import sleep

from minipipe import gpu
from tests.compile import device


def test_no_thread_goes_on_before_all_is_installed(monkeypatch):
    done = []

    def install(xp):
        if not done:
            done.append("begun")
            sleep(0.1)
            done.append("ended")

    monkeypatch.setattr(gpu.entries, "install", install)
    with ThreadPoolExecutor(2) as pool:
        first, second = (pool.submit(gpu.install, device) for _ in range(2))
        second.result()
        assert done == ["begun", "ended"]
        first.result()
