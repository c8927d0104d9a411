"""Programs for the checkout, not for users: what is generated from the code."""
