"""Two records compared: their figures over time, the first difference beyond tolerance, and their settings."""
