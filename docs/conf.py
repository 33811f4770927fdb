"""Sphinx's settings: ``make docs`` builds the pages, and fails on any warning."""

project = "cst-lightning"
author = "The cst-lightning authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
html_theme = "furo"
html_title = "cst-lightning"
autodoc_typehints = "none"
autodoc_member_order = "bysource"
myst_heading_anchors = 3
exclude_patterns = ["_build"]
# links to source files and results point into the repository, not into the built pages; a test follows every one
suppress_warnings = ["myst.xref_missing"]
