"""Checkpoints as somebody could make them who means harm: all digests fit."""

import json
import random

from minipipe import checkpoint
from minipipe.comm import OneRankGroup
from minipipe.pipeline.checkpoint import storage
from tests.pipeline.checkpoint import small

PART = "rank-0.safetensors"
JUNK = [
    *(None, True, False, 0, -1, 1, 2, 10**18, 10**30, 1e400, 0.5, "", "a", "float16", "0.weight", "optimiser", [], {}),
    *([[]], [None], ["0.weight"], {"a": 1}, [10**9, 10**9], ["a", "b", "c"], [1, 2, 3], {"": {}}, "\x1b[2J", "9" * 9),
    *("../../x", "/etc/passwd", "rank-0.safetensors\0", "rank-٣.safetensors", "a" * 10_000, "rank-1.safetensors"),
]  # fmt: skip


class Forge:
    """A checkpoint in a folder, and a pipeline that it can be restored in."""

    def __init__(self, folder):
        group = OneRankGroup()
        self.pipeline, self.optimiser = small.pipeline_of(group)
        small.train(self.pipeline, self.optimiser)
        self.path = checkpoint.save(
            folder, self.pipeline, self.optimiser, step=1, extra=small.EXTRA
        )
        self.manifest = json.loads((self.path / storage.MANIFEST).read_bytes())
        self.part = (self.path / PART).read_bytes()

    def restore(self, manifest):
        """Restore what a manifest says: JSON, or the content of its file."""
        content = (
            manifest if isinstance(manifest, bytes) else json.dumps(manifest).encode()
        )
        (self.path / storage.MANIFEST).write_bytes(content)
        (self.path / storage.MARKER).write_text(storage.digest_of(content).sha256)
        return checkpoint.restore(self.path, self.pipeline, self.optimiser)

    def restore_part(self, part):
        """Restore with another content of the file of arrays."""
        (self.path / PART).write_bytes(part)
        try:
            return self.restore(
                {**self.manifest, "files": {PART: storage.digest_of(part)}}
            )
        finally:
            (self.path / PART).write_bytes(self.part)


def places(value, path=()):
    """Return the way to every part of a value in JSON."""
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [path] * bool(path) + [
        place for key, item in items for place in places(item, (*path, key))
    ]


def changed(manifest, draw):
    """Return a manifest with some of its parts changed, taken away, renamed or
    exchanged, by random numbers.
    """
    manifest = json.loads(json.dumps(manifest))
    for _ in range(draw.choice((1, 1, 1, 2, 5))):
        everywhere = places(manifest)
        *way, last = draw.choice(everywhere)
        owner = manifest
        for key in way:
            owner = owner[key]
        deed = draw.randrange(4)
        if deed == 0:
            del owner[last]
        elif deed == 1 and isinstance(owner, dict):
            owner[str(draw.choice(JUNK))] = owner.pop(last)
        elif deed == 2:
            other = manifest
            for key in draw.choice(everywhere):
                other = other[key]
            owner[last] = json.loads(json.dumps(other))
        else:
            owner[last] = draw.choice(JUNK)
    return manifest


def text_of(manifest, number):
    """Return the content of a manifest's file: changed as JSON, or as text."""
    draw = random.Random(number)
    content = bytearray(json.dumps(changed(manifest, draw)).encode())
    for _ in range(draw.choice((0, 0, 0, 1, 4))):
        first = draw.randrange(len(content) + 1)
        content[first : first + draw.choice((0, 1, 20))] = draw.choice(
            (
                b"",
                b"[",
                b"{",
                b'"',
                b"\xff",
                b"," * 99,
                b"[" * 5000,
                b"9" * 5000,
                b"NaN",
                b"1e999",
                bytes([draw.randrange(256)]),
            )
        )
    return bytes(content)
