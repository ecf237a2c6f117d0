"""Scripts that draw the training pictures and train the `reference` pipeline. Not packaged."""
