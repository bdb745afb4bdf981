"""Bundles for machines without a network: code, wheels and checked data in archives, and a script to unpack them."""
