"""Imported by SGLang's multimodal code, never used here."""
