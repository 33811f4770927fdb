"""Sweeps on a Ray cluster of two nodes on this machine: the same records, whatever dies."""

import importlib.util
import math
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.executors import ray as on_ray_module
from benchmarks.executors.local import descendants
from benchmarks.files import is_alive
from benchmarks.job import Settings
from benchmarks.sweep import main
from tests.sweeps import SHORT, farthest, numbers, records, start
from tests.test_sweep_faults import alive

SLOW = pytest.mark.skipif(not os.environ.get("CST_SLOW"), reason="a minute and more: make slow")
RAY = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
MOONS = ["--datasets", "moons", "--seeds", "0..1", "--cvat-weights", "0.1", *SHORT]


# Python runs this first of all: a worker of Ray hangs in its start, or at the import of torch, while a file says so
HANGING = """
import os, sys, time

def hang(name):
    driver = os.getppid()
    while os.path.exists(os.path.join(os.environ["WAITING"], name)) and os.getppid() == driver:
        time.sleep(0.05)

class Finder:
    def find_spec(name, path=None, target=None):
        if name == "torch":
            hang("no-torch")

if any("default_worker.py" in argument for argument in sys.orig_argv):
    sys.meta_path.insert(0, Finder)
    hang("no-start")
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The folder through which parts that wait tell that they began, and are told to go on."""
    folder, code = tmp_path_factory.mktemp("waiting"), tmp_path_factory.mktemp("hanging")
    (code / "sitecustomize.py").write_text(HANGING)
    before = os.environ.get("PYTHONPATH")
    os.environ["WAITING"] = str(folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(code), before]))
    yield folder
    del os.environ["WAITING"]
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


NO_GPU = pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="a GPU is made up; with a real one: test_gpu.py")


@pytest.fixture(scope="module")
def cluster(place):
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    # by default workers let every other process go first, and wait for minutes beside other tests
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_worker_niceness="0")
    node = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    cluster.spare_node = node
    cluster.add_node(**node)
    yield cluster
    cluster.shutdown()


@pytest.fixture
def waiting(place):
    yield place
    for path in place.iterdir():  # what it says is for one test alone
        path.unlink()


def on_ray(cluster, *arguments):
    return [*arguments, "--executor", "ray", "--ray-address", cluster.address]


def wait_until(true, seconds=120):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def n_begun(place):
    return len(list(place.glob("begun-*")))


def test_ray_gives_the_same_records_whole_and_cut(cluster, tmp_path):
    arguments = [*MOONS, "--backbones", "dm", "hsic", "constant", "--override.max_epochs_hsic", "2"]
    assert main([*arguments, "--out", str(tmp_path / "local")]) == 0
    assert main([*on_ray(cluster, *arguments), "--out", str(tmp_path / "ray")]) == 0
    assert numbers(tmp_path / "ray") == numbers(tmp_path / "local")
    assert len(records(tmp_path / "ray")) == 8
    assert main([*on_ray(cluster, *arguments), "--seeds-per-job", "1", "--out", str(tmp_path / "cut")]) == 0
    ours, theirs = numbers(tmp_path / "cut"), numbers(tmp_path / "local")
    assert max(farthest(theirs[name], ours[name]) for name in theirs) <= 1e-5


def test_a_job_whose_node_dies_runs_again_on_another(cluster, waiting, tmp_path):
    arguments = [*MOONS, "--methods", "backbone", "--backbones", "tests.parts.Waiting", "tests.parts.AlsoWaiting"]

    def kill():
        wait_until(lambda: n_begun(waiting) == 2)
        workers = [int(path.read_text()) for path in waiting.glob("begun-*")]
        cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
        wait_until(lambda: not all(is_alive(worker) for worker in workers))  # else it may end its job before it ends
        (waiting / "go").touch()

    thread = threading.Thread(target=kill)
    thread.start()
    assert main([*on_ray(cluster, *arguments), "--out", str(tmp_path / "ray")]) == 0
    thread.join()
    assert n_begun(waiting) == 3
    cluster.add_node(**cluster.spare_node)
    reasons = [record["provenance"]["failures_before"] for record in records(tmp_path / "ray").values()]
    assert sorted(map(len, reasons)) == [0, 1]
    assert "a node died under it: " in str(reasons)
    assert start([*arguments, "--out", str(tmp_path / "local")]).wait() == 0
    assert numbers(tmp_path / "ray") == numbers(tmp_path / "local")


def test_a_driver_that_is_killed_and_started_again_goes_on(cluster, waiting, tmp_path):
    arguments = [*MOONS, "--methods", "backbone", "--backbones", "dm", "tests.parts.Waiting"]
    on = [*on_ray(cluster, *arguments), "--out", str(tmp_path / "ray")]
    process = start(on)
    wait_until(lambda: n_begun(waiting) == 1 and list(tmp_path.glob("ray/cells/moons-dm-*.json")))
    process.kill()
    process.communicate()
    (first,) = tmp_path.glob("ray/cells/*.json")
    before = first.stat().st_mtime_ns
    (waiting / "go").touch()
    assert main(on) == 0
    assert n_begun(waiting) == 2
    assert first.stat().st_mtime_ns == before
    assert start([*arguments, "--out", str(tmp_path / "local")]).wait() == 0
    assert numbers(tmp_path / "ray") == numbers(tmp_path / "local")


def test_ctrl_c_stops_cleanly(cluster, waiting, tmp_path):
    process = start(
        [*on_ray(cluster, *MOONS), "--backbones", "tests.parts.Waiting", "--out", str(tmp_path)], start_new_session=True
    )
    wait_until(lambda: n_begun(waiting) == 1)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "The same command goes on from here." in err
    assert "Traceback" not in err
    assert records(tmp_path) == {}


def test_failing_dying_and_greedy_jobs_are_recorded_and_the_rest_goes_on(cluster, tmp_path):
    backbones = ["tests.parts.Broken", "tests.parts.Buggy", "tests.parts.Killed", "tests.parts.Greedy", "dm"]
    arguments = [*MOONS, "--methods", "backbone", "--backbones", *backbones, "--out", str(tmp_path)]
    assert main(on_ray(cluster, *arguments)) == 1
    found = {name.split("-")[1].removeprefix("tests.parts."): record for name, record in records(tmp_path).items()}
    assert found["Broken"]["error"] == "InputError: this backbone is broken on purpose"
    assert found["Buggy"]["error"].splitlines()[-1] == "ZeroDivisionError"
    assert found["Killed"]["error"] == "the worker process died without an exception"
    assert found["Greedy"]["error"].splitlines()[-1] == "MemoryError"
    assert found["dm"]["status"] == "finished"


def test_a_job_that_hangs_is_ended_tried_again_and_told_of_with_its_reasons(cluster, tmp_path):
    told = Path(tempfile.gettempdir(), "cst-child-0")
    told.unlink(missing_ok=True)
    arguments = [*MOONS, "--methods", "backbone", "--backbones", "tests.parts.Parent", "dm", "--out", str(tmp_path)]
    assert main(on_ray(cluster, *arguments, "--timeout", "6", "--retries", "1")) == 1
    found = {name.split("-")[1]: record for name, record in records(tmp_path).items()}
    assert found["dm"]["status"] == "finished"
    failed = found["tests.parts.Parent"]
    assert [alive(int(child)) for child in told.read_text().split()] == [False, False]  # nor what it had started
    told.unlink()
    assert "6 s" in failed["error"]
    assert len(failed["provenance"]["failures_before"]) == 1
    assert "6 s" in failed["provenance"]["failures_before"][0]


@SLOW
def test_a_worker_that_hangs_at_an_import_is_ended_and_recorded(cluster, waiting, tmp_path, monkeypatch):
    monkeypatch.setattr(on_ray_module, "_START_S", 4.0)
    arguments = on_ray(cluster, *MOONS, "--methods", "backbone", "--backbones", "dm", "--out", str(tmp_path))
    (waiting / "no-torch").touch()
    assert main([*arguments, "--timeout", "2"]) == 1
    (failed,) = records(tmp_path).values()
    assert failed["error"] == "timeout: its worker was not done with its imports after 4 s, so it was killed"
    (waiting / "no-torch").unlink()
    assert main(arguments) == 0
    assert {record["status"] for record in records(tmp_path).values()} == {"finished"}


def test_a_job_that_waits_for_room_uses_up_no_time(monkeypatch):
    """Room is there when nobody uses what the smallest node that could run it has."""
    now, cancelled, free = [0.0], [], {"CPU": 3.0}
    fake = SimpleNamespace(
        cancel=lambda stream, force: cancelled.append(stream),
        nodes=lambda: [
            {"Alive": alive, "Resources": {"CPU": cpus}} for alive, cpus in ((True, 2.0), (True, 1.0), (False, 9.0))
        ],
        cluster_resources=lambda: {"CPU": 3.0},
        available_resources=lambda: free,
    )
    monkeypatch.setattr(on_ray_module, "_ray", lambda: fake)
    monkeypatch.setattr(on_ray_module.time, "monotonic", lambda: now[0])
    first, second = (on_ray_module._Task(None, stream=name) for name in ("first", "second"))

    def later(seconds, running, idle_since, address="head:6379", timeout=1000.0, cpus=1.0):
        now[0] += seconds
        cluster = on_ray_module.Cluster(address, cpus, 0.0)
        return on_ray_module._end_overdue(running, cluster, Settings(timeout=timeout), idle_since)

    assert later(0, [first, second], math.inf) == 0
    assert later(999, [first, second], 0) == 0
    free["CPU"] = 2.0  # another sweep's job has come, and may be on the small node
    assert later(2, [first, second], 0) == math.inf
    assert later(0, [first, second], math.inf, cpus=2.0) == math.inf
    free["CPU"] = 3.0
    first.taken = True  # while one runs, the others wait for it
    assert later(9999, [first, second], 0) == math.inf
    assert later(9999, [first, second], math.inf, timeout=None) == math.inf
    assert cancelled == []
    first.taken = False
    free["CPU"] = 0.0
    since = later(0, [first, second], math.inf, address=None)  # there, only its own workers can hold anything
    assert later(1001, [first, second], since, address=None) == math.inf
    assert cancelled == ["first", "second"]
    assert second.outcome == "timeout: no worker took it in 1000 s, although there was room for it"


def test_a_worker_that_is_killed_once_is_tried_again_and_its_record_says_why(cluster, tmp_path):
    data = f"tests.parts.FlakyCoins@token={abs(hash(str(tmp_path))) % 10**9}"
    flaky = ["--datasets", data, "--seeds", "0", *SHORT, "--backbones", "dm", "--out", str(tmp_path / "flaky")]
    buggy = [*MOONS, "--backbones", "tests.parts.Buggy", "--out", str(tmp_path / "buggy")]
    for arguments, status in ((flaky, 0), (buggy, 1)):
        assert main(on_ray(cluster, *arguments, "--methods", "backbone", "--retries", "2")) == status
    (found,) = records(tmp_path / "flaky").values()
    assert found["provenance"]["failures_before"] == ["the worker process died without an exception"]
    (failed,) = records(tmp_path / "buggy").values()
    assert ["ZeroDivisionError" in text for text in failed["provenance"]["failures_before"]] == [True, True]


@NO_GPU
def test_jobs_of_half_a_gpu_share_one_and_jobs_without_one_see_none(cluster, waiting, tmp_path, monkeypatch):
    """Ray takes the node's word for its GPU; where CUDA finds none, the record says so."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)  # Ray would take the node's word for none
    node = cluster.add_node(**cluster.spare_node | {"num_cpus": 2, "num_gpus": 1})
    arguments = ["--datasets", "tests.parts.WaitingCoins", "--backbones", "dm", "tests.parts.Plain", *SHORT]
    on = [*on_ray(cluster, *arguments), "--seeds", "0", "--methods", "backbone"]
    for gpus, seen in ((["--gpus-per-job", "0.5"], ["0", "0"]), ([], ["", ""])):

        def go_on():
            wait_until(lambda: n_begun(waiting) == 2)  # both at once
            (waiting / "go").touch()

        thread = threading.Thread(target=go_on)
        thread.start()
        folder = tmp_path / str(len(gpus))
        assert main([*on, *gpus, "--out", str(folder)]) == bool(gpus)
        thread.join()
        assert [path.read_text() for path in waiting.glob("begun-*")] == seen
        for path in waiting.iterdir():
            path.unlink()
        errors = [record.get("error", "") for record in records(folder).values()]
        assert all(("gpu" in error.lower()) == bool(gpus) for error in errors)
    cluster.remove_node(node)


@NO_GPU
def test_a_worker_that_had_a_gpu_ends_with_its_job_and_frees_the_memory(cluster, waiting, tmp_path, monkeypatch):
    """PyTorch keeps what it took of a GPU until its process ends, and the next job may be in another one."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)  # Ray would take the node's word for none
    node = cluster.add_node(**cluster.spare_node | {"num_gpus": 1})
    (waiting / "go").touch()
    arguments = ["--datasets", "tests.parts.WaitingCoins", "--backbones", "dm", "tests.parts.Plain", *SHORT]
    on = [*on_ray(cluster, *arguments), "--seeds", "0", "--methods", "backbone", "--workers", "1"]
    assert main([*on, "--gpus-per-job", "0.5", "--out", str(tmp_path)]) == 1  # CUDA finds no GPU
    begun = [path.name.split("-")[1] for path in waiting.glob("begun-*")]
    assert len(begun) == len(set(begun)) == 2
    cluster.remove_node(node)


def test_a_node_without_memory_fails_its_job_and_the_other_nodes_go_on(cluster, waiting, tmp_path, monkeypatch):
    """The second of two nodes takes its memory for full, and ends each worker; then the job runs on the first."""
    cluster.remove_node(next(iter(cluster.worker_nodes)))
    with monkeypatch.context() as patched:
        patched.setenv("RAY_memory_usage_threshold", "0.001")
        full = cluster.add_node(**cluster.spare_node)
    arguments = [*MOONS, "--methods", "backbone", "--backbones", "tests.parts.Waiting", "tests.parts.AlsoWaiting"]

    def go_on():
        wait_until(lambda: list(tmp_path.glob("cells/*.failed.json")))
        (waiting / "go").touch()

    thread = threading.Thread(target=go_on)
    thread.start()
    assert main([*on_ray(cluster, *arguments), "--out", str(tmp_path)]) == 1
    thread.join()
    cluster.remove_node(full)
    cluster.add_node(**cluster.spare_node)
    found = sorted(records(tmp_path).values(), key=lambda record: record["status"])
    assert [record["status"] for record in found] == ["failed", "finished"]
    assert found[0]["error"].splitlines()[-1] == "the worker was ended because its node ran out of memory"
    assert main([*on_ray(cluster, *arguments), "--out", str(tmp_path)]) == 0
    assert {record["status"] for record in records(tmp_path).values()} == {"finished"}


# a Ray of its own gives this process a token that the workers of the cluster do not have: such tests come last


@SLOW
@RAY
def test_a_ray_of_ones_own_whose_workers_hang_in_their_start_is_no_wait_for_ever(waiting, tmp_path, monkeypatch):
    monkeypatch.setattr(on_ray_module, "_START_S", 4.0)
    (waiting / "no-start").touch()
    arguments = [*MOONS, "--methods", "backbone", "--backbones", "dm", "constant", "--out", str(tmp_path)]
    assert main([*arguments, "--executor", "ray", "--timeout", "2"]) == 1
    errors = [record["error"] for record in records(tmp_path).values()]
    assert errors == ["timeout: no worker took it in 4 s, although there was room for it"] * 2


@RAY
def test_a_ray_of_ones_own_ends_a_worker_when_memory_runs_out(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RAY_memory_usage_threshold", "0.001")  # of the machine's memory: it is always above that
    options = [
        *MOONS,
        "--methods",
        "backbone",
        "--backbones",
        "tests.parts.Slow",
        "--workers",
        "1",
        "--executor",
        "ray",
    ]
    assert main([*options, "--out", str(tmp_path)]) == 1
    (record,) = records(tmp_path).values()
    assert record["status"] == "failed"
    assert record["error"].splitlines()[-1] == "the worker was ended because its node ran out of memory"
    assert "raylet" not in capsys.readouterr().out


@SLOW
@RAY
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM])
def test_a_ray_of_ones_own_ends_with_a_driver_that_is_killed(sent, waiting, tmp_path):
    process = start(
        [*MOONS, "--backbones", "tests.parts.Waiting", "--executor", "ray", "--workers", "1", "--out", str(tmp_path)]
    )
    wait_until(lambda: n_begun(waiting) == 1)
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in descendants(process.pid)}
    # two agents of Ray's wait a minute for the rest, and end; the soak waits for them
    processes = [pid for pid, command in commands.items() if b"Agent" not in command]
    assert len(processes) >= 3  # the raylet, what it talks to, and a worker
    process.send_signal(sent)
    process.communicate()
    wait_until(lambda: not any(alive(pid) for pid in processes))


def test_without_ray_the_remedy_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    options = [*MOONS, "--backbones", "dm", "--methods", "backbone", "--out", str(tmp_path / "run")]
    assert main([*options, "--executor", "ray"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == "error: --executor ray needs the package ray: pip install 'cst-lightning[ray]'"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ray-address", "auto"], "ray_address=auto: goes with --executor ray"),
        (["--gpus-per-job", "1"], "gpus_per_job=1.0: goes with --executor ray"),
        (["--executor", "ray", "--cpus-per-job", "-1"], "allowed are CPUs above 0 and GPUs from 0"),
        (["--executor", "ray", "--cpus-per-job", "0"], "allowed are CPUs above 0 and GPUs from 0"),
        (["--executor", "ray", "--gpus-per-job", "1.5"], "allowed is a whole number, or one up to 1"),
        (["--executor", "ray", "--device", "cuda"], "a GPU is asked for by --gpus-per-job"),
        (["--executor", "slurm"], "executor"),
        pytest.param(["--executor", "ray", "--ray-address", "127.0.0.1:1"], "nothing answers", marks=RAY),
        pytest.param(["--executor", "ray", "--ray-address", "ray://head:10001"], "cannot stream", marks=RAY),
        pytest.param(["--executor", "ray", "--gpus-per-job", "1", "--cpus-per-job", "99"], "no node has", marks=RAY),
    ],
)
def test_what_ray_cannot_do_is_said_before_any_work(arguments, message, tmp_path, capsys):
    place = [] if "--out" in arguments else ["--out", str(tmp_path / "run")]
    assert main([*MOONS, "--backbones", "dm", *arguments, *place]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "run").exists()
