"""Jobs that survive: what a run does before its time limit, a preemption or a lost node ends it."""
