"""Damage to a stored backup: whether it is seen, and whether a restore would hand on one wrong record."""
