"""The Textual app: navigation, polling and start-up."""
