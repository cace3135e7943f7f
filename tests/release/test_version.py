"""The version is said in one place, and what repeats it for people and machines says
the same.
"""

import re
from configparser import ConfigParser

import minipipe
from minipipe.cli import main
from tests.launch import ROOT

CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
METADATA = ConfigParser()
METADATA.read(ROOT / "setup.cfg")


def test_the_changelog_begins_with_what_is_not_released_or_with_this_version():
    first, *others = re.findall(r"^## (.*)$", CHANGELOG, re.MULTILINE)
    released = [
        each.split(" - ")[0]
        for each in (others if first == "Unreleased" else [first, *others])
    ]
    assert released[0] == minipipe.__version__
    numbers = [tuple(map(int, version.split("."))) for version in released]
    assert numbers == sorted(set(numbers), reverse=True)


def test_citation_and_package_have_the_version_of_the_source():
    assert f"\nversion: {minipipe.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert METADATA["metadata"]["version"] == "attr: minipipe._lazy.__version__"


def test_the_command_line_prints_it(capsys):
    assert main(["info"]) == 0
    assert re.search(
        rf"^minipipe +{re.escape(minipipe.__version__)}$",
        capsys.readouterr().out,
        re.MULTILINE,
    )


def test_the_classifiers_name_every_python_from_the_oldest_on():
    oldest = METADATA["options"]["python_requires"].removeprefix(">=")
    named = re.findall(
        r"^Programming Language :: Python :: (3\.\d+)$",
        METADATA["metadata"]["classifiers"],
        re.MULTILINE,
    )
    assert named == [f"3.{minor}" for minor in range(int(oldest.split(".")[1]), 15)]
    assert METADATA["mypy"]["python_version"] == oldest
    assert (
        f'target-version = "py{oldest.replace(".", "")}"'
        in (ROOT / ".ruff.toml").read_text()
    )
