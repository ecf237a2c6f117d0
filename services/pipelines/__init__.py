"""What the roles compute."""
