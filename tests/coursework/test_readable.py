"""What student code may read: Python and its packages, and nothing of exercises and
students.
"""

import sys
from pathlib import Path

import numpy as np
import pytest

import minipipe
from minipipe.coursework import sandbox
from minipipe.coursework.sandbox import readable_paths, without


@pytest.mark.parametrize("hidden", ["lib/course", "lib/course/exercises/private"])
def test_what_is_hidden_within_a_readable_directory_is_left_out_with_the_links_beside_it(
    tmp_path, hidden
):
    for path in (hidden, "lib/course/other", "lib/python3"):
        (tmp_path / path).mkdir(parents=True, exist_ok=True)
    (tmp_path / "lib" / "link").symlink_to(tmp_path / hidden)
    parts = without(tmp_path / "lib", [tmp_path / hidden])
    assert tmp_path / "lib" / "python3" in parts
    assert not [
        part
        for part in parts
        if part in (tmp_path / hidden, *(tmp_path / hidden).parents)
        or part.is_symlink()
    ]
    assert (tmp_path / "lib/course/other" in parts) == (hidden != "lib/course")


def test_of_a_repository_with_solutions_nothing_is_readable_and_of_the_clone_the_package_alone(
    tmp_path, monkeypatch
):
    (tmp_path / "teaching" / ".git").mkdir(parents=True)
    (tmp_path / "teaching" / "exercises").mkdir()
    monkeypatch.setattr(
        sys, "path", [str(tmp_path / "teaching"), str(tmp_path / "other"), *sys.path]
    )
    (tmp_path / "other").mkdir()
    package = Path(minipipe.__file__).parent
    paths = readable_paths(
        tmp_path / "teaching" / "exercises", tmp_path / "students" / "ada"
    )
    assert tmp_path / "other" in paths and package in paths
    assert not {tmp_path / "teaching", tmp_path, package.parent} & set(paths)
    assert any(Path(np.__file__).is_relative_to(path) for path in paths)


@pytest.mark.parametrize(
    "source", ["site-packages/minipipe/coursework/exercises", "teaching"]
)
def test_of_an_installed_package_all_is_readable_but_the_solutions_in_it(
    source, tmp_path, monkeypatch
):
    """Even where there is a repository around its environment, and whichever exercises
    are graded.
    """
    for folder in (
        ".git",
        "site-packages/minipipe/coursework/exercises",
        "site-packages/minipipe/nn",
        "teaching",
    ):
        (tmp_path / folder).mkdir(parents=True)
    package = tmp_path / "site-packages" / "minipipe"
    monkeypatch.setattr(sandbox, "_PACKAGE", package)
    monkeypatch.setattr(sandbox, "_CLONE", package.parent)
    monkeypatch.setattr(sys, "path", [str(package.parent), *sys.path])
    paths = readable_paths(tmp_path / source, tmp_path / "students" / "ada")
    assert package / "nn" in paths
    assert not [
        path
        for path in paths
        if (package / "coursework" / "exercises").is_relative_to(path)
    ]
