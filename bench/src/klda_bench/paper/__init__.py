"""The paper: its figures, and its tables and plots made again from runs."""
