"""Triptych serves diffusion models as separate pools of encoders, denoisers and decoders."""
