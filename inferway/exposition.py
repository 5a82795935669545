"""The texts of a page of metrics: Prometheus' own format and OpenMetrics, which differ little for gauges."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter

from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_END = b"# EOF\n"
_ESCAPED = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_ESCAPED_DOC = str.maketrans({"\\": r"\\", "\n": r"\n"})


class Readings:
    """A gauge whose values are read at a scrape. Adding one costs a tenth of what prometheus_client takes for it."""

    __slots__ = ("doc", "labels", "name", "samples")

    def __init__(self, name: str, doc: str, labels: Sequence[str]) -> None:
        self.name, self.doc, self.labels = name, doc, labels
        self.samples: list[tuple[Sequence[str], float]] = []

    def add_metric(self, values: Sequence[str], value: float) -> None:
        self.samples.append((values, value))

    def lines(self) -> Iterable[str]:
        yield f"# HELP {self.name} {self.doc.translate(_ESCAPED_DOC)}\n# TYPE {self.name} gauge\n"
        # By name, as prometheus_client has them.
        order = sorted(enumerate(self.labels), key=itemgetter(1))
        for values, value in self.samples:
            labels = ",".join([f'{label}="{values[at].translate(_ESCAPED)}"' for at, label in order])
            yield f"{self.name}{{{labels}}} {_number(value)}\n" if labels else f"{self.name} {_number(value)}\n"


def page(collector: Collector, readings: Iterable[Readings], content_type: str) -> bytes:
    """What `collector` collects and what has been read, as TEXT or OPENMETRICS."""
    read = "".join(line for one in readings for line in one.lines()).encode()
    if content_type == OPENMETRICS:
        text: bytes = generate_openmetrics(collector)  # type: ignore[no-untyped-call]
        return text.removesuffix(_END) + read + _END
    return generate_latest(collector) + read


def content_type_for(accept: str) -> str:
    """OPENMETRICS for whoever names it in its header Accept, TEXT for everybody else."""
    for choice in accept.split(","):
        media_type, *parameters = (word.strip().lower() for word in choice.split(";"))
        if media_type == "application/openmetrics-text":
            said = dict(word.partition("=")[::2] for word in parameters)
            if said.get("version", "1.0.0") == "1.0.0" and said.get("q", "1").strip("0.") != "":
                return OPENMETRICS
    return TEXT


def _number(value: float) -> str:
    text: str = floatToGoString(value)  # type: ignore[no-untyped-call]
    return text
