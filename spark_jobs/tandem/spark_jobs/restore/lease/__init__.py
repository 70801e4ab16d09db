"""Who may run a restore, and how far restores are: the topic `_tandem_restore_progress` on the target cluster."""
