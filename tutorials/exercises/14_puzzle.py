"""14 puzzle: your own schedules, compared with the best possible ones.

Lesson 11. Real stages are not alike, messages take time, and memory is short: no
schedule from a paper fits exactly. Build one for each level, as text: one line for each
rank, with its actions in order. Each rank has one stage. `0F3` is stage 0, forward,
microbatch 3; `0B3` is the whole backward. Or split the backward into `0I3` and `0W3`,
which need not be adjacent.

    level  ranks  microbatches  F        I        W        latency  memory  1F1B  par
    1      3      4             1:2:1    2:4:2    0:0:0    0        3       28    27
    2      3      5             2:2:1    1:2:2    2:2:1    0        3       37    32
    3      3      5             1:2:1    1:2:1    2:2:1    1        3       40    32
    4      4      6             1:2:1:1  1:2:1:2  1:1:1:1  1        4       47    39
    5      4      8             1:1:1:1  1:1:1:1  1:1:1:1  0        3       33    31

F, I and W are the times of the stages, starting with the first; a backward B takes I
plus W. Latency is the time of a message. Memory is the largest number of (stage,
microbatch) pairs that a rank may hold, from F to B or W. Par is the shortest makespan
of all: it cannot be beaten. On levels 1 to 3 that is because one rank never waits, and
on level 4 because rank 0 computes for 18 units, waits for at least 12 before its first
I, and for 9 after its last F. On level 5 the stages are alike, but 1F1B would hold 4
microbatches where only 3 fit. There a program has tried all schedules. It does not take
long: a rank gains nothing by waiting when it could work, so after each unit of time
only the numbers of F, I and W that each rank has done matter. There are 3,391 such
states up to unit 31, and all ranks are done in none of the states before it. (Lesson 16
explains such proofs.)

`minipipe search` reaches par on every level in a minute. So an assignment counts no
points here; what you learn, and the leaderboard, are the reward.

To try something out, write it to a file. Start from the rows of 1F1B:
    minipipe show 1f1b --ranks 3 --microbatches 4 --format rows -o mine.txt
    minipipe check mine.txt --memory-limit 3
    minipipe simulate mine.txt --costs F=1:2:1,I=2:4:2,W=0
    minipipe show mine.txt --costs F=1:2:1,I=2:4:2,W=0

Example: 2 ranks and 2 microbatches would be
    0F0 0F1 0B0 0B1
    1F0 1B0 1F1 1B1

Checked, one point each for every level: legal, within memory and no slower than 1F1B;
at least halfway from there to par; par. Also that your schedules train: their gradients
equal the gradients of one process.
"""


def level_1() -> str:
    """Return the rows for 3 ranks, the middle twice as slow, with whole backwards."""
    # SOLUTION
    return """
        0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3
        1F0 1F1 1F2 1B0 1B1 1F3 1B2 1B3
        2F0 2B0 2F1 2F2 2B1 2B2 2F3 2B3
    """
    # STUB
    # raise NotImplementedError("three rows")
    # END


def level_2() -> str:
    """Return the rows for 3 ranks, no two alike, with backwards in two halves."""
    # SOLUTION
    return """
        0F0 0F1 0F2 0I0 0W0 0F3 0I1 0W1 0F4 0I2 0W2 0I3 0W3 0I4 0W4
        1F0 1F1 1F2 1I0 1I1 1W0 1I2 1F3 1W1 1F4 1I3 1W2 1I4 1W3 1W4
        2F0 2I0 2F1 2I1 2F2 2W0 2I2 2W1 2F3 2I3 2F4 2I4 2W2 2W3 2W4
    """
    # STUB
    # raise NotImplementedError("three rows")
    # END


def level_3() -> str:
    """Return the rows for 3 ranks whose messages take time."""
    # SOLUTION
    return """
        0F0 0F1 0F2 0I0 0W0 0F3 0I1 0W1 0F4 0I2 0W2 0I3 0W3 0I4 0W4
        1F0 1F1 1F2 1I0 1W0 1I1 1W1 1F3 1I2 1F4 1I3 1W2 1I4 1W3 1W4
        2F0 2I0 2F1 2I1 2F2 2I2 2W0 2W1 2F3 2I3 2W2 2F4 2I4 2W3 2W4
    """
    # STUB
    # raise NotImplementedError("three rows")
    # END


def level_4() -> str:
    """Return the rows for 4 ranks, with more microbatches than fit in your head."""
    # SOLUTION
    return """
        0F0 0F1 0F2 0F3 0I0 0W0 0F4 0I1 0W1 0F5 0I2 0I3 0W2 0W3 0I4 0W4 0I5 0W5
        1F0 1F1 1F2 1F3 1I0 1I1 1W0 1F4 1W1 1F5 1I2 1W2 1I3 1I4 1I5 1W3 1W4 1W5
        2F0 2F1 2F2 2I0 2W0 2I1 2F3 2I2 2W1 2I3 2F4 2F5 2I4 2W2 2W3 2I5 2W4 2W5
        3F0 3I0 3F1 3I1 3F2 3I2 3F3 3W0 3I3 3W1 3W2 3F4 3I4 3F5 3I5 3W3 3W4 3W5
    """
    # STUB
    # raise NotImplementedError("four rows")
    # END


def level_5() -> str:
    """Return the rows for 4 equal ranks, which hold one microbatch less than 1F1B."""
    # SOLUTION
    return """
        0F0 0F1 0F2 0I0 0W0 0I1 0F3 0W1 0F4 0I2 0W2 0F5 0I3 0W3 0I4 0F6 0W4 0F7 0I5 0W5 0I6 0W6 0I7 0W7
        1F0 1F1 1F2 1I0 1W0 1I1 1W1 1I2 1F3 1W2 1F4 1I3 1F5 1I4 1W3 1W4 1F6 1I5 1F7 1W5 1I6 1W6 1I7 1W7
        2F0 2F1 2F2 2I0 2W0 2I1 2W1 2I2 2W2 2F3 2F4 2I3 2W3 2I4 2F5 2W4 2I5 2F6 2W5 2F7 2I6 2W6 2I7 2W7
        3F0 3I0 3F1 3I1 3F2 3I2 3W0 3W1 3W2 3F3 3I3 3F4 3I4 3W3 3W4 3F5 3I5 3W5 3F6 3I6 3F7 3I7 3W6 3W7
    """
    # STUB
    # raise NotImplementedError("four rows")
    # END
