"""Pages with commands and programs whose output stands below them."""

import contextlib
import io
import re
import shlex
from typing import NamedTuple

from minipipe.cli import main
from tests.launch import ROOT

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LEFT_OUT = "…\n"


class Shown(NamedTuple):
    """Commands or a program, and the output on the page."""

    language: str
    source: str
    output: str

    def printed(self):
        """Return what the commands or the program print."""
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.chdir(ROOT):
            if self.language == "python":
                exec(compile(self.source, "page", "exec"), {})
            else:
                for command in self.source.splitlines():
                    program, *words = shlex.split(command)
                    assert program == "minipipe" and main(words) == 0, command
        return out.getvalue()

    def check(self):
        """Refuse an output that is not printed, and notice a wrong letter in each part."""
        printed = self.printed()
        assert is_excerpt(self.output, printed), printed
        for part in filter(None, self.output.split(LEFT_OUT)):
            wrong = part[:-2] + "@\n"
            assert not is_excerpt(self.output.replace(part, wrong), printed)


def shown_in(text):
    """Return the sources of a text with the outputs below them; each has one."""
    blocks = BLOCK.findall(text)
    assert [kind for kind, _ in blocks[1::2]] == ["text"] * (len(blocks) // 2)
    return [
        Shown(*source, output)
        for source, (_, output) in zip(blocks[::2], blocks[1::2], strict=True)
    ]


def is_excerpt(output, printed):
    """Return whether the parts of an output, between lines that leave some out, are
    whole lines of what is printed, in this order.
    """
    position = 0
    printed = f"\n{printed}"
    for part in output.split(LEFT_OUT):
        start = printed.find(f"\n{part}", position)
        if start < 0:
            return False
        position = start + len(part)
    return True
