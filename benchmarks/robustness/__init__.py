"""What a user can do wrong, and what the library says of it."""
