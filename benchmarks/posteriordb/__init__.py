"""`sample` on posteriors of Stan's posteriordb, taken as they are, beside their reference draws."""
