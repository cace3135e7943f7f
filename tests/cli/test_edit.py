"""``minipipe edit``: who may talk to its page, and what it saves."""

import http.client
import json
import re
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from functools import partial

import pytest

from minipipe import Schedule, schedules
from minipipe.cli import edit, main
from minipipe.render.editor import Editor
from tests.launch import ROOT, environment


@pytest.fixture
def page(tmp_path):
    """Serve a page in a thread."""
    with edit.Page(Editor(file=tmp_path / "mine.csv")) as served:
        thread = threading.Thread(
            target=served.serve_forever, args=(0.01,), daemon=True
        )
        thread.start()
        yield served
        served.shutdown()
        thread.join()


def answered(page, method="POST", path=None, body='{"do":"show"}', **headers):
    """Send a request as the page would, but for what is given; a header that is None is
    left out.
    """
    usual = {
        "Host": page.host,
        "Origin": f"http://{page.host}",
        "Content-Type": "application/json",
    }
    if method == "GET":
        del usual["Origin"]
    sent = {
        **usual,
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    connection = http.client.HTTPConnection(*page.server_address, timeout=20)
    connection.putrequest(
        method, f"{page.path}ask" if path is None else path, skip_host=True
    )
    data = body.encode()
    for name, value in {"Content-Length": str(len(data)), **sent}.items():
        if value is not None:
            connection.putheader(name, value)
    connection.endheaders(data)
    reply = connection.getresponse()
    content = reply.read().decode()
    connection.close()
    return reply, content


def test_the_page_and_its_messages_are_answered(page):
    reply, content = answered(page, "GET", page.path, "")
    assert (
        reply.status == 200
        and content.startswith("<!doctype html>")
        and "frame-ancestors" not in content
    )
    assert (
        reply.headers["Referrer-Policy"] == "no-referrer"
        and reply.headers["X-Frame-Options"] == "DENY"
    )
    reply, content = answered(page)
    assert reply.status == 200 and json.loads(content)["figures"][0] == [
        "makespan",
        "33 units",
    ]
    assert "Access-Control-Allow-Origin" not in reply.headers


@pytest.mark.parametrize(
    "wrong",
    [
        {"path": "/ask"},
        {"path": "/0123456789abcdef0123456789abcdef/ask"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": None},
        {"Host": "evil.example"},  # a name that was made to lead here
        {"Host": "localhost"},
        {"Host": None},
        {"method": "GET", "path": "/"},
        {"method": "GET", "path": "", "Host": "evil.example"},
    ],
)
def test_whoever_has_no_token_or_is_another_site_is_refused_and_changes_nothing(
    page, wrong
):
    before = page.editor.draft
    body = "" if wrong.get("method") == "GET" else '{"do":"empty"}'
    if wrong.get("path") == "":
        wrong = {**wrong, "path": page.path}
    reply, content = answered(page, body=body, **wrong)
    assert reply.status == 403 and "Only the user who started this page" in content
    assert page.path.strip("/") not in content and page.editor.draft is before


def test_the_token_differs_from_start_to_start_and_only_this_machine_is_listened_to(
    page,
):
    with edit.Page(Editor()) as other:
        assert other.path != page.path and len(other.path) > 30
        assert other.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize(
    ("wrong", "status"),
    [
        # which another site may send without asking first
        ({"Content_Type": "text/plain"}, 415),
        ({"Content_Length": "x"}, 415),
        ({"Content_Length": "-1"}, 415),
        ({"Content_Length": str(2**40)}, 413),
    ],
)
def test_what_is_no_json_or_too_long_is_refused_before_it_is_read(page, wrong, status):
    assert answered(page, **wrong)[0].status == status


def test_a_message_that_is_no_json_is_answered_with_a_sentence(page):
    assert "No message" in json.loads(answered(page, body="{")[1])["said"]


@contextmanager
def edited(folder, *words):
    """Start the command as a person does; yield what it says it serves."""
    command = [sys.executable, "-m", "minipipe", "edit", *words, "--json"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # A shell starts a program in the background with Ctrl-C ignored, and so what that
    # starts.
    listen = partial(signal.signal, signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        command, cwd=folder, env=environment(), preexec_fn=listen, **pipes
    )
    try:
        yield json.loads(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.communicate()


def test_the_command_saves_the_file_that_it_names_and_ends_at_ctrl_c(tmp_path):
    with edited(
        tmp_path, "1f1b", "--ranks", "2", "--microbatches", "2", "-o", "mine.csv"
    ) as said:
        assert said["file"] == "mine.csv"
        host, port, path = re.fullmatch(
            r"http://(127\.0\.0\.1):(\d+)(/\S+/)", said["url"]
        ).groups()
        connection = http.client.HTTPConnection(host, int(port), timeout=20)
        headers = {
            "Origin": f"http://{host}:{port}",
            "Content-Type": "application/json",
        }
        connection.request("POST", f"{path}ask", json.dumps({"do": "save"}), headers)
        assert "Saved mine.csv" in json.loads(connection.getresponse().read())["said"]
        connection.close()
    assert (
        Schedule.from_file(tmp_path / "mine.csv").actions
        == schedules.one_f_one_b(2, 2).actions
    )
    assert [path.name for path in tmp_path.iterdir()] == ["mine.csv"]


def test_a_file_is_edited_in_place_and_an_earlier_file_is_not_lost(
    ask, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        edit.Page, "serve_forever", lambda page: page.editor.answer({"do": "save"})
    )
    assert ask("edit", "gpipe", "--ranks", 2, "--microbatches", 2)[1].startswith(
        "Open http://127.0.0.1:"
    )
    assert Schedule.from_file("gpipe.csv").actions == schedules.gpipe(2, 2).actions
    status, _, complaint = ask("edit", "gpipe")
    assert status == 2 and "gpipe.csv exists" in complaint and "-o" in complaint
    assert ask("edit", "gpipe.csv")[0] == 0


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("nosuch",), "neither a schedule nor a file"),
        (("chimera",), "replicas"),
        (("1f1b", "-o", "mine.png"), "expected .csv or .txt"),
        (("1f1b", "--costs", "F=1:2"), "--costs: "),
        (("1f1b", "--ranks", "900"), "the editor takes at most"),
    ],
)
def test_what_cannot_be_edited_is_refused_before_anything_is_served(
    words, complaint, capsys, monkeypatch
):
    monkeypatch.setattr(edit.Page, "serve_forever", lambda page: None)
    assert main(["edit", *words]) in (1, 2)
    said = capsys.readouterr()
    assert (
        complaint in said.err and "http" not in said.out and str(ROOT) not in said.err
    )
