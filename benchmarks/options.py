"""The options of a sweep, the jobs that they ask for, and keeping them beside the records."""

from __future__ import annotations

import json
import re
import sys
from argparse import SUPPRESS
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Required, get_args, get_origin, get_type_hints

from jsonargparse import ActionParser, ArgumentError, ArgumentParser, Namespace
from pydantic import ConfigDict, Field, TypeAdapter
from typing_extensions import TypedDict

from benchmarks.files import read_plain, write_text
from benchmarks.grid import METHODS, MOST_SEEDS, PRESETS, Job, make_jobs
from cst_lightning.errors import InputError
from cst_lightning.protocols import PROTOCOLS, Protocol
from cst_lightning.selection import known_rules
from cst_lightning.texts import printable

#: protocol fields with an option of their own, which therefore stand in no --override
_OWN_OPTIONS = ("name", "cvat_weights", "selection")


_LARGEST_ASKED = 1 << 24  # bytes
_LONGEST_WHY = 1000
_MOST = 1000  # data sets, backbones, ... that are asked for
_Texts = Annotated[list[str], Field(max_length=_MOST)]
_Plain = bool | int | float | str

#: options that change no number
_HOW = (
    "config", "executor", "ray_address", "cpus_per_job", "gpus_per_job", "seeds_per_job", "workers", "device",
    "data_dir", "out", "plan", "json", "on_existing", "timeout", "retries", "trust",
    "wandb", "wandb_project", "wandb_entity", "wandb_tags",
)  # fmt: skip


class _Asked(TypedDict, total=False):
    """What ``save_options`` writes, by whatever version."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]
    preset: Required[str]
    protocol: str
    datasets: _Texts
    backbones: _Texts
    methods: _Texts
    seeds: Annotated[list[int | str], Field(max_length=MOST_SEEDS)]
    cvat_weights: Annotated[list[float], Field(max_length=_MOST)]
    selection: str
    override: dict[str, _Plain | Annotated[list[_Plain], Field(max_length=_MOST)] | None]


_ASKED = TypeAdapter(_Asked)


def make_parser() -> ArgumentParser:
    """The options; see ``--help``."""
    about = "Run a grid of cells and write their records and tables. Also: status DIR, sync DIR (to W&B), verify DIR, "
    about += "and merge DIR DIR ... --out DIR."
    parser = ArgumentParser(
        prog="python -m benchmarks.sweep", description=about, exit_on_error=False, allow_abbrev=False
    )
    presets = "; ".join(f"{name}: {preset.about}" for name, preset in PRESETS.items())
    parser.add_argument("--config", action="config", help="read options from a YAML file, such as --print_config wrote")
    parser.add_argument(
        "--trust", type=str, nargs="+", default=[], help="packages that class paths of a --config file may name"
    )
    parser.add_argument("--preset", type=str, default="paper", help=f"what to run: {presets}")
    protocols = f"{', '.join(PROTOCOLS)}; by default the preset's"
    parser.add_argument("--protocol", type=str | None, default=None, help=protocols)
    parser.add_argument("--datasets", type=str, nargs="+", default=None, help="such as D1 D1@o=2 scene")
    parser.add_argument("--backbones", type=str, nargs="+", default=None, help="names, or class paths")
    parser.add_argument(
        "--methods", type=str, nargs="+", default=None, help=f"{', '.join(METHODS)}, or a student's class path"
    )
    parser.add_argument("--seeds", type=int | str, nargs="+", default=None, help="such as 0..4, or 0 1 7")
    parser.add_argument("--cvat-weights", type=float, nargs="+", default=None, help="CVAT weights tried")
    parser.add_argument(
        "--selection", type=str | None, default=None, help=f"chooses the weights: {', '.join(known_rules())}"
    )
    parser.add_argument(
        "--workers",
        type=int | None,
        default=None,
        help="jobs at a time; by default one a core, or one on a GPU; on a Ray cluster as many as it has room for",
    )
    parser.add_argument(
        "--executor", type=Literal["local", "ray"], default="local", help="where jobs run: this machine, or Ray"
    )
    parser.add_argument(
        "--ray-address",
        type=str | None,
        default=None,
        help="auto, or a cluster's HOST:PORT; else Ray starts here",
    )
    parser.add_argument("--cpus-per-job", type=float | None, default=None, help="with Ray; also its threads (1)")
    parser.add_argument("--gpus-per-job", type=float | None, default=None, help="with Ray; 0.25: four jobs a GPU (0)")
    parser.add_argument(
        "--seeds-per-job", type=int | None, default=None, help="cut jobs into parts of so many seeds; by default none"
    )
    parser.add_argument("--device", type=Literal["auto", "cpu", "cuda"], default="auto", help="where to train")
    parser.add_argument("--data-dir", type=str | None, default=None, help="folder with the files of Scene and Yeast")
    parser.add_argument(
        "--out",
        type=str | None,
        default=None,
        help="a folder, or an address such as s3://bucket/run; by default results/runs/PRESET-PROTOCOL",
    )
    parser.add_argument("--plan", action="store_true", help="show what would run, and run nothing")
    parser.add_argument("--json", action="store_true", help="with --plan: as a JSON array, one object a cell")
    parser.add_argument(
        "--on-existing",
        type=Literal["skip", "retry-failed", "force"],
        default="retry-failed",
        help="cells that have a record: leave all, run the failed ones again, or run all again",
    )
    parser.add_argument(
        "--timeout", type=float | None, default=None, help="seconds that a job may take; by default any"
    )
    parser.add_argument("--retries", type=int, default=0, help="times that a job that failed is tried again, at most")
    parser.add_argument(
        "--wandb",
        type=Literal["online", "offline", "disabled"] | None,
        default=None,
        help="Weights & Biases; by default online where it finds a key, else offline",
    )
    parser.add_argument(
        "--wandb-project",
        type=str | None,
        default=None,
        help="W&B project; by default WANDB_PROJECT, else cst-lightning",
    )
    parser.add_argument("--wandb-entity", type=str | None, default=None, help="W&B user or team; by default the key's")
    parser.add_argument("--wandb-tags", type=str, nargs="+", default=None, help="tags of every W&B run")
    overrides = ArgumentParser()
    for name, hint in get_type_hints(Protocol).items():
        if name in _OWN_OPTIONS:
            continue
        if get_origin(hint) is tuple:
            overrides.add_argument(f"--{name}", type=get_args(hint)[0], default=SUPPRESS, nargs="+")
        else:
            overrides.add_argument(f"--{name}", type=hint, default=SUPPRESS)
    parser.add_argument("--override", action=ActionParser(parser=overrides), help="protocol fields to replace")
    return parser


def known_options() -> list[str]:
    """Their names as they are typed, without the dashes before them."""
    own = [name.replace("_", "-") for name in vars(make_parser().get_defaults())]
    return own + [f"override.{name}" for name in get_type_hints(Protocol) if name not in _OWN_OPTIONS]


def jobs_of(options: Namespace) -> list[Job]:
    """All jobs that the options ask for, checked."""
    return make_jobs(
        options.preset,
        protocol=options.protocol,
        overrides=overrides_of(options),
        datasets=options.datasets,
        backbone_names=options.backbones,
        methods=options.methods,
        seeds=options.seeds,
    )


def check_trust(options: Namespace, typed: Sequence[str]) -> None:
    """Refuse a class path that nobody typed, so that a configuration file of unknown origin has no code imported.

    Allowed are class paths that stand in ``typed`` (arguments of a command line), those of packages after its
    ``--trust``, and those whose module is loaded already: importing it again runs nothing.
    """
    named = [argument for before, argument in pairwise(["", *typed]) if "--config" not in (before, argument[:8])]
    words = {word for argument in named for word in re.split("[=@]", argument)}
    for package in options.trust:
        if package not in words:
            raise InputError(f"trust={package}: packages are trusted on the command line, not in a file")
    rule = overrides_of(options).get("selection", "")
    for text in [*(options.datasets or ()), *(options.backbones or ()), *(options.methods or ()), rule]:
        path = text.partition("@")[0]
        module, dot, _ = path.rpartition(".")
        if dot and path not in words and module not in sys.modules and module.partition(".")[0] not in options.trust:
            raise InputError(
                f"{path} comes from a file, and importing it runs its code: add --trust {module.partition('.')[0]} if "
                "you trust that package"
            )


def overrides_of(options: Namespace) -> dict[str, Any]:
    """Protocol fields that were given, by ``--override`` or an option of their own."""
    override = options.override if "override" in options else None
    if override is not None and not isinstance(override, Namespace):
        raise InputError(f"override={override!r}: allowed are protocol fields, such as override.hidden")
    given = dict(vars(override)) if override is not None else {}
    own = {"cvat_weights": options.cvat_weights, "selection": options.selection}
    return given | {name: value for name, value in own.items() if value is not None}


def save_options(options: Namespace, folder: Path) -> None:
    """``sweeps/PRESET.json``: what was asked for, as ``--config`` reads it; where and how it ran is left out."""
    given = options.clone().as_dict()
    asked = {name: value for name, value in given.items() if name not in _HOW and value is not None}
    write_text(folder / "sweeps" / f"{options.preset}.json", json.dumps(asked, indent=1) + "\n")


def saved_jobs(folder: Path, trust: Sequence[str] = ()) -> tuple[list[Job], list[str]]:
    """The jobs of every command that wrote into ``folder`` (the last one of each preset), and what cannot be read.

    Args:
        trust: packages whose class paths may be imported.
    """
    jobs, problems = list[Job](), []
    for preset in PRESETS:
        path = folder / "sweeps" / f"{preset}.json"
        if not path.exists() and not path.is_symlink():
            continue
        if path.is_symlink():  # what it leads to could stand in the report
            problems.append(f"`{path.name}` is a link, which is not followed")
            continue
        try:
            # JSON of a known shape alone: YAML can grow without bound, and an option that is a path has it read
            asked = _ASKED.validate_json(read_plain(path, _LARGEST_ASKED), strict=True)
        except (OSError, ValueError):
            problems.append(f"`{path.name}` is none that a sweep wrote")
            continue
        try:
            options = make_parser().parse_object({**asked, "trust": list(trust)})
            check_trust(options, trust)
            jobs += jobs_of(options)
        except (ArgumentError, InputError) as error:  # of another version, or with parts not here
            why = printable(" ".join(str(error).split())[:_LONGEST_WHY])
            how = ", to `python -m benchmarks.report`" if "--trust" in why else ""
            problems.append(
                f"`{path.name}` asks for what is not known here, and cells of it that were not run are not listed: "
                f"{why}{how}"
            )
    return jobs, problems
