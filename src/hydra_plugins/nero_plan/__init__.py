"""Hydra finds its plugins here."""
