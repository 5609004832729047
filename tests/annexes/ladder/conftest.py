"""What tests of sweeps share."""

from ladder.conftest import fixed as fixed
