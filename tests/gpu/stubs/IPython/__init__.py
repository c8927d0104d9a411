"""Imported by SGLang's entry point, never used by a server."""
