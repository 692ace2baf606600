"""How the documentation is built: `sphinx-build -W -b html docs docs/_build/html`. Nothing here asks the network."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

import attnzoo
from zoodocs import conventions, variants

project = "attnzoo"
author = "The attnzoo authors"
release = attnzoo.__version__
language = "en"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
    "zoodocs",
]
exclude_patterns = ["_build", "_ext", "examples", "learn", "gallery"]
smartquotes = False  # code words in prose keep their characters

# A dead link fails the build. Names of other packages cannot be looked up without a network.
nitpicky = True
nitpick_ignore_regex = [(r"py:.*", r"(?!attnzoo\.).*|.*\.[A-Z]")]  # nor is a type variable a place

myst_enable_extensions = ["colon_fence", "substitution"]
myst_heading_anchors = 3
myst_substitutions = conventions.substitutions() | {"zoo": variants.cards()}

autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
autodoc_typehints_format = "short"
maximum_signature_line_length = 88
python_display_short_literal_types = True
add_module_names = False
toc_object_entries_show_parents = "hide"

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

sphinx_gallery_conf: dict[str, Any] = {
    "examples_dirs": ["learn", "gallery"],
    "gallery_dirs": ["auto_learn", "auto_gallery"],
    "filename_pattern": r"\.py$",  # run them all
    "abort_on_example_error": True,
    "within_subsection_order": "FileNameSortKey",
    "image_scrapers": ("zoodocs.scraper.figures", "matplotlib"),
    "image_srcset": ["2x"],
    "capture_repr": ("_repr_html_", "__str__"),
    "ignore_repr_types": r"matplotlib\.",
    "min_reported_time": 1,
    "show_memory": False,
    "show_signature": False,
    "download_all_examples": False,
    "write_computation_times": False,
    "remove_config_comments": True,
}

html_theme = "furo"
html_title = "attnzoo"
html_static_path = ["_static"]
html_css_files = ["zoo.css"]
html_math_renderer = "mathml"
html_show_copyright = False
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1f6f6f", "color-brand-content": "#1f6f6f"},
    "dark_css_variables": {"color-brand-primary": "#6ccdb4", "color-brand-content": "#6ccdb4"},
}
