"""The README of the core has one reading order of all its files."""

import re

from tests.test_house import PACKAGE, imports_of

CORE = PACKAGE / "core"
_TABLE = (CORE / "README.md").read_text().partition("| file | question |")[2]
ORDER = re.findall(r"`([\w/]+)\.py`", _TABLE.partition("\n\n")[0])


def test_the_reading_order_has_every_file_of_the_core_once():
    files = {path.relative_to(CORE) for path in CORE.rglob("*.py")}
    names = [path.as_posix() for path in files if path.name != "__init__.py"]
    assert sorted(f"{name}.py" for name in ORDER) == sorted(names)


def test_a_file_imports_only_from_files_that_were_read_before():
    read = set()
    for name in ORDER:
        module = f"core.{name.replace('/', '.')}"
        imported = {other for other, is_inside in imports_of(module) if not is_inside}
        later = {other for other in imported if other.startswith("core.")} - read
        assert later == set(), f"{name}.py imports what comes behind it"
        read.add(module)
