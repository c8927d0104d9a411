"""The ledger as one HTML file that needs no network."""
