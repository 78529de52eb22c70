"""The form that submits a job: fields, findings of the plan, and submission."""
