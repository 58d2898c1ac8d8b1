"""A student learns from a teacher's answers, from hints and from public labels."""
