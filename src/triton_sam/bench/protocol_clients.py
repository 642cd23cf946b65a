"""Clients for every protocol of a target, and the bar chart that compares them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from triton_sam.bench.charts import Chart, Curve, Panel
from triton_sam.bench.samples import Series
from triton_sam.bench.target import Target
from triton_sam.client.link import ModelLink
from triton_sam.client.sync_client import SAM2TritonClient


@contextlib.contextmanager
def protocol_clients(target: Target) -> Iterator[dict[str, SAM2TritonClient]]:
    """Protocol -> a client that has the image set."""
    with contextlib.ExitStack() as stack:
        clients = {protocol: stack.enter_context(target.client(protocol)) for protocol in target.urls}
        for client in clients.values():
            client.set_image(target.pictures.jpeg())
        yield clients


@contextlib.contextmanager
def protocol_links(target: Target) -> Iterator[dict[str, ModelLink]]:
    """Protocol -> a link, which returns the server's raw outputs."""
    with contextlib.ExitStack() as stack:
        links = {protocol: target.link(protocol) for protocol in target.urls}
        for link in links.values():
            stack.callback(link.transport.close)
        yield links


def times_chart(name: str, title: str, groups: Mapping[str, Sequence[Series]], labels: Sequence[str]) -> Chart:
    """Medians as bars: in each group one bar for every label."""
    curves = [
        Curve(
            group,
            [series.median for series in every],
            low=[series.percentile(5) for series in every],
            high=[series.percentile(95) for series in every],
        )
        for group, every in groups.items()
    ]
    return Chart(name, f"{title}; medians, lines from p5 to p95", [Panel("", "time, ms", curves, "bars", labels)])
