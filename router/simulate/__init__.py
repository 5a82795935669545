"""The router's own core on a recorded trace, with a clock and workers that are computed (docs/simulator.md)."""
