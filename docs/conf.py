"""The site: `make docs` builds it from the pages of this folder and from the code, without a network."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs"))

import danalab  # noqa: E402
from _tooling import api_text, contents, reference  # noqa: E402

project = "danalab"
author = "The danalab authors"
release = version = danalab.__version__
copyright = f"2026, the danalab authors, Apache-2.0; danalab {release}"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "_tooling.math_html",
    "sphinx_copybutton",
]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_tooling"]
root_doc = "index"

smartquotes = False  # they would make one dash of the two of a flag
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4  # the anchors of GitHub

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
python_use_unqualified_type_names = True

html_math_renderer = "mathml"
html_theme = "furo"
html_title = f"danalab {release}"
html_show_sphinx = False
html_last_updated_fmt = "%Y-%m-%d"
html_copy_source = False
html_use_index = False  # no page links to it, and the search does more
html_static_path, html_css_files = ["_static"], ["site.css"]
html_js_files = [(name, {"defer": "defer"}) for name in ("site.js", "figures.js")]
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1f5fbf", "color-brand-content": "#1f5fbf"}
}
highlight_language = "none"  # of blocks that name no language
pygments_style, pygments_dark_style = "friendly", "monokai"


def setup(app):
    """Generated pages are written before Sphinx looks for pages."""
    app.connect("builder-inited", lambda app: reference.write(Path(app.srcdir) / "reference"))
    app.connect("source-read", contents.add)
    app.connect("autodoc-process-docstring", api_text.as_rst, priority=100)
