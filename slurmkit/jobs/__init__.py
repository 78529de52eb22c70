"""Jobs once they are submitted: handles, what became of them, their logs, one shared poller."""
