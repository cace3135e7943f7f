"""Train several pipelines over MPI, compiled and eagerly."""

from minipipe import init_process_group
from tests.compile.test_around_steps import one_after_another, two_by_turns


def main():
    with init_process_group() as group:
        for train in (two_by_turns, one_after_another):
            compiled, report = train(group, how=True)
            assert compiled == train(group, how=False)[0], train
            assert report == f"step: stage {group.rank} is compiled"
        if group.rank == 0:
            print("the same bits")


if __name__ == "__main__":
    main()
