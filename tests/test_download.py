"""Downloads that go wrong, from a server on this machine."""

import bz2
import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from cst_lightning import InputError
from datamodules import download
from datamodules.download import Source, load_source

HTTPS_ONLY = download._https_only
CONTENT = bz2.compress(b"0 1:1 2:0.5\n1 2:2\n" * 200)


def source(content=CONTENT):
    sha256 = hashlib.sha256(content).hexdigest()
    return Source("Toy", (("toy.bz2", sha256, ""),), 2, 2, 0, 0, "", ())


@pytest.fixture
def server(monkeypatch, tmp_path):
    """A server whose ``answer`` a test sets; the cache is a folder of its own, and OpenML is not there."""
    answers = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            answers[-1](self)

        def log_message(self, *arguments):
            pass

    def refuse(**arguments):
        raise OSError("OpenML is not there")

    serving = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    monkeypatch.delenv("CST_DATA_DIR", raising=False)
    monkeypatch.setattr(download, "_LIBSVM", f"http://127.0.0.1:{serving.server_port}/")
    monkeypatch.setattr(download, "_https_only", lambda response, **options: None)
    monkeypatch.setattr(download, "_TIMEOUT_S", 1)
    monkeypatch.setattr(download.pooch, "os_cache", lambda name: tmp_path)
    monkeypatch.setattr(download, "fetch_openml", refuse)
    yield answers.append
    serving.shutdown()
    serving.server_close()


def send(handler, content, length=None, status=200):
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(content) if length is None else length))
    handler.end_headers()
    handler.wfile.write(content)


def cut_off(handler):
    send(handler, CONTENT[: len(CONTENT) // 2], len(CONTENT))


def of_another_content(handler):
    send(handler, bz2.compress(b"0 1:1\n"))


def broken(handler):
    send(handler, b"internal error", status=500)


def silent(handler):
    threading.Event().wait(3)


@pytest.mark.parametrize(
    ("answer", "why"), [(cut_off, ""), (of_another_content, "hash"), (broken, "500"), (silent, "timed out")]
)
def test_a_download_that_fails_leaves_nothing_and_the_next_one_is_whole(answer, why, server, tmp_path):
    server(answer)
    with pytest.raises(InputError, match=r"Toy could not be downloaded: toy\.bz2 from http") as error:
        load_source(source())
    assert why in str(error.value)
    assert "\n" not in str(error.value)
    assert [path for path in tmp_path.iterdir() if path.is_file()] == []
    server(lambda handler: send(handler, CONTENT))
    x, _ = load_source(source())
    assert x.shape == (400, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["toy.bz2"]


def test_a_cached_file_that_was_damaged_is_fetched_again(server, tmp_path):
    server(lambda handler: send(handler, CONTENT))
    load_source(source())
    (tmp_path / "toy.bz2").write_bytes(CONTENT[:100])
    assert load_source(source())[0].shape == (400, 2)


def test_a_name_that_nobody_resolves(server, monkeypatch):
    monkeypatch.setattr(download, "_LIBSVM", "https://nobody.invalid/")
    with pytest.raises(InputError, match="--data-dir FOLDER"):
        load_source(source())


def test_a_download_goes_through_what_refuses_it(server, monkeypatch, tmp_path):
    monkeypatch.setattr(download, "_https_only", HTTPS_ONLY)
    server(lambda handler: send(handler, CONTENT))
    with pytest.raises(InputError, match="is not https"):
        load_source(source())
    assert [path for path in tmp_path.iterdir() if path.is_file()] == []


@pytest.mark.parametrize("location", [None, "http://127.0.0.1:9/toy.bz2"])
def test_what_is_not_encrypted_is_refused(location, server, monkeypatch):
    monkeypatch.undo()

    class Answer:
        url = "https://example.org/toy.bz2" if location else "http://example.org/toy.bz2"
        headers = {"Location": location} if location else {}

    with pytest.raises(OSError, match="is not https"):
        download._https_only(Answer())
    assert download._LIBSVM.startswith("https://")
