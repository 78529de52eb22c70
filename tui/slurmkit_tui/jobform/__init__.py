"""The submit form's data, without Textual."""
