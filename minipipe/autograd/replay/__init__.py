"""Capture and replay: the computation of a stage, noted once as straight-line NumPy (README.md)."""

from minipipe.autograd.replay.noting import attach
from minipipe.autograd.replay.script import Script, have_changed, key_of
from minipipe.autograd.replay.trace import NotingLeaf, Trace, noticing_conversions

attach()

__all__ = ["NotingLeaf", "Script", "Trace", "have_changed", "key_of", "noticing_conversions"]
