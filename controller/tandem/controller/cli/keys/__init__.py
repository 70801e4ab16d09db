"""Commands about keys and rights: `keys`, `signing-key`, `policy`."""
