"""``minipipe edit``: the page of the editor, served only to a browser on this machine.

The address of the page has a random token; requests without it are refused. The Origin
and the Host of a message must also be the page's, so that no other web site can send
one, even if it guessed the port.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from minipipe.cli.declaring import adder, file_path
from minipipe.cli.options import (
    add_costs,
    add_sizes,
    schedule_of,
)
from minipipe.cli.output import ExitStatus, ending_of
from minipipe.cli.streams import put
from minipipe.core.specs import SCHEDULE_COUNT
from minipipe.errors import misuse
from minipipe.io import printable
from minipipe.schedules.registry import REGISTRY, spelled

_MOST_DIGITS = 18  # of the length of a message
# The longest message: five times the text of the longest schedule in the editor.
_MOST_BYTES = 2**20


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = adder(parser, "edit")
    add("schedule")
    add("--chunks", spec=SCHEDULE_COUNT)
    add_sizes(parser)
    add_costs(parser)
    add("-o", "--output", type=file_path)
    without = ("group", "per_update", "joined", "slices", "offload", "replicas")
    parser.set_defaults(**dict.fromkeys(without))
    parser.set_defaults(recompute=False, ignore_sharding=False, freeze=[])


def run(options: argparse.Namespace) -> ExitStatus:
    """Serve the page until it is interrupted."""
    from minipipe.render.editor import Editor
    from minipipe.render.editor.draft import Draft

    draft = Draft.of(schedule_of(options.schedule, options))
    file = _file(options)
    editor = Editor(draft, file=file)
    refused = editor.answer({"do": "costs", "costs": options.costs})
    if refused["isRefused"]:
        raise misuse(f"--costs: {refused['said']}")
    with Page(editor) as page:
        save = f"Save writes {printable(str(file))}. Ctrl-C ends the editor."
        text = f"Open {page.url}\n{save}"
        if options.json:
            text = json.dumps({"url": page.url, "file": str(file)})
        put(text, flush=True)
        try:
            page.serve_forever()
        except KeyboardInterrupt:
            return ExitStatus.YES
    return ExitStatus.YES


def _file(options: argparse.Namespace) -> Path:
    name = spelled(options.schedule)
    file = options.output or Path(name)
    if options.output is None and name in REGISTRY:
        file = Path(f"{name}.csv")
        if os.path.exists(file):
            problem = f"{file} exists: edit it with `minipipe edit {file}`"
            raise misuse(f"{problem}, or save to another file with -o FILE.")
    ending_of(file, (".csv", ".txt"))
    return file


class Page(ThreadingHTTPServer):
    """The server of one page and of its messages.

    Attributes
    ----------
    url : str
        The address of the page, with its token.
    """

    daemon_threads = True

    def __init__(self, editor) -> None:  # type: ignore[no-untyped-def]  # an Editor, which is imported at run time
        super().__init__(("127.0.0.1", 0), _Handler)
        self.editor = editor
        self.turn = threading.Lock()
        self.host = f"127.0.0.1:{self.server_address[1]}"
        self.path = f"/{secrets.token_urlsafe(24)}/"
        self.url = f"http://{self.host}{self.path}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Print the traceback of an error, but not if a client has disconnected or is
        silent.
        """
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    server: Page
    protocol_version = "HTTP/1.1"
    timeout = 30  # seconds for a request to arrive
    # Nagle's algorithm delays each answer by 40 ms, until its headers are acknowledged.
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        """Answer with the page."""
        from minipipe.render.editor import draw_editor

        if self._is_ours(self.server.path):
            with self.server.turn:
                page = draw_editor(self.server.editor, "http")
            self._send(200, page, "text/html")

    def do_POST(self) -> None:
        """Answer a message."""
        lengths = self.headers.get_all("Content-Length", [])
        if not self._is_ours(f"{self.server.path}ask", f"http://{self.server.host}"):
            return
        is_json = self.headers.get("Content-Type") == "application/json"
        if not (is_json and len(lengths) == 1 and lengths[0].isdecimal()):
            self._send(415, "Expected JSON, with its length.")
        # A number of more digits is too large as well, and int() takes 4300 of them at
        # most.
        elif len(lengths[0]) > _MOST_DIGITS or int(lengths[0]) > _MOST_BYTES:
            self._send(413, f"Expected at most {_MOST_BYTES:,} bytes.")
        else:
            self._answer(int(lengths[0]))

    def _answer(self, length: int) -> None:
        content = self.rfile.read(length)
        if len(content) < length:
            sent = f"as the request says; it has {len(content):,}"
            self._send(400, f"Expected {length:,} bytes, {sent}.")
            return
        with self.server.turn:
            answer = self.server.editor.ask(content.decode("utf-8", "replace"))
        self._send(200, answer, "application/json")

    def _is_ours(self, path: str, origin: str | None = None) -> bool:
        """Tell whether a request has the token, and came from the page; refuse it
        otherwise.
        """
        has_token = secrets.compare_digest(self.path.encode(), path.encode())
        is_local = self.headers.get("Host") == self.server.host
        if has_token and is_local and self.headers.get("Origin") == origin:
            return True
        how = "open the address that minipipe edit printed"
        self._send(403, f"Only the user who started this page may use it: {how}.")
        return False

    def _send(self, status: int, content: str, kind: str = "text/plain") -> None:
        data = content.encode()
        # The body of a refused message was not read, so close the connection.
        self.close_connection = self.close_connection or status != 200
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Print nothing: only the address goes to standard output."""
