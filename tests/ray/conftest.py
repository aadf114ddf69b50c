"""One Ray cluster on this machine for each file of tests; actors take nothing of it, so it needs two CPUs."""

# pyright: reportUnknownMemberType=false
import threading
from collections.abc import Generator

import pytest

from assay.remote.ray.cluster import connect


@pytest.fixture(scope="module")
def cluster() -> Generator[str]:
    """The address of a running cluster, to which this process is connected."""
    ray = pytest.importorskip("ray", reason="the package ray is not installed")
    # From a thread that ends, as a pool's does: the cluster must outlive it.
    asking = threading.Thread(target=lambda: connect("local", where="tests"))
    asking.start()
    asking.join()
    yield "local"
    ray.shutdown()
