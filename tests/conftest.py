"""What all tests share."""

from hypothesis import HealthCheck, settings

settings.register_profile("triptych", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("triptych")
