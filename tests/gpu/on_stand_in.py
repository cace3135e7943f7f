"""A plugin of pytest: the tests of a GPU run on the stand-in, to find what has become
wrong in them since there was one.

    pytest -p tests.gpu.on_stand_in -m gpu tests/gpu/test_gpu.py
"""

from minipipe.core.autograd import backend
from minipipe.gpu import entries, kernels


def pytest_configure():
    from tests.compile import device
    from tests.gpu import emulated  # here, or pytest does not rewrite its assertions

    real = backend.module_for

    def module_for(name="cpu", *given):
        return device if name == "gpu" else real(name, *given)

    backend.module_for = module_for
    kernels.LOADERS[device.__name__] = emulated.load
    entries.install(device)
