"""Clients at work: stops, lines, peeks, several at once, and what happens when they leave."""

from __future__ import annotations

import pytest
import torch

from attached_training import Talk, Training, wait_for
from layerstep.errors import UserError
from layerstep.render.wire import decode
from layerstep.views import Notice


def text_of(answer: dict) -> str:
    return str(decode(answer["view"])) if answer["view"] is not None else ""


def test_a_client_sees_where_the_run_stands(training: Training) -> None:
    training.listen().start()
    talk = Talk()
    assert talk.hello["state"]["kind"] == "running" and talk.hello["argv"] == ["train.py"]
    stop = talk.stop_at("break 0")
    assert (stop["path"], stop["phase"]) == ("0", "exit")
    assert "Linear" in text_of(talk.say("where"))
    talk.say("delete 1", stop=stop["stop"])
    talk.say("continue", stop=stop["stop"])
    before = training.done
    wait_for(lambda: training.done > before)
    assert talk.states("running")


def test_a_late_line_is_refused(training: Training) -> None:
    training.listen().start()
    talk = Talk()
    first = talk.stop_at("break 0")["stop"]
    talk.say("continue", stop=first)
    second = talk.next_stop(first)["stop"]
    with pytest.raises(UserError, match=f"gone on since stop {first}"):
        talk.say("quit", stop=first)
    assert talk.states()[-1]["stop"] == second
    assert "Linear" in text_of(talk.say("where", stop=second))


def test_two_clients_that_continue_at_once_continue_once(training: Training) -> None:
    training.listen().start()
    one, other = Talk("one"), Talk("other")
    stop = one.stop_at("break 0")["stop"]
    other.next_stop()
    answers = [client.request("submit", line="continue", stop=stop) for client in (one, other)]
    outcomes = [answer.exception(30) for answer in answers]
    assert sorted(error is None for error in outcomes) == [False, True]
    assert one.next_stop(stop)["stop"] == stop + 1
    assert "Linear" in text_of(other.say("where", stop=stop + 1))  # it stands there still


def test_each_client_sees_what_the_others_type(training: Training) -> None:
    training.listen().start()
    one, other = Talk("one"), Talk("other")
    one.stop_at("break 0")
    other.next_stop()
    one.say("print 1 + 1")
    told = wait_for(lambda: [p for m, p in other.told if m == "message" and p["line"] == "print 1 + 1"])
    assert told[0]["origin"] == "one"


def test_a_line_is_answered_in_the_frame_that_it_names(training: Training) -> None:
    training.listen().start()
    talk = Talk()
    talk.stop_at("break 0")
    assert "Linear" in text_of(talk.say("print type(mod).__name__"))
    assert "Sequential" in text_of(talk.say("print type(mod).__name__", frame=1))
    assert "Linear" in text_of(talk.say("print type(mod).__name__"))


def test_a_peek_is_answered_by_the_thread_of_the_program(training: Training) -> None:
    training.listen().start()
    talk = Talk()
    answer = text_of(talk.say("print __import__('threading').current_thread().name"))
    assert training._thread.name in answer
    assert not talk.states()
    assert "nothing is paused" in text_of(talk.say("continue"))


def test_lines_without_tensors_are_answered_though_nothing_runs(training: Training) -> None:
    training.listen()
    talk = Talk()
    assert "break 1" in text_of(talk.say("break 0"))
    assert "0" in text_of(talk.say("info breaks"))
    waits = talk.request("submit", line="print 1")
    with pytest.raises(TimeoutError):
        waits.result(0.3)
    training.session.detach()
    with pytest.raises(UserError, match="detached"):
        waits.result(10)


def test_interrupt_stops_at_the_next_module(training: Training) -> None:
    training.listen().start()
    talk = Talk()
    talk.request("interrupt").result(10)
    stop = talk.next_stop()
    assert "Linear" in text_of(talk.say("where", stop=stop["stop"])) or stop["path"]


def test_interrupt_cancels_a_long_line(training: Training) -> None:
    training.listen().start()
    talk = Talk()
    talk.stop_at("break 0")
    endless = talk.request("submit", line="while True: pass")
    with pytest.raises(TimeoutError):
        endless.result(0.5)
    talk.request("interrupt").result(10)
    assert "interrupted" in text_of(endless.result(30))


def test_completion_and_whole_lines(training: Training) -> None:
    training.listen().start()
    talk = Talk()
    found = talk.request("complete", line="brea").result(10)
    assert found["candidates"][0]["text"] == "break" and found["is_complete"]
    assert not talk.request("complete", line="for x in y:", candidates=False).result(10)["is_complete"]


@pytest.mark.usefixtures("soon")
def test_the_run_goes_on_when_the_last_client_is_gone(training: Training) -> None:
    training.listen().start()
    talk = Talk()
    talk.stop_at("break 0")
    before = training.done
    talk.close()
    wait_for(lambda: training.done > before + 50)  # and the point does not stop it again
    again = Talk()
    assert again.next_stop()["path"] == "0"  # for the next client it does


@pytest.mark.usefixtures("soon")
def test_a_client_that_comes_back_finds_the_pause(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    training.listen(hold=True).start()
    talk = Talk()
    stop = talk.stop_at("break 0")
    talk.close()
    before = training.done
    again = Talk()
    assert again.hello["state"]["stop"] == stop["stop"]
    shown = [each for each in again.hello["messages"] if each["kind"] == "stop"]
    assert "Linear" in str(decode(shown[-1]["view"]))
    assert training.done == before


def test_bye_lets_the_run_go_on_at_once(training: Training) -> None:
    training.listen().start()
    talk = Talk()
    talk.stop_at("break 0")
    before = training.done
    talk.request("bye").result(10)
    wait_for(lambda: training.done > before, seconds=9)  # sooner than the grace ends


def test_metrics_tell_of_steps(training: Training) -> None:
    training.listen().start()
    talk = Talk(metrics=True)
    wait_for(lambda: [m for m, _ in talk.told if m == "metric"])
    found = talk.request("metrics", **{"from": 0, "most": 5}).result(10)
    steps = [row["step"] for row in found["rows"]]
    assert steps and steps == sorted(steps) and found["last"] >= len(steps)


def test_metrics_hold_the_loss_if_the_doctor_is_on(training: Training) -> None:
    training.listen().start()
    talk = Talk()
    talk.say("doctor on")
    rows = lambda: talk.request("metrics", **{"from": 0}).result(10)["rows"]  # noqa: E731
    wait_for(lambda: any(isinstance(row.get("loss"), float) for row in rows()))


def test_a_client_that_does_not_read_delays_nothing(training: Training) -> None:
    from attached_training import hello, raw

    training.listen().start()
    deaf = raw()
    deaf.sendall(hello())
    talk = Talk()
    talk.say('log 0 "' + "x" * 500 + '{out.shape}"')
    before = training.done
    wait_for(lambda: training.done > before + 1_000, seconds=120)


def test_the_losses_are_those_of_a_run_without_clients(training: Training) -> None:
    bare = Training(300)
    torch.manual_seed(1)
    bare.start().join()
    training._steps = 300
    training.listen()
    talk = Talk()
    training.start()
    first = talk.stop_at("tbreak 2")["stop"]
    for line in ("stats out", "print model[0].weight.sum()", "step"):
        talk.say(line, stop=first)
    second = talk.next_stop(first)["stop"]
    for line in ("where", "continue"):
        talk.say(line, stop=second)
    training.join()
    assert training.losses == bare.losses


def test_the_end_of_the_run_is_told(training: Training) -> None:
    training.listen().start()
    talk = Talk()
    training.end()
    wait_for(lambda: talk.states("ended") and talk.is_gone)


def test_views_arrive_as_they_were(training: Training) -> None:
    training.listen().start()
    talk = Talk()
    assert decode(talk.say("break 0")["view"]) == Notice("break 1 at 0", level="good")
