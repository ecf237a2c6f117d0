"""The services: one runtime, three roles, and the pipelines they compute."""
