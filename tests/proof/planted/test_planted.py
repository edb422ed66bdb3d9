"""Every planted defect is caught by the tests named beside it, which pass on an unchanged copy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import tally
from tests.proof.planted.defect import Defect, Edit, Planter, words_for
from tests.proof.planted.defects import DEFECTS
from tests.servers.postgres import Postgres

LEAST = 40


@pytest.fixture(scope="session")
def planter() -> Iterator[Planter]:
    with Planter() as planter:
        yield planter


@pytest.fixture(scope="session")
def postgres_planter(postgres_server: Postgres) -> Iterator[Planter]:
    with Planter(postgres_server.url("postgres")) as planter:
        yield planter


def _planter_for(defect: Defect, request: pytest.FixtureRequest) -> Planter:
    name = "postgres_planter" if defect.on_postgres else "planter"
    found: Planter = request.getfixturevalue(name)
    return found


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name.replace(" ", "-"))
def test_its_own_tests_catch(defect: Defect, request: pytest.FixtureRequest) -> None:
    answer = _planter_for(defect, request).plant(defect)

    assert answer.is_red, f"exit {answer.code}\n{answer.said}"
    tally.count("planted defects caught")


def test_the_same_tests_find_nothing_in_an_unchanged_copy(planter: Planter) -> None:
    on_sqlite = [defect for defect in DEFECTS if not defect.on_postgres]

    answer = planter.run((), words_for(*on_sqlite))

    assert answer.is_green, answer.said


def test_the_same_tests_find_nothing_in_an_unchanged_copy_on_postgres(postgres_planter: Planter) -> None:
    answer = postgres_planter.run((), words_for(*(defect for defect in DEFECTS if defect.on_postgres)))

    assert answer.is_green, answer.said


def test_a_text_that_is_not_there_is_not_taken_for_a_defect(planter: Planter) -> None:
    answer = planter.run((Edit("machine/decide.py", "no such text", ""),), ["tests/policy/test_guard.py"])

    assert not answer.is_red
    assert "0 times, not once" in answer.said


def test_there_are_forty_of_them_each_with_a_name_of_its_own() -> None:
    assert len({defect.name for defect in DEFECTS}) == len(DEFECTS) >= LEAST
