"""The paper: its tables and plots made again from runs, and one page of all."""
