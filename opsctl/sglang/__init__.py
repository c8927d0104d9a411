"""What opsctl knows about SGLang: its HTTP interface, its log, its package."""
