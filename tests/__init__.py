"""The tests, and the lab that they run in."""
