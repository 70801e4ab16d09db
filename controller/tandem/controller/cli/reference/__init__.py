"""What is generated from the commands: `command_page` writes docs/cli.md, `schemas` the JSON Schemas in docs/schemas.

`documents` names the dataclass that each command prints for scripts. These modules import every command; no command
imports them.
"""
