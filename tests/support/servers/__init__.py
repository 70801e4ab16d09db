"""Small servers on loopback: HTTP, TLS, tokens, and object stores that misbehave."""
