"""Results that are too large for one message: kept here until they are fetched."""
