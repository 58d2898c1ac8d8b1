"""Features instead of data: records leave through a local front end."""
