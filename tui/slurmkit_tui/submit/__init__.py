"""The form that submits a job: fields, what a plan says of them, and the sending."""
