"""Parts of one's own for cst-lightning, one a file."""
