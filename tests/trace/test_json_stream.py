"""Traces are read one event after another, in bounded memory."""

import gzip
import json
import sys
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minipipe.errors import FileError
from minipipe.trace import json_stream, read_run
from minipipe.trace.json_stream import events_of
from tests.launch import run
from tests.trace.written import event, recorded

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=4,
)
events = st.lists(st.dictionaries(st.text(), values), max_size=5)


@given(
    events,
    st.dictionaries(st.text().filter(lambda name: name != "traceEvents"), values),
    st.dictionaries(st.text().filter(lambda name: name != "traceEvents"), values),
    st.sampled_from([None, 2]),
    st.integers(1, 40),
)
def test_the_events_of_any_trace_are_those_of_the_json_module(
    tmp_path_factory, items, before, after, indent, length
):
    """For pieces of any length, so that each value is cut at each of its characters."""
    content = {**before, "traceEvents": items}
    content |= {name: it for name, it in after.items() if name not in content}
    path = tmp_path_factory.mktemp("any") / "trace.json"
    path.write_bytes(json.dumps(content, indent=indent).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_stream, "_PIECE", length)
        header = {}
        assert list(events_of(path, header)) == items
    del content["traceEvents"]
    assert header == content


def test_a_list_of_events_may_lack_its_bracket(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text('[{"ph": "X"},\n{"ph": "M"},\n')
    assert list(events_of(path, {})) == [{"ph": "X"}, {"ph": "M"}]


def test_gzip_may_have_several_members(tmp_path):
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(b'[{"a": 1},') + gzip.compress(b'{"a": 2}]'))
    assert list(events_of(path, {})) == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        (b"", "damaged", "ends at character 0"),
        (b"hello", "syntax", "expected a trace"),
        (b"\x89PNG\r\n", "syntax", "expected a trace"),
        (b'{"a": 1}', "syntax", "no traceEvents"),
        (b'{"traceEvents": 3}', "syntax", "list of events"),
        (b'{"traceEvents": [{"a": 1}, {"b"', "damaged", "cut off"),
        (b'{"traceEvents": [{"a": 1}]', "damaged", "ends at character"),
        (b'{"traceEvents": [{"a": 1} oops', "damaged", "no JSON"),
        (b'{"traceEvents": []} oops', "syntax", "expected the end"),
        (b'{"a" 1}', "syntax", "colon"),
        (b'{"a": 1 "b": 2}', "syntax", "comma"),
        (b"[" * 100_000, "syntax", "nested"),
        (gzip.compress(b"[]", mtime=0)[:-9], "damaged", "gzip ends early"),
        (gzip.compress(b"[{}]", mtime=0)[:12] + b"\xff" * 9, "damaged", "gzip"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(content, code, words, tmp_path):
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(FileError, match=words) as caught:
        list(events_of(path, {}))
    assert caught.value.code == code and str(path) in str(caught.value)


@pytest.mark.parametrize("end", [100, 900, -1])
def test_a_truncated_recording_is_refused(end, tmp_path):
    path = tmp_path / "zb-v.0.json.gz"
    path.write_bytes(recorded("zb-v")[0].read_bytes()[:end])
    with pytest.raises(FileError, match="truncated") as caught:
        read_run(path)
    assert caught.value.code == "damaged"


def test_a_value_beyond_the_limit_is_refused_before_it_is_read_whole(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(json_stream, "_MOST_VALUE", 2**20)
    path = tmp_path / "trace.json"
    path.write_text('[{"name": "' + "a" * 2**23 + '"}]')
    with pytest.raises(FileError):
        list(events_of(path, {}))


def test_gzip_that_expands_beyond_the_limit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(json_stream, "MOST_EXPANDED", 2**20)
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(b" " * 2**22))
    with pytest.raises(FileError, match="expands to more than 1,048,576") as caught:
        list(events_of(path, {}))
    assert caught.value.code == "too-large"


def write_long(path, megabytes):
    """Write a trace of this size, most of it operations that are no actions."""
    line = json.dumps(event("aten::mm", 0.0, 1.0, "cpu_op"))
    filler = f"{line},\n".encode() * 1000
    begun = [event(f"PP:0F{k}", k, k + 1) for k in range(2)]
    ended = [event(f"PP:0B{k}", k + 2, k + 3) for k in range(2)]
    with gzip.open(path, "wb", 1) as file:
        file.write(b'{"traceEvents": [\n')
        file.write("".join(f"{json.dumps(it)},\n" for it in begun).encode())
        for _ in range(megabytes * 2**20 // len(filler)):
            file.write(filler)
        file.write(",\n".join(map(json.dumps, ended)).encode())
        file.write(b"]}")
    return path


def peak_of(function, *arguments):
    """Return the most bytes that a call had allocated at once."""
    tracemalloc.start()
    try:
        function(*arguments)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(json_stream, "_PIECE", 2**14)
    short, long = (write_long(tmp_path / f"{n}.json.gz", n) for n in (1, 2))
    read_run(short)  # what the first call of a process keeps does not count
    assert peak_of(read_run, long) < 2 * peak_of(read_run, short) < 2**19
    # a reader that keeps all events
    assert peak_of(lambda: list(events_of(short, {}))) > 2**21


READS = """
import resource, sys
from minipipe.trace import read_run

before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
run = read_run(sys.argv[1])
print(run.schedule)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_a_long_trace_takes_a_few_megabytes(tmp_path):
    path = write_long(tmp_path / "long.json.gz", 128)
    done = run([sys.executable, "-c", READS, path], limit=120)
    assert done.code == 0, done.err
    assert "rank 0: 0F0 0F1 0B0 0B1" in done.out
    assert int(done.out.split()[-1]) < 16 * 1024  # KiB
