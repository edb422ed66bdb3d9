"""Mutation testing of machine/ and policy/: small changes by machine, and how many of them tests notice."""
