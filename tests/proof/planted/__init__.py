"""Planted defects: small wrong changes, each made in a copy of the product, and the tests that catch each."""
