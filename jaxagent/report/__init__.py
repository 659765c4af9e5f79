"""The page that a run leaves behind: figures, curves, tables and dialogues in one HTML file."""
