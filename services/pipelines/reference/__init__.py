"""A small text-to-image latent diffusion model that ships with the package, trained by `training/`."""
