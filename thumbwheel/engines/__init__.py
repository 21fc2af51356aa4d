"""Engines that generate: a sampler protocol and our own batch sampler."""
