"""Runs a network: which implementations, at which precision, with which expert weights."""
