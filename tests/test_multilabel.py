import bz2
import hashlib

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import make_multilabel_classification

from cst_lightning import InputError
from datamodules import download
from datamodules.download import SCENE, YEAST, load_source
from datamodules.moons import MoonsDataModule
from datamodules.multilabel import (
    SceneDataModule,
    SyntheticMultiLabelDataModule,
    YeastDataModule,
    bandit_feedback,
)


@pytest.fixture(scope="module")
def labelled():
    return make_multilabel_classification(n_samples=300, n_features=8, n_classes=5, random_state=3)


def test_a_log_shows_the_label_of_the_action(labelled):
    x, y = labelled
    log = bandit_feedback(x, y, n_trees=5)
    assert np.array_equal(log.outcome, y[np.arange(len(y)), log.action])
    assert np.allclose(log.propensity.sum(1), 1)
    assert log.propensity.min() > 0


def test_the_policy_learns_and_its_share_and_temperature_matter(labelled):
    x, y = labelled
    means = [bandit_feedback(x, y, logging_fraction=f, n_trees=20).outcome.mean() for f in (0.05, 1.0)]
    assert means[1] > means[0]
    flat = bandit_feedback(x, y, temperature=0.0, n_trees=5)
    assert np.allclose(flat.propensity, 1 / 5)
    same, other = (bandit_feedback(x, y, seed=seed, n_trees=5).action for seed in (0, 1))
    assert np.array_equal(same, bandit_feedback(x, y, n_trees=5).action)
    assert not np.array_equal(same, other)


def test_a_label_that_the_policys_rows_lack_is_possible(labelled):
    x, y = labelled
    y = y.copy()
    y[:, 2], y[:, 3] = 0, 1
    log = bandit_feedback(x, y, n_trees=5)
    assert np.allclose(log.propensity[:, 3] / log.propensity[:, 2], np.exp(3))


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.zeros((3, 2)), np.zeros((2, 2)), "the same N"),
        (np.zeros((2, 2)), np.array([[0, 1], [2, 0]]), "y is 2 in row 1 .from 0., label 0"),
        (np.zeros((0, 2)), np.zeros((0, 2)), "allowed"),
    ],
)
def test_arrays_that_do_not_fit_are_named(x, y, message):
    with pytest.raises(InputError, match=message):
        bandit_feedback(x, y)


def test_sizes_are_the_papers(published_files):
    for module, sizes in ((SceneDataModule, (1203, 704, 294, 6)), (YeastDataModule, (1208, 709, 103, 14))):
        data = module([0], data_dir=published_files)
        found = (data.train.n_rows, data.test.x.shape[1], data.shape.n_features, data.shape.n_actions)
        assert found == sizes
        assert data.oracle_validation.x.shape[1] == 500


@pytest.mark.parametrize(
    ("source", "digest"),
    [
        (SCENE, "f8f944c006013b33f2b19a0ba3f768ae98d079de2ecf4ffc2ea49c71830d9047"),
        (YEAST, "51a8f4c1c71cf703806ff6f12cec39cf5de09853dbc6c56b8907c0603ffa2283"),
    ],
)
def test_published_files_are_read_to_the_last_bit(published_files, source, digest):
    x, y = load_source(source, published_files)
    assert hashlib.sha256(x.tobytes() + y.astype(np.uint8).tobytes()).hexdigest() == digest
    assert hashlib.sha256(y.astype(np.uint8).tobytes()).hexdigest() == source.labels_sha256


def test_a_recompressed_copy_is_accepted(published_files, tmp_path):
    for name, *_ in YEAST.files:
        (tmp_path / name).write_bytes(bz2.compress(bz2.decompress((published_files / name).read_bytes()), 1))
    assert load_source(YEAST, tmp_path)[0].shape == (2417, 103)


def test_a_missing_or_damaged_file_is_named_with_its_address(tmp_path):
    with pytest.raises(InputError, match=r"scene_train\.bz2 is missing; it is published at https"):
        load_source(SCENE, tmp_path)
    for content in (b"", b"no bz2", bz2.compress(b"0 1:1\n")):
        (tmp_path / "scene_train.bz2").write_bytes(content)
        with pytest.raises(InputError, match=r"scene_train\.bz2 is not the published file"):
            load_source(SCENE, tmp_path)


@pytest.fixture
def offline(monkeypatch, tmp_path):
    monkeypatch.delenv("CST_DATA_DIR", raising=False)
    monkeypatch.setattr(download.pooch, "os_cache", lambda name: tmp_path)

    def refuse(*args, **kwargs):
        raise OSError("no route to host\nsecond line")

    monkeypatch.setattr(download.pooch, "retrieve", refuse)
    return monkeypatch, refuse


def test_without_network_and_files_the_error_says_what_to_do(offline):
    monkeypatch, refuse = offline
    monkeypatch.setattr(download, "fetch_openml", refuse)
    with pytest.raises(InputError) as error:
        load_source(YEAST)
    for part in ("yeast_train.svm.bz2", "OpenML data set 40597", "no route to host", "--data-dir", "CST_DATA_DIR"):
        assert part in str(error.value)
    assert "\n" not in str(error.value)


def on_openml(x, y, test_first):
    """What fetches these rows as OpenML has them."""
    order = np.roll(np.arange(len(x)), test_first)

    def fetch(*, data_id, **kwargs):
        labels = pd.DataFrame(np.where(y[order] == 1, "TRUE", "FALSE")).astype("category")
        return pd.DataFrame(x[order]), labels

    return fetch


@pytest.mark.parametrize("round_half", [np.floor, np.ceil, np.round])
@pytest.mark.parametrize(("source", "test_first"), [(YEAST, 917), (SCENE, 0)])
def test_openml_is_the_second_source_in_libsvms_order(source, test_first, round_half, offline, published_files):
    x, y = load_source(source, published_files)
    half = {np.floor: 0.5, np.ceil: -0.5, np.round: 0.0}[round_half]
    rounded = round_half(x * 1e6 + half) / 1e6  # as Scene is there, halves up or down
    offline[0].setattr(download, "fetch_openml", on_openml(rounded, y, test_first))
    found = load_source(source)
    assert np.array_equal(found[0], rounded)
    assert np.array_equal(found[1], y)


def test_other_content_on_openml_is_refused(offline, published_files):
    x, y = load_source(YEAST, published_files)
    other_x, other_y = x.copy(), y.copy()
    other_x[100, 7] += 0.002
    other_y[100, 7] ^= 1
    for content, what in (((other_x, y), "features"), ((x, other_y), "labels"), ((x[:, ::-1], y), "features")):
        offline[0].setattr(download, "fetch_openml", on_openml(*content, 917))
        with pytest.raises(InputError, match=f"its {what} are not the published ones"):
            load_source(YEAST)
    offline[0].setattr(download, "fetch_openml", on_openml(x[:, :9], y, 917))
    with pytest.raises(InputError, match="its features are not"):
        load_source(YEAST)


def test_files_of_a_named_folder_win_over_a_download(offline, published_files):
    offline[0].setenv("CST_DATA_DIR", str(published_files))
    assert load_source(YEAST)[0].shape == (2417, 103)


def test_synthetic_set_needs_no_files():
    data = SyntheticMultiLabelDataModule([0, 1])
    assert data.train.n_rows == 200
    assert not torch.equal(data.train.action[0], data.train.action[1])


def test_moons_are_opposite_and_their_policy_biased():
    data = MoonsDataModule(range(20))
    outcomes = data.test.outcomes
    assert torch.equal(outcomes[..., 0], 1 - outcomes[..., 1])
    x0 = data.train.x[..., 0]
    expected = torch.exp(-(x0 - x0.amin(1, keepdim=True)))
    assert torch.allclose(data.train_outcomes.propensity[..., 1].float(), expected, atol=1e-6)
    left, right = x0 < 0, x0 > 1
    taken = data.train.action.float()
    assert taken[left].mean() > 2 * taken[right].mean()
    assert data.train.n_rows == 50
