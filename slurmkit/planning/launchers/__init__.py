"""Launchers: how a job's command is started on its nodes."""
