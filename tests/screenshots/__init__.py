"""Pictures of the status page for docs/status-page.md: a real pair in three states, seen through a real browser."""
