"""Runs real engines in processes of their own and asks them things. See process.py."""
