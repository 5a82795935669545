"""The packages run from the checkout under short names, so no installed distribution may own one of them."""

from __future__ import annotations

from importlib.metadata import packages_distributions


def test_no_distribution_owns_the_names_of_the_services() -> None:
    """Nothing in site-packages could be imported in place of a service."""
    assert {"gateway", "router", "worker"}.isdisjoint(packages_distributions())
