"""May it ship? Figures of reward models and policies, judges, gates, and the report a person reads."""
