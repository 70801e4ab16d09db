"""Which run may work on a plan: its record on the target cluster, other runs there, and the fencing of earlier ones."""
