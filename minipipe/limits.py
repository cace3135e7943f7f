"""The limits of what is read, built and drawn, each with its reason. What is larger is refused before it takes memory.

They are far above what pipelines need, and low enough that whatever is within them fits into a few gigabytes. A machine
that needs more needs these numbers changed, and nothing else.
"""

from __future__ import annotations

# A pipeline of 512 ranks and 4096 microbatches has 6.3 million actions with a split backward, and 12.6 million with its
# messages. An action takes about 100 bytes.
MOST_ACTIONS = 2**24
# Of ranks, and of stages. The deepest published pipelines have about a hundred; some figures take time in their square.
MOST_STAGES = 2**12
# Of a file or a text: the longest usual cells, "511SEND_F4095,", have 14 bytes.
MOST_BYTES = 16 * MOST_ACTIONS
# Characters of JSON, such as a certificate: about 9 million actions. Read, it takes some ten times as many bytes.
MOST_JSON = 2**26
# Of a drawing as text, 7 million for 512 ranks and 4096 microbatches; each takes about 10 bytes.
MOST_CHARACTERS = 2**26
# Pixels of a picture's width: viewers and converters fail beyond. An action needs about 20 for its label.
MOST_PIXELS = 2**20
# Seconds without a byte from a pipe. Its writer computes a schedule, which takes seconds.
PIPE_PATIENCE = 20.0
