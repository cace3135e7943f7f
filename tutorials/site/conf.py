"""Configuration of the documentation site. README.md beside this file says how to build
it.
"""

import os
import sys
from importlib.metadata import version as version_of
from pathlib import Path

HERE = Path(__file__).resolve().parent
# this checkout, even if another one is installed
sys.path[:0] = [str(HERE / "extensions"), str(HERE.parent.parent)]
# The kernels that run the lessons import the same checkout, and do not warn of a busy
# machine when they measure.
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(HERE.parent.parent), os.environ.get("PYTHONPATH")])
)
os.environ["PYTHONWARNINGS"] = "ignore:These costs were measured on a busy machine"

project = "minipipe"
author = "the minipipe authors"
project_copyright = author
version = release = version_of("minipipe-mpi")

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.viewcode",
    "numpydoc",
    "myst_nb",  # brings myst_parser with it
    "sphinx_copybutton",
    "chapters",
    "reference",
    "catalogue",
    "papers",
    "equivalents",
    "home",
]
exclude_patterns = ["README.md", "extensions", "playground", "**/.ipynb_checkpoints"]
nitpicky = True
show_warning_types = True
smartquotes = False  # quotation marks often belong to code
# No inventories are fetched, so references to other libraries stay unresolved; nor is
# the repr of a default a class.
nitpick_ignore_regex = [
    ("py:class", r"(abc|collections|enum|numpy|types)\..*|<function .*")
]

# -- texts -----------------------------------------------------------------------------

myst_enable_extensions = ["attrs_block", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
copybutton_exclude = ".linenos, .gp, .go"

# -- lessons, run as notebooks ---------------------------------------------------------

nb_execution_mode = "cache"  # unchanged lessons are not run again
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_execution_show_tb = True
nb_merge_streams = True
# tutorials/notebooks.py folds cells that only assert
nb_code_prompt_show = "Show the assertions"
nb_code_prompt_hide = "Hide the assertions"

# -- reference -------------------------------------------------------------------------

autosummary_generate = False  # reference.py writes the pages
autodoc_typehints = "none"  # the docstrings describe the types
autodoc_inherit_docstrings = False
toc_object_entries_show_parents = "hide"
numpydoc_show_class_members = False  # autodoc shows them in full
viewcode_line_numbers = True

# -- look ------------------------------------------------------------------------------

html_theme = "pydata_sphinx_theme"
html_title = "minipipe"
html_favicon = "_static/icon.svg"
# without it the theme writes an error to the console of every page
html_context = {"default_mode": "auto"}
html_static_path = ["_static"]
templates_path = ["_templates"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
# without subpages
html_sidebars = {page: [] for page in ("coming-from-*", "glossary", "index")}
html_copy_source = html_show_sourcelink = False
html_theme_options = {
    "logo": {
        "text": "minipipe",
        "image_light": "_static/icon.svg",
        "image_dark": "_static/icon.svg",
    },
    "show_toc_level": 2,
    "collapse_navigation": True,
    "navigation_with_keys": False,  # arrows belong to the player
    "back_to_top_button": False,
    "secondary_sidebar_items": {"**": ["page-toc"], "index": []},
    "navbar_persistent": ["playground-link", "search-button-field"],  # always visible
    "footer_start": ["copyright"],
    "footer_end": [],
    "header_links_before_dropdown": 5,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
