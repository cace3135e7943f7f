"""The installed version."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("minipipe-mpi")
except PackageNotFoundError:  # run from a checkout that was not installed
    __version__ = "unknown"
