"""The runtime's package, for the import paths that tools use."""
