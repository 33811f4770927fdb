"""Sphinx's settings: ``make docs`` builds the pages, and fails on any warning."""

import os
from pathlib import Path

from docutils import nodes
from sphinx import addnodes

project = "cst-lightning"
author = "The cst-lightning authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
html_theme = "furo"
html_title = "cst-lightning"
autodoc_typehints = "none"
autodoc_member_order = "bysource"
myst_heading_anchors = 3
exclude_patterns = ["_build"]


def setup(app):
    """Links to source files and results lead from the built pages into the repository around them."""
    app.connect("doctree-read", _link_to_files)


def _link_to_files(app, document):
    source, built = Path(app.srcdir), Path(app.outdir)
    for link in [link for link in document.findall(addnodes.pending_xref) if link["reftype"] == "myst"]:
        page, target = link["refdoc"], link["reftarget"]
        target = (source / page).parent / (f"{target}.md" if link.get("refdomain") == "doc" else target)
        if target.exists() and not target.resolve().is_relative_to(source):
            address = Path(os.path.relpath(target, (built / page).parent)).as_posix()
            link.replace_self(nodes.reference("", "", *link.children, refuri=address))
