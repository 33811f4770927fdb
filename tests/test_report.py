"""Every table and figure again from records; the committed ones among them."""

import csv
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from benchmarks import analysis, figures, sections
from benchmarks.entries import Entry, Place
from benchmarks.page import Run, _headline
from benchmarks.report import main, write_report
from benchmarks.statistics import Summary
from benchmarks.store import Store
from benchmarks.sweep import main as sweep
from tests.sweeps import TINY, with_metric

RESULTS = Path(__file__).parents[1] / "results"
COMMITTED = sorted(folder.parent for folder in RESULTS.glob("*/records.parquet"))
FAST = [
    "--datasets",
    "D1@n=60,n_test=200,n_validation=50",
    "D1@n=60,n_test=200,n_validation=50,o=9",
    "--backbones",
    "dm",
]
FAST += ["--override.max_epochs", "2", "--override.max_epochs_cst", "2", "--override.batch_size", "20"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report") / "run"
    assert sweep([*FAST, "--seeds", "0..2", "--workers", "1", "--out", str(folder)]) == 0
    write_report(Store(folder))
    return folder


def files(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_report_holds_every_part_and_comes_out_the_same_again(run):
    first = files(run)
    names = {str(path) for path in first}
    assert {"report.md", "differences.csv", "rounds.csv", "labels.csv", "overlap.csv", "sweeps/paper.json"} <= names
    assert {"figures/rounds_dm.svg", "figures/overlap.svg", "figures/curves_dm.svg"} <= names
    text = first[Path("report.md")].decode()
    assert all(f"]({name})" in text for name in names if name.endswith(".svg"))
    assert "| DM PL − DM |" in text
    assert "| −" in text
    assert "| -0" not in text  # a hyphen is no minus sign
    write_report(Store(run))
    assert files(run) == first


def test_figures_for_a_paper_are_pdf_beside_the_svg_and_come_out_the_same_again(run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    assert main([str(folder), "--pdf"]) == 0
    first = files(folder)
    drawn = {path.stem for path in folder.glob("figures/*.svg")}
    assert drawn == {path.stem for path in folder.glob("figures/*.pdf")} != set()
    assert all(path.read_bytes().startswith(b"%PDF") for path in folder.glob("figures/*.pdf"))
    assert main([str(folder), "--pdf"]) == 0
    assert files(folder) == first


@pytest.mark.usefixtures("blank_figures")
def test_what_a_former_report_wrote_and_this_one_does_not_is_gone_and_nobody_elses_file(tmp_path):
    options = [*FAST[:3], "--methods", "backbone", "pl", "--seeds", "0..2", *FAST[5:], "--workers", "1"]
    assert sweep([*options, "--backbones", "dm", "udm", "--out", str(tmp_path)]) == 0
    write_report(Store(tmp_path))
    pdf = tmp_path / "figures" / "calibration_udm.pdf"
    for own in (pdf, pdf.with_name("calibration_dm.pdf"), pdf.with_name("mine.pdf"), pdf.with_name("mine_udm.svg")):
        own.write_bytes(b"")
    assert (tmp_path / "overlap.csv").is_file()
    for record in (tmp_path / "cells").glob("*.json"):
        if "-udm-" in record.name or "-o9-" in record.name:
            record.unlink()
    shutil.rmtree(tmp_path / "sweeps")
    write_report(Store(tmp_path))
    after = files(tmp_path)
    named = {str(path) for path in after if path.suffix in (".svg", ".pdf", ".csv")}
    assert not {name for name in named if "udm" in name and "mine" not in name}
    assert {"figures/calibration_dm.svg", "figures/mine.pdf", "figures/mine_udm.svg", "rounds.csv"} <= named
    assert "overlap.csv" not in named
    assert "figures/calibration_dm.pdf" not in named  # of a figure that was drawn anew


def test_rounds_hold_what_the_theorem_speaks_of(run):
    frame = pd.read_csv(run / "rounds.csv")
    assert set(frame["round"]) == {1, 2}
    assert (
        frame[["alpha", "alpha_drawn", "teacher_error", "student_error", "inconsistency", "mu"]]
        .stack()
        .between(0, 1)
        .all()
    )
    assert np.allclose(frame["bound"], 2 * frame["mu"])
    assert (frame["alpha"] >= frame["teacher_error"] - 0.2).all()
    later = frame[frame["round"] == 2].reset_index()["teacher_error"]
    assert np.allclose(later, frame[frame["round"] == 1].reset_index()["student_error"])


def test_label_errors_are_those_of_every_action_and_class(run):
    labels = pd.read_csv(run / "labels.csv")
    place = ["dataset", "method", "round"]
    for path in (run / "cells").glob("*.json"):
        record = json.loads(path.read_text())
        for number in (1, 2) if record["identity"]["method"] != "backbone" else ():
            errors = [result["rounds"][number - 1]["bayes_error"] for result in record["results"]]
            wanted = np.nanmean(np.array(errors, dtype=float), 0)
            mine = labels[(labels[place] == [record["identity"][n] for n in place[:2]] + [number]).all(axis=1)]
            got = mine.set_index(["action", "label"])["error"]
            assert {at: got[at] for at in got.index} == pytest.approx(
                {at: wanted[at] for at in np.ndindex(wanted.shape) if not np.isnan(wanted[at])}
            )
    of_seed = pd.read_csv(run / "rounds.csv")
    assert ((of_seed["alpha_above"] > 0) == (of_seed["alpha"] >= 0.2)).all()


def test_a_run_of_scikit_learns_learners_alone_has_no_consistency(tmp_path):
    arguments = [*FAST[:2], "--backbones", "s_logistic", "--methods", "pl", "--seeds", "0", "1", *FAST[6:]]
    assert sweep([*arguments, "--workers", "1", "--out", str(tmp_path)]) == 0
    assert main([str(tmp_path)]) == 0
    assert pd.read_csv(tmp_path / "rounds.csv")["inconsistency"].isna().all()
    drawn = {path.name for path in (tmp_path / "figures").glob("*_s_logistic.svg")}
    assert drawn == {"calibration_s_logistic.svg", "rounds_s_logistic.svg"}  # it has no epochs


def test_overlap_falls_as_the_policy_gets_sharper(run):
    frame = pd.read_csv(run / "overlap.csv").drop_duplicates("dataset").set_index("dataset")
    sizes = frame["effective_sample_size"]
    assert sizes["D1@n_test=200,n=60,n_validation=50"] > 2 * sizes["D1@n_test=200,n=60,n_validation=50,o=9"]


def test_a_cell_that_is_missing_stands_in_the_table(run, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    gone = next((copy / "cells").glob("*-pl-*.json"))
    gone.unlink()
    assert main([str(copy)]) == 0
    assert "missing" in (copy / "tables.md").read_text()
    (copy / "sweeps" / "paper.json").unlink()  # records alone make a report too
    assert main([str(copy)]) == 0
    assert "missing" not in (copy / "tables.md").read_text()


def test_a_metric_of_ones_own_stands_in_every_table_and_has_no_winner(whole, tmp_path, capsys):
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    with_metric(folder, "profit")
    assert sweep([*TINY, "--out", str(folder)]) == 0
    assert re.search("^ *profit *$", capsys.readouterr().out, re.MULTILINE)
    assert main([str(folder)]) == 0
    text = (folder / "report.md").read_text()
    table = text[text.index("### profit") :].partition("\n## ")[0]
    assert "5.0000 ± 5.0000" in table
    assert "**" not in table
    assert "Of profit none is marked" in table
    rows = list(csv.DictReader((folder / "tables.csv").read_text().splitlines()))
    assert {row["metric"] for row in rows} == {"nll", "hamming", "profit"}
    assert {float(row["mean"]) for row in rows if row["metric"] == "profit"} == {5.0}
    assert "profit" in (folder / "tables.tex").read_text()
    page = (folder / "report.html").read_text()
    assert page.count("<td>profit</td>") == 3


def test_a_folder_without_records_is_an_error(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert "holds no records" in capsys.readouterr().err
    assert main([]) == 2


def test_a_folder_of_damaged_records_says_what_is_wrong_with_each(run, tmp_path, capsys):
    (tmp_path / "cells").mkdir()
    names = [path.name for path in (run / "cells").glob("*-backbone-*.json")]
    for name in names:
        (tmp_path / "cells" / name).write_text('{"broken')
    assert main([str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert all(f"no record: {tmp_path / 'cells' / name} (" in said for name in names)
    assert f"{len(names)} files that cannot be read as one" in said


def test_a_file_that_is_no_record_is_named(run, tmp_path, capsys):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    broken = next((copy / "cells").glob("*-backbone-*.json"))
    broken.write_text('{"broken')
    assert main([str(copy)]) == 0
    assert f"no record: {broken}" in capsys.readouterr().out
    text = (copy / "report.md").read_text()
    assert f"`{broken.name}` is no record" in text
    assert "was asked for and has not been run" in text


def test_two_protocols_in_a_folder_stay_apart(tmp_path):
    for protocol in ("written", "matched"):
        options = ["--protocol", protocol, "--datasets", "multilabel", "--methods", "backbone", "pl"]
        options += ["--backbones", "dm", "--override.max_epochs", "2", "--override.max_epochs_cst", "2"]
        assert sweep([*options, "--seeds", "0..2", "--workers", "1", "--out", str(tmp_path)]) == 0
    write_report(Store(tmp_path))
    table = pd.read_csv(tmp_path / "tables.csv").query("metric == 'nll' and method == 'backbone'")
    rows = pq.read_table(tmp_path / "records.parquet").to_pandas().query("metric == 'nll' and method == 'backbone'")
    own = rows.groupby("protocol")["value"].mean()
    assert len(table) == 2
    for row in table.itertuples():
        assert row.mean == pytest.approx(own[row.protocol])
    text = (tmp_path / "report.md").read_text()
    titles = [line for line in text.splitlines() if line.startswith("## Settings ")]
    assert titles == [
        "## Settings 1: protocol=matched",
        "## Settings 2: protocol=written",
    ]  # the latest command's first
    assert "unchanged: nothing but max_epochs=2, max_epochs_cst=[2], which all have" in text
    of_rounds = pd.read_csv(tmp_path / "rounds.csv")
    assert set(of_rounds["settings"].str.partition(",")[0]) == {"protocol=matched", "protocol=written"}


def test_a_record_under_several_settings_is_one_comparison(tmp_path):
    for preset, weights in (("paper", ["0.1"]), ("quick", ["0.1", "1"])):
        options = ["--preset", preset, "--protocol", "written", "--datasets", "multilabel", "--backbones", "dm"]
        options += ["--cvat-weights", *weights, "--seeds", "0..2"]
        options += ["--override.max_epochs", "2", "--override.max_epochs_cst", "2", "--workers", "1"]
        assert sweep([*options, "--out", str(tmp_path)]) == 0
    write_report(Store(tmp_path))
    frame = pd.read_csv(tmp_path / "differences.csv").query("metric == 'nll'")
    assert len(frame.query("first == 'DM PL + CVAT' and second == 'DM PL'")) == 2  # with each grid
    assert len(frame.query("first == 'DM PL' and second == 'DM'")) == 1


@pytest.mark.usefixtures("blank_figures")
def test_every_setting_of_a_folder_has_all_its_figures(tmp_path):
    options = [*FAST[:3], "--backbones", "dm", "udm", "--seeds", "0..2", *FAST[5:-2], "--workers", "1"]
    for size in ("20", "30"):
        assert sweep([*options, "--override.batch_size", size, "--out", str(tmp_path)]) == 0
    write_report(Store(tmp_path))
    text = (tmp_path / "report.md").read_text()
    kinds = {"losses", "overlap", "weights", "costs", "ranks_nll", "ranks_hamming"}
    kinds |= {f"{kind}_{backbone}" for kind in ("calibration", "curves", "rounds") for backbone in ("dm", "udm")}
    for number in (1, 2):
        drawn = (tmp_path / "figures" / f"settings-{number}").glob("*.svg")
        assert {path.stem for path in drawn} == kinds
        assert all(f"](figures/settings-{number}/{kind}.svg)" in text for kind in kinds)
    titles = [line for line in text.splitlines() if line.startswith("## Settings ")]
    assert [title.partition(",")[0] for title in titles] == [
        "## Settings 1: batch_size=30",  # the latest command's
        "## Settings 2: batch_size=20",
    ]
    assert pd.read_csv(tmp_path / "overlap.csv")["settings"].nunique() == 2


def test_one_seed_has_a_report_without_spread(tmp_path):
    options = [
        "--datasets",
        "D1@n=60,n_test=200,n_validation=50",
        "--backbones",
        "dm",
        "--seeds",
        "0",
        "--workers",
        "1",
    ]
    options += ["--override.max_epochs", "1", "--override.max_epochs_cst", "1", "--override.batch_size", "20"]
    assert sweep([*options, "--out", str(tmp_path)]) == 0
    write_report(Store(tmp_path))
    text = (tmp_path / "report.md").read_text()
    assert "nan" not in text.replace("finance", "")
    assert "One seed, without a standard error" in text
    assert "±" not in text.partition("\n## ")[0]


def test_the_truth_changes_nowhere_at_no_distance_and_more_the_farther():
    changes = [analysis.truth_inconsistency("D1", 0, eps, "code") for eps in (1e-6, 0.3, 1.0)]
    assert changes[0] < 0.01 < changes[1] < changes[2] <= 1
    assert analysis.truth_inconsistency("multilabel", 0, 1.0, "code") is None
    assert analysis.truth_inconsistency("my_package.Data", 0, 1.0, "code") is None


@pytest.mark.parametrize(
    ("dataset", "seed"), [("D1@n=2000000000", 0), ("D1@n=9,n_test=2,n_validation=1,d=90000000", 0), ("D1", 2**60)]
)
def test_the_truth_of_what_no_machine_could_have_drawn_is_unknown(dataset, seed):
    assert analysis.truth_inconsistency(dataset, seed, 1.0, "code") is None


def test_z_is_in_combined_standard_errors():
    place = Place("D1", "dm", "pl", (0, 1, 2), "released")
    entry = Entry(place, "nll", "finished", Summary(0.6, 0.03, 3, 3), None, None, (0.5, 0.04), False, {})
    (row,) = analysis.compare_with_paper([entry]).itertuples()
    assert row.z == pytest.approx(2)


def entry(values, asked=3, dataset="D1", method="pl", oracle=False, settings=None):
    place = Place(dataset, "dm", method, tuple(range(asked)), "written", settings or {})
    numbers = list(values.values())
    ours = Summary(float(np.mean(numbers)), 0.1, len(numbers), asked)
    return Entry(place, "nll", "finished", ours, None, None, None, oracle, values, key=f"{dataset}{method}{settings}")


def test_two_runs_are_compared_cell_by_cell_over_the_seeds_of_both():
    first = [entry({0: 1.0, 1: 2.0, 2: 4.0}), entry({0: 1.0, 1: 1.0}, method="pl_cvat")]
    second = [entry({0: 1.5, 2: 5.0}, oracle=True), entry({0: 1.0}, dataset="D2")]
    (row,) = analysis.run_differences(first, second).itertuples()
    assert (row.dataset, row.method, row.difference.n) == ("D1", "pl", 2)
    assert (row.first_oracle, row.second_oracle) == (False, True)
    assert row.difference.mean == pytest.approx(0.75)
    assert (row.first.mean, row.second.mean) == (2.5, 3.25)
    # with several settings in a run, a cell is compared with its like alone
    several = [*second, entry({0: 9.0, 1: 9.5, 2: 9.0}, settings={"hidden": 8})]
    assert len(analysis.run_differences(first, several)) == 1


def test_the_headline_tells_of_every_data_set():
    methods = ("backbone", "pl", "pl_cvat", "pl_soft", "pl_soft_cvat", "pl_soft")
    won = [entry({0: 1.0, 1: 1.0, 2: 1.0}, dataset=f"D{n}", method=method) for n, method in enumerate(methods)]
    facts = dict(_headline(Run(Path(), [(one.place, None) for one in won], []), won))
    assert facts["lowest NLL"] == (
        "DM, soft PL (2 data sets); DM, backbone (1 data set); DM, PL (1 data set); others (2 data sets)"
    )


def test_a_cell_that_lost_a_seed_has_no_rank():
    methods = ("backbone", "pl", "pl_cvat")
    entries = [entry({0: 1.0, 1: 2.0, 2: 3.0}, dataset=d, method=m) for d in ("D1", "D2") for m in methods]
    assert analysis.losses(entries).notna().all().all()
    entries[0] = entry({0: 1.0, 2: 1.0}, method="backbone")
    assert analysis.losses(entries).isna().sum().sum() == 1


def test_what_an_oracle_chose_is_marked_in_every_table(run, tmp_path):
    write_report(Store(run))
    lines = (run / "report.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("|") and "PL + CVAT" in line]
    assert len(rows) > 10
    assert [row for row in rows if "†" not in row] == []
    shutil.copytree(run, tmp_path / "again")
    (section,) = sections.run_against_run([write_report(Store(run)), write_report(Store(tmp_path / "again"))])
    for row in section.rows:
        of_numbers = ["†" in text for text in row[4:7]]  # of each run, and the difference
        assert of_numbers == [row[2] == "PL + CVAT"] * 3


def test_the_rule_beside_a_number_is_the_one_that_chose_for_it(run):
    """As its record has it: what chose nothing has none."""
    write_report(Store(run))
    tables = pd.read_csv(run / "tables.csv", keep_default_na=False)
    records = pd.read_parquet(run / "records.parquet").fillna({"selection": ""})
    for method in ("backbone", "pl", "pl_cvat"):
        (mine,), (recorded,) = (set(f.loc[f["method"] == method, "selection"]) for f in (tables, records))
        assert mine == recorded == ("oracle_hamming" if method == "pl_cvat" else "")


def test_what_an_oracle_chose_is_marked_in_every_legend(run):
    write_report(Store(run))
    for name in ("overlap", "calibration_dm", "curves_dm"):
        text = (run / "figures" / f"{name}.svg").read_text(encoding="utf-8")
        assert "†" in text, name
        assert "an oracle chose its weight" in text, name


@pytest.mark.usefixtures("blank_figures")
@pytest.mark.parametrize("folder", COMMITTED, ids=lambda folder: folder.name)
def test_committed_tables_match_the_committed_records(folder, tmp_path):
    copy = tmp_path / folder.name
    shutil.copytree(folder, copy)
    write_report(Store(copy))
    for path in sorted(folder.rglob("*")):
        again = copy / path.relative_to(folder)
        if path.suffix == ".csv":
            pd.testing.assert_frame_equal(pd.read_csv(again), pd.read_csv(path), rtol=1e-9)
        elif path.suffix in (".md", ".tex"):
            assert again.read_text() == path.read_text(), path
        elif path.suffix == ".parquet":
            pd.testing.assert_frame_equal(pd.read_parquet(again), pd.read_parquet(path))
    assert committed(copy) == committed(folder)


def committed(folder):
    """What of a run's folder is kept with the code: all but the page and the last progress."""
    names = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    return names - {"report.html", "progress.json"}


@pytest.mark.parametrize("n", [1, 2, 4])
def test_a_legend_lies_within_its_figure_and_leaves_the_panels_their_room(n):
    figure, axes = figures.panels(n)
    before = figure.get_figheight()
    for axis in axes:
        for place in range(9):
            axis.plot([0, 1], [place, place], label=f"S-learner, boosted trees, soft PL + CVAT{place}")
    figures.legend_below(figure, axes)
    figure.canvas.draw()
    (legend,) = figure.legends
    box, whole = legend.get_window_extent(), figure.bbox
    assert whole.x0 <= box.x0
    assert box.x1 <= whole.x1 * 1.001
    assert axes[0].get_window_extent().height > 0.6 * before * figure.dpi / (1 + (n > 4))
