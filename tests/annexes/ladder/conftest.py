"""What tests of sweeps share."""

from sweep.conftest import fixed as fixed
