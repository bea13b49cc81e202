"""How well networks predict, and know what they do not know, by training and by sampling."""
