"""The embedded flags benchmark, the expert's traces on it, and the tiny policy."""
