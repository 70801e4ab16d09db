"""What happened to a pair's generations, what a handover is doing, and what may be released."""
