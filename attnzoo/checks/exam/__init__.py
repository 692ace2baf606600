"""What the suite is examined with: planted faults, questions that tell them apart, the diagnosis, the exam itself."""
