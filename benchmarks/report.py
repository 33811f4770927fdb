"""``python -m benchmarks.report RUN...``: every table and figure of a run, again from its records."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from jsonargparse import ArgumentError, ArgumentParser

from benchmarks import figures, sections
from benchmarks.entries import TITLES, Entry, Place, make_entries
from benchmarks.grid import digest
from benchmarks.options import saved_jobs
from benchmarks.page import Run, Section, render
from benchmarks.remote import here
from benchmarks.sections import Found
from benchmarks.store import Record, Store, write_parquet, write_text
from benchmarks.tables import to_csv, to_latex, to_markdown
from benchmarks.texts import markdown_text, no_markup
from cst_lightning.catalogue import method_order
from cst_lightning.errors import InputError
from cst_lightning.texts import printable


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status is 0, or 2 for bad input."""
    parser = ArgumentParser(prog="python -m benchmarks.report", description=__doc__, exit_on_error=False)
    parser.add_argument("runs", type=str, nargs="+", help="folders or addresses that a sweep wrote")
    parser.add_argument("--out", type=str | None, default=None, help="a page of all of them; report.html for several")
    parser.add_argument("--pdf", action="store_true", help="each figure as PDF too, for a paper")
    parser.add_argument("--trust", type=str, nargs="+", default=[], help="packages that the runs may have imported")
    try:
        options = parser.parse_args(arguments)
        found = [here(run) for run in options.runs]
        folders = [folder.resolve() for folder, _ in found]
        for folder in folders:
            if not Store(folder).read_all():
                raise InputError(f"{folder} holds no records (cells/*.json): name a folder that a sweep wrote")
        with figures.also_as(*(["pdf"] if options.pdf else [])):
            runs = [write_report(Store(folder), options.trust) for folder in folders]
        for folder, (_, away) in zip(folders, found, strict=True):
            page = printable(str(folder / "report.html"))
            print(f"{page}; tables, report.md, figures and the frames behind them beside it")
            for path, fault in Store(folder).faults() + away:
                print(f"left out, since it is no record: {printable(str(path))} ({fault})")
        if options.out or len(runs) > 1:
            out = options.out or "report.html"
            write_text(Path(out), render(runs, sections.run_against_run(runs)))
            print(f"{printable(str(Path(out).resolve()))} has all of it")
    except (ArgumentError, InputError) as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        print(f"error: a report needs the package {error.name}: pip install 'cst-lightning[report]'", file=sys.stderr)
        return 2
    return 0


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
    entries = [make_entries(found, metric) for metric in TITLES]
    write_text(folder / "tables.md", "\n".join(map(to_markdown, entries)))
    write_text(folder / "tables.csv", to_csv([entry for of_metric in entries for entry in of_metric]))
    write_text(folder / "tables.tex", "\n".join(map(to_latex, entries)))
    return found


def write_report(store: Store, trust: Sequence[str] = ()) -> Run:
    """All of ``write_tables``; ``report.md`` and ``report.html``, their figures, and the frames behind them as CSV."""
    found = write_tables(store, trust)
    folder, records = store.folder, [record for _, record in found if record is not None]
    entries = {metric: make_entries(found, metric) for metric in TITLES}
    unread = [f"`{printable(path.name)}` is no record" for path, _ in store.faults()]
    sections.write_frames(records, entries, folder)
    parts = [
        *sections.problems(found, [*saved_jobs(folder, trust)[1], *unread]),
        *_drawn(found, entries, folder),
        *sections.differences(entries, folder),
        *sections.rounds(records, folder),
    ]
    tables = [to_markdown(of_metric).strip() for of_metric in entries.values()]
    text = "\n\n".join([f"# {no_markup(printable(folder.name))}", *tables, *map(_markdown, parts)])
    write_text(folder / "report.md", text + "\n")
    run = Run(folder.resolve(), found, parts)
    write_text(folder / "report.html", render([run]))
    return run


def _drawn(found: Found, entries: Mapping[str, list[Entry]], folder: Path) -> list[Section]:
    """Every figure; where cells have several settings, each setting's by themselves."""
    parts = []
    every = list(dict.fromkeys(place.settings for place, _ in found))
    for number, settings in enumerate(every, 1):
        records = [record for place, record in found if record is not None and place.settings == settings]
        mine = {metric: [e for e in entries[metric] if e.place.settings == settings] for metric in entries}
        if len(every) == 1:
            return sections.of_settings(records, mine, folder / "figures")
        name = f"settings-{number}"
        parts.append(Section(f"Settings {number}: {settings or 'those of the protocol'}"))
        parts += [
            replace(section, level=section.level + 1, figure=section.figure and f"{name}/{section.figure}")
            for section in sections.of_settings(records, mine, folder / "figures" / name)
        ]
    return parts


def _markdown(section: Section) -> str:
    parts = ["#" * section.level + f" {no_markup(section.title)}", *map(no_markup, section.texts)]
    if section.figure:
        parts.append(f"![{section.title}](figures/{section.figure})")
    if section.rows:
        rows = [list(map(markdown_text, row)) for row in section.rows]
        lines = [list(map(markdown_text, section.header)), ["---"] * len(section.header), *rows]
        parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    return "\n\n".join(parts)


if __name__ == "__main__":
    sys.exit(main())
