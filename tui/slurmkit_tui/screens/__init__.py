"""Screens beside the views: job, help, palette, jump and proposals."""
