"""Kept samples of a `fit`, in memory or on disk, and the fingerprint of its problem."""
