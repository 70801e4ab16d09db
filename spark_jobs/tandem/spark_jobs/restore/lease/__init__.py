"""The lease to run a restore, and the progress of restores: `_tandem_restore_progress` on the target cluster."""
