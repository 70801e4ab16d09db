"""`tandem demo`: backs up, hands over and restores a real topic on the sandbox, and reports figures of each step."""
