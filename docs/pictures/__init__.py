"""The pictures of the gallery, each made by a command: `python -m docs.pictures [NAME ...]`."""
