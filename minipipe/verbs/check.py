"""``minipipe check``: is a schedule legal?"""

from __future__ import annotations

import argparse
import json

from minipipe.schedules import simulate, verify
from minipipe.verbs.asked import schedule_of
from minipipe.verbs.told import after_name, described, figures

__all__ = ["run_check"]


def run_check(options: argparse.Namespace) -> int:
    """Print one line of figures for a legal schedule; main() prints what is wrong with an illegal one."""
    schedule = schedule_of(options)
    verify(schedule, options.memory_limit)
    timeline = simulate(schedule)
    if options.json:
        print(json.dumps({"legal": True, **figures(schedule, timeline)}))
        return 0
    remark = "" if schedule.is_reproducible else "; it adds gradients in another order than one process does"
    if schedule.is_forward_only:
        remark = "; forward only, so it does not train"
    print(f"legal: {described(schedule)}; {after_name(timeline)}{remark}")
    return 0
