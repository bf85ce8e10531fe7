"""The engines at their edges: what they answer, and what they do where an engine is stood in."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import sys
import zlib
from pathlib import Path
from types import SimpleNamespace

import pytest
from made import fleet_of, nccl, report

import cudriver.fleet
from cudriver.fleet import compare, engines
from cudriver.fleet.engines import answers, dask, preflight, ray, torch
from cudriver.fleet.engines import mpi as engine
from cudriver.fleet.engines.answers import Answers


def test_the_public_names_are_found_where_they_live():
    for name in cudriver.fleet.__all__:
        assert getattr(cudriver.fleet, name).__name__ == name
    with pytest.raises(AttributeError, match=r"'cudriver\.fleet' has no attribute 'nothing'"):
        cudriver.fleet.nothing


def test_a_rank_waits_twice_as_long_as_rank_0_and_a_little_more():
    assert engines.patience(30) == 70
    assert engines.seconds(0.5) == 0.5


def test_a_package_that_an_engine_lacks_itself_is_its_own_error(tmp_path, monkeypatch):
    (tmp_path / "broken_engine.py").write_text("import missing_inside")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="No module named 'missing_inside'") as caught:
        engines.engine("broken_engine", "x")
    assert caught.value.name == "missing_inside"
    with pytest.raises(ImportError, match="needs the package no_engine,") as missing:
        engines.engine("no_engine.part", "x")
    assert missing.value.name == "no_engine"


def packed(value):
    return zlib.compress(json.dumps(value).encode())


def test_answers_are_reports_or_reasons():
    found = Answers()
    found.add("a", packed(report("d0")), "unused")
    found.add("b", None, "late")
    found.add("c", answers.failed("it failed"))
    assert found.silent == {"b": "late", "c": "it failed"}
    fleet = found.fleet()
    assert (fleet.status, fleet.counts["broken"], fleet.counts["reports"]) == ("unknown", 2, 1)


def test_what_a_check_raises_is_its_answer(monkeypatch):
    def fails(**identifiers):
        raise OSError(5, identifiers["rank"])

    monkeypatch.setattr(answers, "report", fails)
    found = Answers()
    found.add("rank 3", answers.answer(rank="x"))
    assert found.silent == {"rank 3": "the check failed: OSError: [Errno 5] x"}
    assert answers.judged(lambda _: 1 / 0, found) == (
        b"the comparison failed: ZeroDivisionError: division by zero"
    )


def test_a_preflight_names_what_is_wrong_and_who_is_silent():
    found = Answers()
    found.reports = fleet_of(2, nccl, at=1)
    found.silent["rank 2"] = "no answer\x1b[2J"
    lines = preflight.judge(found).decode().splitlines()
    assert lines == [
        "the CUDA stacks of 3 processes do not fit together, or are not known:",
        "FL301  NCCL of 2 versions in job 71",
        "    2.26.2: d1",
        "    2.27.3: d0",
        "    fix: Install one version of NCCL on all nodes, the one that the framework pins.",
        lines[-1],
    ]
    assert lines[-1].startswith("rank 2: no answer")
    assert "\x1b" not in lines[-1]


@pytest.mark.parametrize("count", ["1", None])
def test_one_process_alone_needs_no_group(monkeypatch, count):
    for name in preflight.COUNTS:
        monkeypatch.delenv(name, raising=False)
        if count:
            monkeypatch.setenv(name, count)
    monkeypatch.setattr(preflight, "answer", lambda: packed(report()))
    preflight.preflight()
    monkeypatch.setattr(preflight, "answer", lambda: answers.failed("odd"))
    with pytest.raises(preflight.PreflightError, match="this process: odd"):
        preflight.preflight()
    monkeypatch.setenv("PMI_SIZE", "2")
    with pytest.raises(RuntimeError, match=r"one of 2 \(PMI_SIZE\)"):
        preflight.preflight()


@pytest.mark.parametrize(
    ("up", "called"),
    [
        ("torch mpi dask ray", "torch"),
        ("mpi dask ray", "mpi"),
        ("dask ray", "dask"),
        ("ray", "ray"),
    ],
)
def test_the_engines_are_asked_in_an_order(monkeypatch, up, called):
    asked = []
    for name in ("torch", "mpi"):
        each = getattr(preflight, name)
        monkeypatch.setattr(each, "running", lambda name=name: name in up.split())
        monkeypatch.setattr(
            each, "exchange", lambda judge, timeout, name=name: asked.append((name, timeout)) or b""
        )
    for name in ("dask", "ray"):
        each = getattr(preflight, name)
        monkeypatch.setattr(each, "running", lambda name=name: name in up.split())
        monkeypatch.setattr(
            each, "gather", lambda timeout, name=name: asked.append((name, timeout)) or Answers()
        )
    preflight.preflight(timeout=7)
    assert asked == [(called, 7)]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("a\nb"), "ValueError: a\nb"),
        (ModuleNotFoundError("x", name="cudriver.fleet"), "cudriver is not installed there"),
        (ModuleNotFoundError("x", name="numpy"), "ModuleNotFoundError: x"),
        (ModuleNotFoundError("x"), "ModuleNotFoundError: x"),
    ],
)
def test_why_a_dask_worker_failed(error, text):
    assert dask._failure(error) == text


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("\na\nb"), "ValueError: a"),
        (ValueError(""), "ValueError: "),
        (ValueError("x\nNo module named 'cudriver'"), "cudriver is not installed there"),
    ],
)
def test_why_a_ray_task_failed(error, text):
    assert ray._failure(error) == text
    found = {"NodeManagerHostname": "h", "NodeID": "0123456789"}
    assert ray._name(found) == "h (01234567)"


@pytest.mark.parametrize(
    ("initialized", "finalized", "size", "runs"),
    [(True, False, 2, True), (True, False, 1, False), (False, False, 2, False),
     (True, True, 2, False)],
)  # fmt: skip
def test_whether_mpi_is_up(monkeypatch, initialized, finalized, size, runs):
    module = SimpleNamespace(
        Is_initialized=lambda: initialized,
        Is_finalized=lambda: finalized,
        COMM_WORLD=SimpleNamespace(Get_size=lambda: size),
    )
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", module)
    assert engine.running() is runs
    monkeypatch.delitem(sys.modules, "mpi4py.MPI")
    assert engine.running() is False


def test_each_call_of_mpi_has_tags_of_its_own(monkeypatch):
    monkeypatch.setattr(engine, "_key", [])
    kept = {}
    comm = SimpleNamespace(
        Create_keyval=lambda: "key", Get_attr=kept.get, Set_attr=lambda k, v: kept.update({k: v})
    )
    assert [engine._tags(comm) for _ in range(2)] == [(27100, 27101), (27102, 27103)]
    kept["key"] = 1999
    assert [engine._tags(comm) for _ in range(2)] == [(31098, 31099), (27100, 27101)]


def test_the_mpi_programs_output_and_status(monkeypatch, capsys):
    # Imported by its name it would be what `fleet.mpi` is from then on.
    path = Path(cudriver.fleet.__path__[0], "mpi.py")
    spec = importlib.util.spec_from_file_location("the_mpi_program", path)
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    ended = []
    comm = SimpleNamespace(Abort=ended.append)
    monkeypatch.setattr(program, "engine", lambda *_: SimpleNamespace(COMM_WORLD=comm))
    given = []
    fleets = {
        "other rank": None,
        "good": compare([report()]),
        "bad": compare(fleet_of(2, nccl, at=1)),
        "broken": compare([report(), '{"schema":']),
    }
    for name, (status, abort) in {
        "other rank": (0, []), "good": (0, []), "bad": (1, []), "broken": (3, [3]),
    }.items():  # fmt: skip
        ended.clear()
        monkeypatch.setattr(
            program, "mpi", lambda comm, timeout, name=name: given.append(timeout) or fleets[name]
        )
        assert (program.main(["--timeout", "2.5"]), ended) == (status, abort)
        fleet = fleets[name]
        assert capsys.readouterr().out == (f"{fleet}\n" if fleet else "")
    assert program.main(["--json"]) == 3
    assert json.loads(capsys.readouterr().out)["status"] == "unknown"
    assert given == [2.5] * 4 + [120.0]


# ---- engines that are stood in -------------------------------------------------------------------


class Ranks:
    """A communicator of two ranks, whose reports lie ready."""

    def __init__(self, *ready):
        self.ready = list(ready)  # the rank, and what it sends

    def Get_size(self):
        return 2

    def improbe(self, tag, status):
        if not self.ready:
            return None
        status.rank, packed = self.ready.pop(0)
        return SimpleNamespace(recv=lambda: packed)


def test_of_a_rank_that_has_given_up_its_second_word_counts(monkeypatch):
    class Status:
        def Get_source(self):
            return self.rank

    monkeypatch.setitem(sys.modules, "mpi4py.MPI", SimpleNamespace(Status=Status))
    own, late = packed(report("d0")), answers.failed("rank 0 came late")
    found = engine._gather(Ranks((1, packed(report("d1"))), (1, late)), 7, own, 60)
    assert (len(found.reports), found.silent) == (1, {"rank 1": "rank 0 came late"})
    found = engine._gather(Ranks(), 7, own, 0.0)
    assert found.silent == {"rank 1": "no answer within 0 s"}


class Client:
    """Of Dask: workers a, b and c; a's task is done, b ends, c hangs."""

    def __init__(self):
        self.looks = 0

    def as_current(self):
        return contextlib.nullcontext()

    def nthreads(self):
        self.looks += 1
        return {"a": 1, "c": 1}


def test_a_worker_that_has_ended_is_told_from_one_that_hangs(monkeypatch):
    def wait(tasks, timeout):
        raise TimeoutError

    module = SimpleNamespace(wait=wait, TimeoutError=TimeoutError)
    monkeypatch.setitem(sys.modules, "distributed", module)
    monkeypatch.setattr(dask, "LOOK", 0.01)
    tasks = {name: SimpleNamespace(done=lambda name=name: name == "a") for name in "abc"}
    assert dask._wait(Client(), tasks, 0.05) == {
        "b": "the worker ended", "c": "no answer within 0.05 s",
    }  # fmt: skip


def test_rays_nodes_that_are_alive_are_asked_and_those_that_are_late_are_let_go(monkeypatch):
    nodes = [
        {"NodeID": f"{name}" * 9, "NodeManagerHostname": f"host-{name}", "Alive": name != "d"}
        for name in "abcd"
    ]
    ended = []

    def get(task):
        if task[0] == "b":
            raise ValueError("odd\nand more")
        return packed(report("d0"))

    module = SimpleNamespace(
        get_runtime_context=lambda: SimpleNamespace(get_job_id=lambda: "7"),
        nodes=lambda: nodes,
        wait=lambda tasks, num_returns, timeout: (tasks[:2], tasks[2:]),
        get=get,
        cancel=lambda task, force: ended.append((task, force)),
    )
    monkeypatch.setitem(sys.modules, "ray", module)
    monkeypatch.setattr(ray, "_task", lambda module, node, job, env: (node[0], job, env))
    found = ray.gather(timeout=3, runtime_env={"x": 1})
    assert ended == [(("c", "7", {"x": 1}), True)]
    assert len(found.reports) == 1
    assert found.silent == {
        "host-b (bbbbbbbb)": "ValueError: odd", "host-c (cccccccc)": "no answer within 3 s",
    }  # fmt: skip


class Scheduler:
    """A cluster of Dask: worker a answers, b has ended with its result, c's task raises."""

    asynchronous = False
    scheduler = SimpleNamespace(address="tcp://s")

    def __init__(self):
        self.cancelled = []
        self.looks = iter(["abc", "ac"])
        self.asked = {}

    def as_current(self):
        return contextlib.nullcontext()

    def nthreads(self):
        return dict.fromkeys(next(self.looks), 1)

    def submit(self, call, program, names, *, workers, **options):
        (name,) = workers
        self.asked[name] = names["identifiers"]

        def result(timeout):
            if name != "a":
                raise ValueError(f"lost {name}")
            return packed(report("d0"))

        return SimpleNamespace(name=name, done=lambda: True, result=result)

    def cancel(self, tasks):
        self.cancelled += [task.name for task in tasks]


def test_a_result_that_went_with_its_worker(monkeypatch):
    module = SimpleNamespace(wait=lambda tasks, timeout: None, TimeoutError=TimeoutError)
    monkeypatch.setitem(sys.modules, "distributed", module)
    client = Scheduler()
    found = dask._ask(client, 5)
    assert found.silent == {"b": "the worker ended", "c": "ValueError: lost c"}
    assert len(found.reports) == 1
    assert client.asked["a"] == {"job": "tcp://s", "rank": None, "ranks": None, "worker": "a"}
    assert sorted(client.cancelled) == ["b", "c"]
    client.looks = iter([""])
    with pytest.raises(ValueError, match=r"has no worker: wait for one, client\.wait_for_workers"):
        dask._ask(client, 5)
    client.asynchronous = True
    with pytest.raises(ValueError, match="is asynchronous: give a client made with"):
        dask._ask(client, 5)


@pytest.mark.parametrize(
    ("client", "worker", "up"),
    [(True, False, True), (False, True, True), (False, False, False), (True, True, True)],
)
def test_whether_dask_is_up(monkeypatch, client, worker, up):
    def given(there):
        def ask():
            if not there:
                raise ValueError("none")

        return ask

    module = SimpleNamespace(default_client=given(client), get_worker=given(worker))
    monkeypatch.setitem(sys.modules, "distributed", module)
    assert dask.running() is up
    monkeypatch.delitem(sys.modules, "distributed")
    assert dask.running() is False


class Store:
    """A process group's store: what is not there is not waited for."""

    def __init__(self):
        self.values = {}
        self.waited = []

    def add(self, key, amount):
        self.values[key] = self.values.get(key, 0) + amount
        return self.values[key]

    def set(self, key, value):
        self.values[key] = value

    def compare_set(self, key, expected, value):
        if self.values.get(key, "") == expected:
            self.values[key] = value
        return self.values[key].encode()

    def check(self, keys):
        return all(key in self.values for key in keys)

    def wait(self, keys, limit):
        self.waited.append((keys, limit.total_seconds()))
        if not self.check(keys):
            raise RuntimeError("timed out")

    def multi_get(self, keys):
        return [self.values[key] for key in keys]


@pytest.fixture
def group(monkeypatch):
    """A group of three ranks, of which this one is `rank`."""

    def make(rank):
        made.rank = rank
        return made.store

    made = SimpleNamespace(rank=0, store=Store())
    module = SimpleNamespace(
        get_rank=lambda: made.rank,
        get_world_size=lambda: 3,
        is_available=lambda: True,
        is_initialized=lambda: made.rank is not None,
        distributed_c10d=SimpleNamespace(_get_default_store=lambda: made.store),
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", module)
    monkeypatch.setattr(
        torch, "answer", lambda job, rank, ranks: packed(report("d0", rank=rank, ranks=ranks))
    )
    return make


def silent(found):
    return "; ".join(f"{name}: {why}" for name, why in found.silent.items()).encode()


def test_rank_0_gathers_what_has_come_and_answers_once(group):
    store = group(0)
    first = "cudriver/preflight/1"
    store.set(f"{first}/2", packed(report("d2")))
    assert torch.exchange(silent, timeout=30) == b"rank 1: no answer within 30 s"
    assert store.values[f"{first}/answer"] == "=rank 1: no answer within 30 s"
    assert store.waited == [([f"{first}/1", f"{first}/2"], 30), ([f"{first}/read/2"], 10)]
    store.set("cudriver/preflight/2/1", packed(report("d1")))
    store.set("cudriver/preflight/2/2", packed(report("d2")))
    store.set("cudriver/preflight/2/answer", "=another was before")
    assert torch.exchange(silent, timeout=30) == b"another was before"


def test_another_rank_gives_its_report_and_takes_the_answer(group):
    store = group(1)
    store.set("cudriver/preflight/1/answer", "=")
    assert torch.exchange(silent, timeout=30) == b""
    assert store.waited == [(["cudriver/preflight/1/answer"], 70)]
    assert json.loads(zlib.decompress(store.values["cudriver/preflight/1/1"]))["schema"] == 1
    assert store.values["cudriver/preflight/1/read/1"] == b""
    assert torch.exchange(silent, timeout=5) == b"rank 0 did not answer rank 1 within 20 s"


def test_a_store_that_ends_is_rank_0_s_end(group, monkeypatch):
    store = group(2)

    def ended(*_):
        raise RuntimeError("closed")

    monkeypatch.setattr(store, "compare_set", ended)
    with pytest.raises(TimeoutError, match="rank 0 ended before it answered rank 2"):
        torch.exchange(silent, timeout=5)


def test_whether_a_process_group_is_up(group, monkeypatch):
    group(0)
    assert torch.running() is True
    group(None)
    assert torch.running() is False
    monkeypatch.delitem(sys.modules, "torch.distributed")
    assert torch.running() is False


class Comm:
    """A communicator in which messages are sent at once, or never; a rank of two."""

    def __init__(self, rank, answer=None, sends=True):
        self.rank, self.answer, self.sends = rank, answer, sends
        self.sent = []
        self.calls = 0

    def Get_rank(self):
        return self.rank

    def Get_size(self):
        return 2

    def Create_keyval(self):
        return 1

    def Get_attr(self, key):
        return self.calls

    def Set_attr(self, key, value):
        self.calls = value

    def isend(self, data, rank, tag):
        self.sent.append((data, rank, tag))
        return SimpleNamespace(test=lambda: (self.sends, None))

    def iprobe(self, rank, tag):
        return self.answer is not None

    def recv(self, source, tag):
        return self.answer

    def improbe(self, tag, status):
        return None


@pytest.fixture
def ranks(monkeypatch):
    monkeypatch.setattr(engine, "_key", [])
    monkeypatch.setattr(engine, "_unsent", [])
    monkeypatch.setattr(engine, "NAP", 0.001)
    monkeypatch.setattr(engines, "GRACE", 0.01)
    monkeypatch.setattr(engine, "GRACE", 0.01)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", SimpleNamespace(Status=SimpleNamespace))
    monkeypatch.setattr(
        engine, "answer", lambda job, rank, ranks: packed(report("d0", rank=rank, ranks=ranks))
    )


@pytest.mark.usefixtures("ranks")
def test_a_rank_of_mpi_sends_its_report_and_takes_the_answer():
    comm = Comm(1, answer=b"it fits")
    assert engine.exchange(silent, comm, timeout=5) == b"it fits"
    ((data, rank, tag),) = comm.sent
    assert (rank, tag, json.loads(zlib.decompress(data))["node"]["rank"]) == (0, 27100, 1)
    assert engine._unsent == []
    comm = Comm(1)
    with pytest.raises(TimeoutError) as caught:
        engine.exchange(silent, comm, timeout=0.01)
    assert str(caught.value) == "rank 0 did not answer rank 1 within 0.03 s"
    late = Answers()
    late.add("rank 1", comm.sent[1][0])
    assert late.silent == {"rank 1": str(caught.value)}
    assert [(rank, tag) for _, rank, tag in comm.sent] == [(0, 27100)] * 2


@pytest.mark.usefixtures("ranks")
def test_rank_0_of_mpi_tells_the_others_and_waits_for_none_that_hangs():
    for sends, kept in ((True, 0), (False, 1)):
        comm = Comm(0, sends=sends)
        assert engine.exchange(silent, comm, timeout=0.01) == b"rank 1: no answer within 0.01 s"
        assert comm.sent == [(b"rank 1: no answer within 0.01 s", 1, 27101)]
        assert len(engine._unsent) == kept


def test_dask_is_asked_by_the_given_client_the_task_s_or_the_program_s(monkeypatch):
    asked = []
    monkeypatch.setattr(dask, "_ask", lambda client, limit: asked.append((client, limit)))
    module = SimpleNamespace(
        default_client=lambda: "program's",
        get_worker=lambda: None,
        worker_client=lambda: contextlib.nullcontext("task's"),
    )
    monkeypatch.setitem(sys.modules, "distributed", module)
    dask.gather("given", timeout=1)
    dask.gather(timeout=2)
    monkeypatch.setattr(dask, "_in_task", lambda module: False)
    dask.gather(timeout=3)
    assert asked == [("given", 1), ("task's", 2), ("program's", 3)]
    with pytest.raises(ValueError, match="timeout=0: a positive number of seconds is needed"):
        dask.gather("given", timeout=0)
