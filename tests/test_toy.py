import pytest

from benchmarks import toy


def test_the_figure_is_drawn(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(toy, "TOY", toy.TOY.replace(max_epochs=20, max_epochs_cst=[5]))
    for suffix, magic in ((".png", b"\x89PNG"), (".svg", b"<?xml")):
        path = tmp_path / "new" / f"toy{suffix}"
        assert toy.main(["--rounds", "2", "--out", str(path)]) == 0
        assert path.read_bytes().startswith(magic)
    out = capsys.readouterr().out
    assert "direct method: Hamming loss 0." in out
    assert "after 2 rounds: Hamming loss 0." in out


def test_the_toy_is_the_papers():
    protocol = toy.TOY
    assert (protocol.hidden_cst, protocol.dropout, protocol.cvat_weights, protocol.rounds) == (16, 0.5, (1.0,), 10)


@pytest.mark.parametrize(
    "arguments",
    [["--out", "/dev/null/x/toy.png"], ["--out", "toy.txt"], ["--rounds", "0"], ["--seed", "x"], ["--seed", "-1"]],
)
def test_bad_options_are_one_line(arguments, capsys):
    assert toy.main(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
