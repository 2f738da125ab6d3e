"""Forecasts of a final save: never rosier than what was measured, and right about what follows."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spotsurfer_agent.control.final_save_timing import (
    AGE_SECONDS_MAX,
    INTERVAL_SECONDS_MIN,
    Measures,
    Sample,
    Window,
    forecast,
    learn,
)
from spotsurfer_agent.control.state_file import StateFile
from spotsurfer_agent.host.usage import Sampler
from spotsurfer_wire.final_save_forecast import Fit, Prospect, prospect, say
from spotsurfer_wire.messages import SaveFacts, Want
from support.agent_world import World, commits, running

GB = 10**9
LINK = 125e6  # bytes a second: 1 Gbit/s
LOST, TRIED, SAVED = Prospect.LOST, Prospect.TRIED, Prospect.SAVED
AWS = Window(notice_seconds=120.0, margin_seconds=5.0, interval_seconds=600.0)


def save(age: float | None, image: int, share: float, rate: float = LINK, freeze: float = 5e9) -> Sample:
    """A save as a machine with these rates makes it."""
    frozen, sent = image / freeze, int(image * share)
    return Sample(age, image, sent, frozen, frozen + sent / rate + 0.1)


def ask(*samples: Sample, age: float = 600.0, window: Window = AWS) -> Fit:
    found = forecast(samples, age, window)
    assert found is not None
    return found


FOUR = (save(None, 4 * GB, 1.0), save(600, 4 * GB, 0.10), save(600, 4 * GB, 0.11))


def test_nothing_is_said_before_the_first_save() -> None:
    assert forecast([], 10.0, AWS) is None


def test_what_was_seen_is_forecast_again() -> None:
    fit = ask(*FOUR)
    assert fit.send_bytes == pytest.approx(0.11 * 4 * GB, rel=0.01)
    assert fit.durable_seconds == pytest.approx(0.8 + 0.44 * GB / LINK, rel=0.1)
    assert fit.frozen_seconds == pytest.approx(0.8, rel=0.01)
    assert (fit.verdict, fit.window_seconds) == ("fits", 115.0)


def test_a_base_that_gets_too_old_is_late_and_the_age_at_which_it_will_be_is_known() -> None:
    samples = (save(None, 40 * GB, 1.0), save(600, 40 * GB, 0.1))
    assert ask(*samples).verdict == "fits"
    oldest = ask(*samples).base_age_max_seconds
    assert oldest is not None
    assert ask(*samples, age=oldest * 0.99).verdict == "fits"
    assert ask(*samples, age=oldest * 1.01).verdict == "late"


def test_the_interval_is_shortened_only_where_the_base_would_be_too_old() -> None:
    assert ask(*FOUR).interval_seconds == 600.0
    large = ask(save(None, 40 * GB, 1.0), save(600, 40 * GB, 0.4))
    assert large.base_age_max_seconds is not None
    assert large.interval_seconds is not None
    assert INTERVAL_SECONDS_MIN <= large.interval_seconds < large.base_age_max_seconds < 600
    never = Window(120.0, 5.0, None)
    assert ask(*FOUR, window=never).interval_seconds is None


def test_a_job_that_can_never_fit_is_said_to_and_its_interval_left_alone() -> None:
    fit = ask(save(None, 800 * GB, 1.0), save(600, 800 * GB, 0.1))
    assert (fit.verdict, fit.base_age_max_seconds, fit.interval_seconds) == ("never", None, 600.0)


def test_a_small_job_fits_with_any_base() -> None:
    fit = ask(save(None, GB // 10, 1.0))
    assert (fit.verdict, fit.base_age_max_seconds) == ("fits", None)


def test_without_a_notice_there_is_no_window() -> None:
    fit = ask(*FOUR, window=Window(0.0, 5.0, 600.0))
    assert (fit.verdict, fit.window_seconds, fit.interval_seconds) == ("no notice", None, 600.0)


def test_a_live_save_first_pays_for_an_old_base_and_not_for_a_fresh_one() -> None:
    assert ask(*FOUR, age=600).gain_seconds > 2.5
    assert ask(*FOUR, age=5).gain_seconds < 0.2


def test_the_final_save_begins_before_margin_and_forecast_are_used_up() -> None:
    fit = ask(save(None, 40 * GB, 1.0), save(600, 40 * GB, 0.1))
    assert fit.reserve_seconds == pytest.approx(1.5 * fit.durable_seconds + 5.0)
    assert ask(save(None, GB // 100, 1.0)).reserve_seconds == 15.0, "a small save is not cut fine"


def test_a_save_with_next_to_nothing_to_send_does_not_make_the_link_look_slow() -> None:
    quiet = Sample(600, GB, 1000, 0.2, 0.9)
    model = learn([quiet, quiet])
    assert model is not None
    assert model.send_bytes_per_second > 10e6


def test_what_a_notice_does_by_its_length() -> None:
    fit = ask(save(None, 40 * GB, 1.0), save(600, 40 * GB, 0.1))
    assert fit.enough_seconds == pytest.approx(1.5 * fit.durable_seconds + 5.0)
    assert fit.least_seconds == pytest.approx(8.0 + 4 * GB / LINK, rel=0.01)
    found = {seconds: prospect(fit, seconds) for seconds in (0.0, 30.0, 39.0, 41.0, 65.0, 70.0, 120.0)}
    assert found == {0.0: LOST, 30.0: LOST, 39.0: LOST, 41.0: TRIED, 65.0: TRIED, 70.0: SAVED, 120.0: SAVED}
    assert prospect(fit, 90.0, saving=True) is TRIED, "the live save under way ends first"


def test_nothing_is_given_up_that_was_only_never_measured() -> None:
    """After the first save nobody knows how much of the image changes."""
    fit = ask(save(None, 40 * GB, 1.0))
    assert (fit.verdict, prospect(fit, 30.0)) == ("never", TRIED)
    assert prospect(ask(save(None, 400 * GB, 1.0)), 30.0) is LOST, "to read it alone takes 80 s"
    assert prospect(ask(*FOUR, save(600, 4 * GB, 1.0)), 30.0) is TRIED, "once a third as much was new"
    fresh = ask(save(None, 4 * GB, 1.0), save(600, 4 * GB, 1.0), age=6.0)
    assert (prospect(fresh, 30.0), prospect(fresh, 120.0)) == (TRIED, SAVED), "so young a base was never seen"
    assert prospect(ask(save(None, 4 * GB, 1.0), save(600, 4 * GB, 1.0), save(3, 4 * GB, 0.01)), 30.0) is LOST, "nor an old one"
    sees = (save(1200, 4 * GB, 1.0), save(600, 4 * GB, 1.0))
    assert prospect(ask(*sees), 30.0) is LOST, (
        "what was seen with a base as old as this one counts more than an older one's half"
    )


@pytest.mark.parametrize(("share", "expected"), [(1.0, LOST), (0.02, TRIED)])
def test_what_the_job_grew_by_is_known_to_be_sent_only_if_its_memory_does_not_pack(share: float, expected: Prospect) -> None:
    samples = [dataclasses.replace(save(None if share == 1.0 else 5, 2 * GB, share), resident_bytes=2e9)]
    fit = forecast(samples, 5.0, AWS, 7e9)
    assert prospect(fit, 30.0) is expected


def test_without_a_forecast_the_usual_speed_is_assumed() -> None:
    assert prospect(None, 30.0, memory_bytes=1.9e9) is SAVED
    assert prospect(None, 30.0, memory_bytes=2.1e9) is TRIED, "it is tried, whatever its size"
    assert prospect(None, 0.0) is LOST


sizes = st.integers(1, 10**12)
seconds = st.floats(0.001, 10_000)
samples_of_any_kind = st.builds(
    Sample, st.none() | st.floats(0.01, AGE_SECONDS_MAX), sizes, st.integers(0, 10**12), seconds, seconds
)


@given(st.lists(samples_of_any_kind, min_size=1, max_size=20), st.floats(0, 1e6), st.floats(0, 1e6))
def test_an_older_base_is_never_forecast_to_be_better(samples: list[Sample], one: float, other: float) -> None:
    model = learn(samples)
    assert model is not None
    young, old = sorted((one, other))
    assert model.durable_seconds(young) <= model.durable_seconds(old) * (1 + 1e-9)
    assert 0.0 <= model.share(old) <= 1.0


@given(st.lists(samples_of_any_kind, min_size=1, max_size=20), st.floats(0, 1e6), st.none() | st.floats(0, 1e12))
def test_at_best_is_never_worse_than_forecast_and_a_longer_notice_never_worse(
    samples: list[Sample], age: float, resident: float | None
) -> None:
    known = [dataclasses.replace(s, resident_bytes=1e9) for s in samples]
    fit = forecast(known, age, AWS, resident)
    assert fit is not None
    assert fit.enough_seconds is not None
    assert fit.least_seconds <= fit.live_seconds * (1 + 1e-9) < fit.enough_seconds * (1 + 1e-9)
    order = [LOST, TRIED, SAVED]
    found = [order.index(prospect(fit, seconds)) for seconds in (0.0, 1.0, 10.0, 30.0, 120.0, 1e4, 1e9)]
    assert found == sorted(found)


@given(st.lists(samples_of_any_kind, min_size=1, max_size=20), st.floats(0, 1e6))
def test_an_interval_is_never_made_longer(samples: list[Sample], age: float) -> None:
    fit = ask(*samples, age=age)
    assert fit.interval_seconds is not None
    assert fit.interval_seconds <= 600.0
    assert fit.gain_seconds >= 0.0


def test_what_the_job_grew_by_since_the_last_save_must_be_sent_whatever_its_base() -> None:
    samples = [dataclasses.replace(s, resident_bytes=4e9) for s in FOUR]
    same, grown = forecast(samples, 600.0, AWS, 4e9), forecast(samples, 600.0, AWS, 24e9)
    assert same == forecast(samples, 600.0, AWS) == forecast(samples, 600.0, AWS, 1e9)
    assert grown is not None
    assert grown.send_bytes == pytest.approx(0.11 * 4 * GB + 20 * GB, rel=0.01)
    assert grown.durable_seconds > 160
    assert (grown.verdict, grown.interval_seconds) == ("late", INTERVAL_SECONDS_MIN), "a live save now would help"
    assert grown.gain_seconds > 100


def test_what_comes_before_the_freeze_needs_room_too() -> None:
    slow = [*FOUR, dataclasses.replace(FOUR[-1], start_seconds=40.0), FOUR[-1]]
    fit = ask(*slow)
    assert (fit.start_seconds, fit.durable_seconds) == (40.0, ask(*FOUR).durable_seconds)
    assert fit.reserve_seconds == pytest.approx(1.5 * (40.0 + fit.durable_seconds) + 5.0)
    assert fit.live_seconds == 40.0 + fit.durable_seconds
    assert ask(dataclasses.replace(FOUR[-1], start_seconds=90.0)).verdict == "never"
    assert ", after 40.0 s before the freeze" in say(fit)
    assert "before the freeze" not in say(ask(*FOUR))


def test_rows_of_an_agent_that_knew_less_are_read() -> None:
    assert Sample.from_row([600, GB, 1000, 0.2, 0.9]) == Sample(600, GB, 1000, 0.2, 0.9)


def test_rows_round_trip() -> None:
    for sample in (*FOUR, Sample(None, 1, 0, 0.0, 0.5)):
        assert Sample.from_row(sample.to_row()) == sample


def test_what_was_done_before_the_freeze_counts_for_a_final_save(tmp_path: Path) -> None:
    """Such a save does all of it in the freeze."""
    measures = Measures(StateFile(tmp_path / "state.json", "j1", 1), lambda: 0.0)
    save = SaveFacts("000001-000001", 1, "live", 4 * GB, 2 * GB, 0.3, 0.6, ahead_seconds=3.0, read_seconds=1.7)
    measures.note(save, 0.0)
    fit = measures.fit(600.0, Window(120.0))
    assert fit is not None
    assert fit.frozen_seconds == pytest.approx(2.0)
    assert fit.durable_seconds > 3.5


def test_sending_while_a_program_that_ended_stands_still_is_no_freezing(tmp_path: Path) -> None:
    """Else the link would be as fast as the program is told, and reading as slow as the link."""
    measures = Measures(StateFile(tmp_path / "state.json", "j1", 1), lambda: 0.0)
    for sent in (GB // 10, GB // 10, 2 * GB):
        spent = sent / 20e6
        measures.note(
            SaveFacts("c", 1, "live", 2 * GB, sent, 0.1 + spent, 0.6 + spent, sending_seconds=spent, memory_bytes=0), 60.0
        )
    fit = measures.fit(600.0, Window(120.0))
    assert fit is not None
    assert fit.frozen_seconds == pytest.approx(0.1)
    assert fit.durable_seconds == pytest.approx(100, rel=0.1)


class Meters(Sampler):
    """What the job has in memory is said by a test."""

    def __init__(self) -> None:
        super().__init__(Path("/nowhere"))
        self.bytes = 4e9

    @property
    def resident_bytes(self) -> float:
        return self.bytes


def test_what_a_job_grew_by_while_its_image_was_sent_is_no_part_of_that_image(tmp_path: Path) -> None:
    world, meters = World(tmp_path), Meters()
    agent = running(world).agent
    assert agent is not None
    agent._given.usage = meters
    world.turn(10.0)

    def grows() -> None:
        meters.bytes = 30e9
        agent._learn(agent._gather())

    world.trips["upload"] = grows
    world.want(1, Want.RUN, 1, save_at_least=1)
    world.until(lambda: bool(commits(world)))
    assert agent._given.state.memory.samples[-1][-1] == 4e9
    world.turn(10.0)
    assert agent.measures.resident_bytes == 30e9
