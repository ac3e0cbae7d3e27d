"""The decision log: one record per request, in files that any tool reads; see segments.py."""
