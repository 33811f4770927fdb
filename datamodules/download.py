"""Scene and Yeast: where they come from, and how they are checked and cached."""

from __future__ import annotations

import bz2
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import numpy as np
import pooch
from numpy.typing import NDArray
from sklearn.datasets import fetch_openml

from cst_lightning.errors import InputError
from datamodules.files import read_libsvm

_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multilabel/"
_TIMEOUT_S = 20
# no published value lies on a line of this grid, so that rounding to six decimals moves none across one
_GRID_STEP, _GRID_FIRST = 0.002, 0.0005625
DATA_DIR_VARIABLE = "CST_DATA_DIR"


@dataclass(frozen=True)
class Source:
    """A published multi-label set: LIBSVM's training and test file, and OpenML's merged copy."""

    title: str
    files: tuple[tuple[str, str, str], ...]  # name, sha256 of the file, sha256 of the text in it
    n_features: int
    n_labels: int
    openml_id: int
    openml_test_first: int  # rows of the test file that OpenML's copy begins with
    labels_sha256: str  # of the labels of all rows, uint8, training rows first
    features_sha256: str  # of the grid's cells that the features of all rows lie in, int32, training rows first


SCENE = Source(
    title="Scene",
    files=(
        (
            "scene_train.bz2",
            "98598c90c08e33fcc2f0604180dc97cdd2f4f42610d0067a2a30905332400510",
            "fdb733d7776dfb7cb78f0f8680affd88b6deeb28e3311e48854ca54bb314d42a",
        ),
        (
            "scene_test.bz2",
            "4c2547d554d1a5cde5fd5e6216b385e2d6760f9b325db359603da7343d047a37",
            "f6193c55e155fd1e67698568483cf0777ada0479bd223e09e06ca728485a55ce",
        ),
    ),
    n_features=294,
    n_labels=6,
    openml_id=40595,
    openml_test_first=0,
    labels_sha256="d68b5b15241527b83ab7ab0ae15e2791b3655305fec990139c614f337c8f0eaf",
    features_sha256="bee0d5719e28333c7775bec7c8197bbcc9188787e0f8c80fd73319e0da7a9ddc",
)

YEAST = Source(
    title="Yeast",
    files=(
        (
            "yeast_train.svm.bz2",
            "090471762c9c2d95864b28d21a5fe08e08e60e2b708efa45541f98246914a9a6",
            "02eb850fe13082d95f160c1b63befd8fd71535181e2a4cbe97d74060b9090646",
        ),
        (
            "yeast_test.svm.bz2",
            "d8771420d7c041829b6f8362d3af6ed5a11e9e922e319854bd1cd4999f05e7f0",
            "56e388892b4f06e25b26e60493b55ae0605d01b48bb5b546c4d72d37d1600e24",
        ),
    ),
    n_features=103,
    n_labels=14,
    openml_id=40597,
    openml_test_first=917,
    labels_sha256="50373e1f232d66205fbd6383b01562e5c09b4bf1fe7a61179fd3d6e7edafbd37",
    features_sha256="536de8a91ef53507857b39395aa1eb675ecb53a40c260a2866c47b1a32b3444f",
)


def load_source(source: Source, data_dir: str | Path | None = None) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Features ``[N, d]`` and labels ``[N, K]``, training file first.

    Files come from ``data_dir``, else the folder that ``CST_DATA_DIR`` names, else the user's cache,
    which they are downloaded to once, checked and put in place whole.

    Raises:
        InputError: a file is missing or not the published one, or cannot be had.
    """
    folder = data_dir or os.environ.get(DATA_DIR_VARIABLE)
    if folder:
        paths = [_from_folder(Path(folder), source, name, sha256, text) for name, sha256, text in source.files]
        return _read(paths, source)
    try:
        paths = [
            Path(
                pooch.retrieve(
                    _LIBSVM + name,
                    known_hash=f"sha256:{sha256}",
                    fname=name,
                    path=pooch.os_cache("cst-lightning"),
                    downloader=pooch.HTTPDownloader(timeout=_TIMEOUT_S, hooks={"response": _https_only}),
                )
            )
            for name, sha256, _ in source.files
        ]
        return _read(paths, source)
    except (OSError, ValueError) as libsvm_error:  # no network, a server's error, or a wrong checksum
        try:
            return _from_openml(source)
        except Exception as openml_error:  # fetch_openml raises whatever its network library or parser does
            names = " and ".join(name for name, *_ in source.files)
            raise InputError(
                f"{source.title} could not be downloaded: {names} from {_LIBSVM} ({_first_line(libsvm_error)}), "
                f"nor OpenML data set {source.openml_id} ({_first_line(openml_error)}). Put the two files into a "
                f"folder and name it with --data-dir FOLDER or {DATA_DIR_VARIABLE}"
            ) from libsvm_error


def _https_only(response: Any, **options: Any) -> None:
    """Refuse an answer that came, or sends on, without encryption."""
    for address in (response.url, urljoin(response.url, response.headers.get("Location", ""))):
        if not address.startswith("https://"):
            raise OSError(f"{address} is not https")


def _from_folder(folder: Path, source: Source, name: str, sha256: str, text_sha256: str) -> Path:
    path = folder / name
    if not path.is_file():
        raise InputError(
            f"{source.title}: {path} is missing; it is published at {_LIBSVM}{name} "
            f"(the folder was named by --data-dir or {DATA_DIR_VARIABLE})"
        )
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != sha256 and not _same_text(path, text_sha256):
        raise InputError(
            f"{source.title}: {path} is not the published file (sha256 {found[:12]}..., published {sha256[:12]}...); "
            f"fetch it again from {_LIBSVM}{name}"
        )
    return path


def _same_text(path: Path, sha256: str) -> bool:
    """Whether a recompressed copy holds the published text."""
    try:
        return hashlib.sha256(bz2.decompress(path.read_bytes())).hexdigest() == sha256
    except (OSError, ValueError):
        return False


def _read(paths: list[Path], source: Source) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    parts = [read_libsvm(path, n_features=source.n_features, n_labels=source.n_labels) for path in paths]
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


def _from_openml(source: Source) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """OpenML's copy in LIBSVM's order, checked against pinned checksums.

    Its features of Scene are rounded to six decimals: the checksum is of the cells of a grid that they lie in.
    """
    x, y = fetch_openml(data_id=source.openml_id, return_X_y=True, as_frame=True, parser="auto", n_retries=1, delay=1)
    features = x.to_numpy(dtype=np.float64)
    labels = (y.astype(str).apply(lambda column: column.str.strip().str.upper()) == "TRUE").to_numpy().astype(np.int64)
    order = np.roll(np.arange(len(features)), -source.openml_test_first)
    features, labels = features[order], labels[order]
    if hashlib.sha256(labels.astype(np.uint8).tobytes()).hexdigest() != source.labels_sha256:
        raise ValueError("its labels are not the published ones")
    cells = np.floor((features - _GRID_FIRST) / _GRID_STEP).astype("<i4")
    if hashlib.sha256(cells.tobytes()).hexdigest() != source.features_sha256:
        raise ValueError("its features are not the published ones")
    return features, labels


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:160]
