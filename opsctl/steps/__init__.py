"""The steps that plans are made of."""
