"""What the figures of a report show, looked at before they are written."""

from itertools import combinations, cycle, islice

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot
from matplotlib.colors import to_hex, to_rgb

from benchmarks import course, course_figures, figures, sections, toy
from benchmarks.entries import BACKBONE_TITLES, TITLES, Entry, Place
from benchmarks.statistics import Summary
from cst_lightning.catalogue import METHODS
from cst_lightning.protocols import MATCHED


@pytest.fixture
def drawn(monkeypatch):
    """The figures that would be written, by the names of their files."""
    found = {}
    monkeypatch.setattr(figures, "save", lambda figure, path: found.setdefault(path.name, figure))
    yield found
    pyplot.close("all")


def visible(figure):
    return [axis for axis in figure.axes if axis.get_visible()]


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def curve(stage, epochs, last, series="training_loss", method="pl", dataset="D1"):
    names = {"dataset": dataset, "method": method, "oracle": False, "stage": stage, "series": series, "last": last}
    return pd.DataFrame([names | {"epoch": e, "mean": 1 / e, "standard_error": 0.1} for e in epochs])


def test_rounds_stand_side_by_side_from_their_first_epoch_to_their_last(drawn, tmp_path):
    rounds = [curve("round 1", range(64, 2945, 64), 3000), curve("round 2", [1, 2, 3], 4)]
    backbone = curve("backbone", range(1, 11), 10, method="backbone")
    held_out = curve("round 1", [1, 2], 2, "validation_nll")
    course_figures.plot_curves(pd.concat([*rounds, backbone, held_out]), tmp_path / "curves.svg")
    training, other = visible(drawn["curves.svg"])
    assert (training.get_ylabel(), other.get_ylabel()) == ("training loss", "held-out NLL")
    assert [text.get_text() for text in training.get_xticklabels()] == ["0\n10", "1\n3000", "2\n4"]
    of_method = [line for line in training.lines if line.get_label() in ("PL", "backbone")]
    ends = sorted((min(line.get_xdata()), max(line.get_xdata())) for line in of_method)
    assert all(stage < low < high <= stage + 1 for stage, (low, high) in enumerate(ends))
    assert ends[1][1] > 1.9
    assert ends[2] == pytest.approx((2.25, 2.75))
    boundaries = [line.get_xdata()[0] for line in training.lines if line not in of_method]
    assert boundaries == [1, 2]
    assert sorted(legend(drawn["curves.svg"])) == ["PL", "backbone"]


def test_a_point_of_a_long_curve_is_the_average_of_its_neighbours():
    points = curve("round 1", range(1, 61), 60)
    mean = course_figures.averaged(points)
    n = 60 // len(mean)
    assert 5 <= n <= 10
    assert mean["epoch"].iloc[0] == (n + 1) / 2
    assert mean["mean"].iloc[-1] == pytest.approx(points["mean"].tail(n).mean())
    assert course_figures.averaged(points[:3])["epoch"].tolist() == [1, 2, 3]


def of_rounds(method, dataset="D1", inconsistency=0.3, bound=1.9, oracle=False):
    mu = None if bound is None else bound / 2
    names = {"settings": "", "dataset": dataset, "backbone": "dm", "method": method, "oracle": oracle, "seed": 0}
    errors = {"teacher_error": 0.2, "student_error": 0.1, "objective_start": 2.0, "objective_imputed": 1.0}
    known = {"inconsistency": inconsistency, "mu": mu, "bound": bound}
    rounds = pd.DataFrame([names | errors | known | {"round": n} for n in (1, 2)])
    return rounds.astype(dict.fromkeys(known, float))


def labels_of(rounds):
    return rounds.assign(action=0, label=0, error=0.1)


def test_rounds_of_every_method_are_drawn_a_row_each(drawn, tmp_path):
    rounds = pd.concat([of_rounds("pl_cvat", oracle=True), of_rounds("pl")])
    course_figures.plot_rounds(rounds, labels_of(rounds), tmp_path / "rounds.svg")
    figure = drawn["rounds.svg"]
    assert len(visible(figure)) == 8
    assert [axis.get_ylabel().partition("\n")[0] for axis in figure.axes[::4]] == ["PL", "PL + CVAT†"]
    assert "an oracle" in figure.legends[0].get_title().get_text()
    error, changes = figure.axes[1], figure.axes[2]
    assert "dotted" not in error.get_title()  # a bound above 1
    assert error.get_ylim()[1] < 0.3
    assert "dotted" in changes.get_title()


def test_a_bound_within_the_panel_is_drawn_and_named(drawn, tmp_path):
    rounds = of_rounds("pl", bound=0.18)
    course_figures.plot_rounds(rounds, labels_of(rounds), tmp_path / "rounds.svg")
    assert "(dotted: bound)" in drawn["rounds.svg"].axes[1].get_title()


def test_a_panel_without_anything_in_it_is_left_out_and_its_title_promises_nothing(drawn, tmp_path):
    rounds = of_rounds("pl", inconsistency=None)
    course_figures.plot_rounds(rounds, labels_of(rounds), tmp_path / "rounds.svg")
    assert not any("distance" in axis.get_title() for axis in visible(drawn["rounds.svg"]))
    rounds = of_rounds("pl", dataset="log", bound=None)
    course_figures.plot_rounds(rounds, labels_of(rounds), tmp_path / "unknown.svg")
    assert len(visible(drawn["unknown.svg"])) == 4
    assert not any("dotted" in axis.get_title() for axis in visible(drawn["unknown.svg"]))


def test_a_backbone_has_its_colour_in_every_figure_and_no_two_share_one():
    def colour(backbones, one):
        frame = pd.DataFrame({"backbone": backbones, "method": "pl"})
        return to_hex(figures._point_style(frame, one, "pl")["color"])

    assert colour(["hsic"], "hsic") == colour(["dm", "udm", "hsic"], "hsic")
    assert len({colour(["dm"], name) for name in BACKBONE_TITLES}) == len(BACKBONE_TITLES)


# of Machado, Oliveira and Fernandes (2009), for linear RGB, at severity 1
SEEN = {
    "all cones": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
}
TO_XYZ = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
WHITE = [0.95047, 1.0, 1.08883]


def lab(colour, seen):
    """CIE Lab of an sRGB colour as a reader sees it."""
    coded = np.array(to_rgb(colour))
    linear = np.where(coded <= 0.04045, coded / 12.92, ((coded + 0.055) / 1.055) ** 2.4)
    xyz = TO_XYZ @ np.clip(seen @ linear, 0, 1) / WHITE
    x, y, z = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def differ(one, other):
    """By what the least sharp-eyed reader sees: the distance of two colours in CIE Lab."""
    return min(np.linalg.norm(lab(one, seen) - lab(other, seen)) for seen in map(np.array, SEEN.values()))


def test_colours_differ_as_published_for_those_who_see_all_and_less_for_others():
    assert lab("#ff0000", np.eye(3)) == pytest.approx([53.24, 80.09, 67.20], abs=0.02)
    assert differ("#b00000", "#006000") < 30 < np.linalg.norm(lab("#b00000", np.eye(3)) - lab("#006000", np.eye(3)))


OWN = [f"own{number}" for number in range(8)]


def of_methods():
    names = [*METHODS, *OWN]
    return [(style["color"], style["marker"]) for style in (figures.line_style(names, name) for name in names)]


def of_backbones(sign):
    names = [*BACKBONE_TITLES, *OWN]
    values = (figures._OF_BACKBONES, sign)
    return [tuple(figures._of_backbone(value, names, name) for value in values) for name in names]


@pytest.mark.parametrize(
    "styles",
    [
        of_methods(),
        of_backbones(figures._FILLS),
        of_backbones(figures._HATCHES),
        list(islice(zip(cycle(figures.COLOURS), cycle(figures.MARKERS), strict=False), 16)),
        [(colour, "the same") for colour in toy._COLOURS],
    ],
    ids=["methods", "backbones of points", "backbones of bars", "data sets", "the toy's outcomes"],
)
def test_what_stands_in_one_figure_is_told_apart_by_its_colour_for_colour_blind_readers_or_by_another_sign(styles):
    for (colour, sign), (other_colour, other_sign) in combinations(styles, 2):
        assert sign != other_sign or differ(colour, other_colour) > 10  # seen at a glance


def entry(metric, mean, backbone="dm", method="pl", dataset="D1"):
    place = Place(dataset, backbone, method, (0, 1), "matched")
    return Entry(place, metric, "finished", Summary(mean, 0.1, 2, 2), None, None, None, False, {})


def test_a_legend_of_points_names_each_backbone_and_each_method_once(drawn, tmp_path):
    cells = [(b, m) for b in ("dm", "hsic", "udm") for m in ("pl_cvat", "backbone", "pl")]
    entries = {metric: [entry(metric, 0.5, *cell) for cell in cells] for metric in ("nll", "hamming")}
    assert sections._losses(entries, tmp_path)[0].figure == "losses.svg"
    names = [name for name in legend(drawn["losses.svg"]) if name]
    assert names == ["DM", "HSIC", "UDM", "backbone alone", "PL", "PL + CVAT"]


def test_dollars_in_names_are_no_formula(tmp_path):
    evil = "$\\frac$"  # which would be a wrong one
    cells = {metric: [entry(metric, m, evil, evil, d) for d in ("D1", evil) for m in (0.4, 0.5)] for metric in TITLES}
    sections._losses(cells, tmp_path)
    course_figures.plot_curves(curve("round 1", [1, 2], 2, method=evil, dataset=evil), tmp_path / "curves.svg")
    rounds = of_rounds(evil, dataset=evil)
    course_figures.plot_rounds(rounds, labels_of(rounds), tmp_path / "rounds.svg")
    for name in ("losses", "curves", "rounds"):
        assert evil in (tmp_path / f"{name}.svg").read_text(encoding="utf-8")


def test_a_single_point_is_no_figure(drawn, tmp_path):
    alone = {metric: [entry(metric, 0.5), entry(metric, 0.4, dataset="D2")] for metric in ("nll", "hamming")}
    assert sections._losses(alone, tmp_path) == []
    assert sections._weights_and_costs([record("pl", nll=0.5)], tmp_path) == []
    assert not drawn


def record(method, nll, by_weight=None, **more):
    results = [
        {"seed": seed, "metrics": {"nll": nll}, "by_weight": by_weight or {}, "cvat_weight": 1.0 if by_weight else 0.0}
        for seed in (0, 1)
    ]
    identity = {"dataset": "D1", "backbone": "dm", "method": method, "seeds": [0, 1]}
    provenance = {"seconds": 1.0, "cpu_seconds": 1.0}
    made = {"identity": identity, "protocol": MATCHED.to_dict(), "status": "finished", "results": results}
    return made | {"provenance": provenance, "oracle": False} | more


def test_the_weights_tried_are_the_ticks_and_no_cvat_is_the_first_of_them(drawn, tmp_path):
    tried = {str(weight): {"nll": value} for weight, value in ((0.01, 0.4), (10.0, 0.3))}
    records = [record("pl", 0.5), record("pl_cvat", 0.3, tried)]
    frame = course.weights(records)
    assert frame[["method", "weight", "mean"]].to_numpy().tolist() == [
        ["pl_cvat", 0.0, 0.5],
        ["pl_cvat", 0.01, 0.4],
        ["pl_cvat", 10.0, 0.3],
    ]
    assert set(course.weights(records[1:])["weight"]) == {0.01, 10.0}  # PL was not run
    figures.plot_weights(frame, tmp_path / "weights.svg")
    (axis,) = visible(drawn["weights.svg"])
    assert [text.get_text() for text in axis.get_xticklabels()] == ["0", "0.01", "10"]


def test_shares_of_a_handful_of_predictions_are_not_drawn_and_that_is_said(drawn, tmp_path):
    bins = {"count": [500, 3, 500], "predicted": [0.1, 0.5, 0.9], "observed": [0.1, 1.0, 0.8]}
    results = [{"seed": 0, "reliability": bins}]
    head, part = sections._calibration([record("pl", 0.5, results=results)], tmp_path)
    assert "1 bin of 3 with fewer than 20" in head.texts[0]
    line = visible(drawn[part.figure])[0].lines[-1]
    assert list(line.get_ydata()) == [0.1, 0.8]


def test_a_legend_of_methods_has_their_order_and_a_policy_left_out_is_named(drawn, monkeypatch, tmp_path):
    names = {"settings": "", "backbone": "dm", "standard_error": 0.1, "floor": 0.2, "constant": 0.6, "oracle": False}
    policies = {"D1": 0.5, "D1@o=2": 0.3, "D1@unlogged=0": 0.4}
    methods = ("pl_cvat", "backbone", "pl")
    rows = [
        names | {"dataset": d, "effective_sample_size": n, "method": m, "mean": n}
        for d, n in policies.items()
        for m in methods
    ]
    monkeypatch.setattr(sections.analysis, "overlap", lambda *_: pd.DataFrame(rows))
    (section,) = sections._overlap([], {"nll": []}, tmp_path)
    assert "without D1@unlogged=0:" in section.texts[0]
    figure = drawn["overlap.svg"]
    assert legend(figure) == ["backbone", "PL", "PL + CVAT", "constant", "floor"]
    assert len(figure.axes[0].lines[0].get_xdata()) == 2
    assert [handle.get_linestyle() for handle in figure.legends[0].get_lines()] == ["-", "-", "-", "--", ":"]


def test_a_long_name_makes_a_short_file_name_of_its_own():
    names = [sections._file("curves", "package." + "b" * 300 + end) for end in ("", "1")]
    assert len(set(names)) == 2
    assert all(len(name) < 100 for name in names)
    assert sections._file("curves", "dm") == "curves_dm.svg"
