"""Reading --workers."""

from __future__ import annotations

import pytest

from router.kubernetes import api_url, check_api_url
from router.sources import DnsName, KubernetesService, parse_sources, source


def test_addresses_names_and_services_are_told_apart() -> None:
    """host:port is one worker, dns:host:port a name, k8s:a/b a service; what is given twice counts once."""
    values = ["10.0.0.1:50051", "dns:workers.ns.svc:50051", "[::1]:1", "k8s:ns/workers:grpc", "10.0.0.1:50051"]
    sources = parse_sources([*values, "k8s:ns/workers", "k8s:ns/workers:grpc"])
    assert sources.static == ("10.0.0.1:50051", "[::1]:1")
    assert sources.names == (DnsName("workers.ns.svc", 50051),)
    assert sources.services == (KubernetesService("ns", "workers", "grpc"), KubernetesService("ns", "workers"))
    assert [str(service) for service in sources.services] == ["k8s:ns/workers:grpc", "k8s:ns/workers"]


@pytest.mark.parametrize("value", ["worker", "worker:", ":50051", "worker:0", "worker:70000", "dns:worker", "w:x"])
def test_what_is_no_address_is_refused(value: str) -> None:
    """The sentence says what was expected."""
    with pytest.raises(ValueError, match="must be host:port with a port from 1 to 65535"):
        source(value)


@pytest.mark.parametrize(
    "value", ["k8s:", "k8s:ns", "k8s:ns/", "k8s:/s", "k8s:ns/s/t", "k8s:NS/s", "k8s:ns/s:", "k8s:ns/s:-p", "k8s:h:1"]
)
def test_what_is_no_service_is_refused(value: str) -> None:
    """So does this one: nothing but the names of Kubernetes gets into a URL."""
    with pytest.raises(ValueError, match="must be k8s:NAMESPACE/SERVICE"):
        source(value)


@pytest.mark.parametrize(
    ("option", "environ", "url"),
    [
        ("", {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}, "https://10.0.0.1:6443"),
        ("", {"KUBERNETES_SERVICE_HOST": "fd00::1"}, "https://[fd00::1]:443"),
        ("https://api.test/", {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "https://api.test"),
        ("", {}, ""),
    ],
)
def test_the_api_server_is_that_of_the_pod_unless_one_is_named(option: str, environ: dict[str, str], url: str) -> None:
    """The variables are those that Kubernetes sets in every pod."""
    assert api_url(option, environ) == url


@pytest.mark.parametrize(
    "url", ["http://10.0.0.1:8001", "http://api.test", "ftp://127.0.0.1", "10.0.0.1:443", "https://", ""]
)
def test_a_token_never_goes_out_in_the_clear(url: str) -> None:
    """Without TLS there is only loopback, where kubectl's proxy listens."""
    with pytest.raises(ValueError, match="must be https"):
        check_api_url(url)
    for fine in ("https://api.test:6443", "http://127.0.0.1:8001", "http://[::1]:8001"):
        check_api_url(fine)
