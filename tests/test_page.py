"""The page of a report, in a real browser where there is one."""

import shutil
from pathlib import Path

import pytest

from benchmarks.entries import Place
from benchmarks.page import Run, Section, render
from benchmarks.report import main, write_report
from benchmarks.store import Store
from benchmarks.sweep import main as sweep
from tests.conftest import open_page

TINY = ["--backbones", "dm", "--override.max_epochs", "2", "--override.max_epochs_cst", "2", "--workers", "1"]
RESULTS = Path(__file__).parents[1] / "results"
EVIL = "<script>document.title='broken'</script>"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    for name, seeds in (("one", "0..2"), ("two", "0..1")):
        options = ["--datasets", "multilabel", "D1@n=70,n_test=200,n_validation=50", "--seeds", seeds]
        assert sweep([*TINY, *options, "--out", str(folder / name)]) == 0
    assert main([str(folder / "one"), str(folder / "two"), "--out", str(folder / "both.html")]) == 0
    return folder


def visible(page, column):
    rows = page.locator("#table tbody tr:not([hidden])")
    return [row.locator("td").nth(column).inner_text() for row in rows.all()]


@pytest.mark.parametrize("name", ["one/report.html", "both.html"])
@pytest.mark.parametrize("width", [360, 1440])
def test_a_page_opens_without_error_or_request_and_fits(runs, browser, name, width):
    page, troubles = open_page(browser, runs / name, width)
    assert troubles == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    alts = page.locator("img").evaluate_all("all => all.map(one => one.alt)")
    assert all(alts)
    assert len(set(alts)) == len(alts)
    assert page.locator("img").evaluate_all("all => all.every(one => one.complete && one.naturalWidth > 0)")


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """The page of the committed reproduction."""
    folder = tmp_path_factory.mktemp("committed") / "released"
    for name in ("cells", "sweeps"):
        shutil.copytree(RESULTS / "released" / name, folder / name)
    write_report(Store(folder))
    return folder / "report.html"


@pytest.mark.parametrize("width", [360, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_of_the_reproduction_opens_in_every_way(released, browser, width, scheme):
    assert released.stat().st_size < 5e6
    page, troubles = open_page(browser, released, width)
    page.emulate_media(color_scheme=scheme)
    assert troubles == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("#table tbody tr").count() > 100


CONTRASTS = """
() => {
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const parts = text => text.match(/[0-9.]+/g).map(Number);
  const behind = one => {
    for (; one; one = one.parentElement) {
      const color = parts(getComputedStyle(one).backgroundColor);
      if (color.length < 4 || color[3] === 1) return light(color);
    }
    return NaN;
  };
  const texts = [...document.querySelectorAll("body *")].filter(one =>
    one.offsetParent && [...one.childNodes].some(node => node.nodeType === 3 && node.textContent.trim()));
  const ratios = texts.map(one => {
    const [a, b] = [light(parts(getComputedStyle(one).color)), behind(one)];
    return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), one.outerHTML.slice(0, 80)];
  });
  return {least: ratios.reduce((x, y) => y[0] < x[0] ? y : x), n: ratios.length, back: behind(document.body)};
}
"""


@pytest.mark.parametrize(("scheme", "is_dark"), [("light", False), ("dark", True)])
def test_every_text_stands_out_from_what_is_behind_it(runs, browser, scheme, is_dark):
    """At least 4.5 to 1, as WCAG 2 (AA) asks."""
    page, _ = open_page(browser, runs / "both.html")
    page.emulate_media(color_scheme=scheme)
    found = page.evaluate(CONTRASTS)
    assert found["n"] > 100
    assert found["least"][0] >= 4.5, found["least"]
    assert (found["back"] < 0.05) == is_dark


def test_numbers_can_be_sorted_and_filtered_with_the_keyboard(runs, browser):
    page, troubles = open_page(browser, runs / "both.html")
    assert set(visible(page, 5)) == {"NLL (nats)"} or set(visible(page, 4)) == {"NLL (nats)"}
    everything = len(visible(page, 0))
    head = page.get_by_role("button", name="mean ± standard error")
    head.focus()
    page.keyboard.press("Enter")
    column = page.locator("#table thead th").evaluate_all("all => all.findIndex(th => th.ariaSort === 'ascending')")
    means = [float(text.lstrip("★ ").split(" ±")[0]) for text in visible(page, column)]
    assert means == sorted(means)
    page.keyboard.press("Enter")
    assert [float(text.lstrip("★ ").split(" ±")[0]) for text in visible(page, column)] == sorted(means, reverse=True)
    page.locator("select[data-column=method]").select_option("PL")
    page.get_by_label("Search").fill("multilabel two")
    assert len(visible(page, 0)) == 1 < everything
    assert page.locator("#count").inner_text().startswith("1 of ")
    assert troubles == []


def test_every_table_can_be_sorted(runs, browser):
    page, troubles = open_page(browser, runs / "one" / "report.html")
    section = page.locator("section", has=page.get_by_role("heading", name="Differences in NLL"))

    def column(number):
        return [row.locator("td").nth(number).inner_text() for row in section.locator("tbody tr").all()]

    before = column(0)
    section.get_by_role("button", name="D1").click()  # numbers with a sign and what follows them
    numbers = [float(text.split(" ±")[0].replace("−", "-")) for text in column(2)]
    assert numbers == sorted(numbers)
    assert len(set(numbers)) > 1
    section.get_by_role("button", name="pair").click()
    assert column(0) == sorted(before, key=str.lower)
    section.get_by_role("button", name="pair").click()
    assert column(0) == sorted(before, key=str.lower, reverse=True)
    assert section.locator("th[aria-sort]").count() == 1
    provenance = page.get_by_role("region", name="Provenance").locator("th button")
    assert provenance.count() == 8
    assert troubles == []


def test_a_number_is_a_card_on_a_phone(runs, browser):
    page, _ = open_page(browser, runs / "one" / "report.html", 360)
    card = page.locator("#table tbody tr:not([hidden])").first
    box = card.bounding_box()
    assert box["width"] <= 360
    assert box["x"] >= 0
    label = "e => getComputedStyle(e, '::before').content"
    assert "mean ± standard error" in card.locator("td.mean").evaluate(label)
    best = page.locator("#table tr.best td.mean").first
    assert "mean ± standard error" in best.evaluate(label)
    assert "★" in best.evaluate("e => getComputedStyle(e, '::after').content")
    wide, _ = open_page(browser, runs / "one" / "report.html", 1440)
    assert "standard error" not in wide.locator("#table tbody tr td.mean").first.evaluate(label)


SIDEWAYS = "e => e.scrollWidth > e.clientWidth + 1"


@pytest.mark.parametrize("width", [360, 390])
def test_on_a_phone_every_table_of_several_columns_is_cards_and_what_scrolls_sideways_says_so(runs, browser, width):
    page, _ = open_page(browser, runs / "one" / "report.html", width)
    page.wait_for_function("document.querySelector('figure[data-sideways]')")
    tables = page.locator(".wide").all()
    assert len(tables) > 3
    assert not any(table.evaluate(SIDEWAYS) for table in tables)
    commit = page.get_by_role("region", name="Provenance").locator("tbody td").nth(3)
    assert "commit" in commit.evaluate("e => getComputedStyle(e, '::before').content")
    hint = "e => getComputedStyle(e, '::after').content"
    for figure in page.locator("figure").all():
        assert figure.evaluate(SIDEWAYS) == ("scroll sideways" in figure.evaluate(hint))
    page.emulate_media(media="print")
    shown = "all => all.map(one => getComputedStyle(one, '::after').display)"
    assert set(page.locator("[data-sideways]").evaluate_all(shown)) <= {"none"}


def test_two_runs_are_compared(runs, browser):
    page, _ = open_page(browser, runs / "both.html")
    section = page.locator("section", has=page.get_by_role("heading", name="two against one"))
    rows = section.locator("tbody tr").all_inner_texts()
    assert len(rows) == 2 * 3 * 2  # data sets, methods, metrics
    # seeds 0 and 1 of both are the same trainings, to rounding, whose sign is not shown
    assert all("+0.0000 ± 0.0000" in row for row in rows)


def test_runs_of_one_folder_name_stay_apart(runs, tmp_path):
    for number, name in enumerate(("one", "two")):
        shutil.copytree(runs / name, tmp_path / str(number) / "run")
    out = tmp_path / "both.html"
    assert main([str(tmp_path / "0" / "run"), str(tmp_path / "1" / "run"), "--out", str(out)]) == 0
    text = out.read_text()
    assert "0/run" in text
    assert "1/run" in text
    assert "3/3" in text  # seeds of the one
    assert "2/2" in text  # and of the other


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_prints_whole_and_in_dark_on_white(runs, browser, tmp_path, scheme):
    page, _ = open_page(browser, runs / "one" / "report.html", 720)  # the width of A4 within its margins
    page.emulate_media(media="print", color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= 720
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("nav").is_visible()
    # every number, whatever the filters let through
    assert page.locator("#table tbody tr[hidden]").count() > 0
    assert all(row.is_visible() for row in page.locator("#table tbody tr").all())
    # on paper, what sticks to the top of a window comes out below its table
    assert set(page.locator("thead th").evaluate_all("all => all.map(one => getComputedStyle(one).position)")) == {
        "static"
    }
    cut = "all => all.filter(one => one.scrollHeight > one.clientHeight + 1 || one.scrollWidth > one.clientWidth + 1)"
    assert page.locator(".wide").evaluate_all(f"{cut}.length") == 0
    assert page.pdf(path=str(tmp_path / "page.pdf"))[:4] == b"%PDF"


def place(settings, dataset="D1", method="pl"):
    return Place(dataset, "dm", method, (0,), "written", settings), None


def test_several_settings_are_told_apart_everywhere(browser, tmp_path):
    found = [place({"rounds": 2, "hidden": 8}), place({"rounds": 2}), place({"rounds": 2, "hidden": 16})]
    (tmp_path / "figures").mkdir()
    for name, width in (("one", 300), ("four", 700)):
        (tmp_path / "figures" / f"{name}.svg").write_text(
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}pt" height="200pt" viewBox="0 0 {width} 200"/>'
        )
    parts = [Section("Settings 1: hidden=8"), Section("Costs", 3, figure="one.svg", of="Settings 1: hidden=8")]
    parts += [Section("Settings 2: unchanged"), Section("Costs", 3, figure="four.svg", of="Settings 2: unchanged")]
    (tmp_path / "page.html").write_text(render([Run(tmp_path, found, parts)]))
    page, troubles = open_page(browser, tmp_path / "page.html", 360)
    assert troubles == []
    assert page.locator("#table thead th").first.text_content() == "settings"
    # what all of them have is named once
    assert page.locator("select[data-column=settings] option").all_text_contents() == [
        *("all", "hidden=8", "unchanged", "hidden=16")
    ]
    assert page.get_by_text("nothing but rounds=2, which all have").count() == 1
    page.locator("select[data-column=settings]").select_option("unchanged")
    assert page.locator("#table tbody tr:not([hidden])").count() == 1
    alts = page.locator("img").evaluate_all("all => all.map(one => one.alt)")
    assert alts == ["Figure: Costs, settings 1: hidden=8", "Figure: Costs, settings 2: unchanged"]
    # a single panel is scaled to a phone; of several, none can be read so, and they scroll: a stop of the keyboard
    wide = "all => all.map(one => one.scrollWidth > one.clientWidth + 1)"
    assert page.locator("figure").evaluate_all(wide) == [False, True]
    page.wait_for_function("document.querySelectorAll('figure')[1].tabIndex === 0")
    assert page.locator("figure").nth(1).get_attribute("aria-label") == alts[1]
    assert page.locator("figure").first.get_attribute("tabindex") is None
    assert not page.get_by_role("link", name="Costs").first.is_visible()
    page.locator("nav summary").nth(1).press("Enter")
    page.get_by_role("link", name="Costs").click()
    assert page.evaluate("location.hash") == "#r1s3"
    heads = [
        page.locator(f"h{level}").first.evaluate("e => parseFloat(getComputedStyle(e).fontSize)") for level in (2, 3)
    ]
    assert heads[0] > heads[1]


def test_a_word_is_found_where_a_word_begins(browser, tmp_path):
    found = [(Place("D1", name, "pl", (0,), "written"), None) for name in ("dm", "udm")]
    (tmp_path / "page.html").write_text(render([Run(tmp_path, found, [])]))
    page, _ = open_page(browser, tmp_path / "page.html")
    for text, names in (("dm d", ["DM"]), ("UD", ["UDM"]), ("d1 ((", []), ("D1", ["DM", "UDM"])):
        page.get_by_label("Search").fill(text)
        assert visible(page, 1) == names, text


def test_names_from_outside_are_text(runs, browser, tmp_path):
    found = [(Place(EVIL, EVIL, "pl", (0,), EVIL, {"a": EVIL}), None)]
    run = Run(tmp_path, found, [Section(EVIL, texts=[f"`{EVIL}` {EVIL}"], header=(EVIL,), rows=((EVIL,),))])
    (tmp_path / "page.html").write_text(render([run]))
    page, troubles = open_page(browser, tmp_path / "page.html")
    assert page.title() != "broken"
    assert page.locator("section script").count() == 0
    assert troubles == []


def test_a_page_says_what_failed_and_what_is_missing(runs, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(runs / "one", copy)
    next((copy / "cells").glob("*-pl-*.json")).unlink()
    broken = [
        "--preset",
        "smoke",
        "--datasets",
        "multilabel",
        "--backbones",
        "tests.parts.Buggy",
        "--methods",
        "backbone",
        "--seeds",
        "0",
    ]
    assert sweep([*broken, "--workers", "1", "--out", str(copy)]) == 1
    write_report(Store(copy))
    text = (copy / "report.html").read_text()
    assert "Failed and missing" in text
    assert "was asked for and has not been run" in text
    assert "tests.parts.Buggy" in text
    assert "ZeroDivisionError" in text
    assert "http://" not in text
    assert "https://" not in text
    assert "Failed and missing" not in (runs / "one" / "report.html").read_text()
