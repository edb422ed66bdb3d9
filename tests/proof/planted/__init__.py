"""Planted defects: small wrong changes, each made in a copy of the product, and tests that catch each."""
