"""Screens on top of the views: job, help, palette, jump and proposals."""
