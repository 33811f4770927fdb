"""A log file as a data module: in memory and streamed, split in three ways."""

import numpy as np
import pandas as pd
import pytest
import pytorch_lightning as pl
import torch

from cst_lightning import CounterfactualClassifier, DirectMethod, InputError, SelfTraining, UniformDM, fit, self_train
from cst_lightning.backbones.constant import Constant
from cst_lightning.labels import pseudo_labels, with_factual
from datamodules.logged import LoggedDataModule
from tests.conftest import tiny_protocol

N = 200


def frame(n=N):
    rng = np.random.default_rng(0)
    age, town = rng.normal(40, 9, n), rng.choice(["Bern", "Chur", "Zug"], n)
    price = rng.choice([9.9, 14.9, 19.9], n)
    bought = np.where(rng.random(n) < 0.8 - price / 30, "yes", "no")
    customer = [f"c{i // 4}" for i in range(n)]
    columns = {"age": age, "town": town, "price": price, "bought": bought, "customer": customer, "day": np.arange(n)}
    return pd.DataFrame(columns)


@pytest.fixture
def path(tmp_path):
    frame().to_parquet(tmp_path / "log.parquet")
    return tmp_path / "log.parquet"


def module(path, **changes):
    return LoggedDataModule(path, "price", "bought", **({"features": ["age", "town", "day"]} | changes))


def rows(feedback, data):
    """Which rows of the file these are, by the feature ``day``."""
    kind = data.encoder.columns["day"]
    return (feedback.x[0, :, -1].double() * kind.scale + kind.mean).round().long().tolist()


def chunks(data, n=None):
    loader = data.train_dataloader()
    return [next(iter(loader)) for _ in range(n or data.n_chunks)]


def test_labels_features_and_split_of_a_file(path):
    data = module(path)
    assert data.shape.n_features == 1 + 3 + 1
    assert data.actions.values == (9.9, 14.9, 19.9)
    assert data.outcomes.values == ("no", "yes")
    assert (data.train.n_rows, data.validation.n_rows) == (160, 40)
    train, held_out = rows(data.train, data), rows(data.validation, data)
    assert sorted(train + held_out) == list(range(N))
    log = frame()
    for feedback, which in ((data.train, train), (data.validation, held_out)):
        assert [data.actions.values[i] for i in feedback.action[0]] == log["price"][which].tolist()
        assert [data.outcomes.values[i] for i in feedback.outcome[0]] == log["bought"][which].tolist()
    assert abs(float(data.train.x[..., 0].mean())) < 1e-5  # standardised by the rows to train on
    assert rows(module(path).train, data) == train
    assert rows(module(path, seed=1).train, data) != train
    assert data.description.set_index("column").loc["town", "role"] == "feature"


def test_a_split_by_group_and_by_time(path):
    data = module(path, split="group", group="customer")
    customer = frame()["customer"]
    train, held_out = set(customer[rows(data.train, data)]), set(customer[rows(data.validation, data)])
    assert not train & held_out
    assert len(held_out) == 10
    shuffled = frame().sample(frac=1, random_state=0)
    shuffled.to_parquet(path)
    data = LoggedDataModule(path, "price", "bought", split="time", time="day", categorical=["customer"], holdout=0.1)
    assert data.validation.n_rows == 20
    ages = data.encoder.columns["age"]
    found = sorted((data.validation.x[0, :, 0].double() * ages.scale + ages.mean).round(decimals=3).tolist())
    assert found == pytest.approx(sorted(frame()["age"][-20:]), abs=1e-2)


def dated(path, texts, **changes):
    """The rows held out of a shuffled log whose column ``when`` has the text of row ``i`` of ``texts``, by ``day``."""
    log = frame().assign(when=texts).sample(frac=1, random_state=0)
    if changes.get("chunk_rows"):
        log = log.sort_index()
    log.to_parquet(path)
    data = module(path, split="time", time="when", holdout=0.1, **changes)
    return sorted(rows(data.validation, data))


DAYS = pd.date_range("2023-09-01", periods=N)


@pytest.mark.parametrize("chunk_rows", [None, 70])
@pytest.mark.parametrize(
    "texts",
    [
        DAYS,
        DAYS - DAYS[0],
        DAYS.strftime("%Y-%m-%d"),
        DAYS.strftime("%Y-%m-%dT%H:%M:%SZ"),
        DAYS.strftime("%Y-%m-%d").astype("category"),
        pd.Categorical(range(N), categories=range(N)[::-1]),
        np.arange(N) - 100,
    ],
)
def test_the_last_rows_in_time_are_held_out(path, texts, chunk_rows):
    assert dated(path, texts, chunk_rows=chunk_rows) == list(range(180, N))


@pytest.mark.parametrize("chunk_rows", [None, 70])
@pytest.mark.parametrize(
    "texts",
    [
        *(
            DAYS.strftime(form)
            for form in ("%d.%m.%Y", "%m/%d/%Y", "%d %b %Y", "%d/%m/%y", "%b %Y", "%H:%M", "%Y/%m/%d")
        ),
        [f"{day.day}.{day.month}.{day.year}" for day in DAYS],
        [f"week {i // 7}" for i in range(N)],
        [str(i) for i in range(N)],
    ],
)
def test_text_that_would_sort_by_its_letters_is_no_time(path, texts, chunk_rows):
    with pytest.raises(InputError, match=r"log\.parquet: column 'when' \(time\) holds '.*write dates as 2024-01-31"):
        dated(path, texts, chunk_rows=chunk_rows)


def test_one_date_that_is_written_otherwise_is_named_by_its_row(tmp_path):
    log = frame().assign(when=DAYS.strftime("%Y-%m-%d"))
    log.loc[150, "when"] = "29.1.2024"
    log.to_csv(tmp_path / "log.csv", index=False)
    for chunk_rows in (None, 60):
        data = module(tmp_path / "log.csv", split="time", time="when", chunk_rows=chunk_rows)
        with pytest.raises(InputError, match=r"'when' \(time\) holds '29\.1\.2024' in data row 151, whose order"):
            data.setup()


@pytest.mark.parametrize("chunk_rows", [None, 70])
@pytest.mark.parametrize("role", ["group", "time"])
def test_a_misspelt_column_to_split_by_is_named_by_its_option(path, role, chunk_rows):
    with pytest.raises(InputError, match=rf"no column 'custmer' \({role}\): did you mean 'customer'"):
        module(path, split=role, chunk_rows=chunk_rows, **{role: "custmer"}).setup()


@pytest.mark.parametrize("chunk_rows", [None, 70])
def test_a_share_that_holds_out_no_row_is_an_error(path, chunk_rows):
    with pytest.raises(InputError, match="holdout=1e-09 of 200 rows holds out none: give a larger share, or 0"):
        module(path, holdout=1e-9, chunk_rows=chunk_rows).setup()


def test_any_backbone_trains_on_a_file_and_self_training_too(path):
    data = module(path)
    protocol = tiny_protocol("matched")
    for backbone in (DirectMethod, UniformDM):
        model = backbone(data.shape, [0, 1], protocol)
        fit(model, data)
        student = self_train(model, data, protocol=protocol)
        assert student(data.validation.x).shape == (2, 40, 3, 2)
        assert torch.isfinite(student.training_loss).all()


def test_no_rows_are_held_out_where_none_are_asked_for(path):
    data = module(path, holdout=0)
    assert data.validation is None
    assert data.train.n_rows == N
    assert data.val_dataloader() == []
    assert module(path, rows=100).train.n_rows == 80


def test_logged_propensities_reach_the_backbone(path):
    log = frame().assign(p1=0.2, p2=0.3, p3=0.5)
    log.to_parquet(path)
    data = module(path, propensity=["p1", "p2", "p3"])
    assert data.train.propensity[0, 0].tolist() == pytest.approx([0.2, 0.3, 0.5])
    log.rename(columns={"p1": "9.9", "p2": "14.9", "p3": "19.9"}).to_parquet(path)
    named = module(path, propensity=["19.9", "9.9", "14.9"])
    assert named.train.propensity[0, 0].tolist() == pytest.approx([0.2, 0.3, 0.5])
    log.to_parquet(path)
    of_taken = module(path, propensity="p1", features=["age"]).train
    assert of_taken.propensity.gather(-1, of_taken.action[..., None]).unique().tolist() == pytest.approx([0.2])


@pytest.mark.parametrize("split", [{}, {"split": "group", "group": "customer"}, {"split": "time", "time": "when"}])
def test_a_streamed_log_has_every_row_once_a_pass(path, split):
    frame().assign(when=pd.date_range("2024", periods=N)).to_parquet(path, row_group_size=30)
    data = module(path, chunk_rows=70, **split)
    assert data.shape.n_actions == 3
    held_out = rows(data.validation, data)
    assert 0 < len(held_out) <= 75
    for _ in range(2):
        parts = chunks(data)
        assert max(part.n_rows for part in parts) <= 70
        assert min(part.n_rows for part in parts) >= 25  # no chunk is a small rest
        assert sorted(held_out + [row for part in parts for row in rows(part, data)]) == list(range(N))
    if "time" in split:
        assert held_out == list(range(160, N))
    if "group" in split:
        customer = frame()["customer"]
        train = {row for part in parts for row in rows(part, data)}
        assert not set(customer[list(train)]) & set(customer[held_out])


def test_a_streamed_csv_gives_the_same_chunks_as_parquet(tmp_path, path):
    frame().to_csv(tmp_path / "log.csv", index=False)
    one, other = module(path, chunk_rows=70), module(tmp_path / "log.csv", chunk_rows=70)
    one.setup()
    other.setup()
    for mine, theirs in zip(chunks(one), chunks(other), strict=True):
        assert torch.allclose(mine.x, theirs.x, atol=1e-5)
        assert torch.equal(mine.action, theirs.action)
        assert torch.equal(mine.outcome, theirs.outcome)


@pytest.mark.parametrize("chunk_rows", [None, 70])
@pytest.mark.parametrize("name", ["n_rows", "n_chunks", "actions", "outcomes", "encoder", "description", "shape"])
def test_what_the_file_says_is_there_when_it_is_asked_for(path, name, chunk_rows):
    one, other = module(path, chunk_rows=chunk_rows), module(path, chunk_rows=chunk_rows)
    other.setup()
    assert repr(getattr(one, name)) == repr(getattr(other, name)) or name == "encoder"
    assert not hasattr(one, "nothing")
    with pytest.raises(InputError):
        getattr(module(path, features=["nowhere"], chunk_rows=chunk_rows), name)


def test_a_model_trains_on_a_stream_chunk_by_chunk(path):
    data = module(path, chunk_rows=70, holdout=0.1)
    model = DirectMethod(data.shape, [0, 1], tiny_protocol("matched"))
    seen = []
    model.new_epoch = lambda feedback, order, bounds: seen.append(sorted(rows(feedback, data)))
    fit(model, data, max_epochs=2 * data.n_chunks)
    assert len(seen) == 2 * data.n_chunks
    assert seen[: data.n_chunks] == seen[data.n_chunks :]
    assert len({tuple(part) for part in seen}) == data.n_chunks
    assert torch.isfinite(model.training_loss).all()


def test_what_needs_the_whole_log_says_so(path):
    data = module(path, chunk_rows=70)
    with pytest.raises(InputError, match="UniformDM needs the whole log before its first step"):
        fit(UniformDM(data.shape, [0], tiny_protocol("matched")), data)
    model = DirectMethod(data.shape, [0], tiny_protocol("matched"))
    with pytest.raises(InputError, match="not in memory"):
        self_train(model, data, on_round=lambda *_: None, fitter=None)  # before anything is trained
    with pytest.raises(InputError, match="needs the whole log"):
        fit(Constant(data.shape, [0], tiny_protocol("matched")), data)


def test_self_training_labels_every_chunk_by_its_own_rows(path):
    data = module(path, chunk_rows=70, holdout=0.1)
    protocol = tiny_protocol("matched", stopping="fixed")
    teacher = DirectMethod(data.shape, [0, 1], protocol)
    fit(teacher, data, max_epochs=data.n_chunks)
    student = SelfTraining(data.shape, [0, 1], protocol, [0.0, 0.5], stage=1)
    student.teach(teacher)
    seen = []

    def look(feedback, order, bounds):
        labels = pseudo_labels(teacher.logits(feedback.x), protocol.labels)
        seen.append(torch.equal(student._entries.target, with_factual(labels, feedback)))

    student.new_epoch = look
    fit(student, data, max_epochs=2 * data.n_chunks)
    assert seen == [True] * len(seen)
    assert len(seen) == 2 * data.n_chunks
    last = self_train(teacher, data, cvat_weights=[0.0, 0.5], rounds=2)
    assert last.stage == 2
    assert torch.isfinite(last.logits(data.validation.x)).all()


def test_a_streamed_udm_weighs_every_chunk_by_its_own_propensities(path):
    log = frame().assign(chance=np.linspace(0.1, 0.9, N))
    log.to_parquet(path)
    data = module(path, chunk_rows=70, holdout=0.1, propensity="chance")
    model = UniformDM(data.shape, [0], tiny_protocol("matched", stopping="fixed"))
    seen = []

    def look(feedback, order, bounds):
        wanted = 1 / log["chance"].to_numpy()[rows(feedback, data)]
        seen.append(np.allclose(model._weight[0], wanted, rtol=1e-5))

    model.new_epoch = look
    fit(model, data, max_epochs=data.n_chunks)
    assert seen == [True] * data.n_chunks


def test_every_fit_begins_with_the_first_chunk_and_a_resumed_one_where_it_was(path, tmp_path):
    data, begun = module(path, chunk_rows=70, holdout=0.1), []

    def train(epochs, **options):
        model = DirectMethod(data.shape, [0], tiny_protocol("matched", stopping="fixed"))
        seen = []
        model.new_epoch = lambda feedback, order, bounds: seen.append(rows(feedback, data))
        saver = pl.callbacks.ModelCheckpoint(tmp_path, filename="{epoch}", every_n_epochs=1, save_top_k=-1)
        trainer = pl.Trainer(
            max_epochs=epochs, accelerator="cpu", callbacks=[saver], logger=False, enable_progress_bar=False
        )
        trainer.fit(model, data, **options)
        begun.append(seen)
        return model

    whole = train(4)
    train(2)
    resumed = train(4, ckpt_path=tmp_path / "epoch=1.ckpt")
    assert begun[1] == begun[0][:2]
    assert begun[2] == begun[0][2:]
    for one, other in zip(whole.network.parameters(), resumed.network.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("holdout", [0.0, 0.2])
def test_chunks_smaller_than_a_batch_are_told_before_training(path, monkeypatch, holdout):
    data = module(path, chunk_rows=70, holdout=holdout)
    data.setup()
    fewest = min(part.n_rows for part in chunks(data))
    protocol = tiny_protocol("matched", stopping="fixed")
    model = DirectMethod(data.shape, [0], protocol.replace(batch_size=fewest + 1))
    model.training_step = lambda *_: pytest.fail("trained")
    message = f"chunk_rows=70: a chunk has {fewest} rows to train on, fewer than batch_size={fewest + 1}: give a larger"
    with pytest.raises(InputError, match=message):
        fit(model, data)
    unread = module(path, chunk_rows=fewest, holdout=holdout)
    monkeypatch.setattr(unread, "setup", lambda stage=None: None if stage else pytest.fail("read"))
    with pytest.raises(InputError, match=f"chunk_rows={fewest}: a chunk has {fewest} rows"):
        fit(model, unread)
    enough = DirectMethod(data.shape, [0], protocol.replace(batch_size=fewest))
    fit(enough, data, max_epochs=data.n_chunks)


def test_a_stream_that_nothing_checked_is_refused_by_what_needs_the_whole_log(path):
    data = module(path, chunk_rows=70, holdout=0.1)
    loader, model = data.train_dataloader(), UniformDM(data.shape, [0], tiny_protocol("matched", stopping="fixed"))
    trainer = pl.Trainer(max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False)
    with pytest.raises(InputError, match="UniformDM needs the whole log"):
        trainer.fit(model, loader)


def test_a_stream_of_one_chunk_trains_as_in_memory(path):
    frame().assign(chance=1 / 3).to_parquet(path)
    streamed, whole = (module(path, chunk_rows=n, holdout=0.0, propensity="chance") for n in (1000, None))
    protocol = tiny_protocol("matched", stopping="fixed", shuffle=False, max_epochs_udm=3, max_epochs_cst=(3,))
    made = []
    for data in (streamed, whole):
        model = UniformDM(data.shape, [0], protocol)
        fit(model, data)
        made.append(self_train(model, data, cvat_weights=[0.5], rounds=1).logits(whole.train.x))
    assert torch.equal(*made)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"holdout": 1}, "holdout=1"),
        ({"split": "rows"}, "split='rows': allowed are row, group and time"),
        ({"split": "group"}, "split='group' needs group=, the column to split by"),
        ({"time": "day"}, "split='row' goes without time='day': allowed are split='time' with time=COLUMN, or neither"),
        ({"chunk_rows": 5}, "chunk_rows=5"),
        ({"chunk_rows": 50, "rows": 100}, "without rows"),
    ],
)
def test_options_that_do_not_go_together(path, changes, message):
    with pytest.raises(InputError, match=message):
        module(path, **changes)


def test_text_is_categories_by_the_whole_file_not_by_the_rows_to_train_on(path):
    frame().assign(code=["10", "11"] * 80 + ["01"] * 40).to_parquet(path)
    data = module(path, features=["age", "code"], split="time", time="day")
    assert data.shape.n_features == 1 + 2


@pytest.mark.parametrize("chunk_rows", [None, 70])
def test_a_column_to_split_by_can_be_read_as_it_is_written(tmp_path, chunk_rows):
    frame().assign(shop=[f"{i // 10:02d}" for i in range(N)], id="01").to_csv(tmp_path / "log.csv", index=False)
    options = {"split": "group", "group": "shop", "kept": ["id"], "categorical": ["shop", "id", "town"]}
    data = module(tmp_path / "log.csv", chunk_rows=chunk_rows, **options)
    assert data.shape.n_features == 1 + 3 + 1
    assert data.validation.n_rows % 10 == 0


def test_what_is_wrong_in_a_streamed_file_is_named_by_its_row(path):
    log = frame()
    log.loc[150, "age"] = np.inf
    log.to_parquet(path)
    with pytest.raises(InputError, match=r"log\.parquet: column 'age' is infinite in data row 151"):
        module(path, chunk_rows=60).setup()
    log = frame().astype({"price": object})
    log.loc[170, "price"] = None
    log.to_parquet(path)
    with pytest.raises(InputError, match="action 'price' is missing in data row 171"):
        module(path, chunk_rows=60).setup()
    frame()[::-1].to_parquet(path)
    with pytest.raises(InputError, match="column 'day' does not grow: sort the file"):
        module(path, chunk_rows=60, features=["age"], split="time", time="day").setup()
    frame()[:10].to_parquet(path)
    with pytest.raises(InputError, match="10 rows: a log needs at least 20"):
        module(path, chunk_rows=60).setup()


@pytest.mark.parametrize("chunk_rows", [None, 60])
def test_actions_with_too_little_to_learn_from_are_warned_of(path, chunk_rows):
    log = frame()
    log.loc[log["price"] == 19.9, "bought"] = "no"
    log.loc[[3, 5], "price"] = 99.0
    log["bought"] = log["bought"].where(log.index != 5)  # an outcome that was not observed is not counted
    log.to_parquet(path)
    where = "comes from other actions, or rests on these alone where each has a model of its own; leave it out"
    with pytest.warns(UserWarning, match=rf"action 99\.0 has 1 observed outcomes: .* {where}") as told:
        module(path, chunk_rows=chunk_rows, features=["age"], seed=1).setup()
    said = [str(warning.message) for warning in told]
    assert [text for text in said if "'no'" in text] == [
        "action 19.9 was only ever seen with outcome 'no': it will most likely be predicted so, or like other actions "
        "where all share one model; log it more"
    ]
    assert len(said) == 2


@pytest.mark.parametrize("chunk_rows", [None, 60])
def test_a_single_action_is_warned_of(path, chunk_rows):
    frame().assign(price=9.9).to_parquet(path)
    with pytest.warns(UserWarning, match=r"action is 9\.9 in every row: nothing can be said of another one"):
        module(path, chunk_rows=chunk_rows).setup()


@pytest.mark.parametrize("chunk_rows", [None, 60])
@pytest.mark.parametrize(("role", "name"), [("action", "price"), ("outcome", "bought")])
def test_labels_that_hardly_come_twice_are_told_as_by_the_estimator(path, role, name, chunk_rows):
    settings = {"features": ["age"], "holdout": 0, "chunk_rows": chunk_rows}
    frame().assign(**{name: np.arange(N) / 7}).to_parquet(path)
    said = f"log.parquet: Unknown label type: {role} holds 200 different numbers in 200 rows, so it is continuous or"
    with pytest.raises(InputError, match=said):
        module(path, **settings).setup()
    frame().assign(**{name: [f"c{row}" for row in range(N)]}).to_parquet(path)
    with pytest.warns(UserWarning, match=f"{role} holds 200 different texts in 200 rows: each is a class of its own"):
        module(path, **settings).setup()


@pytest.mark.parametrize("chunk_rows", [None, 60])
def test_only_rows_with_an_outcome_say_whether_it_is_continuous(path, chunk_rows):
    log = frame()
    log["bought"] = pd.Series(np.arange(N) / 7).where(log.index < 60)
    log.to_parquet(path)
    with pytest.raises(InputError, match="outcome holds 60 different numbers in 60 rows"):
        module(path, chunk_rows=chunk_rows).setup()
    with pytest.raises(InputError, match="outcome holds 60 different numbers in 60 rows"):
        CounterfactualClassifier().fit(log[["age"]], log["price"], log["bought"])
    log["bought"] = pd.Series(np.arange(N) % 2 / 1.0).where(log.index < 3)
    log.to_parquet(path)
    with pytest.warns(UserWarning, match="fewer than 5 observed outcomes"):  # two classes, however few rows
        module(path, chunk_rows=chunk_rows, holdout=0).setup()


def test_a_value_outside_the_sample_of_a_stream_is_named(path):
    log = frame().assign(rare=np.nan)
    log.loc[150, "rare"] = 3.0
    log.to_parquet(path)
    data = module(path, features=["age", "rare"], missing="impute", chunk_rows=20, seed=1)
    with pytest.raises(InputError, match=r"log\.parquet: column 'rare' has a value in data row 151, and none in the"):
        data.setup()


def test_an_action_that_the_features_determine_is_warned_of(path):
    log = frame()
    log["price"] = np.where(log["age"] > 40, 9.9, 14.9)
    log.to_parquet(path)
    with pytest.warns(UserWarning, match="the action is a function of the features"):
        module(path, features=["age"]).setup()


@pytest.mark.parametrize("chunk_rows", [None, 60])
@pytest.mark.parametrize("holdout", [0.0, 0.2])
def test_wrong_propensities_are_named_by_their_row_of_the_file(path, chunk_rows, holdout):
    log = frame().assign(p1=1.0, p2=0.0, p3=0.0)
    log.loc[log["price"] > 10, ["p1", "p2", "p3"]] = [0.0, 0.5, 0.5]
    row = log.index[log["price"] > 10][-1]
    log.loc[row, ["p1", "p2", "p3"]] = [1.0, 0.0, 0.0]
    log.to_parquet(path)
    with pytest.raises(
        InputError, match=rf"log\.parquet: the propensity of the action taken is 0 in data row {row + 1}: "
    ):
        module(path, chunk_rows=chunk_rows, holdout=holdout, propensity=["p1", "p2", "p3"]).setup()
    frame().assign(p1=0.5, p2=0.5).to_parquet(path)
    with pytest.raises(InputError, match=r"2 propensity columns for 3 actions \(9\.9, 14\.9, 19\.9\)"):
        module(path, chunk_rows=chunk_rows, holdout=holdout, propensity=["p1", "p2"]).setup()


@pytest.mark.parametrize("chunk_rows", [None, 60])
@pytest.mark.parametrize("name", ["log.csv", "log.parquet"])
def test_empty_rows_at_the_end_are_no_rows(tmp_path, name, chunk_rows):
    log = pd.concat([frame(), pd.DataFrame(index=range(70))], ignore_index=True)
    if name == "log.csv":
        log.to_csv(tmp_path / name, index=False)
    else:
        log.to_parquet(tmp_path / name, row_group_size=30)
    assert module(tmp_path / name, chunk_rows=chunk_rows).n_rows == N
    log.loc[len(log)] = log.loc[0]
    log.to_parquet(tmp_path / "gap.parquet", row_group_size=30)
    with pytest.raises(InputError, match=f"action 'price' is missing in data rows {N + 1}, {N + 2}, "):
        module(tmp_path / "gap.parquet", chunk_rows=chunk_rows).setup()


@pytest.mark.parametrize("chunk_rows", [None, 60])
def test_a_missing_feature_is_named_by_its_row_of_the_file(path, chunk_rows):
    log = frame()
    log.loc[[150, 170], "age"] = np.nan
    log.loc[160, "town"] = None
    log.to_parquet(path)
    with pytest.raises(InputError, match=r"log\.parquet: column 'age' is missing in data row") as error:
        module(path, chunk_rows=chunk_rows).setup()
    assert "151" in str(error.value)
    assert "and so is 'town' in 1 row: fill them in" in str(error.value)
    module(path, chunk_rows=chunk_rows, missing="impute").setup()


def test_held_out_rows_are_predicted_and_cannot_be_tested(path):
    data = module(path)
    (contexts,) = data.predict_dataloader()
    assert torch.equal(contexts, data.validation.x)
    with pytest.raises(InputError, match="a test wants those of all"):
        data.test_dataloader()


def test_an_action_that_only_the_held_out_rows_have(path):
    log = frame()
    log.loc[190:, "price"] = 99.0
    log.to_parquet(path)
    with pytest.raises(InputError, match=r"action 99\.0 is in no row to train on"):
        module(path, features=["age"], split="time", time="day").setup()


def test_a_single_column_can_be_given_as_a_text(path):
    texts = LoggedDataModule(path, "price", "bought", features="age", kept="customer")
    lists = LoggedDataModule(path, "price", "bought", features=["age"], kept=["customer"])
    assert texts.roles.others() == lists.roles.others()
    texts.setup("fit")
    assert texts.shape.n_features == 1
