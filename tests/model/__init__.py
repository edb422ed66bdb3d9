"""Tests of the words: content, types, names."""
