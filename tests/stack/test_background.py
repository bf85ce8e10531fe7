"""Work in a thread."""

import _thread
import threading

import pytest

from cudriver.stack.background import start


def test_it_is_done_once_in_another_thread():
    made = []
    join = start(lambda: made.append(threading.get_ident()) or len(made))
    assert (join(), join()) == (1, 1)
    assert made != [threading.get_ident()]


def test_it_begins_before_it_is_asked_for():
    begun = threading.Event()
    join = start(begun.set)
    assert begun.wait(60)
    join()


def test_without_a_thread_it_is_done_when_it_is_asked_for(monkeypatch):
    def none(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", none)
    made = []
    join = start(lambda: made.append(threading.get_ident()))
    assert made == []
    join()
    assert made == [threading.get_ident()]


@pytest.mark.filterwarnings("error")  # of what a thread raises Python would warn
def test_what_it_raises_is_raised_where_it_is_asked_for():
    def fails():
        raise MemoryError

    with pytest.raises(MemoryError):
        start(fails)()
