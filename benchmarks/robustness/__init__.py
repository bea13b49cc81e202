"""Mistakes that users can make, and the library's answers."""
