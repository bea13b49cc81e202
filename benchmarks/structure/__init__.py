"""The structure of the package: files, folders, imports, and the files that a call passes."""
