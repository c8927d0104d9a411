"""The agent: one program that is sent to a host, and the client that talks to it."""
