"""Real data, embedded or at hand, and batches."""

from minipipe.data.batching import batches, num_batches, split_examples
from minipipe.data.digits import load_digits
from minipipe.data.text import Alphabet, load_text, text_windows

__all__ = ["Alphabet", "batches", "load_digits", "load_text", "num_batches", "split_examples", "text_windows"]
