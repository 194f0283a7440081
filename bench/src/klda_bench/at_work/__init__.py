"""klda beside other packages at the job that users have: texts come, a few at a time."""
