"""A second opinion about schedules: a token game over sets of facts, written from the
rules alone.

It shares no code with the verifier.
"""

from collections import Counter
from dataclasses import replace
from itertools import product

TAKERS = ("REDUCE_GRAD", "U")  # of the gradients of several microbatches


def is_legal(schedule):
    """Play the schedule. Actions are (rank, stage, letter, microbatch), and facts are
    tuples that begin with a word.
    """
    if not (are_pairs(schedule) and are_there(schedule)):
        return False
    rows = [
        [action for action in row if action.kind.value not in "ROL"]
        for row in schedule.actions
    ]
    schedule = replace(schedule, actions=rows)
    cells = [
        (r, a.stage, a.kind.value, a.microbatch)
        for r, row in enumerate(schedule.numbered)
        for a in row
    ]
    sends_by_hand = any(
        letter.startswith(("SEND", "RECV")) for _, _, letter, _ in cells
    )
    homes = {(stage, k): rank for rank, stage, letter, k in cells if letter == "F"}
    if any(
        letter in TAKERS and homes.get((stage, k)) != rank
        for rank, stage, letter, k in cells
    ):
        return False
    cells = [cell for cell in cells if cell[2] not in TAKERS]
    bag = meant(schedule, cells, sends_by_hand, homes)
    return Counter(cells) == bag and ends(schedule, sends_by_hand, homes)


def are_there(schedule):
    """Tell whether F, R and backward find the activations that they need, and no O, L
    or R is in vain.
    """
    n = schedule.num_slices
    steps = {
        "F": {None: "new"},
        "O": {"new": "away"},
        "L": {"away": "back"},
        "R": {"new": "again", "back": "again"},
    }
    for row in schedule.numbered:
        state = {}
        for stage, kind, k in row:
            now = state.get((stage, k))
            sequence_before = range(k - k % n, k)  # whose keys and values a slice needs
            if kind.value in "FRBI" and "away" in {
                state.get((stage, i)) for i in sequence_before
            }:
                return False
            if kind.value in "BI":
                if now == "away":
                    return False
                state[stage, k] = "over"
            elif kind.value in steps:
                if kind.value != "F" and now not in steps[kind.value]:
                    return False
                state[stage, k] = steps[kind.value].get(now, now)
        if {"away", "back", "again"} & {*state.values()}:
            return False
    return True


def are_pairs(schedule):
    """Tell whether each joined forward has a backward of another microbatch behind
    it.
    """
    rows = [
        [(str(a), a.kind.value, a.microbatch) for a in row] for row in schedule.actions
    ]
    pairs = [
        (a, b)
        for row in rows
        for a, b in zip(row, row[1:])
        if a[0] in map(str, schedule.overlaps)
    ]
    return len(pairs) == len(schedule.overlaps) and all(
        b[1] in "BI" and a[2] != b[2] for a, b in pairs
    )


def meant(schedule, cells, sends_by_hand, homes):
    """Return the bag of actions that a legal schedule with these backwards has; None,
    if there is no such schedule.

    A microbatch is on a stage where its F is.
    """
    pairs = set(product(range(schedule.num_stages), range(schedule.num_microbatches)))
    if homes.keys() != pairs or not all(
        rank in schedule.ranks_of(stage) for (stage, _), rank in homes.items()
    ):
        return None
    if any(
        homes[stage, k] != homes[stage, k - k % schedule.num_slices]
        for stage, k in pairs
    ):
        return None
    for cut in range(schedule.num_stages - 1):
        if (
            len(
                {
                    homes[cut, k] == homes[cut + 1, k]
                    for k in range(schedule.num_microbatches)
                }
            )
            > 1
        ):
            return None
    backwards = {
        (stage, letter, k) for _, stage, letter, k in cells if letter in ("B", "I", "W")
    }
    bag = Counter()
    for stage, k in pairs:
        home = homes[stage, k]
        halves = {letter for s, letter, i in backwards if (s, i) == (stage, k)}
        if backwards and halves not in ({"B"}, {"I", "W"}):
            return None
        for letter in ("F", *halves):
            bag[home, stage, letter, k] += 1
        for neighbour, letter in ((stage + 1, "F"), (stage - 1, "B")):
            wanted = sends_by_hand and (letter == "F" or backwards)
            if wanted and homes.get((neighbour, k), home) != home:
                bag[home, stage, f"SEND_{letter}", k] += 1
                bag[homes[neighbour, k], neighbour, f"RECV_{letter}", k] += 1
    return bag


def ends(schedule, sends_by_hand, homes):
    """Take actions off the heads of the lists, in any order that the facts allow, until
    nothing moves.
    """
    last = schedule.num_stages - 1
    left = [
        [(a.stage, a.kind.value, a.microbatch) for a in row]
        for row in schedule.numbered
    ]
    facts = {("input", 0, k) for k in range(schedule.num_microbatches)}
    facts |= {("gradient", last, k) for k in range(schedule.num_microbatches)}
    whole = [list(row) for row in left]

    def is_direct(stage, neighbour, k):
        return not sends_by_hand or homes[stage, k] == homes[neighbour, k]

    def effect(stage, letter, k):
        """Return (needs, gives) of an action that computes."""
        nth, n = k % schedule.num_slices, schedule.num_slices
        if letter == "F":
            gives = {("kept", stage, k), ("output", stage, k)}
            if stage < last and is_direct(stage, stage + 1, k):
                gives |= {("input", stage + 1, k)}
            return {("input", stage, k)} | (
                {("kept", stage, k - 1)} if nth else set()
            ), gives
        if letter == "W":
            return {("halfway", stage, k)}, {("done", stage, k)}
        gives = {("halfway", stage, k), ("sensitivity", stage, k)} | (
            {("done", stage, k)} if letter == "B" else set()
        )
        if stage > 0 and is_direct(stage, stage - 1, k):
            gives |= {("gradient", stage - 1, k)}
        later = {("halfway", stage, k + 1)} if nth < n - 1 else set()
        return {("kept", stage, k), ("gradient", stage, k)} | later, gives

    def gradients(rank, stage):
        return {
            k for s, letter, k in whole[rank] if s == stage and letter in ("B", "W")
        }

    def take(rank, stage, letter, k):
        """Return the facts of taking all gradients up to k that were not taken; None,
        where this may not be.
        """
        mine = {
            i
            for i in gradients(rank, stage)
            if i <= k and (letter, stage, i) not in facts
        }
        is_ready = all(("done", stage, i) in facts for i in mine)
        has_replicas = len(schedule.ranks_of(stage)) > 1
        if letter == "U" and has_replicas and (stage, k) not in ends_of_sums:
            return None
        return {(letter, stage, i) for i in mine} if mine and is_ready else None

    ends_of_sums = set()
    while True:
        heads = {row[0] for row in left if row}
        behind = {row[0]: row[1] for row in left if row[1:]}
        taken = set()
        for rank, row in enumerate(left):
            if row and row[0][1] in TAKERS and row[0] not in taken:
                stage, letter, k = row[0]
                meets = [
                    (r, left[r][0])
                    for r in schedule.ranks_of(stage)
                    if left[r] and left[r][0][:2] == row[0][:2]
                ]
                if letter == "U":
                    meets = [(rank, row[0])]
                elif len(meets) < len(schedule.ranks_of(stage)):
                    continue
                gifts = [take(r, *cell) for r, cell in meets]
                if None not in gifts:
                    taken |= {cell for _, cell in meets}
                    ends_of_sums |= {
                        (stage, cell[2]) for _, cell in meets if letter != "U"
                    }
                    facts |= set().union(*gifts)
        for stage, letter, k in heads:
            if letter in TAKERS:
                continue
            if "_" not in letter:
                needs, gives = effect(stage, letter, k)
                if (stage, letter, k) in schedule.overlaps:
                    needs = needs | effect(*behind[stage, letter, k])[0]
                if needs <= facts:
                    taken |= {(stage, letter, k)}
                    facts |= gives
            elif letter.startswith("SEND"):  # a rendezvous: both at once or neither
                neighbour, carried, gift = (
                    (stage + 1, "output", "input")
                    if letter == "SEND_F"
                    else (stage - 1, "sensitivity", "gradient")
                )
                partner = (neighbour, letter.replace("SEND", "RECV"), k)
                if partner in heads and (carried, stage, k) in facts:
                    taken |= {(stage, letter, k), partner}
                    facts |= {(gift, neighbour, k)}
        if not taken:
            return not any(left) and all_taken(schedule, whole, facts)
        left = [row[1:] if row and row[0] in taken else row for row in left]


def all_taken(schedule, whole, facts):
    """Whether sums and updates leave no gradient out: in all stages, or in none; a sum
    of one replica is by choice.
    """
    for letter in TAKERS:
        is_used = any(letter == other for row in whole for _, other, _ in row)
        for row in whole if is_used else ():
            for stage, other, k in row:
                is_due = (
                    letter == "U"
                    or len(schedule.ranks_of(stage)) > 1
                    or (stage, letter) in {c[:2] for c in row}
                )
                if other in ("B", "W") and is_due and (letter, stage, k) not in facts:
                    return False
    return True
