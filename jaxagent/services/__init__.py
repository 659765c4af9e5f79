"""What tools and rewards ask of others: summaries, by rule or by an endpoint."""
