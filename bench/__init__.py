"""Benchmarks of kvrelay: the same rows for people (a table) and for programs (JSON)."""
