"""How right samples are, compared with exact posteriors."""
