"""The command line as a user runs it, on jobs of a second."""

import csv
import json
from statistics import fmean

import pyarrow.parquet as pq
import pytest
import torch
from scipy import stats

from benchmarks.options import make_parser
from benchmarks.report import main as report
from benchmarks.run import _wandb_mode
from benchmarks.store import Store
from benchmarks.sweep import main
from tests.sweeps import SHORT, TINY, numbers, records, start
from tests.wandb_files import runs

NO_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    folder = tmp_path_factory.mktemp("smoke")
    process = start(["--preset", "smoke", "--wandb", "offline", "--out", str(folder)])
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return folder, out, err


def test_smoke_covers_every_kind_of_data_backbone_and_method(smoke):
    folder, out, err = smoke
    found = records(folder)
    assert len(found) == 41
    assert {record["status"] for record in found.values()} == {"finished"}
    assert len({record["identity"]["dataset"].split("@")[0] for record in found.values()}) == 3
    assert "PL + CVAT" in out
    assert "41 finished" in err
    assert f"Figures and a page: python -m benchmarks.report {folder}" in err


def test_output_to_a_file_is_a_few_plain_lines(smoke):
    _, out, err = smoke
    assert "\x1b" not in out + err
    assert len([line for line in err.splitlines() if "W&B" not in line]) < 20
    assert len([line for line in err.splitlines() if "W&B" in line]) == 2


def test_tables_are_the_records_statistics(smoke):
    folder, _, _ = smoke
    rows = pq.read_table(folder / "records.parquet").to_pylist()
    cells = {(row["dataset"], row["backbone"], row["method"]) for row in rows}
    assert len(cells) == 41
    assert {row["seed"] for row in rows} == {0, 1}
    chosen = [
        r for r in rows if (r["dataset"], r["backbone"], r["method"], r["metric"]) == ("moons", "dm", "pl", "nll")
    ]
    values = [row["value"] for row in chosen]
    with (folder / "tables.csv").open() as file:
        table = list(csv.DictReader(file))
    wanted = {"dataset": "moons", "backbone": "dm", "method": "pl", "metric": "nll"}
    (named,) = (row for row in table if wanted.items() <= row.items())
    assert float(named["mean"]) == pytest.approx(sum(values) / 2, rel=1e-15)
    assert float(named["standard_error"]) == pytest.approx(stats.sem(values), rel=1e-15)
    markdown = (folder / "tables.md").read_text()
    assert f"{sum(values) / 2:.4f} ± {stats.sem(values):.4f}" in markdown
    assert "chosen by an oracle" in markdown
    assert r"\toprule" in (folder / "tables.tex").read_text()


def test_wandb_has_the_records_mean_and_error_of_every_cell_to_the_last_digit(smoke):
    folder, _, _ = smoke
    found = runs(folder)
    for record in records(folder).values():
        identity = record["identity"]
        ((summary, _, _),) = found.pop(f"{identity['dataset']}/{identity['backbone']}/{identity['method']}")
        for metric in record["metrics"]:
            values = [result["metrics"][metric] for result in record["results"]]
            assert summary[f"{metric}/mean"] == fmean(values)
            assert summary[f"{metric}/standard_error"] == stats.sem(values)
            assert summary[f"{metric}/n"] == len(values)
    assert list(found) == ["summary"]


def test_records_hold_the_whole_configuration_and_full_precision(smoke):
    folder, _, _ = smoke
    record = next(record for name, record in records(folder).items() if name.startswith("moons-hsic-pl_cvat"))
    assert record["protocol"]["max_epochs"] == 3
    assert record["protocol"]["name"] == "written"
    assert record["selection"] == "oracle_hamming"
    assert record["oracle"] is True
    result = record["results"][0]
    assert result["cvat_weight"] in (0.01, 0.1, 1.0, 10.0)
    assert set(result["scores"]) == set(result["by_weight"]) == {"0.01", "0.1", "1.0", "10.0"}
    assert result["by_weight"][str(result["cvat_weight"])]["nll"] == pytest.approx(result["metrics"]["nll"])
    assert len(result["rounds"]) == 2
    assert {"git_commit", "versions", "device", "seconds"} <= set(record["provenance"])
    assert len(repr(result["metrics"]["nll"])) > 10


def test_a_backbones_record_has_no_oracle_mark(smoke):
    folder, _, _ = smoke
    for record in records(folder).values():
        assert record["oracle"] == (record["identity"]["method"] == "pl_cvat")


def test_finished_cells_are_left_alone(tmp_path, capsys):
    arguments = [*TINY, "--out", str(tmp_path)]
    assert main(arguments) == 0
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "cells").iterdir()}
    assert main(arguments) == 0
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cells").iterdir()} == before
    first = numbers(tmp_path)
    assert main([*arguments, "--on-existing", "force"]) == 0
    assert numbers(tmp_path) == first
    assert "1 job, 3 cells, 3 already recorded" in capsys.readouterr().err


def test_workers_and_company_do_not_change_a_number(tmp_path):
    together = [*TINY[:1], "moons", "multilabel", *TINY[2:], "--workers", "2", "--out", str(tmp_path / "a")]
    assert main(together) == 0
    assert main([*TINY, "--workers", "1", "--out", str(tmp_path / "b")]) == 0
    both, alone = numbers(tmp_path / "a"), numbers(tmp_path / "b")
    assert alone.items() <= both.items()
    assert len(both) == 6


def test_what_cannot_go_together_is_left_out_and_said(tmp_path, capsys):
    options = ["--datasets", "multilabel", "--backbones", "dm", "constant", "--methods", "backbone", "pl_cvat"]
    assert main([*options, "--seeds", "0", *SHORT, "--cvat-weights", "1", "--out", str(tmp_path)]) == 0
    assert "left out: constant x pl_cvat: CVAT needs a gradient" in capsys.readouterr().err
    assert len(records(tmp_path)) == 3


def test_what_an_option_does_nothing_for_is_said(tmp_path, capsys):
    options = ["--datasets", "D1", "--backbones", "dm", "udm", "constant", "--methods", "backbone", "--plan"]
    given = ["--override.max_epochs", "3", "--cvat-weights", "1", "--override.batch_size", "50"]
    assert main([*options, *given, "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "max_epochs does nothing for udm, constant, but max_epochs_udm would",
        "batch_size does nothing for constant",
        "cvat_weights does nothing for dm, udm, constant",
    ]


def test_a_batch_larger_than_a_log_names_the_data_set_and_the_way_out(tmp_path, capsys):
    assert main(["--datasets", "moons", "--backbones", "dm", "--seeds", "0", "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert "moons: batch_size=64: only 50 logged rows" in said
    assert "--override.batch_size" in said
    assert not (tmp_path / "run").exists()


def test_a_second_command_adds_to_the_folder_and_rewrites_nothing(tmp_path):
    assert main([*TINY, "--methods", "backbone", "--out", str(tmp_path)]) == 0
    (first,) = (tmp_path / "cells").iterdir()
    before = first.stat().st_mtime_ns
    assert main([*TINY, "--methods", "backbone", "pl", "--on-existing", "skip", "--out", str(tmp_path)]) == 0
    assert first.stat().st_mtime_ns == before
    assert main(["--datasets", "multilabel", *TINY[2:], "--methods", "backbone", "--out", str(tmp_path)]) == 0
    rows = pq.read_table(tmp_path / "records.parquet").to_pylist()
    assert {(row["dataset"], row["method"]) for row in rows} == {
        ("moons", "backbone"), ("moons", "pl"), ("multilabel", "backbone"),
    }  # fmt: skip
    assert {row["protocol"] for row in rows} == {"written"}
    assert "max_epochs" in rows[0]["overrides"]
    assert "protocol written with batch_size=25, max_epochs=2" in (tmp_path / "tables.md").read_text()


def test_a_data_set_by_class_path(tmp_path):
    arguments = ["--datasets", "tests.parts.Coins@n=60", "--backbones", "dm", "--seeds", "3", *SHORT]
    assert main([*arguments, "--out", str(tmp_path)]) == 0
    assert len(records(tmp_path)) == 3


def test_a_method_by_class_path_stands_in_every_table_and_figure(tmp_path):
    arguments = ["--datasets", "multilabel", "--backbones", "dm", "--methods", "backbone", "pl", "tests.parts.Halved"]
    arguments += ["--seeds", "0..1", "--cvat-weights", "0.1", "1", "--override.max_epochs", "2"]
    assert main([*arguments, "--override.max_epochs_cst", "2", "--out", str(tmp_path)]) == 0
    records = {record["identity"]["method"]: record for record in Store(tmp_path).read_all()}
    assert set(records) == {"backbone", "pl", "tests.parts.Halved"}
    assert set(records["tests.parts.Halved"]["results"][0]["by_weight"]) == {"0.1", "1.0"}
    assert report([str(tmp_path)]) == 0
    assert "tests.parts.Halved" in (tmp_path / "tables.md").read_text()
    assert "tests.parts.Halved" in (tmp_path / "report.html").read_text()


def test_the_papers_plan_has_72_cells(capsys):
    assert main(["--preset", "paper", "--plan", "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)
    assert len(cells) == 72
    assert set(cells[0]) == {"dataset", "backbone", "method", "protocol", "seeds", "status"}
    assert len({tuple(cell[k] for k in ("dataset", "backbone", "method")) for cell in cells}) == 72
    assert {cell["dataset"] for cell in cells if cell["backbone"] != "dm"} == {f"D{i}" for i in range(1, 6)} | {
        "scene",
        "yeast",
    }
    assert {cell["protocol"] for cell in cells} == {"written"}
    assert cells[0]["seeds"] == [0, 1, 2, 3, 4]


def test_a_plan_runs_and_writes_nothing_and_shows_what_is_done(tmp_path, capsys):
    arguments = [*TINY, "--out", str(tmp_path / "out"), "--plan"]
    assert main(arguments) == 0
    assert "3 cells in 1 job, 3 to run" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()
    assert main(arguments[:-1]) == 0
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 0
    assert [cell["status"] for cell in json.loads(capsys.readouterr().out)] == ["finished"] * 3


def test_a_configuration_file_gives_the_same_plan(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([*TINY, "--print_config"])
    assert stopped.value.code == 0
    (tmp_path / "sweep.yaml").write_text(capsys.readouterr().out)
    plans = []
    for arguments in (TINY, ["--config", str(tmp_path / "sweep.yaml")]):
        assert main([*arguments, "--plan", "--json"]) == 0
        plans.append(capsys.readouterr().out)
    assert plans[0] == plans[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--datasets", "D9"], "unknown data set 'D9': did you mean D5 or"),
        (["--datasets", "sceen"], "did you mean scene"),
        (["--datasets", "D1@q=3"], "unknown option of data set D1 'q'"),
        (["--datasets", "D1@o"], "write each option once, as o=VALUE"),
        (["--datasets", "D1@o=x"], "o=x: allowed is a finite number"),
        (["--datasets", "D1@o=1e999"], "o=1e999: allowed is a finite number"),
        (["--datasets", "D1@n=100.5"], "n=100.5: allowed is a whole number"),
        (["--datasets", "datamodules.base.BanditDataModule"], "BanditDataModule is abstract"),
        (["--seeds", "60000000"], "seeds: 60000000: allowed are 0 to"),
        (["--datasets", "D1", "D1"], "D1/dm is given twice"),
        (["--backbones", "dmm"], "unknown backbone 'dmm': did you mean dm"),
        (["--backbones", "tests.parts.None"], "cannot be imported"),
        (["--backbones", "pathlib.Path"], "is no StackedModule"),
        (["--backbones", "tests.parts.Silent"], "tests.parts.Silent has no loss: it must define entries or batch_loss"),
        (["--backbones", "tests.parts.Empty", "--methods", "backbone"], "has no estimator"),
        (["--methods", "pll"], "unknown method 'pll': did you mean pl"),
        (["--preset", "papr"], "unknown preset 'papr': did you mean paper"),
        (["--protocol", "releasd"], "unknown protocol 'releasd': did you mean released"),
        (["--selection", "oracle"], "unknown selection rule 'oracle'"),
        (["--selection", "observed_nll"], "add --override.holdout 0.2"),
        (["--seeds", "0", "0..2"], "seeds: 0 is given twice"),
        (["--seeds", "3..1"], "seeds: '3..1' is neither"),
        (["--seeds", "-1"], "seeds"),
        (["--cvat-weights", "a"], "--cvat-weights=a: allowed is a number"),
        (["--cvat-weights", "0"], "weight 0 is the method pl"),
        (["--override.hidden", "none"], "--override.hidden=none: allowed is an integer"),
        (["--override.hidden", "0"], "hidden=0"),
        (["--override.stopping", "sometimes"], "--override.stopping=sometimes: allowed is "),
        (["--workers", "0"], "workers=0"),
        (["--json"], "--json goes with --plan"),
        (["--device", "tpu"], "--device=tpu: allowed is auto, cpu, cuda"),
        pytest.param(
            ["--device", "cuda"], "device=cuda", marks=pytest.mark.skipif(torch.cuda.is_available(), reason="has one")
        ),
        (["--nonsense"], "there is no option --nonsense; see --help"),
        (["--dataset", "D1"], "there is no option --dataset: did you mean --datasets?"),  # a part of a name is none
        (["--seeds_per_jobs", "1"], "there is no option --seeds_per_jobs: did you mean --seeds-per-job?"),
        (["--override.epochs", "3"], "there is no option --override.epochs: did you mean --override.max_epochs?"),
        (["--override", "3"], "--override is given by fields, as in --override.FIELD VALUE"),
        (["--out.x", "y"], "--out has no fields: it is given without a dot, as in --out VALUE"),
        (["--protocol.max_epochs", "3"], "--protocol has no fields"),
        (["--datasets.x", "1"], "an option of a list has no fields: it is given without a dot, as in --OPTION VALUE"),
        (["--wandb", "yes"], "--wandb=yes: allowed is online, offline, disabled"),
        (["--config", "none.yaml"], "error: --config: File does not exist"),
        (["--datasets", "D1@n=50", "--seeds", "0"], "batch_size=64: only 50 logged rows"),
        (["--datasets", "D1", "--override.batch_size", "2000"], "batch_size=2000: only 1000 logged rows"),
        (["--datasets", "D1@n=70,K=40"], "was never logged"),
        (["--datasets", "scene", "--data-dir", "none"], "scene_train.bz2 is missing"),
        (["--out", "/dev/null/folder"], "output folder /dev/null/folder cannot be written"),
    ],
)
def test_bad_input_is_one_line_before_any_work(arguments, message, capsys, tmp_path):
    place = [] if "--out" in arguments else ["--out", str(tmp_path / "out")]
    assert main([*arguments, *place]) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
    assert out == ""


@pytest.mark.parametrize(("named", "mode"), [("dryrun", "offline"), ("run", "online"), ("disabled", "disabled")])
def test_older_names_of_wandbs_modes_are_known(named, mode, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", named)
    assert _wandb_mode(make_parser().parse_args([])) == mode
    assert _wandb_mode(make_parser().parse_args(["--wandb", "offline"])) == "offline"
