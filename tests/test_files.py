"""Files that are not what they say are refused before they take memory; what is written
is whole or not there.
"""

import contextlib
import io
import os
import socket
import stat
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from minipipe import io as files
from tests.launch import run
from tests.refusals import refusal

# -- reading ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "code", "reason"),
    [
        ("/dev/zero", "unreadable", "it is a device; expected a file"),
        ("/dev/tty0", "unreadable", "it is a device"),
        ("/dev", "unreadable", "it is a directory"),
        ("a" * 300, "unreadable", "File name too long"),
        ("a\0b", "unreadable", "embedded null"),
        ("", "unreadable", "No such file"),
        (None, "unreadable", "path should be string"),
        # a descriptor: open() would take it, and close standard output
        (1, "unreadable", "path should be string"),
        ("\ud800\x1b[2J", "unreadable", ""),
    ],
)
def test_what_is_no_file_is_refused_with_a_sentence_that_can_be_printed(
    path, code, reason
):
    if path == "/dev/tty0" and not os.path.exists(path):
        pytest.skip("there is no such device here")
    error = refusal(files.read_text, path)
    assert error.code == code and reason in str(error) and isinstance(error, OSError)
    assert str(error).isprintable() and len(str(error)) < 300 and error.errno is None


def test_a_socket_is_refused(tmp_path):
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(tmp_path / "door"))
        assert refusal(files.read_text, tmp_path / "door").code == "unreadable"


def test_a_large_file_is_refused_before_a_byte_is_read(tmp_path):
    path = tmp_path / "large.csv"
    with open(path, "wb") as file:
        file.truncate(1 << 40)  # a terabyte of holes
    started = time.perf_counter()
    error = refusal(files.read_text, path)
    assert (
        error.code == "too-large"
        and "it has 1,099,511,627,776 bytes; the limit is 268,435,456" in str(error)
    )
    assert time.perf_counter() - started < 1


def test_a_file_at_the_limit_is_read_and_one_beyond_is_not(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("12345")
    assert files.read_text(path, most=5) == "12345"
    assert refusal(files.read_text, path, most=4).code == "too-large"


def test_what_is_not_utf8_is_no_text(tmp_path):
    for content in (b"\x89PNG\xff\xfe", "0F0,0B0".encode("utf-16"), b"0F0\xed\xa0\x80"):
        (tmp_path / "a").write_bytes(content)
        assert refusal(files.read_text, tmp_path / "a").code == "unreadable"


def test_a_pipe_is_read_up_to_the_limit_whatever_its_writer_goes_on_to_write(tmp_path):
    os.mkfifo(tmp_path / "pipe")

    def write(content):
        # closing writes, too
        with (
            contextlib.suppress(BrokenPipeError),
            open(tmp_path / "pipe", "wb") as pipe,
        ):
            pipe.write(content)

    for content, most in ((b"0F0,0B0\n" * 50_000, 1 << 20), (b"0F0," * 50_000, 1000)):
        writer = threading.Thread(target=write, args=(content,))
        writer.start()
        try:
            if len(content) > most:
                assert (
                    refusal(files.read_text, tmp_path / "pipe", most).code
                    == "too-large"
                )
            else:
                assert files.read_text(tmp_path / "pipe", most) == content.decode()
        finally:
            writer.join()


def test_a_pipe_that_nobody_writes_to_is_given_up(tmp_path, monkeypatch):
    """The story: it was waited for, for ever."""
    monkeypatch.setattr(files, "PIPE_TIMEOUT", 0.05)
    os.mkfifo(tmp_path / "pipe")
    assert "no byte came from the pipe for 0.05 s" in str(
        refusal(files.read_text, tmp_path / "pipe")
    )


def test_in_a_folder_of_somebody_else_only_a_regular_file_is_read_and_a_pipe_is_not_waited_for(
    tmp_path,
):
    """The story: a pipe, a link to /dev/zero or to another's file in a student's
    folder, and a pipe in place of weights, were opened as the file that they stood for:
    they hung, filled the memory, or showed what the reader alone may read."""
    (tmp_path / "file").write_text("text")
    os.mkfifo(tmp_path / "pipe")
    for name, target in {
        "link": "file",
        "to-zero": "/dev/zero",
        "to-pipe": "pipe",
        "broken": "nothing",
    }.items():
        (tmp_path / name).symlink_to(target)
        error = refusal(files.read_text, tmp_path / name, links=False)
        assert error.code == "unreadable" and "it is a link; expected a file" in str(
            error
        )
    assert (
        files.read_text(tmp_path / "link")
        == files.read_text(tmp_path / "file", pipes=False, links=False)
        == "text"
    )
    for name in ("pipe", "to-pipe"):
        assert "it is a pipe; expected a file" in str(
            refusal(files.read_bytes, tmp_path / name, pipes=False)
        )


def test_a_file_that_becomes_a_link_between_look_and_opening_is_refused_all_the_same(
    tmp_path, monkeypatch
):
    (tmp_path / "link").symlink_to("/etc/hostname")
    monkeypatch.setattr(os.path, "islink", lambda path: False)
    assert (
        refusal(files.read_bytes, tmp_path / "link", links=False).code == "unreadable"
    )


@pytest.mark.parametrize(
    ("stream", "code"),
    [
        (None, "unreadable"),
        (io.StringIO("12345"), "too-large"),
        (io.TextIOWrapper(io.BytesIO(b"\xff\xfe"), encoding="utf-8"), "unreadable"),
    ],
)
def test_standard_input_is_no_better_than_a_file(stream, code):
    assert refusal(files.read_stream, stream, "stdin", most=4).code == code


def test_standard_input_that_is_closed_meanwhile_is_refused():
    stream = io.StringIO("0F0")
    stream.close()
    assert refusal(files.read_stream, stream, "stdin").code == "unreadable"


# -- writing ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/dev/full", "No space left on device"),
        ("no/such/folder/a.txt", "No such file or directory"),
        ("a\0b", "embedded null"),
        ("a" * 300, "File name too long"),
        (".", "Is a directory"),
        ("/proc/a.txt", "No such file"),
        ("", "Is a directory"),
    ],
)
def test_what_cannot_be_written_is_named_with_the_reason(
    path, reason, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    error = refusal(files.write_whole, path, "text")
    assert error.code == "unwritable" and reason in str(error)
    assert os.listdir(tmp_path) == []


def test_a_disk_that_fills_up_leaves_the_earlier_file_and_nothing_else(tmp_path):
    """The story: half a picture was left, under the name of the whole one, and the exit
    status was 0.
    """
    path = tmp_path / "a.txt"
    path.write_text("earlier")
    program = (
        "import sys; from minipipe.io import write_whole; write_whole(sys.argv[1], "
        "'x' * 10**6)"
    )
    limited = (
        f"ulimit -f 100; trap '' XFSZ; exec {sys.executable} -c \"{program}\" {path}"
    )
    # which would be cut off, too
    done = run(["bash", "-c", limited], PYTHONDONTWRITEBYTECODE="1")
    assert done.code == 1 and "a.txt' cannot be written: File too large." in done.err
    assert path.read_text() == "earlier" and os.listdir(tmp_path) == ["a.txt"]


def test_an_interrupt_leaves_nothing_behind(tmp_path, monkeypatch):
    def interrupted(source, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        files.write_whole(tmp_path / "a.txt", "text")
    assert os.listdir(tmp_path) == []


def test_a_file_is_replaced_with_its_permissions_and_through_its_link(tmp_path):
    path, link = tmp_path / ("a" * 255), tmp_path / "link"
    path.write_text("earlier")
    path.chmod(0o640)
    link.symlink_to(path)
    assert files.write_whole(link, b"later") == link
    assert (
        path.read_bytes() == b"later"
        and stat.S_IMODE(path.stat().st_mode) == 0o640
        and link.is_symlink()
    )


def test_a_new_file_has_the_permissions_of_any_new_file(tmp_path):
    files.write_whole(tmp_path / "a", "text")
    (tmp_path / "b").write_text("text")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_a_file_that_is_read_only_is_not_replaced():
    """Root may write what is read-only, so root is somebody else meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.txt")
        path.write_text("earlier")
        path.chmod(0o444)
        Path(folder).chmod(0o777)
        user = os.geteuid()
        os.seteuid(65534 if user == 0 else user)
        try:
            assert "Permission denied" in str(refusal(files.write_whole, path, "later"))
        finally:
            os.seteuid(user)
        assert path.read_text() == "earlier"


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="this system has no /dev/shm")
def test_a_file_in_memory_is_written_as_any():
    """The story: whatever lies under /dev counted as a device, and was not created."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        assert files.write_whole(Path(folder, "a.txt"), "text").read_text() == "text"


def test_half_a_character_is_written_as_a_question_mark(tmp_path):
    assert (
        files.write_whole(tmp_path / "a.txt", "half \udc80").read_bytes() == b"half ?"
    )


def test_a_device_and_a_pipe_are_written_to_and_stay_what_they_are(tmp_path):
    files.write_whole("/dev/null", "text")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    os.mkfifo(tmp_path / "pipe")
    assert "No such device" in str(
        refusal(files.write_whole, tmp_path / "pipe", "nobody reads it")
    )
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    files.write_whole(tmp_path / "pipe", "somebody does")
    assert os.read(reader, 100) == b"somebody does"
    os.close(reader)
