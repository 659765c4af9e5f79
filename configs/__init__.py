"""Experiments: one file each, built on `base.py`, which is the manual of every field."""
