"""The instruments of a session: one of each class, and who is told at which moment."""

from __future__ import annotations

import pytest

from layerstep.engine.instrument import Instrument, Instruments
from layerstep.engine.session import Session
from layerstep.views import Notice


class Idle(Instrument):
    def __init__(self, session: Session) -> None:
        self.session = session


class Busy(Idle):
    def settle(self) -> None:
        """It has something to do when the run goes on."""

    def stopped(self) -> list[Notice]:
        return [Notice("busy")]


class Busier(Busy):
    def prepare(self) -> None:
        """It takes part in one more moment than the class that it derives from."""


@pytest.fixture
def instruments() -> Instruments:
    return Session().instruments


def told(instruments: Instruments, moment: str) -> list[object]:
    return [method.__self__ for method in instruments.at(moment)]  # type: ignore[attr-defined]


def test_there_is_one_of_each_class() -> None:
    session = Session()
    busy = session.instruments.get(Busy)
    assert type(busy) is Busy and busy.session is session
    assert session.instruments.get(Busy) is busy
    assert session.instruments.get(Idle) is not busy
    assert [type(each) for each in session.instruments] == [Busy, Idle]


def test_sessions_share_no_instrument() -> None:
    assert Session().instruments.get(Busy) is not Session().instruments.get(Busy)


def test_only_those_that_have_something_to_do_are_told(instruments: Instruments) -> None:
    instruments.get(Idle)
    busy, busier = instruments.get(Busy), instruments.get(Busier)
    assert told(instruments, "settle") == told(instruments, "stopped") == [busy, busier]
    assert told(instruments, "prepare") == [busier]
    assert told(instruments, "called") == []
    assert [method() for method in instruments.at("stopped")] == [[Notice("busy")]] * 2


def test_one_that_is_made_later_is_told_from_then_on(instruments: Instruments) -> None:
    assert told(instruments, "settle") == []
    busy = instruments.get(Busy)
    assert told(instruments, "settle") == [busy]


def test_another_of_its_class_takes_its_place(instruments: Instruments) -> None:
    first = instruments.get(Busy)
    assert told(instruments, "settle") == [first]
    second = Busy(first.session)
    instruments.put(second)
    assert instruments.get(Busy) is second
    assert list(instruments) == told(instruments, "settle") == [second]


def test_one_may_be_made_while_the_others_are_gone_through(instruments: Instruments) -> None:
    instruments.get(Busy)
    for _ in instruments:
        instruments.get(Idle)
    assert [type(each) for each in instruments] == [Busy, Idle]


MOMENTS = [name for name, value in vars(Instrument).items() if callable(value) and not name.startswith("_")]


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_instrument_that_overrides_nothing_is_never_told(instruments: Instruments, moment: str) -> None:
    instruments.get(Idle)
    assert instruments.at(moment) == ()
