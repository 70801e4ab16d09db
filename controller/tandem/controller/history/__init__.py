"""Past events of a pair's generations, the progress of a handover, and the rules for a release."""
