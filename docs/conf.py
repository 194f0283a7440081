"""How Sphinx builds the documentation: `make docs`, into out/docs, without a network."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

from klda import __version__

project = "klda"
author = "The klda developers"
copyright = "The klda developers; Apache-2.0"
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "numpydoc",
    "command_line",
    "http_api",
]
exclude_patterns = ["_ext"]
myst_enable_extensions = ["dollarmath", "amsmath", "deflist", "colon_fence", "attrs_inline"]
myst_heading_anchors = 4
smartquotes = False  # it would print --model with one dash

# The browser draws MathML itself, so that equations need no script from elsewhere.
extensions.append("mathml")

autodoc_member_order = "alphabetical"
toc_object_entries_show_parents = "hide"
autodoc_typehints = "none"
# What an estimator inherits from scikit-learn's mixins is part of it; metadata routing is not used.
_ROUTING = ("fit", "partial_fit", "predict", "predict_proba", "predict_log_proba")
_ROUTING += ("decision_function", "score", "transform")
autodoc_default_options = {
    "members": True,
    "inherited-members": "BaseException, BaseEstimator, ClassifierMixin, TransformerMixin, "
    "ClassNamePrefixFeaturesOutMixin, object",
    "exclude-members": "get_metadata_routing, set_output, "
    + ", ".join(f"set_{verb}_request" for verb in _ROUTING),
}
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False

html_theme = "pydata_sphinx_theme"
html_title = "klda"
html_static_path = ["_static"]
html_css_files = ["klda.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "header_links_before_dropdown": 6,
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars = {"results": [], "troubleshooting": [], "glossary": []}
