"""The LaTeX tables compile, where there is an engine."""

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.entries import TITLES, make_entries
from benchmarks.report import find_places
from benchmarks.store import Store
from benchmarks.tables import to_latex

RESULTS = Path(__file__).parents[1] / "results"
ENGINE = next(filter(None, map(shutil.which, ("pdflatex", "tectonic"))), None)
DOCUMENT = r"""\documentclass{article}
\usepackage{booktabs,graphicx}
\begin{document}
%s
\end{document}
"""


@pytest.mark.skipif(ENGINE is None, reason="no LaTeX engine on this machine")
@pytest.mark.parametrize("run", ["released", "quick"])
def test_a_table_compiles_and_fits_the_text(run, tmp_path):
    entries = make_entries(find_places(Store(RESULTS / run)), "nll")
    odd = replace(entries[0], place=replace(entries[0].place, backbone=r"my_package.A&B#$%{}~^\end"))
    (tmp_path / "table.tex").write_text(DOCUMENT % to_latex([odd, *entries[1:]]), encoding="utf-8")
    options = ["-interaction=nonstopmode", "-halt-on-error"] if "pdflatex" in ENGINE else []
    done = subprocess.run([ENGINE, *options, "table.tex"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout
    assert (tmp_path / "table.pdf").stat().st_size > 1000


@pytest.mark.skipif(ENGINE is None, reason="no LaTeX engine on this machine")
@pytest.mark.parametrize("run", ["released", "deviations"])
def test_a_table_of_the_projects_own_names_is_not_shrunk_to_fit(run, tmp_path):
    found = find_places(Store(RESULTS / run))
    text = "\n".join(to_latex(make_entries(found, metric)) for metric in TITLES)
    shrunk = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}"
    assert shrunk in text
    (tmp_path / "table.tex").write_text(DOCUMENT % text.replace(shrunk, r"\mbox"), encoding="utf-8")
    options = ["-interaction=nonstopmode", "-halt-on-error"] if "pdflatex" in ENGINE else []
    done = subprocess.run([ENGINE, *options, "table.tex"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]
    wide = [float(width) for width in re.findall(r"Overfull \\hbox \(([0-9.]+)pt", done.stdout)]
    assert max(wide, default=0) < 7  # of 345: a fiftieth
    assert "Overfull \\vbox" not in done.stdout  # nor does one run off its page


@pytest.mark.skipif(ENGINE is None, reason="no LaTeX engine on this machine")
@pytest.mark.parametrize("path", sorted(RESULTS.glob("*/tables.tex")), ids=lambda path: path.parent.name)
def test_what_is_committed_compiles(path, tmp_path):
    (tmp_path / "table.tex").write_text(DOCUMENT % path.read_text(encoding="utf-8"), encoding="utf-8")
    options = ["-interaction=nonstopmode", "-halt-on-error"] if "pdflatex" in ENGINE else []
    done = subprocess.run([ENGINE, *options, "table.tex"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull \\hbox" not in done.stdout
