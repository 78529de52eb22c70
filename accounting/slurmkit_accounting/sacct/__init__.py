"""What sacct and sreport print, as rows."""
