"""Pure decisions: facts in, plans and verdicts out. Nothing here does I/O."""
