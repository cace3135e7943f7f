"""``minipipe edit``: requests that are damaged, and clients that leave; nothing of both
is printed.
"""

import json
import re
import socket
import struct
import threading

import pytest

from minipipe.cli import edit
from minipipe.render.editor import Editor

BODY = b'{"do":"show"}'


@pytest.fixture
def page():
    """Serve a page in a thread; at the end, all requests have been handled."""
    with edit.Page(Editor()) as served:
        # so that the end of this block waits for each handler
        served.daemon_threads = False
        thread = threading.Thread(
            target=served.serve_forever, args=(0.01,), daemon=True
        )
        thread.start()
        yield served
        served.shutdown()
        thread.join()


def request_of(page, *headers, method="POST", path=None, body=BODY):
    """Return the bytes of a request as the page sends it, with these headers in place
    of its length.
    """
    lines = [
        f"{method} {page.path if path is None else path} HTTP/1.1",
        f"Host: {page.host}",
    ]
    if method == "POST":
        lines += [f"Origin: http://{page.host}", "Content-Type: application/json"]
    return "\r\n".join([*lines, *headers, "", ""]).encode("latin-1") + body


def status_of(page, request):
    """Return the status of the answer to a request, and its content."""
    with socket.create_connection(page.server_address, timeout=20) as client:
        client.sendall(request)
        client.shutdown(socket.SHUT_WR)
        with client.makefile("rb") as stream:
            answer = stream.read()
    return int(re.match(rb"HTTP/1\.1 (\d+) ", answer)[1]), answer.partition(
        b"\r\n\r\n"
    )[2]


def asking(page, *headers, **parts):
    return status_of(page, request_of(page, *headers, path=f"{page.path}ask", **parts))


def is_as_before(page):
    status, content = asking(page, f"Content-Length: {len(BODY)}")
    return status == 200 and json.loads(content)["figures"][0] == [
        "makespan",
        "33 units",
    ]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([], 415),
        (["Content-Length:"], 415),
        (["Content-Length: x"], 415),
        (["Content-Length: -1"], 415),
        (["Content-Length: +13"], 415),
        (["Content-Length: 1_3"], 415),
        (["Content-Length: 13.0"], 415),
        (["Content-Length: 0x0d"], 415),
        # a superscript two, which str.isdigit takes and int() does not
        (["Content-Length: \xb2"], 415),
        (["Content-Length: 13", "Content-Length: 14"], 415),
        (["Transfer-Encoding: chunked"], 415),
        ([f"Content-Length: {2**20 + 1}"], 413),
        ([f"Content-Length: {2**63}"], 413),
        (["Content-Length: " + "9" * 5000], 413),
        (["Content-Length: " + "0" * 5000], 413),
        (["Content-Length: 14"], 400),  # one more than there is
        ([f"Content-Length: {2**20}"], 400),
        ([f"X: {'x' * 70_000}"], 431),
        ([f"X{number}: x" for number in range(200)], 431),
    ],
)
def test_a_request_without_a_length_that_fits_it_is_refused_with_its_status(
    page, headers, status, capfd
):
    found, content = asking(page, *headers)
    assert found == status and content
    assert is_as_before(page)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"null", b'{"do":1,"do":2}', b"\x00"],
)
def test_a_body_that_is_no_message_is_answered_with_a_sentence(page, body, capfd):
    status, content = asking(page, f"Content-Length: {len(body)}", body=body)
    assert status == 200 and json.loads(content)["said"].startswith(
        "No message of the editor: "
    )
    assert is_as_before(page)
    assert capfd.readouterr() == ("", "")


def leave(page, sent, waits=False):
    """Send a part of a request, perhaps wait for the begin of the answer, and reset the
    connection.
    """
    client = socket.socket()
    # so that the answer does not fit
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    # close() resets
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.settimeout(20)
    client.connect(page.server_address)
    client.sendall(sent)
    if waits:
        client.recv(100)
    client.close()


def test_a_client_that_leaves_early_is_not_worth_a_line(page, capfd):
    post = request_of(page, f"Content-Length: {len(BODY)}", path=f"{page.path}ask")
    whole = request_of(page, method="GET", body=b"")
    for request in (post, whole):
        for length in (0, 1, 20, len(request) // 2, len(request) - 5, len(request)):
            leave(page, request[:length])
        leave(page, request, waits=True)
    assert is_as_before(page)
    page.shutdown()
    page.server_close()  # waits for all handlers
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("error", "is_printed"),
    [
        (ConnectionResetError(), False),
        (BrokenPipeError(), False),
        (ConnectionAbortedError(), False),
        (TimeoutError(), False),
        (ZeroDivisionError("a mistake here"), True),
    ],
)
def test_an_error_of_the_connection_is_not_printed_and_one_of_the_program_is(
    page, error, is_printed, capfd
):
    try:
        raise error
    except Exception:
        page.handle_error(None, ("127.0.0.1", 1))
    assert ("a mistake here" in capfd.readouterr().err) is is_printed
