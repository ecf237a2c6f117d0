"""What moves bytes from this service's pool into another's, behind `base.Engine`."""
