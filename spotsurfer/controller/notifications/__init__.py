"""Messages to people and webhooks to programs, both made of the timeline."""
