"""Embedded real data, and batches."""

from minipipe.data.batching import batches, num_batches, split_examples
from minipipe.data.digits import load_digits

__all__ = ["batches", "load_digits", "num_batches", "split_examples"]
