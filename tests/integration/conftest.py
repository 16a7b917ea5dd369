"""What tests of this folder share: an environment with the built wheel."""

from tests.support.wheels import wheel_environment

__all__ = ["wheel_environment"]
