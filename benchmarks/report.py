"""``python -m benchmarks.report RUN...``: every table and figure of a run, again from its records."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from jsonargparse import ArgumentError, ArgumentParser

from benchmarks import figures, sections
from benchmarks.entries import TITLES, Entry, Place, make_entries, settings_titles, shown_metrics
from benchmarks.files import OutputError, is_plain, read_plain, write_text
from benchmarks.grid import digest
from benchmarks.options import saved_jobs
from benchmarks.page import Run, Section, render
from benchmarks.remote import here
from benchmarks.sections import Found
from benchmarks.store import Record, Store, write_parquet
from benchmarks.tables import to_csv, to_latex, to_markdown
from benchmarks.texts import markdown_text, no_markup
from cst_lightning import interrupting
from cst_lightning.catalogue import method_order
from cst_lightning.errors import InputError
from cst_lightning.texts import counted, printable

_LARGEST_REPORT = 1 << 28  # bytes
# what a report.md names of the files that were written with it
_NAMED = re.compile(
    r"(?<=\]\()figures/(?:settings-[0-9]+/)?[A-Za-z0-9_-]+\.svg(?=\))|"
    r"(?<=`)(?:comparison|differences|overlap|rounds|labels)\.csv(?=`)"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status is 0, 1 where a file cannot be written, or 2 for bad input."""
    parser = ArgumentParser(
        prog="python -m benchmarks.report", description=__doc__, exit_on_error=False, allow_abbrev=False
    )
    parser.add_argument("runs", type=str, nargs="+", help="folders or addresses that a sweep wrote")
    parser.add_argument("--out", type=str | None, default=None, help="a page of all of them; report.html for several")
    parser.add_argument("--pdf", action="store_true", help="each figure as PDF too, for a paper")
    parser.add_argument("--trust", type=str, nargs="+", default=[], help="packages that the runs may have imported")
    try:
        options = parser.parse_args(arguments)
        found = [here(run) for run in options.runs]
        folders = [folder.resolve() for folder, _ in found]
        faults = [Store(folder).faults() + away for folder, (_, away) in zip(folders, found, strict=True)]
        for folder, of_folder in zip(folders, faults, strict=True):
            if not Store(folder).read_all():
                _tell(of_folder, sys.stderr)
                broken = f"no record but {counted(len(of_folder), 'file')} that cannot be read as one"
                held = broken if of_folder else "no records (cells/*.json)"
                raise InputError(f"{folder} holds {held}: name a folder that a sweep wrote")
        with figures.also_as(*(["pdf"] if options.pdf else [])):
            runs = [write_report(Store(folder), options.trust) for folder in folders]
        for folder, of_folder in zip(folders, faults, strict=True):
            page = printable(str(folder / "report.html"))
            print(f"{page}; tables, report.md, figures and the frames behind them beside it")
            _tell(of_folder, sys.stdout)
            for problem in saved_jobs(folder, options.trust)[1]:
                print(problem)
        if options.out or len(runs) > 1:
            out = options.out or "report.html"
            write_text(Path(out), render(runs, sections.run_against_run(runs)))
            print(f"{printable(str(Path(out).resolve()))} has all of it")
    except (ArgumentError, InputError, OutputError) as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return 1 if isinstance(error, OutputError) else 2
    except ModuleNotFoundError as error:
        print(f"error: a report needs the package {error.name}: pip install 'cst-lightning[report]'", file=sys.stderr)
        return 2
    return 0


def _tell(faults: Sequence[tuple[Path | str, str]], stream: TextIO) -> None:
    for path, fault in faults:
        print(f"left out, since it is no record: {printable(str(path))} ({fault})", file=stream)


def find_places(store: Store, trust: Sequence[str] = ()) -> Found:
    """Every cell that a command asked for in this folder, run or not, and every other record in it.

    Args:
        trust: packages that what stands in the folder may have imported.
    """
    newest: dict[tuple[str, ...], Record] = {}
    for record in sorted(store.read_all(), key=lambda record: record["provenance"]["finished"]):
        newest[_key(Place.of_record(record))] = record
    found: dict[tuple[str, ...], tuple[Place, Record | None]] = {}
    for job in saved_jobs(store.folder, trust)[0]:
        for cell in job.cells:
            place = Place.of_cell(cell)
            # a record of another version of the code still is what stands here, until it is run again
            found.setdefault(_key(place), (place, store.read(cell) or newest.get(_key(place))))
    placed = {digest(record["identity"]) for _, record in found.values() if record is not None}
    for key, record in sorted(newest.items(), key=lambda item: (*item[0][:4], method_order(item[0][4]))):
        if digest(record["identity"]) not in placed:
            found.setdefault(key, (Place.of_record(record), record))
    if len({place.protocol for place, _ in found.values()}) > 1:  # then its name is a part of the settings
        return [(replace(p, changes={"protocol": p.protocol, **p.changes}), record) for p, record in found.values()]
    return list(found.values())


def _key(place: Place) -> tuple[str, ...]:
    return place.protocol, place.settings, place.dataset, place.backbone, place.method


def write_tables(store: Store, trust: Sequence[str] = ()) -> Found:
    """``records.parquet`` and ``tables.md``, ``.csv``, ``.tex`` of all that a folder holds; what stands in them."""
    folder, found = store.folder, find_places(store, trust)
    write_parquet(folder / "records.parquet", store.read_all())
    entries = [make_entries(found, metric) for metric in shown_metrics(found)]
    write_text(folder / "tables.md", "\n".join(map(to_markdown, entries)))
    write_text(folder / "tables.csv", to_csv([entry for of_metric in entries for entry in of_metric]))
    write_text(folder / "tables.tex", "\n".join(map(to_latex, entries)))
    return found


def write_report(store: Store, trust: Sequence[str] = ()) -> Run:
    """All of ``write_tables``; ``report.md`` and ``report.html``, their figures, and the frames behind them as CSV."""
    former, found = _former(store.folder), write_tables(store, trust)
    folder, records = store.folder, [record for _, record in found if record is not None]
    entries = {metric: make_entries(found, metric) for metric in TITLES}
    titles, _ = settings_titles(place for place, _ in found)
    unread = [f"`{printable(path.name)}` is no record" for path, _ in store.faults()]
    sections.write_frames(records, entries, folder)
    parts = [
        *sections.problems(found, [*saved_jobs(folder, trust)[1], *unread], titles),
        *_drawn(found, entries, folder),
        *sections.differences(entries, folder, titles),
        *sections.rounds(found, folder, titles),
    ]
    tables = [to_markdown(make_entries(found, metric)).strip() for metric in shown_metrics(found)]
    text = "\n\n".join([f"# {no_markup(printable(folder.name))}", *tables, *map(_markdown, parts)])
    _remove(former)
    write_text(folder / "report.md", text + "\n")
    run = Run(folder.resolve(), found, parts)
    write_text(folder / "report.html", render([run]))
    return run


def _former(folder: Path) -> dict[Path, tuple[int, int]]:
    """The files that the report there names, as they now are: figures, each with its PDF, and frames."""
    report = folder / "report.md"
    try:
        named = set(_NAMED.findall(read_plain(report, _LARGEST_REPORT)))
    except (OSError, ValueError):  # none that a report wrote
        named = set()
    paths = [path for name in sorted(named) for path in (folder / name, (folder / name).with_suffix(".pdf"))]
    return {path: _stamp(path) for path in paths if is_plain(path)}


def _stamp(path: Path) -> tuple[int, int]:
    about = path.stat()
    return about.st_ino, about.st_mtime_ns


def _remove(former: Mapping[Path, tuple[int, int]]) -> None:
    """Delete what was not written anew: it would pass for a part of this report. Of others' files it knows nothing."""
    old = [path for path, stamp in former.items() if is_plain(path) and _stamp(path) == stamp]
    for path in old:
        path.unlink()
    for parent in {path.parent for path in old if path.parent.name.startswith("settings-")}:
        if not any(parent.iterdir()):
            parent.rmdir()


def _drawn(found: Found, entries: Mapping[str, list[Entry]], folder: Path) -> list[Section]:
    """Every figure; where cells have several settings, each setting's by themselves."""
    parts = []
    titles, _ = settings_titles(place for place, _ in found)
    for number, (settings, called) in enumerate(titles.items(), 1):
        records = [record for place, record in found if record is not None and place.settings == settings]
        mine = {metric: [e for e in entries[metric] if e.place.settings == settings] for metric in entries}
        if len(titles) == 1:
            return sections.of_settings(records, mine, folder / "figures")
        name, head = f"settings-{number}", f"Settings {number}: {called}"
        parts.append(Section(head))
        parts += [
            replace(part, level=part.level + 1, figure=part.figure and f"{name}/{part.figure}", of=head)
            for part in sections.of_settings(records, mine, folder / "figures" / name)
        ]
    return parts


def _markdown(section: Section) -> str:
    parts = ["#" * section.level + f" {no_markup(section.title)}", *map(no_markup, section.texts)]
    if section.figure:
        parts.append(f"![{markdown_text(section.name)}](figures/{section.figure})")
    if section.rows:
        rows = [list(map(markdown_text, row)) for row in section.rows]
        lines = [list(map(markdown_text, section.header)), ["---"] * len(section.header), *rows]
        parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    return "\n\n".join(parts)


if __name__ == "__main__":
    sys.exit(interrupting.run(main))
