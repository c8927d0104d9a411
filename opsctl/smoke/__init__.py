"""The smoke engine: load, levels, judgement, reports."""
