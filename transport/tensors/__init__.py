"""Tensors from service to service: the pool, its manifests, ordered copies, and the engines that move the bytes.

`manager.DiffusionTransferManager` is what a service uses; everything else is behind it.
"""
