"""Nests of state parts, argument checks, and code for particular devices and compilers."""
