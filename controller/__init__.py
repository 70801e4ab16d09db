"""Roles of the pair: observe, decide, apply, execute; the coordination topic; configuration and the command line."""
