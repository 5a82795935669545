"""inferway/sampling.py"""

from __future__ import annotations

import pytest

from inferway.api.v1 import types_pb2
from inferway.errors import ApiError
from inferway.sampling import RANGES, Range, check_range


def test_the_table_has_every_scalar_of_the_contract() -> None:
    """The fields of types.proto's Sampling are those with a range, and ignore_eos, stop and logit_bias."""
    fields = {field.name for field in types_pb2.Sampling.DESCRIPTOR.fields}
    assert fields == RANGES.keys() | {"ignore_eos", "stop", "logit_bias"}


@pytest.mark.parametrize("name", RANGES)
def test_both_ends_of_each_range_fit_the_message(name: str) -> None:
    """What passes the check can be written into the message: no value kills a sender."""
    sampling = types_pb2.Sampling()
    for value in (RANGES[name].least, RANGES[name].most):
        setattr(sampling, name, value)


@pytest.mark.parametrize(
    ("within", "value", "inside"),
    [
        (Range(0, 2), 0, True),
        (Range(0, 2), 2, True),
        (Range(0, 2), 2.0001, False),
        (Range(0, 1, above=True), 0, False),
        (Range(0, 1, above=True), 1e-9, True),
        (Range(0, 2), float("nan"), False),
    ],
)
def test_ranges(within: Range, value: float, inside: bool) -> None:
    """Ends are in, but for the lower one of a range that is above it; NaN is in none."""
    assert (value in within) is inside


def test_a_refusal_names_field_limit_and_value() -> None:
    """Absent passes; what is out of range is a 400."""
    check_range("top_p", None, RANGES["top_p"])
    with pytest.raises(ApiError, match=r"'top_p' must be above 0 and at most 1, got 1.5\.") as caught:
        check_range("top_p", 1.5, RANGES["top_p"])
    assert caught.value.param == "top_p"
