"""The LaTeX tables compile, where there is an engine."""

import re
import shutil
import subprocess
import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.entries import TITLES, make_entries
from benchmarks.report import find_places
from benchmarks.store import Store
from benchmarks.tables import _tex, to_latex

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
    odd = replace(entries[0], place=replace(entries[0].place, backbone=r"my_package.A&B#$%{}~^\end<|>数据μ"))
    (tmp_path / "table.tex").write_text(DOCUMENT % to_latex([odd, *entries[1:]]), encoding="utf-8")
    options = ["-interaction=nonstopmode", "-halt-on-error"] if "pdflatex" in ENGINE else []
    done = subprocess.run([ENGINE, *options, "table.tex"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout
    assert (tmp_path / "table.pdf").stat().st_size > 1000


@pytest.mark.skipif(not all(map(shutil.which, ("pdflatex", "pdftotext"))), reason="no pdflatex, or no pdftotext")
@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ('a<b>|"c"', 'a<b>|"c"'),
        ("a--b---c", "a--b---c"),
        ("Zoë’s señor", "Zoë’s señor"),
        ("Zoe\u0308", "Zoë"),
        ("ÀÖØöøÿßĀćŁıőŞů – — ‘“”…", None),
        ("μ weight", "U+03BC weight"),
        ("数据", "U+6570U+636E"),
        ("Đð\U0001f600\u00a0×÷±µ\x1b", "U+0110U+00F0U+1F600U+00A0U+00D7U+00F7U+00B1U+00B5U+001B"),
    ],
)
def test_a_name_is_printed_as_it_is_or_by_the_codes_of_its_characters(name, printed, tmp_path):
    (tmp_path / "name.tex").write_text(DOCUMENT % _tex(name), encoding="utf-8")
    call = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "name.tex"]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, timeout=120, errors="replace")
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Missing character" not in (tmp_path / "name.log").read_text(errors="replace")
    read = subprocess.run(["pdftotext", "name.pdf", "-"], cwd=tmp_path, capture_output=True, text=True, check=True)
    text = unicodedata.normalize("NFC", read.stdout.split("\n")[0])
    assert printed is None or text == printed


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
def test_what_is_committed_compiles_with_the_packages_that_it_names(path, tmp_path):
    text = path.read_text(encoding="utf-8")
    packages = re.match(r"%.*(\\usepackage\{[a-z,]+\})\n", text)[1]
    document = DOCUMENT.replace(r"\usepackage{booktabs,graphicx}", packages) % text
    (tmp_path / "table.tex").write_text(document, encoding="utf-8")
    options = ["-interaction=nonstopmode", "-halt-on-error"] if "pdflatex" in ENGINE else []
    done = subprocess.run([ENGINE, *options, "table.tex"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull \\hbox" not in done.stdout
