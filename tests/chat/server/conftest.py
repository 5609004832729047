"""One server with a random model for all tests that leave nothing behind."""

import pytest

from chat.server.servers import RunningServer, running_server, tiny_model


@pytest.fixture(scope="session")
def server():
    with running_server(tiny_model()) as running:
        yield running


@pytest.fixture
def client(server: RunningServer):
    with server.client() as made:
        yield made
