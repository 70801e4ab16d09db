"""Past events of generations, the progress of a handover that a command follows, and the rules for a release."""
