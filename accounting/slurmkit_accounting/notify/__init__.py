"""Notices to people by mail and webhook, each sent once."""
