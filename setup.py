"""Everything stands in setup.cfg, but what a distribution takes from outside of the
package.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

EXERCISES = Path("tutorials/exercises")


class WithExercises(build_py):
    """A wheel has the exercises beside the code that hands them out."""

    def _get_data_files(self):
        found = super()._get_data_files()
        for folder in (EXERCISES, EXERCISES / "checks", EXERCISES / "assignments"):
            built = Path(
                self.build_lib,
                "minipipe",
                "coursework",
                folder.relative_to(EXERCISES.parent),
            )
            kept = (".py", ".md", ".json")
            names = sorted(
                path.name for path in folder.iterdir() if path.suffix in kept
            )
            found.append(("minipipe.coursework", str(folder), str(built), names))
        return found


class Complete(sdist):
    """A source distribution has all that a clone has: tests, lessons, documents."""

    def make_distribution(self):
        for folder in ("tests", "tutorials", "minipipe", ".ci"):
            self.filelist.graft(folder)
        for pattern in ("*.md", "CITATION.cff", ".ruff.toml", ".gitignore"):
            self.filelist.include(pattern)
        self.filelist.global_exclude("*.py[cod]")
        super().make_distribution()


setup(cmdclass={"build_py": WithExercises, "sdist": Complete})
