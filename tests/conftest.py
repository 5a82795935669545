"""Shared by all tests: the settings of hypothesis, and a collector of traces for those that want one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from tests.support.otlp import Collector

# A machine under load is slow, not wrong.
settings.register_profile("inferway", deadline=None)
settings.load_profile("inferway")


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    # What it imports is much, and few tests need it.
    from tests.support.otlp import Collector

    with Collector() as made:
        yield made
