"""Limits of schedules, as of any input (``io.py``): larger ones are refused."""

# A pipeline of 512 ranks and 4096 microbatches has 6.3 million actions with a split
# backward, and 12.6 million with its messages. An action takes about 100 bytes.
MOST_ACTIONS = 2**24
# Ranks, and stages. The deepest published pipelines have about a hundred; some figures
# take time in their square.
MOST_STAGES = 2**12
# Of a file or a text: the longest usual cells, "511SEND_F4095,", have 14 bytes.
MOST_BYTES = 16 * MOST_ACTIONS
