"""What the tests of the models compile is run once or twice."""

import pytest


@pytest.fixture(autouse=True)
def _quickly_compiled(quickly_compiled):
    """Every program of this folder."""
