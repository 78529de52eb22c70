"""Telling people: mail, webhooks, and what has been told to whom."""
